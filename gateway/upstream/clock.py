"""The time that requests are stamped with: this machine's, corrected by the service's own.

The service refuses a stamp that is 30 seconds old (current interface, section 5), so a clock that
is off stops every payment. Its answers say what time it is there (``Date``). That is believed
with care: a proxy in between may say something else, and a wrong correction stops every payment
just as well.
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
"""Seconds: offsets below this are none, and two that are this close are the same."""

NOTEWORTHY = 5.0
"""Seconds: an offset that deserves the operator's attention; smaller ones are the network's."""

STAMP_AGE = 30.0
"""Seconds after which the service refuses a stamp."""

log = structlog.get_logger()


@unchanging(frozen=True, slots=True)
class SkewSample:
    """One answer's ``Date`` against the wall clock: how far the service is ahead, in seconds.

    The truth lies within ``uncertainty`` of ``offset``: half the round trip, and half a second
    since ``Date`` has whole ones.
    """

    offset: float
    uncertainty: float

    def agrees_with(self, correction: float) -> bool:
        return abs(self.offset - correction) <= max(SMALL, self.uncertainty)

    def allows(self, stamped: float) -> bool:
        """Whether a service with this clock takes a stamp that is so far ahead of the wall clock."""
        return abs(self.offset - stamped) <= STAMP_AGE + 2 * self.uncertainty

    @property
    def correction(self) -> float:
        return 0.0 if self.agrees_with(0.0) else self.offset


def measure_skew(headers: Mapping[str, str], received: float, seconds: float) -> SkewSample | None:
    """``received`` by the wall clock, after ``seconds``; None where no time was told."""
    if "Age" in headers:  # a cache tells when it was first answered
        return None
    try:
        told = _moment(headers.get("Date", ""))
    except (ValueError, OverflowError):
        return None
    return SkewSample(told + 0.5 - (received - seconds / 2), seconds / 2 + 0.5)


@lru_cache(maxsize=16)
def _moment(told: str) -> float:
    """Kept: all answers of one second tell the same."""
    return parsedate_to_datetime(told).replace(tzinfo=UTC).timestamp()


@dataclass(slots=True)
class _Known:
    """What is known of one environment's clock.

    ``proven``: a call was refused, and accepted as soon as it was stamped with ``correction``.
    ``odd``: what the last accepted call's answer said, where that is something else.
    """

    correction: float = 0.0
    proven: bool = False
    odd: float | None = None


class Clock:
    """The wall clock, and for each environment how far the service's is ahead of it.

    ``monotonic`` tells how long ago something was, which a wall clock that is set does not.
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.wall = wall
        self.monotonic = monotonic
        self._known: dict[str, _Known] = {}

    def offset(self, environment: str) -> float:
        """Seconds that are added to the wall clock in this environment; 0.0 where it is right."""
        return self._of(environment).correction

    def accepted(self, environment: str, seen: SkewSample, stamped: float | None = None) -> None:
        """Takes note of the time that an accepted call's answer told.

        The stamp was good enough, so there is no hurry: what it told is believed once the next
        one says the same, and never where the service, if that were its time, would have refused
        the stamp. ``stamped`` is how far ahead of the wall clock that was, where a client made it.
        """
        known = self._of(environment)
        odd, known.odd = known.odd, None
        if seen.agrees_with(known.correction):
            return
        if not seen.allows(known.correction if stamped is None else stamped):
            return
        if odd is not None and abs(seen.offset - odd) <= SMALL:
            self._correct(environment, seen.correction, proven=False)
        else:
            known.odd = seen.offset

    def after_refusal(
        self, environment: str, seen: SkewSample | None, correction: float
    ) -> float | None:
        """What to correct by when a refused call, stamped with ``correction``, is tried again.

        What the refusal told; where it was stamped with that already, nothing, for it may be
        wrong itself. None where there is no other time to try.
        """
        if seen and not seen.agrees_with(correction):
            return seen.correction
        if correction and not self._of(environment).proven:
            return 0.0
        return None

    def prove(self, environment: str, correction: float) -> None:
        """A call that had been refused was accepted when stamped with this correction."""
        self._correct(environment, correction, proven=True)

    def _of(self, environment: str) -> _Known:
        return self._known.setdefault(environment, _Known())

    def _correct(self, environment: str, correction: float, *, proven: bool) -> None:
        before = self.offset(environment)
        self._known[environment] = _Known(correction, proven)
        # Calls side by side find the same out, each a little differently: said once.
        if abs(correction - before) > SMALL:
            log.warning(
                "clock_corrected", environment=environment, offset_seconds=round(correction, 1)
            )
