"""A timeout for code that runs in every request.

Works like ``asyncio.timeout`` at half its cost. Extending it costs nothing: the timer is not
rescheduled, but checks the deadline again when it fires.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self


class Timeout:
    """Cancels the task that entered it at ``deadline``, and raises TimeoutError.

    ``deadline`` is in seconds of the event loop's clock.
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
            raise RuntimeError("a timeout must be entered by a task")
        self._task = task
        # Tells a cancellation by somebody else from that by this timeout.
        self._before = task.cancelling()
        self._alarm = self._loop.call_at(self._due, self._up)
        return self

    def _up(self) -> None:
        # It was extended meanwhile: wait for the rest.
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
        # If somebody else cancelled the task as well, CancelledError must reach them.
        is_only_us = self._is_up and self._task.uncancel() <= self._before
        if is_only_us and kind is asyncio.CancelledError:
            raise TimeoutError from error
