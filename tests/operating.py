"""An operator's commands beside a gateway that runs, and a service whose answers can be lost."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import structlog
from click.testing import CliRunner, Result
from sqlalchemy import select, update

from gateway.cli import gateway
from gateway.simulator import Fault, Service, Simulator, Switches, start
from gateway.storage import Store, open_store
from gateway.storage.tables import writes
from gateway.writes import player
from tests.house import House, open_house
from tests.payday import make_recipient
from tests.states import execute, fetch

LOST = {"close": "after"}
"""It is executed, and nobody hears of it."""


@dataclass
class Ticks:
    """A monotonic clock that can be put forward."""

    ahead: float = 0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@dataclass
class Post:
    """A gateway, its service, and an operator at its folder."""

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
        """The one JSON document of a command."""
        return json.loads((await self.says(*words, "--json", code=code)).stdout)

    async def lapse(self) -> None:
        """Until nothing that was sent can be executed any more, by every clock."""
        self.ticks.ahead += 60
        async with self.store() as store:
            for row in await fetch(store, select(writes)):
                that = (writes.c.undertaking == row.undertaking, writes.c.number == row.number)
                earlier = row.entered_at - timedelta(seconds=60)
                await execute(store, update(writes).where(*that).values(entered_at=earlier))

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
    """Has the gateway's log go to a file: stdout is the commands' that run beside it."""
    with (folder / "log").open("w", buffering=1) as log:
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(log))
        try:
            yield
        finally:  # or every test after one that fails logs to a file that is closed
            structlog.reset_defaults()


def logged(folder: Path) -> str:
    return (folder / "log").read_text("utf-8")


@contextmanager
def no_reading_at_once() -> Iterator[None]:
    """Has lost writes stay in doubt, as if the service could not be read right after them."""
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
    """A batch create whose answer is lost, where the service lists none; its body."""
    recipient = recipient or await make_recipient(here.house)
    payments = [{"recipient": {"id": recipient}, "sourceAmount": "10.00"}]
    body = {**BATCH, "payments": payments}
    here.breaks("POST", "/v1/batches", **LOST)
    assert (await here.house.ask("POST", "/v1/batches", body)).status == 500
    return body


async def eventually(so: Callable[[], Awaitable[bool]], seconds: float = 20) -> None:
    """Waits for what a task that runs by itself does."""
    async with asyncio.timeout(seconds):
        while not await so():  # noqa: ASYNC110 - what it waits for is in a database
            await asyncio.sleep(0.05)
