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
from gateway.storage import Store, open_store
from gateway.writes import executor
from tests.payouts import create_recipient
from tests.running_gateway import GatewayUnderTest, open_gateway
from tests.simulator import Fault, Service, ServiceOptions, Simulator, start_simulator
from tests.state import open_state

RESPONSE_LOST = {"close": "after"}
"""The service executes the request, then closes the connection."""


@dataclass
class AdjustableClock:
    """A monotonic clock that can be advanced."""

    ahead_seconds: float = 0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_seconds


class CommandsBesideGateway:
    """Commands that use the folder of a running gateway."""

    folder: Path

    async def run_json_command(self, *arguments: str, code: int = 0) -> Any:
        """The JSON document that a command prints with ``--json``."""
        result = await run_command(self.folder, *arguments, "--json", code=code)
        return json.loads(result.stdout)

    async def list_writes_in_doubt(self) -> Any:
        return (await self.run_json_command("writes", "unsettled"))["writes"]

    async def find_write_in_doubt(self) -> Any:
        """The only write in doubt."""
        (write,) = await self.list_writes_in_doubt()
        return write

    async def wait_until_nothing_in_doubt(self, seconds: float = 60) -> None:
        async def is_nothing_in_doubt() -> bool:
            return not await self.list_writes_in_doubt()

        await wait_until_async(is_nothing_in_doubt, seconds)


@dataclass
class OperatedGateway(CommandsBesideGateway):
    """A gateway, its service, and commands that use its folder."""

    gateway: GatewayUnderTest
    service: Service
    clock: AdjustableClock
    folder: Path

    def add_fault(self, method: str, path: str, **options: Any) -> None:
        self.service.faults.append(Fault(method, path, **options))

    def count_calls(self, method: str, path: str) -> int:
        return len(self.service.list_requests(method, path))

    async def run_command(self, *arguments: str, code: int = 0) -> Result:
        return await run_command(self.folder, *arguments, code=code)

    async def age_sent_writes(self) -> None:
        """Advances every clock past the time in which a sent write could still be executed."""
        self.clock.ahead_seconds += 60
        async with open_state(self.gateway.settings) as state:
            await state.age_writes(60)

    @asynccontextmanager
    async def open_store(self) -> AsyncIterator[Store]:
        async with open_store(self.gateway.settings.state) as store:
            yield store


async def run_command(folder: Path, *arguments: str, code: int | None = 0) -> Result:
    """Runs a command with the folder's configuration; ``code`` is its exit code, None is any."""
    command_line = [*arguments, "--config", str(folder / "gateway.toml")]
    result = await asyncio.to_thread(CliRunner().invoke, gateway, command_line)
    has_expected_code = code is None or result.exit_code == code
    assert has_expected_code, (arguments, result.exit_code, result.output, result.exception)
    return result


def write_configuration(folder: Path, base_url: str) -> None:
    (folder / "gateway.toml").write_text(
        f'[server]\nport = 0\nadmin_port = 0\n[environments.sandbox]\nbase_url = "{base_url}"\n'
        f'[state]\nurl = "sqlite:///{folder}/gateway.db"\n'
        f'encryption_key_file = "{folder}/gateway.key"\n'
    )


@contextmanager
def log_to_file(folder: Path) -> Iterator[None]:
    """Sends the gateway's log to a file, because the commands beside it write to stdout."""
    with (folder / "log").open("w", buffering=1) as log:
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(log))
        try:
            yield
        finally:  # or tests after a failed one would log to a closed file
            structlog.reset_defaults()


def read_log(folder: Path) -> str:
    return (folder / "log").read_text("utf-8")


@contextmanager
def disable_immediate_read() -> Iterator[None]:
    """Keeps lost writes in doubt, as if the service could not be read right after them."""
    original_seconds, executor.READ_BACK_SECONDS = executor.READ_BACK_SECONDS, 0.0
    try:
        yield
    finally:
        executor.READ_BACK_SECONDS = original_seconds


@asynccontextmanager
async def open_operated_gateway(
    folder: Path, *, seconds: float = 3, sections: Any = None, **service_options: Any
) -> AsyncIterator[OperatedGateway]:
    service = Service(options=ServiceOptions(**service_options), seed=1)
    simulator: Simulator = await start_simulator(service=service)
    clock = AdjustableClock()
    write_configuration(folder, simulator.url)
    upstream = {"timeout_seconds": seconds, **(sections or {}).get("upstream", {})}
    try:
        with log_to_file(folder):
            all_sections = {**(sections or {}), "upstream": upstream}
            async with open_gateway(folder, simulator.url, clock, **all_sections) as gateway:
                with disable_immediate_read():
                    yield OperatedGateway(gateway, service, clock, folder)
    finally:
        await simulator.stop()


BATCH = {"sourceCurrency": "USD", "description": "payday"}


async def lose_batch_create(
    operated: OperatedGateway, recipient: str | None = None
) -> dict[str, Any]:
    """Creates a batch whose response is lost; returns the request's body."""
    recipient = recipient or await create_recipient(operated.gateway)
    payments = [{"recipient": {"id": recipient}, "sourceAmount": "10.00"}]
    body = {**BATCH, "payments": payments}
    operated.add_fault("POST", "/v1/batches", **RESPONSE_LOST)
    assert (await operated.gateway.request("POST", "/v1/batches", body)).status == 500
    return body


async def wait_until_async(is_met: Callable[[], Awaitable[bool]], seconds: float = 60) -> None:
    """Waits until a background task makes the condition true."""
    loop, pause_seconds = asyncio.get_running_loop(), 0.05
    async with asyncio.timeout(seconds):
        started_at = loop.time()
        while not await is_met():
            # A command computes for longer, and must not take the time of what it waits for.
            pause_seconds = min(max(pause_seconds, 2 * (loop.time() - started_at)), 0.5)
            await asyncio.sleep(pause_seconds)
            started_at = loop.time()
