"""Large requests that are under way, and how far each is: what takes long is to be seen meanwhile.

``told`` is called from wherever something of a request is done that takes long; what is small never
says so, and is no large one. Nothing is kept but whose it is and how much of it is done.
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
"""How many of them a process tells others of."""

Step = Literal[
    "receiving_request",
    "translating_request",
    "calling_service",
    "receiving_response",
    "sending_response",
]
"""Its body comes; it is read and translated; it is sent to the service; that answers; its client is
answered. The last four are in the log, too (event ``large_payload_progress``).
"""


class Whose(NamedTuple):
    operation: str
    merchant: str
    environment: str


@dataclass(frozen=True, slots=True)
class Seen:
    """One of them, as it was just now; ``done`` of ``total`` bytes, which is 0 where nobody knows."""

    operation: str
    merchant: str
    environment: str
    began_at: datetime
    step: str
    done: int
    total: int
    here: bool = True
    """Whether this process has it."""

    @classmethod
    def read(cls, text: str) -> list[Self]:
        """What another process wrote; none where that is of a version that tells something else."""
        try:
            return [cls(**_read(one), here=False) for one in json.loads(text or "[]")]
        except (TypeError, ValueError):
            return []


def _read(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "began_at": datetime.fromisoformat(one.get("began_at", ""))}


def serialize_progress(those: Iterable[Seen]) -> str:
    """For other processes; empty where there are none."""
    told = []
    for one in list(those)[:MOST]:
        told.append({**asdict(one), "began_at": one.began_at.isoformat()})
        del told[-1]["here"]
    return json.dumps(told, separators=(",", ":")) if told else ""


class RequestsInProgress:
    """Those of one process."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._those: dict[_Request, Seen] = {}

    def watch(self, whose: Callable[[], Whose], began: float) -> None:
        """From here on what the current task does is of this request, until that task ends.

        ``began`` by the loop's clock; ``whose`` is asked when it turns out to be large.
        """
        _here.set(_Request(self, whose, began, asyncio.current_task()))

    def those(self) -> list[Seen]:
        """The one that has taken longest comes first."""
        seen = [one for request, one in self._those.items() if request.goes_on]
        return sorted(seen, key=lambda one: one.began_at)

    def told(self, request: _Request, step: Step, done: int, total: int) -> None:
        seen = self._those.get(request)
        if seen is None:
            if request.task is None or not request.goes_on:  # what it left behind is nobody's
                return
            request.task.add_done_callback(lambda _: self._those.pop(request, None))
            passed = timedelta(seconds=asyncio.get_running_loop().time() - request.began)
            began_at = self._clock() - passed
            seen = Seen(*request.whose(), began_at, step, done, total)
        self._those[request] = replace(seen, step=step, done=done, total=total)


@dataclass(slots=True, eq=False)  # not frozen: every request has one, and that takes longer
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
    """How far the request is that is being worked on here, if it is anybody's."""
    if request := _here.get():
        request.under_way.told(request, step, done, total)
