"""Caches answers to recipient reads for a short time, until the merchant changes something.

Recipients are cached by email address and id, because a large batch pays few of them. A change through
this gateway invalidates all entries of the merchant; a change elsewhere is seen after the TTL. Results
with no recipient or several are not cached. If other processes share the database, nothing is cached:
this process would miss their changes, and the payee must not depend on which process answers.
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
    """The cache; ``on_change`` is called with each recipient that this process changes."""

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
        # Comparing counters invalidates all answers of a tenant without searching for them.
        return body if count == self.count(owner) else None

    def put(self, owner: Tenant, call: Call, body: JSON, asked_at: int) -> None:
        """Store an answer; ``change_count`` is the count before the call.

        If it has changed since, the answer may be from before a change and is not used.
        """
        if self._is_alone and _is_of_one(body):
            self._answers[_name(owner, call)] = (asked_at, body)

    def forget(self, owner: Tenant, recipient: str = "") -> None:
        """Invalidate all answers of a tenant; ``recipient_id`` is the changed one, if known."""
        self._changes[owner] += 1
        if recipient:
            self._tell(owner, recipient)

    def count(self, owner: Tenant) -> int:
        return self._changes[owner]


def _is_of_one(body: JSON) -> bool:
    """Return whether the answer has exactly one recipient.

    No or several recipients make a batch fail. The client corrects that elsewhere and retries
    immediately, so such an answer must not be cached.
    """
    recipients = body.get("recipients")
    return recipients is None or len(recipients) == 1


def _name(owner: Tenant, call: Call) -> _Name:
    return owner, call.path, tuple(sorted(call.query.items()))
