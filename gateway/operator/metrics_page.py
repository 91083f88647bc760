"""Gauges of the state, refreshed when `/metrics` is scraped."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import func, select, text

from gateway.admission.limits import Limits
from gateway.observability import metrics
from gateway.reads.index import Indexes
from gateway.storage import Store, StoreUnavailable
from gateway.storage.restore_marks import RESTORED
from gateway.storage.tables import (
    IS_ABANDONED,
    IS_OPEN,
    IS_SENT,
    IS_UNSEEN,
    counters,
    freezes,
    journal,
    keys,
    remembered,
    writes,
)
from gateway.upstream.client import USER_AGENT
from gateway.upstream.clock import Clock

READ_SECONDS = 5.0
"""Maximum age of the gauges. The state is queried no more often, however many scrapers there are.
"""

PATIENCE_SECONDS = 3.0

IN_FLIGHT = timedelta(seconds=60)
"""A write that was sent longer ago is no longer in flight."""

SENT, OPEN, ABANDONED = text(f"writes.{IS_SENT}"), text(f"journal.{IS_OPEN}"), text(IS_ABANDONED)
"""The conditions of the partial indexes, literally: with others, a database scans the whole table.
"""

NOTHING_KNOWN = math.nan


@dataclass(frozen=True, slots=True)
class Figures:
    """``unsettled``: writes sent more than a minute ago whose outcome is unknown, or after which
    the operation could not continue; the oldest was sent ``unsettled_seconds`` ago. ``keys``: keys
    that are not revoked, by environment. ``is_restored``: no batch is started until the state is
    reconciled.
    """

    unsettled: int
    unsettled_seconds: float
    journal_open: int
    abandoned: int
    freezes: int
    keys: Mapping[str, int]
    is_restored: bool


async def load_gauges(store: Store) -> Figures:
    """Reads the gauges from the state with a few cheap queries. Raises StoreUnavailable."""
    now = store.clock()
    sent = select(func.count(), func.min(writes.c.entered_at, type_=writes.c.entered_at.type))
    # Newer writes are usually still in flight.
    late = sent.where(SENT, writes.c.entered_at < now - IN_FLIGHT)
    last = func.max(writes.c.entered_at, type_=writes.c.entered_at.type)
    its = writes.c.undertaking == journal.c.id
    # An operation in doubt has a reason (``why``) until it ends, also while it is being resolved. A
    # subquery instead of a join: SQLite would scan the whole journal in grouping order.
    stuck = (
        select(select(last).where(its).correlate(journal).scalar_subquery().label("at"))
        .where(OPEN, journal.c.why.is_not(None))
        .where(~select(writes.c.number).where(its, SENT).correlate(journal).exists())
        .subquery()
    )
    held_up = select(func.count(), func.min(stuck.c.at, type_=stuck.c.at.type)).where(
        stuck.c.at < now - IN_FLIGHT
    )
    opened = select(func.count()).select_from(journal).where(OPEN)
    left = select(func.count()).select_from(remembered).where(ABANDONED)
    unseen = select(func.count()).select_from(writes).where(text(IS_UNSEEN))
    stopped = select(func.count()).select_from(freezes)
    held = select(keys.c.environment, func.count()).where(keys.c.revoked_at.is_(None))
    restored = select(counters.c.value).where(counters.c.name == RESTORED)
    async with store.read() as connection:
        found = [(await connection.execute(one)).one() for one in (late, held_up)]
        first = min((at for _number, at in found if at), default=None)
        return Figures(
            sum(number for number, _at in found),
            (now - first).total_seconds() if first else 0,
            (await connection.execute(opened)).scalar_one(),
            sum([(await connection.execute(one)).scalar_one() for one in (left, unseen)]),
            (await connection.execute(stopped)).scalar_one(),
            {row[0]: row[1] for row in await connection.execute(held.group_by(keys.c.environment))},
            bool(await connection.scalar(restored)),
        )


class Standing:
    """The metrics page of one process."""

    def __init__(
        self,
        store: Store,
        limits: Limits,
        clock: Clock,
        indexes: Indexes,
        environments: Iterable[str],
    ) -> None:
        self._store = store
        self._limits = limits
        self._clock = clock
        self._indexes = indexes
        self._environments = tuple(environments)
        self._read_at = -math.inf
        self._reading = asyncio.Lock()
        for environment in self._environments:
            # Created at zero: `increase()` does not see the first increment of a series that starts
            # at 1.
            metrics.cache_calls.labels(environment)
            metrics.cache_stale.labels(environment)
            for came_of_it in (metrics.REFRESHED, metrics.FAILED, metrics.CANCELLED):
                metrics.cache_refreshes.labels(environment, came_of_it)
        metrics.build.info({"version": USER_AGENT.partition("/")[2]})

    async def page(self, accepted: str) -> tuple[bytes, str]:
        # Concurrent scrapes share one refresh.
        async with self._reading:
            if (now := asyncio.get_running_loop().time()) - self._read_at >= READ_SECONDS:
                self._read_at = now
                await self._read()
        return metrics.render_metrics(accepted)

    async def _read(self) -> None:
        for environment in self._environments:
            metrics.clock_offset.labels(environment).set(self._clock.offset(environment))
            found = self._indexes.figures(environment)
            metrics.caches.labels(environment).set(found.indexes)
            metrics.cache_entries.labels(environment).set(found.recipients)
            metrics.cache_age.labels(environment).set(found.oldest_seconds)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                metrics.rate_limiter_up.set(await self._limits.fault() is None)
        except TimeoutError:
            metrics.rate_limiter_up.set(0)
        try:
            # A slow database must not make the scrape time out: the other metrics are still valid.
            async with asyncio.timeout(PATIENCE_SECONDS):
                self._tell(await load_gauges(self._store))
        except (StoreUnavailable, TimeoutError):
            self._not_known()

    def _tell(self, found: Figures) -> None:
        metrics.database_up.set(self._store.unwritten is None)
        metrics.in_doubt.set(found.unsettled)
        metrics.in_doubt_age.set(found.unsettled_seconds)
        metrics.open_writes.set(found.journal_open)
        metrics.abandoned.set(found.abandoned)
        metrics.freezes.set(found.freezes)
        metrics.restored.set(found.is_restored)
        known = dict.fromkeys(self._environments, 0) | dict(found.keys)
        for environment, many in known.items():
            metrics.keys.labels(environment).set(many)

    def _not_known(self) -> None:
        """Clears the gauges: stale values must not look current."""
        metrics.database_up.set(0)
        for one in (
            metrics.in_doubt,
            metrics.in_doubt_age,
            metrics.open_writes,
            metrics.abandoned,
            metrics.freezes,
            metrics.restored,
        ):
            one.set(NOTHING_KNOWN)
        metrics.keys.clear()
