"""Gateway processes, forked from a warm one: see ``tests.gateway_forker``."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp

from gateway.config.settings import Settings
from tests.processes import build_command
from tests.running_gateway import KEY, GatewayResponse

TIMEOUT_SECONDS = 60
"""Limit for a start or a shutdown on a busy machine."""

_NUMBERS = itertools.count(1)


@dataclass(slots=True, eq=False)
class GatewayProcess:
    """One gateway process; ``code`` is its exit code once it has ended."""

    forker: GatewayForker
    name: str
    pid: int
    port: int
    log: Path
    code: asyncio.Future[int]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def advance_clock(self) -> None:
        self.kill(signal.SIGUSR1)

    async def stop(self, number: signal.Signals = signal.SIGKILL) -> int:
        self.kill(number)
        return await self.wait()

    async def wait(self) -> int:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await asyncio.shield(self.code)


@dataclass(slots=True)
class GatewayForker:
    process: subprocess.Popen[bytes]
    starting: dict[str, asyncio.Future[GatewayProcess]] = field(default_factory=dict)
    children: dict[int, GatewayProcess] = field(default_factory=dict)

    async def start(
        self,
        settings: Settings,
        folder: Path,
        lease_seconds: float | None = None,
        skew_seconds: float = 0.0,
        kill_point: int | None = None,
    ) -> GatewayProcess:
        """Starts a gateway; ``skew_seconds`` is how far its wall clock is ahead.

        It kills itself at ``kill_point``, counted while there is a file ``armed`` in the folder.
        """
        name, log = f"child {next(_NUMBERS)}", folder / "stderr"
        order: dict[str, Any] = {"name": name, "log": str(log), "skew_seconds": skew_seconds}
        order["settings"] = settings.model_dump(mode="json", exclude_unset=True)
        if lease_seconds is not None:
            order["lease_seconds"] = lease_seconds
        if kill_point is not None:
            order["kill_point"] = kill_point
        self.starting[name] = asyncio.get_running_loop().create_future()
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            child = await self.starting[name]
        child.log = log
        return child

    async def read_events(self, events: asyncio.StreamReader) -> None:
        while line := await events.readline():
            event = json.loads(line)
            if "port" in event:
                starting = self.starting.pop(event["name"], None)
                if starting is None:  # of a test that did not wait for it
                    os.kill(event["pid"], signal.SIGKILL)
                    continue
                code = asyncio.get_running_loop().create_future()
                child = GatewayProcess(
                    self, event["name"], event["pid"], event["port"], Path(), code
                )
                self.children[event["pid"]] = child
                starting.set_result(child)
            elif child_ended := self.children.pop(event["pid"], None):
                child_ended.code.set_result(event["code"])
            elif waiting := self.starting.pop(event["name"], None):
                waiting.set_exception(RuntimeError(f"it ended with {event['code']}"))


@cache
def _start_forker() -> subprocess.Popen[bytes]:
    """Starts the process that forks gateways, once for all tests: it takes seconds."""
    command = build_command("tests.gateway_forker")
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(process.communicate)  # it ends when its input does
    return process


@asynccontextmanager
async def open_forker() -> AsyncIterator[GatewayForker]:
    forker = GatewayForker(_start_forker())
    assert forker.process.stdout is not None
    events = asyncio.StreamReader()
    # A copy, because each test has an event loop of its own, which closes what it reads.
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(events),
        os.fdopen(os.dup(forker.process.stdout.fileno()), "rb", buffering=0),
    )
    reader_task = asyncio.create_task(forker.read_events(events))
    try:
        yield forker
    finally:
        for child in list(forker.children.values()):
            child.kill(signal.SIGCONT)
            await child.stop()
        reader_task.cancel()
        transport.close()


async def request_gateway(
    session: aiohttp.ClientSession, child: GatewayProcess, method: str, path: str, **options: Any
) -> GatewayResponse | None:
    """The response; None if there was none."""
    headers = {"X-API-Key": KEY["api_key"], **options.pop("headers", {})}
    try:
        async with session.request(
            method, child.url + path, headers=headers, **options
        ) as response:
            text = await response.text()
            return GatewayResponse(response.status, response.headers, text, json.loads(text))
    except aiohttp.ClientError:
        return None


def find_memory_folder() -> str | None:
    """A folder in memory if there is one: no test needs to survive a power failure."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
