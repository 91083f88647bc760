"""Brownouts: time windows in which selected requests are refused on purpose.

They show clients that still depend on the legacy interface before it ends. Windows are loaded again
when they change, so one can be switched off without a restart.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Self

import structlog

from gateway.auth.keys import ApiKey
from gateway.storage import Store, StoreUnavailable
from gateway.storage.brownout_rows import (
    CHANGES,
    Brownout,
    BrownoutHit,
    increment_brownout_hit_counts,
    list_planned_and_active_brownouts,
)
from gateway.storage.change_poller import ChangeCounts, load_change_counts
from mappings.failures import Problem

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Interruption:
    """The problem with which a request is refused, and the seconds until the brownout ends."""

    problem: Problem
    seconds: int


class Brownouts:
    """The open brownouts; an async context manager that saves the last hits at its end."""

    def __init__(self, store: Store, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._clock = clock
        self.open_brownouts: list[Brownout] = []
        self._hits: Counter[BrownoutHit] = Counter()
        self._change_count = -1

    async def __aenter__(self) -> Self:
        await self.reload_if_changed_and_save_hits(await load_change_counts(self._store))
        return self

    async def __aexit__(self, *_: object) -> None:
        with suppress(StoreUnavailable):  # as lost as those of a killed process
            await self._save_hits()

    def count_hits_and_find_refusal(self, key: ApiKey, operation: str) -> Interruption | None:
        """Finds the brownout that refuses a request now, and counts all that match it."""
        now = self._clock()
        matching = [
            brownout
            for brownout in self.open_brownouts
            if brownout.is_match(key.merchant, key.name, operation, now)
        ]
        for brownout in matching:
            self._hits[BrownoutHit(brownout.id, *key.tenant, key.name, operation)] += 1
        # The other brownouts only count, to preview their effect.
        ends = [brownout.ends_at for brownout in matching if brownout.refuses]
        return _build_interruption(max(ends), now) if ends else None

    async def reload_if_changed_and_save_hits(self, counts: ChangeCounts) -> None:
        """Listens to the change poller; raises StoreUnavailable."""
        if (change_count := counts.get(CHANGES, 0)) != self._change_count:
            now = self._clock()
            self.open_brownouts = await list_planned_and_active_brownouts(self._store, now)
            self._change_count = change_count
        await self._save_hits()

    async def _save_hits(self) -> None:
        # Replaced before the write, because requests are counted while it waits for the database.
        hits, self._hits = self._hits, Counter()
        try:
            await increment_brownout_hit_counts(self._store, hits)
        except StoreUnavailable:
            # These counts are written at the next poll.
            self._hits.update(hits)
            raise


def _build_interruption(until: datetime, now: datetime) -> Interruption:
    message = (
        "A planned interruption of this interface, which is going away: "
        f"it answers again at {until:%Y-%m-%dT%H:%M:%SZ}. This request changed nothing."
    )
    return Interruption(
        Problem("not_authorized", message), math.ceil((until - now).total_seconds())
    )
