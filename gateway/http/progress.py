"""Progress of large requests in flight, for operators.

Each step that handles a large body calls ``record_current_request_progress``; a request that never does is not
listed. Only labels and byte counts are stored, never content.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal, NamedTuple, Protocol

import msgspec

Step = Literal[
    "receiving_request",
    "translating_request",
    "calling_service",
    "receiving_response",
    "sending_response",
]
"""In order: the request body arrives, is parsed and translated, is sent to the service; the
service's response arrives, and is sent to the client. The last four are logged (event
``large_payload_progress``).
"""


class RequestLabels(NamedTuple):
    operation: str
    merchant: str
    environment: str


class EndingRequest(Protocol):
    on_end: Callable[[], None] | None
    """Called when it ends."""


class ObservedRequest(Protocol):
    """A request; ``start_time`` is in seconds of the monotonic clock."""

    @property
    def start_time(self) -> float: ...

    def build_progress_labels(self) -> RequestLabels:
        """Builds the labels; called only if the request turns out to be large."""


@dataclass(frozen=True, slots=True)
class RequestProgress:
    """A snapshot of a request: ``done`` of ``total`` bytes of a step; ``total`` is 0 if unknown."""

    operation: str
    merchant: str
    environment: str
    began_at: datetime
    step: str
    done: int
    total: int


class LargeRequestsInProgress:
    """The large requests of one process."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._progress_by_request: dict[_TrackedRequest, RequestProgress] = {}

    def track_request(self, request: EndingRequest, observed: ObservedRequest) -> None:
        """Attributes the work of the current task to a request until that ends."""
        tracked = _TrackedRequest(self, self._progress_by_request, observed)
        request.on_end = tracked.end
        _current_request.set(tracked)

    def list_running_requests(self) -> list[RequestProgress]:
        """Lists the running requests, the longest running first."""
        return sorted(self._progress_by_request.values(), key=lambda progress: progress.began_at)

    def record_request_progress(
        self, request: _TrackedRequest, step: Step, done: int, total: int
    ) -> None:
        progress, observed = self._progress_by_request.get(request), request.observed
        if observed is None:  # a leftover task of an ended request
            return
        if progress is None:
            elapsed = timedelta(seconds=time.monotonic() - observed.start_time)
            labels = observed.build_progress_labels()
            progress = RequestProgress(*labels, self._clock() - elapsed, step, done, total)
        self._progress_by_request[request] = replace(progress, step=step, done=done, total=total)


class _TrackedRequest(msgspec.Struct, eq=False):
    registry: LargeRequestsInProgress
    progress_by_request: dict[_TrackedRequest, RequestProgress]
    observed: ObservedRequest | None
    """None once it has ended: a pooled connection keeps the context variables of the request that
    opened it."""

    def end(self) -> None:
        self.observed = None
        self.progress_by_request.pop(self, None)


_current_request: ContextVar[_TrackedRequest | None] = ContextVar("large", default=None)


def record_current_request_progress(step: Step, done: int, total: int) -> None:
    """Records how far the request of the current task is; without a request, does nothing."""
    if request := _current_request.get():
        request.registry.record_request_progress(request, step, done, total)
