"""A time within which something has to be done, for what every request does.

As ``asyncio.timeout``, at half of its cost; and to give it more time, as each part of an answer that
comes does, costs nothing: that it is more is seen when the time would be up.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self


class Timeout:
    """To be entered by a task: after so many seconds what it waits for is cancelled, and TimeoutError
    raised. ``when`` is the moment, by the loop's clock.
    """

    __slots__ = ("_alarm", "_before", "_due", "_is_up", "_loop", "_task", "when")

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self.when = self._due = self._loop.time() + seconds
        self._is_up = False

    def extend(self, seconds: float) -> None:
        self.when += seconds

    def __enter__(self) -> Self:
        task: asyncio.Task[Any] | None = asyncio.current_task()
        if task is None:
            raise RuntimeError("only a task can be told that its time is up")
        self._task = task
        self._before = task.cancelling()
        self._alarm = self._loop.call_at(self._due, self._up)
        return self

    def _up(self) -> None:
        if self.when > self._due:
            self._due = self.when
            self._alarm = self._loop.call_at(self._due, self._up)
        else:
            self._is_up = True
            self._task.cancel()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._alarm.cancel()
        # Others may have cancelled the task as well: that is for them.
        is_only_us = self._is_up and self._task.uncancel() <= self._before
        if is_only_us and kind is asyncio.CancelledError:
            raise TimeoutError from error
