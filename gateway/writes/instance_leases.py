"""Leases of the gateway processes that share one database.

A process renews its lease twice a second, with the database's time. The lease ends
``LEASE_TTL_SECONDS`` after that time, or sooner if the process has lost its advisory lock, which the
server releases when the connection ends. If the database's clock is set, a lease may end too early;
that does no harm, because the fence stops the process that had it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import delete, select

from gateway.storage import Store
from gateway.storage.database import Transaction, build_instance_lock_key
from gateway.storage.sql import Statement, build_upsert_statement
from gateway.storage.tables import instances

LEASE_TTL_SECONDS = 2.5
"""Seconds after a renewal from which another instance may take over what this one runs. If it was
only paused, its next write fails at the fence."""

REPORT_SECONDS = 20.0
"""Seconds after a renewal from which requests no longer wait for an instance to report connection
resets. Longer than a lease, because a paused instance still has its connections, and no fence
replaces what only that instance knows."""

RENEWALS_PER_LEASE = 5
"""Renewals within one lease, so that some may be late before the lease ends."""
RENEWALS_WITHOUT_LOCK = 2
"""Renewals that an instance without its lock has to miss before its lease ends: it has ended, or lost
its connection a moment ago."""
SOLE_RENEWAL_SECONDS = 5.0
"""Seconds between renewals of a process that is alone on its database."""
MEASUREMENTS_AT_START = 8
"""Comparisons with the database's clock before the first request: one may be off by half of its round
trip, and the first waits for a connection."""
_POLL_SECONDS = 0.1

_SELECT_INSTANCES = Statement(select(instances))
_UPSERT_INSTANCE = build_upsert_statement(instances, ("renewed_at",))


class _Lease(NamedTuple):
    renewed_at: datetime
    age_seconds: float
    has_lock: bool

    def is_renewed_within(self, seconds: float, seconds_without_lock: float) -> bool:
        return self.age_seconds < (seconds if self.has_lock else seconds_without_lock)


class InstanceLeases:
    """The lease of this instance, and those of the others as they were last read."""

    def __init__(
        self,
        store: Store,
        own_instance: str,
        ttl_seconds: float = LEASE_TTL_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._own_instance = own_instance
        self._ttl_seconds = ttl_seconds
        self.renewal_seconds = (
            SOLE_RENEWAL_SECONDS if store.is_of_one_process else ttl_seconds / RENEWALS_PER_LEASE
        )
        self._monotonic = monotonic
        self._is_valid: dict[str, bool] = {}
        # The refresh that reads last must also store its result last.
        self._refresh_lock = asyncio.Lock()
        self._last_renewed = -self.renewal_seconds
        """When the lease was last renewed, by the monotonic clock."""

    def is_instance_alive(self, instance: str) -> bool:
        """Whether a lease is valid.

        Call ``refresh_if_any_unknown`` first for instances that may be new.
        """
        return instance == self._own_instance or self._is_valid.get(instance, False)

    async def refresh_if_any_unknown(self, instance_ids: Iterable[str]) -> None:
        """Reads the leases if one of these instances is unknown: it may just have started."""
        if {*instance_ids} - self._is_valid.keys() - {self._own_instance}:
            await self.refresh()

    async def register(self) -> None:
        """Registers this instance.

        On SQLite it deletes all others, because only one process may use the file.
        """
        for _ in range(MEASUREMENTS_AT_START):
            now = await self._measure_time()

        async def insert_instance(tx: Transaction) -> None:
            # The process lock on the file says that no other process is alive.
            if self._store.is_of_one_process:
                await tx.execute(delete(instances))
            await self._upsert_own_row(tx, now)

        await self._store.write(insert_instance)
        await self.refresh(now)

    async def save_reports_and_renew(self, save_reports: Callable[[], Awaitable[None]]) -> None:
        """Saves the deliveries and connection resets so far; renews the lease if that is due.

        The new lease tells the others that those until its time are saved.
        """
        if self._monotonic() - self._last_renewed < self.renewal_seconds:
            await save_reports()
            return
        renewed_at = await self._measure_time()
        await save_reports()

        await self._store.database.hold_instance_lock(build_instance_lock_key(self._own_instance))
        # The row is missing if the database was replaced or restored; without it others would take
        # over what runs here.
        await self._store.write(lambda tx: self._upsert_own_row(tx, renewed_at), is_single=True)
        self._store.database.clear_write_error()
        self._last_renewed = self._monotonic()
        await self.refresh(renewed_at)

    async def _upsert_own_row(self, tx: Transaction, now: datetime) -> None:
        await tx.execute(_UPSERT_INSTANCE, {"id": self._own_instance, "renewed_at": now})

    async def _measure_time(self) -> datetime:
        return await self._store.database_clock.measure() or self._store.clock()

    async def refresh(self, now: datetime | None = None) -> None:
        """Reads which leases are valid; ``now`` is the database's time, if it was just read."""
        async with self._refresh_lock:
            leases = await self._load_leases(now or await self._measure_time())
            seconds_without_lock = RENEWALS_WITHOUT_LOCK * self.renewal_seconds
            self._is_valid = {
                id_: lease.is_renewed_within(self._ttl_seconds, seconds_without_lock)
                for id_, lease in leases.items()
            }

    async def _load_leases(self, now: datetime) -> dict[str, _Lease]:
        """Loads the leases; ``now`` is from before: after a pause all would seem to have ended."""
        rows = await self._store.fetch(_SELECT_INSTANCES)
        # If the clock was set back, a lease does not last until its time comes again.
        ages = {row.id: abs((now - row.renewed_at).total_seconds()) for row in rows}
        held_keys = None
        if any(
            age > self.renewal_seconds and id_ != self._own_instance for id_, age in ages.items()
        ):
            held_keys = await self._store.database.list_instance_locks()
        return {
            row.id: _Lease(
                row.renewed_at,
                ages[row.id],
                held_keys is None or build_instance_lock_key(row.id) in held_keys,
            )
            for row in rows
        }

    async def wait_for_saved_resets(self, instance_ids: Iterable[str]) -> None:
        """Waits until each of these instances has saved the resets that reached it before the call.

        An instance that has ended, or did not renew its lease for ``REPORT_SECONDS``, is not waited
        for.
        """
        called_at, ids = await self._measure_time(), frozenset(instance_ids)
        while True:
            leases = await self._load_leases(await self._measure_time())
            if not any(
                lease.renewed_at <= called_at
                # One that was killed has lost its lock and its lease; one that was paused has not.
                and lease.is_renewed_within(REPORT_SECONDS, self._ttl_seconds)
                for lease in (leases[id_] for id_ in ids & leases.keys())
            ):
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def unregister(self) -> None:
        own_instance = delete(instances).where(instances.c.id == self._own_instance)
        await self._store.execute(own_instance)
