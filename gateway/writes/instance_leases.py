"""Leases of the gateway processes that share one database, kept alive by heartbeats.

A heartbeat is a counter, not a time, because the clocks of several machines differ and jump. The
lease of an instance has expired when this process has watched its counter for long enough without a
change. Time in which this process was itself paused and did not look does not count.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sqlalchemy import bindparam, delete, insert, select, update

from gateway.storage import Store
from gateway.storage.database import Transaction, build_instance_lock_key
from gateway.storage.sql import Statement
from gateway.storage.tables import instances

LEASE_TTL_SECONDS = 2.5
"""Seconds without a heartbeat after which another instance may take over what this one runs. If it
was only paused, its next write fails at the fence."""

REPORT_SECONDS = 20.0
"""Seconds without a heartbeat after which requests no longer wait for an instance to report
connection resets. Longer than a lease, because a paused instance still has its connections, and no
fence replaces what only that instance knows."""

HEARTBEATS_PER_LEASE = 5
"""Heartbeats within one lease, so that some may be late before the lease expires."""
HEARTBEATS_WITHOUT_LOCK = 2
"""Heartbeats that an instance without its lock has to miss before its lease expires: it has ended,
or lost its connection a moment ago."""
SOLE_HEARTBEAT_SECONDS = 5.0
"""Seconds between heartbeats of a process that is alone on its database."""
_POLL_SECONDS = 0.1

_SELECT_INSTANCES = Statement(lambda _kind: select(instances))
_UPDATE_HEARTBEAT = Statement(
    lambda _kind: update(instances).where(instances.c.id == bindparam("own_id")), ["beats"]
)


@dataclass(slots=True)
class _ObservedInstance:
    beats: int
    quiet_seconds: float = 0.0
    """Seconds for which this process has watched the counter without a change."""


class Heartbeats:
    """The heartbeats of this instance, and the leases of the others as observed here."""

    def __init__(
        self,
        store: Store,
        own_instance: str,
        ttl_seconds: float = LEASE_TTL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._own_instance = own_instance
        self._ttl_seconds = ttl_seconds
        self.beat_seconds = (
            SOLE_HEARTBEAT_SECONDS
            if store.is_of_one_process
            else ttl_seconds / HEARTBEATS_PER_LEASE
        )
        self._clock = clock
        self._observed: dict[str, _ObservedInstance] = {}
        self._refreshed_at = clock()
        # Refreshes are numbered when they start: of concurrent ones, the last to start is the
        # newest.
        self._refresh_count = self._applied_refresh = 0
        self._beat_count = 0
        self._last_beat_at = -self.beat_seconds

    def is_instance_alive(self, instance: str) -> bool:
        """Whether a lease is valid.

        Call ``refresh_leases_if_any_unknown`` first for instances that may be new.
        """
        return instance == self._own_instance or self._has_heartbeat_within(
            instance, self._ttl_seconds
        )

    def _has_heartbeat_within(self, instance: str, seconds: float) -> bool:
        observed = self._observed.get(instance)
        return observed is not None and observed.quiet_seconds < seconds

    async def refresh_leases_if_any_unknown(self, instance_ids: Iterable[str]) -> None:
        """Refreshes the leases if one of these instances is unknown: it may just have started."""
        if {*instance_ids} - self._observed.keys() - {self._own_instance}:
            await self.refresh()

    async def register(self) -> None:
        """Registers this instance.

        On SQLite it deletes all others, because only one process may use the file.
        """

        async def insert_instance(tx: Transaction) -> None:
            # The process lock on the file says that no other process is alive.
            if self._store.is_of_one_process:
                await tx.execute(delete(instances))
            await tx.execute(insert(instances).values(**self._build_row()))

        await self._store.write(insert_instance)
        await self._store.database_clock.measure()
        await self.refresh()

    async def beat(self) -> None:
        """Increments the heartbeat if it is due, and refreshes the leases of the others."""
        if self._clock() - self._last_beat_at < self.beat_seconds:
            return
        self._beat_count += 1
        parameters = {"own_id": self._own_instance, "beats": self._beat_count}
        row = self._build_row()

        async def write_heartbeat(tx: Transaction) -> None:
            # The row is missing if the database was replaced or restored; without it others would
            # take over what runs here.
            if not await tx.execute(_UPDATE_HEARTBEAT, parameters):
                await tx.execute(insert(instances).values(**row))

        await self._store.database.hold_instance_lock(build_instance_lock_key(self._own_instance))
        await self._store.write(write_heartbeat)
        await self._store.database_clock.measure()
        self._store.database.clear_write_error()
        self._last_beat_at = self._clock()
        await self.refresh()

    def _build_row(self) -> dict[str, object]:
        return {
            "id": self._own_instance,
            "beats": self._beat_count,
            "began_at": self._store.clock(),
        }

    async def refresh(self) -> None:
        """Reads all counters; a lease without a change ages by the time since the last refresh."""
        self._refresh_count += 1
        refresh_number = self._refresh_count
        all_rows = await self._store.read(lambda tx: tx.fetch(_SELECT_INSTANCES))
        rows = {row.id: row for row in all_rows}
        if refresh_number < self._applied_refresh:
            return  # a refresh that started later has finished first, and its rows are newer
        self._applied_refresh = refresh_number
        now = self._clock()
        # Bounded, because this process observed nothing while it was itself paused.
        elapsed = min(now - self._refreshed_at, self._ttl_seconds / 2)
        self._refreshed_at = now
        for id_, row in rows.items():
            observed = self._observed.get(id_)
            # Any other count is a sign of life, also a smaller one: a restored database has earlier counts.
            if observed is None or observed.beats != row.beats:
                self._observed[id_] = _ObservedInstance(row.beats)
            else:
                observed.quiet_seconds += elapsed
        for id_ in self._observed.keys() - rows.keys():
            del self._observed[id_]
        await self._expire_leases_without_lock()

    async def _expire_leases_without_lock(self) -> None:
        late_seconds = HEARTBEATS_WITHOUT_LOCK * self.beat_seconds
        late = {
            id_: observed
            for id_, observed in self._observed.items()
            if late_seconds <= observed.quiet_seconds < self._ttl_seconds
        }
        held_keys = await self._store.database.list_instance_locks() if late else None
        if held_keys is not None:
            for id_, observed in late.items():
                if build_instance_lock_key(id_) not in held_keys:
                    observed.quiet_seconds = self._ttl_seconds

    async def wait_for_whole_heartbeats(self, instance_ids: Iterable[str]) -> None:
        """Waits until each of these instances has made a whole heartbeat since the call.

        That is the second one to be saved: the first may have begun before the call. An instance
        that has ended, or sent no heartbeat for ``REPORT_SECONDS``, is not waited for.
        """
        await self.refresh()
        target_beats = {
            id_: self._observed[id_].beats + 2 for id_ in instance_ids if id_ in self._observed
        }
        while True:
            held_keys = await self._store.database.list_instance_locks()
            if not any(
                self._can_report_connection_resets(id_, held_keys)
                and self._observed[id_].beats < beats
                for id_, beats in target_beats.items()
            ):
                return
            await asyncio.sleep(_POLL_SECONDS)
            await self.refresh()

    def _can_report_connection_resets(self, instance: str, held_keys: set[int] | None) -> bool:
        # Only a process that was killed has lost its lock and its lease; one that was paused has not.
        has_lock = held_keys is None or build_instance_lock_key(instance) in held_keys
        return self._has_heartbeat_within(
            instance, REPORT_SECONDS if has_lock else self._ttl_seconds
        )

    async def unregister(self) -> None:
        own_instance = delete(instances).where(instances.c.id == self._own_instance)
        await self._store.write(lambda tx: tx.execute(own_instance))
