"""Answers to reads that may be used again for a short while, until something is changed.

Only recipients are kept so, by address or id: a batch of many payments names few of them.
A change made through this gateway drops everything that its merchant has here; one made elsewhere
is seen when the time is up. That nobody has an address, or several have, is not kept. Where other
processes share the state nothing is kept: what is changed through one of them the others would not
know, and who is paid must not depend on who answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from cachetools import TTLCache

from gateway.storage.tenants import Tenant
from mappings.effects import JSON, Call

SECONDS = 60
_MOST = 20_000

_Name = tuple[Tenant, str, tuple[tuple[str, str], ...]]


class Kept:
    """``changed`` is told of each recipient that a change made through this process is about."""

    def __init__(
        self,
        *,
        is_alone: bool = True,
        changed: Callable[[Tenant, str], None] = lambda _owner, _id: None,
    ) -> None:
        self._is_alone = is_alone
        self._tell = changed
        self._answers: TTLCache[_Name, tuple[int, JSON]] = TTLCache(_MOST, SECONDS)
        self._changes: Counter[Tenant] = Counter()

    def get(self, owner: Tenant, call: Call) -> JSON | None:
        count, body = self._answers.get(_name(owner, call), (-1, None))
        return body if count == self.count(owner) else None

    def put(self, owner: Tenant, call: Call, body: JSON, asked_at: int) -> None:
        """``asked_at`` is the count when the call was made: it may answer from before a change."""
        if self._is_alone and _is_of_one(body):
            self._answers[_name(owner, call)] = (asked_at, body)

    def forget(self, owner: Tenant, recipient: str = "") -> None:
        """``recipient`` is the one that was changed, where it is one that is known."""
        self._changes[owner] += 1
        if recipient:
            self._tell(owner, recipient)

    def count(self, owner: Tenant) -> int:
        return self._changes[owner]


def _is_of_one(body: JSON) -> bool:
    """Nobody, or several, is why a batch is refused: who mends that elsewhere asks again at once."""
    recipients = body.get("recipients")
    return recipients is None or len(recipients) == 1


def _name(owner: Tenant, call: Call) -> _Name:
    return owner, call.path, tuple(sorted(call.query.items()))
