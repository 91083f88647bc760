"""Clients of the simulation: they wait, disconnect and retry."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

from tests.simulation.assembly import Asked, Gateway, Line, Response

TRIES = 16
"""Attempts after the faults have ended, before a client gives up."""

LONGEST_WAIT = 15.0


class Town(Protocol):
    is_calm: bool
    gateways: Sequence[Gateway]
    counts: Counter[str]

    def told(self, *what: Any) -> None:
        """Records an event in the trace."""


async def told(town: Town, asked: Asked, dice: random.Random, at: int = 0) -> Response | None:
    """Retries until the response is neither 500 nor 429; None if the client gives up.

    Most attempts go to the gateway ``at``.
    """
    tries = 0
    while tries < TRIES:
        at = at if dice.random() < 0.6 else dice.randrange(len(town.gateways))
        said = await _asked(town.gateways[at % len(town.gateways)], asked, town, dice)
        town.told(f"{asked} was answered {said.status if said else 'nothing'}")
        if said and said.status not in (429, 500):
            return said
        tries += town.is_calm
        await asyncio.sleep(_pause(said, dice, calm=town.is_calm))
    return None


def _pause(said: Response | None, dice: random.Random, *, calm: bool) -> float:
    if said and calm and "Retry-After" in said.headers:
        return float(said.headers["Retry-After"])
    return dice.choice((0.0, 0.0, 0.1, 0.5, 2.0, 5.0)) + (3.0 if calm else 0.0)


async def _asked(
    gateway: Gateway, asked: Asked, town: Town, dice: random.Random
) -> Response | None:
    await asyncio.sleep(dice.choice((0.0, 0.001, 0.01)))
    if not gateway.is_open or gateway.process.is_dead:
        return None
    line = Line()
    gateway.take(asked, line)
    patience = LONGEST_WAIT if town.is_calm else dice.choice((0.01, 0.05, 0.3, 2.0, 8.0, 30.0))
    try:
        async with asyncio.timeout(patience):
            return await asyncio.shield(line.heard)
    except TimeoutError:
        if line.heard.done():  # the response arrived at the same moment
            return line.heard.result()
        line.leave()
        return None
