"""Leases of the gateway processes that share one database, kept alive by heartbeats.

A heartbeat is a counter, not a time, because the clocks of several machines differ and jump. The
lease of an instance has expired when this process has watched its counter for long enough without a
change. Time in which this process was itself paused and did not look does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sqlalchemy import delete, insert, select, update

from gateway.http.progress import RequestProgress
from gateway.storage import Store
from gateway.storage.tables import instances

GONE_SECONDS = 20.0
"""Seconds without a heartbeat after which an instance is considered dead. If it was only paused, its
next write fails at the fence."""

BEATS = 4
"""Heartbeats per lease time."""


@dataclass(slots=True)
class _Seen:
    beats: int
    quiet: float = 0.0
    """Seconds for which this process has watched the counter without a change."""
    large: str = ""


class Heartbeats:
    def __init__(
        self,
        store: Store,
        own: str,
        gone_seconds: float = GONE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        large: Callable[[], str] = str,
    ) -> None:
        self._store = store
        self._own = own
        self._gone_seconds = gone_seconds
        self.beat_seconds = gone_seconds / BEATS
        self._clock = clock
        self._large = large
        self._seen: dict[str, _Seen] = {}
        self._looked = clock()
        # Refreshes are numbered when they start: of concurrent ones, the last to start is the newest.
        self._looks = self._handled = 0
        self._beats = 0
        self._beaten = -self.beat_seconds

    def is_alive(self, instance: str) -> bool:
        """Whether a lease is valid; call ``load_unknown`` first for instances that may be new."""
        if instance == self._own:
            return True
        seen = self._seen.get(instance)
        return seen is not None and seen.quiet < self._gone_seconds

    async def know(self, those: Iterable[str]) -> None:
        """Refreshes the leases if one of these instances is unknown: it may just have started."""
        if {*those} - self._seen.keys() - {self._own}:
            await self.look()

    async def begin(self) -> None:
        """Registers this instance; with SQLite, removes all others, as it allows one process at a time."""
        async with self._store.write() as connection:
            if self._store.is_of_one_process:
                await connection.execute(delete(instances))
            await connection.execute(insert(instances).values(**self._row()))
        await self.look()

    async def beat(self) -> None:
        """Increments the heartbeat if it is due, and refreshes the leases of the others."""
        if self._clock() - self._beaten < self.beat_seconds:
            return
        self._beats += 1
        async with self._store.write() as connection:
            own = update(instances).where(instances.c.id == self._own)
            told = {"beats": self._beats, "large": self._large()}
            done = await connection.execute(own.values(**told))
            if not done.rowcount:  # the database was replaced or restored
                await connection.execute(insert(instances).values(**self._row()))
        self._beaten = self._clock()
        self._store.wrote()
        await self.look()

    def _row(self) -> dict[str, object]:
        return {"id": self._own, "beats": self._beats, "began_at": self._store.clock()}

    async def look(self) -> None:
        self._looks += 1
        number = self._looks
        async with self._store.read() as connection:
            rows = {row.id: row for row in await connection.execute(select(instances))}
        if number < self._handled:
            return  # a refresh that started later has finished first, and its rows are newer
        self._handled = number
        now = self._clock()
        passed = min(now - self._looked, 2 * self.beat_seconds)
        self._looked = now
        for id_, row in rows.items():
            seen = self._seen.get(id_)
            if seen is None or seen.beats != row.beats:
                self._seen[id_] = _Seen(row.beats, large=row.large)
            else:
                seen.quiet += passed
        for id_ in self._seen.keys() - rows.keys():
            del self._seen[id_]

    async def large_elsewhere(self) -> list[RequestProgress]:
        """The large requests of other instances, as of the last heartbeat of each."""
        if self._store.is_of_one_process:
            return []
        await self.look()
        told = [(id_, seen.large) for id_, seen in self._seen.items() if id_ != self._own]
        return [
            one
            for id_, text in told
            if self.is_alive(id_)
            for one in RequestProgress.parse_list(text)
        ]

    async def end(self) -> None:
        async with self._store.write() as connection:
            await connection.execute(delete(instances).where(instances.c.id == self._own))
