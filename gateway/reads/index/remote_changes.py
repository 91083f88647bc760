"""What other processes have changed of a merchant's recipients, as the journal that all share tells.

Nearly all of it shows in the service's update dates. This is for what may not: the document does not
say that a recipient's date moves when an account of theirs is changed.
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
"""How long a write may take, and the clocks of those who share a state may differ."""


_READ = (writes.c.undertaking, writes.c.number, writes.c.path, writes.c.state)


class Elsewhere:
    """Called again and again, each time for what has become known since."""

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
        rows = await self._store.read(lambda tx: tx.fetch(those))
        known, self._looked_at = self._told, now
        # What is not answered yet may be executed at any moment: it is told again.
        self._told = {(row.undertaking, row.number) for row in rows if row.state != SENT}
        new = (row.path for row in rows if (row.undertaking, row.number) not in known)
        return {id_ for path in new if (id_ := extract_recipient_id(path))}
