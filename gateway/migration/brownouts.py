"""Brownouts: time windows in which selected requests are refused on purpose.

Clients that still depend on the legacy interface notice that before it ends. Windows are polled
twice a second, so one can be switched off without a restart.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Self

import structlog

from gateway.auth.keys import ApiKey
from gateway.storage import Store, StoreUnavailable
from gateway.storage.brownout_rows import Brownout, Hit, add_hits, open_brownouts
from gateway.storage.periodic_tasks import PeriodicTask
from mappings.grammar import Problem

EVERY_SECONDS = 0.5

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Interruption:
    """The problem with which a request is refused, and the seconds until the brownout ends."""

    problem: Problem
    seconds: int


class Brownouts:
    """The open brownouts; an async context manager that polls for changes."""

    def __init__(self, store: Store, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._clock = clock
        self._open: list[Brownout] = []
        self._hits: Counter[Hit] = Counter()
        self._rounds = PeriodicTask("brownouts_reload", EVERY_SECONDS, self._look)

    async def __aenter__(self) -> Self:
        await self._look()
        await self._rounds.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._rounds.__aexit__()

    def interruption(self, key: ApiKey, operation: str) -> Interruption | None:
        """Finds the brownout that refuses a request now, and counts all that match it."""
        if not self._open:
            return None
        now = self._clock()
        met = [one for one in self._open if one.meets(key.merchant, key.name, operation, now)]
        for one in met:
            self._hits[Hit(one.id, key.owner, key.name, operation)] += 1
        # The others only count, to preview the effect of a brownout.
        ends = [one.ends_at for one in met if one.refuses]
        return _interruption(max(ends), now) if ends else None

    async def _look(self) -> None:
        self._open = await open_brownouts(self._store, self._clock())
        taken, self._hits = self._hits, Counter()
        try:
            await add_hits(self._store, taken)
        except StoreUnavailable:
            # Counted again at the next poll.
            self._hits.update(taken)
            raise


def _interruption(until: datetime, now: datetime) -> Interruption:
    told = (
        "A planned interruption of this interface, which is going away: "
        f"it answers again at {until:%Y-%m-%dT%H:%M:%SZ}. This request changed nothing."
    )
    return Interruption(Problem("not_authorized", told), math.ceil((until - now).total_seconds()))
