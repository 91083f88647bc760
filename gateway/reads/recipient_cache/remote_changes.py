"""Finds recipients that other processes have changed, in the journal in the database.

Most changes move the service's update date. This covers those that may not: the document does not
say that a change of an account moves the date of its recipient.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import select

from gateway.http.request_paths import extract_recipient_id
from gateway.storage.store import Store
from gateway.storage.tables import upstream_writes
from gateway.storage.tenants import Tenant
from gateway.writes.states import SENT

MAX_WRITE_DELAY = timedelta(minutes=2)
"""The longest duration of a write plus the largest difference between clocks of processes."""


_COLUMNS = (
    upstream_writes.c.operation_id,
    upstream_writes.c.number,
    upstream_writes.c.path,
    upstream_writes.c.state,
)


@dataclass(repr=False, slots=True)
class RemoteChanges:
    """Returns, on each call, the ids of recipients changed since the previous call."""

    _store: Store
    _tenant: Tenant
    _reported_writes: set[tuple[str, int]] = field(default_factory=set)
    _last_query_at: datetime | None = None

    async def __call__(self) -> Collection[str]:
        now = self._store.clock()
        # Overlaps with the last query, because rows may become visible late; reported ones are
        # skipped.
        earliest = (self._last_query_at or now) - MAX_WRITE_DELAY
        is_recent = upstream_writes.c.recorded_at >= earliest
        query = select(*_COLUMNS).filter_by(**self._tenant._asdict())
        query = query.where(is_recent, upstream_writes.c.path.startswith("/recipients/"))
        rows = await self._store.fetch(query)
        reported, self._last_query_at = self._reported_writes, now
        # A write without an answer may be executed at any moment, so it is reported again.
        self._reported_writes = {
            (row.operation_id, row.number) for row in rows if row.state != SENT
        }
        new_paths = (row.path for row in rows if (row.operation_id, row.number) not in reported)
        return {id_ for path in new_paths if (id_ := extract_recipient_id(path))}
