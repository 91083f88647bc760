"""Who else runs on the same state: those whose beats go on.

Beats are counted, not dated: clocks of several machines differ, and jump. An instance is gone when
this one has looked on for long enough and has not seen it beat; what passed while this one was
itself held up, and looked at nothing, does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sqlalchemy import delete, insert, select, update

from gateway.http.progress import RequestProgress
from gateway.storage import Store
from gateway.storage.database import Transaction
from gateway.storage.tables import instances

GONE_SECONDS = 20.0
"""After so long without a beat an instance is taken for gone. If it was only held up, it finds its
turns taken when it goes on."""

BEATS = 4
"""How many beats fall into that time."""


@dataclass(slots=True)
class _Seen:
    beats: int
    quiet: float = 0.0
    """Seconds for which this process looked on and saw no other count."""
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
        # Looks are numbered as they begin: of several at once the last to have begun has seen most.
        self._looks = self._handled = 0
        self._beats = 0
        self._beaten = -self.beat_seconds

    def is_alive(self, instance: str) -> bool:
        """Of one that this process has heard of: see ``know``."""
        if instance == self._own:
            return True
        seen = self._seen.get(instance)
        return seen is not None and seen.quiet < self._gone_seconds

    async def know(self, those: Iterable[str]) -> None:
        """Looks for those that it has not heard of: they may have begun a moment ago."""
        if {*those} - self._seen.keys() - {self._own}:
            await self.look()

    async def begin(self) -> None:
        """Says that this one runs; with SQLite, that no other does: it has one process at a time."""

        async def begin(tx: Transaction) -> None:
            if self._store.is_of_one_process:
                await tx.execute(delete(instances))
            await tx.execute(insert(instances).values(**self._row()))

        await self._store.write(begin)
        await self.look()

    async def beat(self) -> None:
        """Counts on, where it is time, and looks at the others."""
        if self._clock() - self._beaten < self.beat_seconds:
            return
        self._beats += 1
        own = update(instances).where(instances.c.id == self._own)
        own = own.values(beats=self._beats, large=self._large())

        async def beat(tx: Transaction) -> None:
            if not await tx.execute(own):  # the database is another one, or an earlier state of it
                await tx.execute(insert(instances).values(**self._row()))

        await self._store.write(beat)
        self._beaten = self._clock()
        await self.look()

    def _row(self) -> dict[str, object]:
        return {"id": self._own, "beats": self._beats, "began_at": self._store.clock()}

    async def look(self) -> None:
        self._looks += 1
        number = self._looks
        rows = {
            row.id: row for row in await self._store.read(lambda tx: tx.fetch(select(instances)))
        }
        if number < self._handled:
            return  # one that began later was quicker: what has come since is not in these
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
        """The large requests of the others, as each told of them with its last beat."""
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
        own = delete(instances).where(instances.c.id == self._own)
        await self._store.write(lambda tx: tx.execute(own))
