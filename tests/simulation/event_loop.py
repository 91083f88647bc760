"""An event loop whose time jumps to the next timer when nothing is ready."""

from __future__ import annotations

import asyncio
import contextvars
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

from tests.simulation.process import CURRENT_PROCESS

MAX_ITERATIONS = 300_000
"""Iterations of the loop in one seed; ten times as many as the longest seed needs."""


class SimulationStuck(AssertionError):
    """All tasks wait for each other, or loop without end."""


class _TimeJumpSelector(selectors.SelectSelector):
    """No I/O comes from outside, so that waiting only advances the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.turns = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise SimulationStuck("nothing is to be done, and nothing will come")
        self.turns += 1
        if self.turns > MAX_ITERATIONS:
            raise SimulationStuck("they go round and round")
        self.now += max(timeout, 0.0)
        return []


class SimulatedEventLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._time_jumps = _TimeJumpSelector()
        super().__init__(self._time_jumps)
        self.set_task_factory(_create_task)  # type: ignore[arg-type]
        self.problems: list[str] = []
        """Exceptions of tasks that nobody awaited."""
        self.set_exception_handler(self._record_exception)

    def time(self) -> float:
        return self._time_jumps.now

    def run_in_executor(  # type: ignore[override]
        self, _executor: Any, function: Callable[..., Any], *arguments: Any
    ) -> asyncio.Future[Any]:
        """Runs the function at once: how long a thread takes is not the same in every run."""
        future = self.create_future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:  # noqa: BLE001 - the caller's, whatever it is
            future.set_exception(error)
        return future

    def _record_exception(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception):
            self.problems.append(f"{context['message']}: {error!r}")


def _create_task(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, Any],
    context: contextvars.Context | None = None,
) -> asyncio.Task[Any]:
    """Makes each task belong to the process that started it, and end with it."""
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, context=context)
    process = CURRENT_PROCESS.get() if context is None else context.get(CURRENT_PROCESS)
    if process is not None:
        process.add_task(task)
    return task
