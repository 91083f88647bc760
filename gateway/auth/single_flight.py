"""Coalesces concurrent calls for the same key into one."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class SingleFlight(Generic[Result]):
    """Runs at most one task per key; concurrent callers share its result."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[Result]] = {}

    async def run(
        self, key: str, create_coroutine: Callable[[], Coroutine[Any, Any, Result]]
    ) -> Result:
        if not (task := self._tasks.get(key)):
            task = asyncio.create_task(create_coroutine())
            # No await between the look-up and this line, so two callers cannot both create a task.
            self._tasks[key] = task
            task.add_done_callback(lambda done: self._remove_task(key, done))
        # Shielded, because other callers wait for the same task if this one is cancelled.
        return await asyncio.shield(task)

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _remove_task(self, key: str, task: asyncio.Task[Result]) -> None:
        self._tasks.pop(key, None)
        if not task.cancelled():
            task.exception()  # marks it as retrieved, even if every caller has been cancelled
