"""One question for all who ask the same thing at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

Answer = TypeVar("Answer")


class SingleFlight(Generic[Answer]):
    """Questions that are being asked, by what is asked for."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[Answer]] = {}

    async def ask(self, what: str, question: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        if not (asked := self._tasks.get(what)):
            asked = asyncio.create_task(question())
            self._tasks[what] = asked
            asked.add_done_callback(lambda done: self._answered(what, done))
        # Others wait for the same answer: one client that goes away does not take it from them.
        return await asyncio.shield(asked)

    async def end(self) -> None:
        asked = list(self._tasks.values())
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)

    def _answered(self, what: str, done: asyncio.Task[Answer]) -> None:
        self._tasks.pop(what, None)
        if not done.cancelled():
            done.exception()  # seen, even where everyone who waited has gone
