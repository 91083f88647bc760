"""The clock by which processes on several machines compare times: that of their database."""

import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from gateway.storage.database import Database

_SAMPLE_COUNT = 16
"""Number of measurements of which the fastest counts."""


class DatabaseClock:
    """The database's time, as measured by this process; its own until the first measurement.

    A database of one process has no clock of its own: ``fallback`` is used.
    """

    def __init__(
        self,
        database: Database,
        fallback: Callable[[], datetime],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._fallback = fallback
        self._monotonic = monotonic
        self._monotonic_epoch: datetime | None = None
        """When the monotonic clock was 0, by the wall clock of the first measurement."""
        self._samples: deque[tuple[float, float]] = deque(maxlen=_SAMPLE_COUNT)
        """Round-trip times, and the seconds by which the database's time was ahead of ours."""

    async def measure(self) -> datetime | None:
        """Compares both clocks; returns the database's time, None if it has no clock.

        Raises StoreUnavailable.
        """
        started_at = self._monotonic()
        if self._monotonic_epoch is None:
            self._monotonic_epoch = self._fallback() - timedelta(seconds=started_at)
        time_of_database = await self._database.read_clock()
        if time_of_database is None:
            return None
        ended_at = self._monotonic()
        round_trip = ended_at - started_at
        offset = time_of_database.timestamp() - (started_at + ended_at) / 2
        # Further apart than both round trips explain: one of the clocks was set.
        if (
            self._samples
            and abs(offset - min(self._samples)[1]) > round_trip + min(self._samples)[0]
        ):
            self._samples.clear()
        self._samples.append((round_trip, offset))
        return time_of_database

    def now(self) -> datetime:
        if not self._samples:
            return self._fallback()
        return datetime.fromtimestamp(self._monotonic() + min(self._samples)[1], UTC)

    @property
    def uncertainty(self) -> timedelta:
        """By how much the database's time may be ahead of ``now``, or behind."""
        return timedelta(seconds=min(self._samples)[0] / 2 if self._samples else 0)

    def compute_time_before(self, age: timedelta) -> datetime:
        """Returns the latest time of what is at least so old.

        A clock that is set forward makes nothing older that this process has stored: a machine may
        start with a wrong date.
        """
        now = self.now()
        if self._monotonic_epoch is not None:
            now = min(now, self._monotonic_epoch + timedelta(seconds=self._monotonic()))
        return now - age
