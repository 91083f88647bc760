"""An event loop on which time passes only where nobody has anything to do: then it jumps."""

from __future__ import annotations

import asyncio
import contextvars
import selectors
from collections.abc import Coroutine
from typing import Any

from tests.simulation.machine import PROCESS

MOST_TURNS = 300_000
"""Of the loop, in one seed; some ten times what the longest takes."""


class Stuck(AssertionError):
    """Everybody waits for somebody else, or goes round and round."""


class _Jumps(selectors.SelectSelector):
    """Nothing comes from outside: whatever is waited for is over at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.turns = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck("nothing is to be done, and nothing will come")
        self.turns += 1
        if self.turns > MOST_TURNS:
            raise Stuck("they go round and round")
        self.now += max(timeout, 0.0)
        return []


class Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumps = _Jumps()
        super().__init__(self._jumps)
        self.set_task_factory(_made)  # type: ignore[arg-type]
        self.wrong: list[str] = []
        """What went wrong in tasks that nobody looked after."""
        self.set_exception_handler(self._heard)

    def time(self) -> float:
        return self._jumps.now

    def _heard(self, _loop: asyncio.AbstractEventLoop, told: dict[str, Any]) -> None:
        error = told.get("exception")
        if isinstance(error, Exception):
            self.wrong.append(f"{told['message']}: {error!r}")


def _made(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, Any],
    context: contextvars.Context | None = None,
) -> asyncio.Task[Any]:
    """Each task belongs to the process that it was begun in, and ends with it."""
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, context=context)
    process = PROCESS.get() if context is None else context.get(PROCESS)
    if process is not None:
        process.keep(task)
    return task
