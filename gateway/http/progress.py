"""Progress of large requests in flight, for operators.

Each step that handles a large body calls ``record_progress``; a request that never does is not
listed. Only labels and byte counts are kept, never content.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, Self

MOST = 20
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


class Whose(NamedTuple):
    operation: str
    merchant: str
    environment: str


@dataclass(frozen=True, slots=True)
class Seen:
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
    def read(cls, text: str) -> list[Self]:
        """Parses the list of another process; empty if its version has a different format."""
        try:
            return [cls(**_read(one), here=False) for one in json.loads(text or "[]")]
        except (TypeError, ValueError):
            return []


def _read(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "began_at": datetime.fromisoformat(one.get("began_at", ""))}


def serialize_progress(those: Iterable[Seen]) -> str:
    """Serializes progress for other processes; empty if there are no large requests."""
    told = []
    for one in list(those)[:MOST]:
        # Without ``here``, which each reader sets itself.
        told.append({**asdict(one), "began_at": one.began_at.isoformat()})
        del told[-1]["here"]
    return json.dumps(told, separators=(",", ":")) if told else ""


class RequestsInProgress:
    """The large requests of one process."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._those: dict[_Request, Seen] = {}

    def watch(self, whose: Callable[[], Whose], began: float) -> None:
        """Attributes the work of the current task to a request, until the task ends.

        ``start_time`` is in seconds of the event loop's clock. ``build_labels`` is called only if
        the request turns out to be large.
        """
        _here.set(_Request(self, whose, began, asyncio.current_task()))

    def those(self) -> list[Seen]:
        """Lists the running requests, the longest running first."""
        seen = [one for request, one in self._those.items() if request.goes_on]
        return sorted(seen, key=lambda one: one.began_at)

    def told(self, request: _Request, step: Step, done: int, total: int) -> None:
        seen = self._those.get(request)
        if seen is None:
            if request.task is None or not request.goes_on:  # a leftover task of an ended request
                return
            # Ends with the task, also if the request fails.
            request.task.add_done_callback(lambda _: self._those.pop(request, None))
            passed = timedelta(seconds=asyncio.get_running_loop().time() - request.began)
            began_at = self._clock() - passed
            seen = Seen(*request.whose(), began_at, step, done, total)
        self._those[request] = replace(seen, step=step, done=done, total=total)


@dataclass(slots=True, eq=False)  # not frozen: created for every request, and frozen is slower
class _Request:
    under_way: RequestsInProgress
    whose: Callable[[], Whose]
    began: float
    task: asyncio.Task[Any] | None

    @property
    def goes_on(self) -> bool:
        return self.task is not None and not self.task.done()


_here: ContextVar[_Request | None] = ContextVar("large", default=None)


def told(step: Step, done: int, total: int) -> None:
    """Records how far the request of the current task is; without a request, does nothing."""
    if request := _here.get():
        request.under_way.told(request, step, done, total)
