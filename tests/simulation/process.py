"""A simulated process: it can be paused, its clock set off, and killed at any step."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

EPOCH = 1_800_000_000.0
"""Unix time at which every simulation begins, on the service's clock."""

CURRENT_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar(
    "process", default=None
)

STEP_DELAYS_SECONDS = (0.0, 0.0, 0.0, 0.001, 0.003, 0.02)
"""Seconds that a step takes."""


class ProcessKilled(BaseException):
    """The process was killed: nothing that it does has an effect."""


class Process:
    """``step`` is called wherever a real process would wait for I/O."""

    def __init__(self, rng: random.Random) -> None:
        self.random_source = rng
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_dead = False
        self.steps = 0
        self.dies_at: int | None = None
        self.holds_at: tuple[int, float] | None = None
        """The step at which it pauses, and for how many seconds."""
        self.held_until = 0.0
        self.clock_offset_seconds = 0.0
        """Seconds by which its clock is ahead of the service's."""
        self.on_end: list[Callable[[], None]] = []
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def monotonic(self) -> float:
        # Always that of the simulation: transactions on PostgreSQL run in another thread's loop.
        self._loop = self._loop or asyncio.get_running_loop()
        return self._loop.time()

    def wall(self) -> float:
        return EPOCH + self.monotonic() + self.clock_offset_seconds

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.wall(), UTC)

    def add_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        if self.is_dead:
            task.cancel()

    def start_task(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Starts a task in this process."""
        context = contextvars.copy_context()
        context.run(CURRENT_PROCESS.set, self)
        return asyncio.get_running_loop().create_task(coroutine, context=context)

    async def step(self) -> None:
        self._check_alive()
        await asyncio.sleep(self.random_source.choice(STEP_DELAYS_SECONDS))
        while (remaining := self.held_until - self.monotonic()) > 0:  # noqa: ASYNC110 - or anew meanwhile
            await asyncio.sleep(remaining)
        self._check_alive()

    def _check_alive(self) -> None:
        self.steps += 1
        if self.holds_at is not None and self.steps >= self.holds_at[0]:
            self.hold(self.holds_at[1])
        if self.dies_at is not None and self.steps >= self.dies_at:
            self.kill()
        if self.is_dead:
            raise ProcessKilled

    def hold(self, seconds: float) -> None:
        self.holds_at = None
        self.held_until = self.monotonic() + seconds

    def kill(self) -> None:
        if self.is_dead:
            return
        self.is_dead = True
        running = asyncio.current_task()
        for task in list(self._tasks):
            if task is not running:
                task.cancel()
        for callback in self.on_end:
            callback()
