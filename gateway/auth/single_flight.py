"""Coalesces concurrent calls for the same key into one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class SingleFlight(Generic[Result]):
    """Runs at most one task per key; concurrent callers share its result."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[Result]] = {}

    async def ask(self, what: str, question: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        if not (asked := self._tasks.get(what)):
            asked = asyncio.create_task(question())
            self._tasks[what] = asked
            asked.add_done_callback(lambda done: self._answered(what, done))
        # Shielded, because other callers wait for the same task if this one is cancelled.
        return await asyncio.shield(asked)

    async def end(self) -> None:
        asked = list(self._tasks.values())
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)

    def _answered(self, what: str, done: asyncio.Task[Result]) -> None:
        self._tasks.pop(what, None)
        if not done.cancelled():
            done.exception()  # marks it as retrieved, even if every caller has been cancelled
