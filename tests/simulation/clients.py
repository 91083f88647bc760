"""Clients of the simulation: they wait, disconnect and retry."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

from tests.simulation.assembly import (
    ClientConnection,
    Gateway,
    LegacyRequest,
    Response,
    SignedRequest,
)

MAX_TRIES = 16
"""Attempts after the faults have ended, before a client gives up."""
MAX_TRIES_BEFORE_VERDICT = 40
"""The same if an operator may have to settle the write, whose verdict is refused for 35 s."""

MAX_WAIT_SECONDS = 15.0


class ClientEnvironment(Protocol):
    is_undisturbed: bool
    gateways: Sequence[Gateway]
    counts: Counter[str]

    def log(self, *words: Any) -> None:
        """Records an event in the trace."""


async def request_until_answered(
    environment: ClientEnvironment,
    request: LegacyRequest,
    random_source: random.Random,
    gateway_index: int = 0,
) -> Response | None:
    """Retries until the response is neither 5xx, 429 nor 403; None if the client gives up.

    403 says that nothing was executed: a clock was set while a refused signature was corrected.

    Most attempts go to the gateway at ``gateway_index``.
    """
    undisturbed_tries = 0
    max_tries = MAX_TRIES_BEFORE_VERDICT if request.changes_modes else MAX_TRIES
    while undisturbed_tries < max_tries:
        gateway_index = (
            gateway_index
            if random_source.random() < 0.6
            else random_source.randrange(len(environment.gateways))
        )
        gateway = environment.gateways[gateway_index % len(environment.gateways)]
        response = await request_once(gateway, request, environment, random_source)
        environment.log(f"{request} was answered {response.status if response else 'nothing'}")
        if response and response.status not in (403, 429) and response.status < 500:
            return response
        # One that is down, or paused while it starts, is not an attempt.
        undisturbed_tries += environment.is_undisturbed and is_up(gateway)
        await asyncio.sleep(
            _choose_pause(response, random_source, is_undisturbed=environment.is_undisturbed)
        )
    return None


def _choose_pause(
    response: Response | None, random_source: random.Random, *, is_undisturbed: bool
) -> float:
    if response and is_undisturbed and "Retry-After" in response.headers:
        return float(response.headers["Retry-After"])
    return random_source.choice((0.0, 0.0, 0.1, 0.5, 2.0, 5.0)) + (3.0 if is_undisturbed else 0.0)


def is_up(gateway: Gateway) -> bool:
    return gateway.is_open and not gateway.process.is_dead


async def request_once(
    gateway: Gateway,
    request: LegacyRequest | SignedRequest,
    environment: ClientEnvironment,
    random_source: random.Random,
) -> Response | None:
    """The response to one attempt; None if there is none in time."""
    await asyncio.sleep(random_source.choice((0.0, 0.001, 0.01)))
    if not is_up(gateway):
        return None
    connection = ClientConnection()
    gateway.accept(request, connection)
    return await wait_for_response(connection, environment, random_source)


async def wait_for_response(
    connection: ClientConnection, environment: ClientEnvironment, random_source: random.Random
) -> Response | None:
    """The response to a request that was sent; None if its client gives up before it comes."""
    max_wait_seconds = (
        MAX_WAIT_SECONDS
        if environment.is_undisturbed
        else random_source.choice((0.01, 0.05, 0.3, 2.0, 8.0, 30.0))
    )
    try:
        async with asyncio.timeout(max_wait_seconds):
            return await asyncio.shield(connection.response)
    except TimeoutError:
        if connection.response.done():  # the response arrived at the same moment
            return connection.response.result()
        connection.disconnect()
        return None
