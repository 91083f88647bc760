"""Runs a gateway and a simulator in another thread, for clients that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.simulator import Service, start
from tests.house import House, open_house


@dataclass(frozen=True, slots=True)
class Aside:
    """The gateway, its service, and the event loop that runs both."""

    house: House
    service: Service
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        return self.house.running.url


@contextmanager
def aside(folder: Path, service: Service, **sections: Mapping[str, Any]) -> Iterator[Aside]:
    """Runs until the context ends. Raises what fails at the start."""
    begun: list[Aside | BaseException] = []
    told, over = threading.Event(), asyncio.Event()

    async def run() -> None:
        simulator = await start(service=service)
        try:
            async with open_house(folder, simulator.url, **sections) as house:
                begun.append(Aside(house, service, asyncio.get_running_loop()))
                told.set()
                await over.wait()
        finally:
            await simulator.stop()

    def work() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:  # noqa: BLE001 - for the thread that waits
            begun.append(error)
        finally:
            told.set()

    thread = threading.Thread(target=work, name="aside")
    thread.start()
    told.wait()
    first = begun[0]
    if isinstance(first, BaseException):
        thread.join()
        raise first
    try:
        yield first
    finally:
        first.loop.call_soon_threadsafe(over.set)
        thread.join()
    assert len(begun) == 1, begun[1:]
