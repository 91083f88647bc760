"""Gateway processes, forked from a warm one: see ``tests.serve_ahead``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from gateway.config.settings import Settings
from tests.house import KEY, Got

SECONDS = 30
"""Limit for a start or a shutdown on a busy machine."""


@dataclass(slots=True, eq=False)
class Child:
    """One gateway process; ``code`` is its exit code once it has ended."""

    nursery: Nursery
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

    def put_ahead(self) -> None:
        self.kill(signal.SIGUSR1)

    async def ends(self, number: signal.Signals = signal.SIGKILL) -> int:
        self.kill(number)
        return await self.ended()

    async def ended(self) -> int:
        async with asyncio.timeout(SECONDS):
            return await asyncio.shield(self.code)

    def logged(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text("utf-8").splitlines()]
        return [line for line in lines if line.get("event") == event]


@dataclass(slots=True)
class Nursery:
    running: asyncio.subprocess.Process
    starting: dict[str, asyncio.Future[Child]] = field(default_factory=dict)
    children: dict[int, Child] = field(default_factory=dict)
    counted: int = 0

    async def start(
        self, settings: Settings, folder: Path, gone_seconds: float | None = None
    ) -> Child:
        self.counted += 1
        name, log = f"child {self.counted}", folder / "stderr"
        asked: dict[str, Any] = {"name": name, "log": str(log)}
        asked["settings"] = settings.model_dump(mode="json", exclude_unset=True)
        if gone_seconds is not None:
            asked["gone_seconds"] = gone_seconds
        self.starting[name] = asyncio.get_running_loop().create_future()
        assert self.running.stdin is not None
        self.running.stdin.write(json.dumps(asked).encode() + b"\n")
        async with asyncio.timeout(SECONDS):
            child = await self.starting[name]
        child.log = log
        return child

    async def read(self) -> None:
        assert self.running.stdout is not None
        while line := await self.running.stdout.readline():
            told = json.loads(line)
            if "port" in told:
                code = asyncio.get_running_loop().create_future()
                child = Child(self, told["name"], told["pid"], told["port"], Path(), code)
                self.children[told["pid"]] = child
                self.starting.pop(told["name"]).set_result(child)
            elif child_ended := self.children.pop(told["pid"], None):
                child_ended.code.set_result(told["code"])
            elif waiting := self.starting.pop(told["name"], None):
                waiting.set_exception(RuntimeError(f"it ended with {told['code']}"))


@asynccontextmanager
async def nursery() -> AsyncIterator[Nursery]:
    running = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.serve_ahead",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    made = Nursery(running)
    reading = asyncio.create_task(made.read())
    try:
        yield made
    finally:
        for child in list(made.children.values()):
            child.kill(signal.SIGCONT)
            child.kill()
        assert running.stdin is not None
        running.stdin.close()
        async with asyncio.timeout(SECONDS):
            await running.wait()
            await reading


async def ask(
    session: aiohttp.ClientSession, child: Child, method: str, path: str, **more: Any
) -> Got | None:
    """The response; None if there was none."""
    headers = {"X-API-Key": KEY["api_key"], **more.pop("headers", {})}
    try:
        async with session.request(method, child.url + path, headers=headers, **more) as answer:
            text = await answer.text()
            return Got(answer.status, answer.headers, text, json.loads(text))
    except aiohttp.ClientError:
        return None


def fast_folder() -> str | None:
    """A folder in memory if there is one: no test needs to survive a power failure."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
