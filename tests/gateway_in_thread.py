"""Runs a gateway and a simulator in another thread, for clients that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.running_gateway import GatewayUnderTest, open_gateway
from tests.simulator import Service, start_simulator


@dataclass(frozen=True, slots=True)
class GatewayInThread:
    """The gateway, its service, and the event loop that runs both."""

    gateway: GatewayUnderTest
    service: Service
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        return self.gateway.running.url


@contextmanager
def run_gateway_in_thread(
    folder: Path, service: Service, **sections: Mapping[str, Any]
) -> Iterator[GatewayInThread]:
    """Runs until the context ends. Raises what fails at the start."""
    outcomes: list[GatewayInThread | BaseException] = []
    has_started, should_stop = threading.Event(), asyncio.Event()

    async def run() -> None:
        simulator = await start_simulator(service=service)
        try:
            async with open_gateway(folder, simulator.url, **sections) as gateway:
                outcomes.append(GatewayInThread(gateway, service, asyncio.get_running_loop()))
                has_started.set()
                await should_stop.wait()
        finally:
            await simulator.stop()

    def run_thread() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:  # noqa: BLE001 - for the thread that waits
            outcomes.append(error)
        finally:
            has_started.set()

    thread = threading.Thread(target=run_thread, name="aside")
    thread.start()
    has_started.wait()
    outcome = outcomes[0]
    if isinstance(outcome, BaseException):
        thread.join()
        raise outcome
    try:
        yield outcome
    finally:
        outcome.loop.call_soon_threadsafe(should_stop.set)
        thread.join()
    assert len(outcomes) == 1, outcomes[1:]
