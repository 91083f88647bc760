"""Progress of large requests in flight, for operators.

Each step that handles a large body calls ``record_current_request_progress``; a request that never does is not
listed. Only labels and byte counts are stored, never content.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, Protocol, Self
from weakref import ref

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
        self._progress_by_request: dict[_Request, RequestProgress] = {}

    def attribute_task_to_request(self, task: asyncio.Task[Any], request: ObservedRequest) -> None:
        """Attributes the work of the current task, ``task``, to a request until the task ends."""
        # Weak references: the task has the context variables that refer to them, and so has a
        # pooled connection that the request opened.
        _current_request.set(_Request(self, ref(request), ref(task)))

    def list_running_requests(self) -> list[RequestProgress]:
        """Lists the running requests, the longest running first."""
        running = [
            progress
            for request, progress in self._progress_by_request.items()
            if request.is_running
        ]
        return sorted(running, key=lambda progress: progress.began_at)

    def record_request_progress(self, request: _Request, step: Step, done: int, total: int) -> None:
        progress = self._progress_by_request.get(request)
        if progress is None:
            task = request.task()
            if task is None or task.done():  # a leftover task of an ended request
                return
            # A done callback also runs if the request fails.
            task.add_done_callback(lambda _: self._progress_by_request.pop(request, None))
            observed = request.observed()
            if observed is None:
                return
            elapsed = timedelta(seconds=time.monotonic() - observed.start_time)
            labels = observed.build_progress_labels()
            progress = RequestProgress(*labels, self._clock() - elapsed, step, done, total)
        self._progress_by_request[request] = replace(progress, step=step, done=done, total=total)


class _Request(msgspec.Struct, eq=False):
    registry: LargeRequestsInProgress
    observed: ref[ObservedRequest]
    task: ref[asyncio.Task[Any]]

    @property
    def is_running(self) -> bool:
        task = self.task()
        return task is not None and not task.done()


_current_request: ContextVar[_Request | None] = ContextVar("large", default=None)


def record_current_request_progress(step: Step, done: int, total: int) -> None:
    """Records how far the request of the current task is; without a request, does nothing."""
    if request := _current_request.get():
        request.registry.record_request_progress(request, step, done, total)
