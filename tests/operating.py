"""Runs operator commands beside a gateway in front of a service that can lose responses."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from click.testing import CliRunner, Result

from gateway.cli import gateway
from gateway.simulator import Fault, Service, Simulator, Switches, start
from gateway.storage import Store, open_store
from gateway.writes import player
from tests.house import House, open_house
from tests.payday import make_recipient
from tests.state import open_state

LOST = {"close": "after"}
"""The service executes the request, then closes the connection."""


@dataclass
class Ticks:
    """A monotonic clock that can be advanced."""

    ahead: float = 0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@dataclass
class Post:
    """A gateway, its service, and commands that use its folder."""

    house: House
    service: Service
    ticks: Ticks
    folder: Path

    def breaks(self, method: str, path: str, **what: Any) -> None:
        self.service.faults.append(Fault(method, path, **what))

    def sent(self, method: str, path: str) -> int:
        return len(self.service.calls(method, path))

    async def says(self, *words: str, code: int = 0) -> Result:
        return await says(self.folder, *words, code=code)

    async def told(self, *words: str, code: int = 0) -> Any:
        """The JSON document that a command prints with ``--json``."""
        return json.loads((await self.says(*words, "--json", code=code)).stdout)

    async def lapse(self) -> None:
        """Advances every clock past the time in which a sent write could still be executed."""
        self.ticks.ahead += 60
        async with open_state(self.house.settings) as state:
            await state.age_writes(60)

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        async with open_store(self.house.settings.state) as store:
            yield store


async def says(folder: Path, *words: str, code: int = 0) -> Result:
    """Runs a command with the folder's configuration."""
    arguments = [*words, "--config", str(folder / "gateway.toml")]
    done = await asyncio.to_thread(CliRunner().invoke, gateway, arguments)
    assert done.exit_code == code, (words, done.exit_code, done.output, done.exception)
    return done


def configure(folder: Path, base_url: str) -> None:
    (folder / "gateway.toml").write_text(
        f'[environments.sandbox]\nbase_url = "{base_url}"\n'
        f'[state]\nurl = "sqlite:///{folder}/gateway.db"\n'
        f'encryption_key_file = "{folder}/gateway.key"\n'
    )


@contextmanager
def logged_apart(folder: Path) -> Iterator[None]:
    """Sends the gateway's log to a file, because the commands beside it write to stdout."""
    with (folder / "log").open("w", buffering=1) as log:
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(log))
        try:
            yield
        finally:  # or tests after a failed one would log to a closed file
            structlog.reset_defaults()


def logged(folder: Path) -> str:
    return (folder / "log").read_text("utf-8")


@contextmanager
def no_reading_at_once() -> Iterator[None]:
    """Keeps lost writes in doubt, as if the service could not be read right after them."""
    before, player.SEEN_WITHIN = player.SEEN_WITHIN, 0.0
    try:
        yield
    finally:
        player.SEEN_WITHIN = before


@asynccontextmanager
async def post(
    folder: Path, *, seconds: float = 3, sections: Any = None, **switches: Any
) -> AsyncIterator[Post]:
    service = Service(switches=Switches(**switches), seed=1)
    simulator: Simulator = await start(service=service)
    ticks = Ticks()
    configure(folder, simulator.url)
    upstream = {"timeout_seconds": seconds, **(sections or {}).get("upstream", {})}
    try:
        with logged_apart(folder):
            laid = {**(sections or {}), "upstream": upstream}
            async with open_house(folder, simulator.url, ticks, **laid) as house:
                with no_reading_at_once():
                    yield Post(house, service, ticks, folder)
    finally:
        await simulator.stop()


BATCH = {"sourceCurrency": "USD", "description": "payday"}


async def lose_a_batch(here: Post, recipient: str | None = None) -> dict[str, Any]:
    """Creates a batch whose response is lost; returns the request's body."""
    recipient = recipient or await make_recipient(here.house)
    payments = [{"recipient": {"id": recipient}, "sourceAmount": "10.00"}]
    body = {**BATCH, "payments": payments}
    here.breaks("POST", "/v1/batches", **LOST)
    assert (await here.house.ask("POST", "/v1/batches", body)).status == 500
    return body


async def eventually(so: Callable[[], Awaitable[bool]], seconds: float = 20) -> None:
    """Waits until a background task makes the condition true."""
    async with asyncio.timeout(seconds):
        while not await so():  # noqa: ASYNC110 - what it waits for is in a database
            await asyncio.sleep(0.05)
