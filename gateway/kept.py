"""Answers to reads that may be used again for a short while, until something is changed.

Only a recipient looked up by its address is kept so: a batch of many payments names few addresses.
A change made through this gateway drops everything that its merchant has here; one made elsewhere
is seen when the time is up.
"""

from __future__ import annotations

from collections import Counter

from cachetools import TTLCache

from gateway.store.ledger import Owner
from mappings.grammar import JSON, Call

SECONDS = 60
_MOST = 20_000

_Name = tuple[Owner, str, tuple[tuple[str, str], ...]]


class Kept:
    def __init__(self) -> None:
        self._answers: TTLCache[_Name, tuple[int, JSON]] = TTLCache(_MOST, SECONDS)
        self._changes: Counter[Owner] = Counter()

    def get(self, owner: Owner, call: Call) -> JSON | None:
        count, body = self._answers.get(_name(owner, call), (-1, None))
        return body if count == self.count(owner) else None

    def put(self, owner: Owner, call: Call, body: JSON, asked_at: int) -> None:
        """``asked_at`` is the count when the call was made: it may answer from before a change."""
        self._answers[_name(owner, call)] = (asked_at, body)

    def forget(self, owner: Owner) -> None:
        self._changes[owner] += 1

    def count(self, owner: Owner) -> int:
        return self._changes[owner]


def _name(owner: Owner, call: Call) -> _Name:
    return owner, call.path, tuple(sorted(call.query.items()))
