"""Timestamps of requests: the local clock, corrected by the measured skew to the service's clock.

The service refuses a timestamp that is 30 seconds old (current interface, section 5), so clock skew
stops all payments. Skew is measured with the ``Date`` header. A proxy may send a wrong one, and a
wrong correction stops all payments too, so a sample is used only if it is confirmed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import TYPE_CHECKING

import structlog

from mappings.unchanging import unchanging

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SMALL = 2.0
"""Offsets below this count as none, and two that are this close count as equal."""

NOTEWORTHY = 5.0
"""Offsets from which operators are alerted; smaller ones may be network delay."""

STAMP_AGE = 30.0
"""Age from which the service refuses a timestamp."""

log = structlog.get_logger()


@unchanging(frozen=True, slots=True)
class SkewSample:
    """A measured skew, in seconds: how far the service's clock is ahead of the local one.

    The true value lies within ``uncertainty`` of ``offset``: half the round trip, plus half a
    second because ``Date`` has whole seconds.
    """

    offset: float
    uncertainty: float

    def agrees_with(self, correction: float) -> bool:
        return abs(self.offset - correction) <= max(SMALL, self.uncertainty)

    def allows(self, stamped: float) -> bool:
        """Whether a service with this skew accepts a timestamp that far ahead of the local clock."""
        return abs(self.offset - stamped) <= STAMP_AGE + 2 * self.uncertainty

    @property
    def correction(self) -> float:
        return 0.0 if self.agrees_with(0.0) else self.offset


def measure_skew(headers: Mapping[str, str], received: float, seconds: float) -> SkewSample | None:
    """Measures the skew from the headers of a response.

    ``received_at`` is in seconds of the wall clock, ``seconds`` the duration of the call. None if
    the response has no usable ``Date``.
    """
    if "Age" in headers:  # a cached response has the date of the original one
        return None
    try:
        told = _moment(headers.get("Date", ""))
    except (ValueError, OverflowError):
        return None
    return SkewSample(told + 0.5 - (received - seconds / 2), seconds / 2 + 0.5)


@lru_cache(maxsize=16)
def _moment(told: str) -> float:
    # Cached, because all responses of one second have the same date.
    return parsedate_to_datetime(told).replace(tzinfo=UTC).timestamp()


@dataclass(slots=True)
class _Known:
    """The skew of one environment.

    ``is_proven``: a refused call was accepted when its timestamp was corrected by ``correction``.
    ``unconfirmed_offset``: the sample of the last accepted call, if it disagrees.
    """

    correction: float = 0.0
    proven: bool = False
    odd: float | None = None


class Clock:
    """The local clock, and the skew of each environment.

    ``monotonic`` measures durations, because the wall clock may be set meanwhile.
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.wall = wall
        self.monotonic = monotonic
        self._known: dict[str, _Known] = {}

    def offset(self, environment: str) -> float:
        """Returns the seconds to add to the wall clock in this environment; 0.0 if it is right."""
        return self._of(environment).correction

    def accepted(self, environment: str, seen: SkewSample, stamped: float | None = None) -> None:
        """Records the sample of an accepted call.

        The timestamp was accepted, so a differing sample is used only if the next one confirms it,
        and never if the service would have refused the timestamp at that skew. ``stamp_offset`` is
        how far a client's own timestamp was ahead of the wall clock.
        """
        known = self._of(environment)
        odd, known.odd = known.odd, None
        if seen.agrees_with(known.correction):
            return
        # The sample contradicts the fact that the service accepted the timestamp: a proxy's date.
        if not seen.allows(known.correction if stamped is None else stamped):
            return
        if odd is not None and abs(seen.offset - odd) <= SMALL:
            self._correct(environment, seen.correction, proven=False)
        else:
            known.odd = seen.offset

    def after_refusal(
        self, environment: str, seen: SkewSample | None, correction: float
    ) -> float | None:
        """Selects the correction for another try of a call refused with ``correction``.

        The sample of the refusal; or no correction, if the call already used that sample, because
        the correction itself may be wrong. None if there is nothing else to try.
        """
        if seen and not seen.agrees_with(correction):
            return seen.correction
        # The current correction was never proven, so the local clock may be right.
        if correction and not self._of(environment).proven:
            return 0.0
        return None

    def prove(self, environment: str, correction: float) -> None:
        """Records that a refused call was accepted with this correction."""
        self._correct(environment, correction, proven=True)

    def _of(self, environment: str) -> _Known:
        return self._known.setdefault(environment, _Known())

    def _correct(self, environment: str, correction: float, *, proven: bool) -> None:
        before = self.offset(environment)
        self._known[environment] = _Known(correction, proven)
        # Concurrent calls measure slightly different skews: log only real changes.
        if abs(correction - before) > SMALL:
            log.warning(
                "clock_corrected", environment=environment, offset_seconds=round(correction, 1)
            )
