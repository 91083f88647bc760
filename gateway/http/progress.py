"""Progress of large requests in flight, for operators.

Each step that handles a large body calls ``record_current_request_progress``; a request that never does is not
listed. Only labels and byte counts are stored, never content.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, Protocol, Self

import msgspec

MAX_SHARED_REQUESTS = 20
"""Requests that a process publishes to other processes; the longest running ones."""

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
    here: bool = True
    """Whether this process handles the request."""

    @classmethod
    def parse_list(cls, text: str) -> list[Self]:
        """Parses the list of another process; empty if its version has a different format."""
        try:
            return [
                cls(**_parse_progress_fields(fields), here=False)
                for fields in json.loads(text or "[]")
            ]
        except (TypeError, ValueError):
            return []


def _parse_progress_fields(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "began_at": datetime.fromisoformat(fields.get("began_at", ""))}


def serialize_progress(requests: Iterable[RequestProgress]) -> str:
    """Serializes progress for other processes; empty if there are no large requests."""
    entries = []
    for progress in list(requests)[:MAX_SHARED_REQUESTS]:
        # ``here`` is omitted, because each reader sets it itself.
        entries.append({**asdict(progress), "began_at": progress.began_at.isoformat()})
        del entries[-1]["here"]
    return json.dumps(entries, separators=(",", ":")) if entries else ""


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
