"""Finds recipients that other processes have changed, in the journal in the database.

Most changes move the service's update date. This covers those that may not: the document does not say
that a change of an account moves the date of its recipient.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from sqlalchemy import select

from gateway.http.request_paths import extract_recipient_id
from gateway.storage.store import Store
from gateway.storage.tables import writes
from gateway.storage.tenants import Tenant
from gateway.storage.undertakings import SENT

APART = timedelta(minutes=2)
"""The longest duration of a write plus the largest difference between clocks of processes."""


_READ = (writes.c.undertaking, writes.c.number, writes.c.path, writes.c.state)


class Elsewhere:
    """Returns, on each call, the ids of recipients changed since the previous call."""

    def __init__(self, store: Store, owner: Tenant) -> None:
        self._store = store
        self._owner = owner
        self._told: set[tuple[str, int]] = set()
        self._looked_at: datetime | None = None

    async def __call__(self) -> Collection[str]:
        now = self._store.clock()
        since = (self._looked_at or now) - APART
        those = select(*_READ).where(
            writes.c.merchant == self._owner.merchant,
            writes.c.environment == self._owner.environment,
            writes.c.entered_at >= since,
            writes.c.path.startswith("/recipients/"),
        )
        async with self._store.read() as connection:
            rows = [*await connection.execute(those)]
        known, self._looked_at = self._told, now
        # A write without an answer may be executed at any moment, so it is reported again.
        self._told = {(row.undertaking, row.number) for row in rows if row.state != SENT}
        new = (row.path for row in rows if (row.undertaking, row.number) not in known)
        return {id_ for path in new if (id_ := extract_recipient_id(path))}
