"""Clients of the simulation: they wait as long as they like, go away, and ask the same again."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

from gateway.http.responses import LegacyResponse
from tests.simulation.gateway import Asked, Gateway, Line

TRIES = 16
"""After so many in a town that is well again, a client gives up."""

"""After so many, where what it waits for can never be told."""

LONGEST_WAIT = 15.0


class Town(Protocol):
    is_calm: bool
    gateways: Sequence[Gateway]
    counts: Counter[str]

    def told(self, *what: Any) -> None:
        """Takes note of something that happened."""


async def told(town: Town, asked: Asked, dice: random.Random, at: int = 0) -> LegacyResponse | None:
    """The answer that is one: neither 500 nor 429. None where there was none in the end.

    It is mostly asked of the gateway ``at``.
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


def _pause(said: LegacyResponse | None, dice: random.Random, *, calm: bool) -> float:
    if said and calm and "Retry-After" in said.headers:
        return float(said.headers["Retry-After"])
    return dice.choice((0.0, 0.0, 0.1, 0.5, 2.0, 5.0)) + (3.0 if calm else 0.0)


async def _asked(
    gateway: Gateway, asked: Asked, town: Town, dice: random.Random
) -> LegacyResponse | None:
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
        if line.heard.done():  # at that very moment
            return line.heard.result()
        line.leave()
        return None
