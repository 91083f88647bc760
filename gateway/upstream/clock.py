"""Timestamps of requests: the local clock, corrected by the measured skew to the service's clock.

The service refuses a timestamp that is 30 seconds old (current interface, section 5), so clock skew
stops all payments. Skew is measured with the ``Date`` header. A proxy may send a wrong one, and a
wrong correction stops all payments too, so a sample is used only if it is confirmed.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import lru_cache

import msgspec
import structlog

SKEW_TOLERANCE_SECONDS = 2.0
"""Offsets below this count as zero, and two offsets this close count as equal."""

NOTEWORTHY_SKEW_SECONDS = 5.0
"""Offsets from which operators are alerted; smaller ones may be network delay."""

MAX_STAMP_AGE_SECONDS = 30.0
"""Age from which the service refuses a timestamp."""

log = structlog.get_logger()


class SkewSample(msgspec.Struct, frozen=True):
    """A measured skew, in seconds: how far the service's clock is ahead of the local one.

    The true value lies within ``uncertainty`` of ``offset``: half the round trip, plus half a
    second because ``Date`` has whole seconds.
    """

    offset: float
    uncertainty: float

    def is_consistent_with_correction(self, correction: float) -> bool:
        return abs(self.offset - correction) <= max(SKEW_TOLERANCE_SECONDS, self.uncertainty)

    def is_timestamp_acceptable(self, stamp_offset: float) -> bool:
        """Whether a service with this skew accepts a timestamp this far ahead of local time."""
        return abs(self.offset - stamp_offset) <= MAX_STAMP_AGE_SECONDS + 2 * self.uncertainty

    @property
    def correction(self) -> float:
        return 0.0 if self.is_consistent_with_correction(0.0) else self.offset


def measure_skew(
    headers: Mapping[str, str], received_at: float, seconds: float
) -> SkewSample | None:
    """Measures the skew from the headers of a response.

    ``received_at`` is in seconds of the wall clock, ``seconds`` the duration of the call. None if
    the response has no usable ``Date``.
    """
    if "Age" in headers:  # a cached response has the date of the original one
        return None
    try:
        service_time = _parse_http_date(headers.get("Date", ""))
    except (ValueError, OverflowError):
        return None
    # ``Date`` is cut to whole seconds, which is half a second on average.
    return SkewSample(service_time + 0.5 - (received_at - seconds / 2), seconds / 2 + 0.5)


@lru_cache(maxsize=16)
def _parse_http_date(date: str) -> float:
    # Cached, because all responses of one second have the same date.
    return parsedate_to_datetime(date).replace(tzinfo=UTC).timestamp()


@dataclass(slots=True)
class EnvironmentSkew:
    """The skew of one environment.

    ``is_proven``: a refused call was accepted when its timestamp was corrected by ``correction``.
    ``unconfirmed_offset``: the sample of the last accepted call, if it disagrees.
    ``confirmed_date``: the ``Date`` of the last sample that agreed, which all responses of the same
    second have. ``max_error``: by how many seconds the corrected clock has been wrong at most, as any
    ``Date`` says, believed or not; None before the first.
    """

    correction: float = 0.0
    is_proven: bool = False
    unconfirmed_offset: float | None = None
    confirmed_date: bytes = b""
    max_error: float | None = None


class ServiceClock:
    """The local clock, and the skew of each environment.

    ``monotonic`` measures durations, because the wall clock may be set meanwhile.
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.wall = wall
        self.monotonic = monotonic
        self._skew_by_environment = defaultdict[str, EnvironmentSkew](EnvironmentSkew)

    def offset(self, environment: str) -> float:
        """Returns the seconds to add to the wall clock in this environment; 0.0 if it is right."""
        return self._skew_by_environment[environment].correction

    def find_max_error(self, environment: str) -> float | None:
        """Returns by how many seconds earlier times may be wrong; None if that is not known."""
        return self._skew_by_environment[environment].max_error

    def find_skew(self, environment: str) -> EnvironmentSkew:
        """Returns the skew of an environment, which changes when a correction does."""
        return self._skew_by_environment[environment]

    def record_accepted(
        self,
        environment: str,
        sample: SkewSample,
        stamp_offset: float | None = None,
        date: bytes = b"",
    ) -> None:
        """Records the sample of an accepted call, and the ``Date`` from which it was measured.

        The timestamp was accepted, so a differing sample is used only if the next one confirms it,
        and never if the service would have refused the timestamp at that skew. ``stamp_offset`` is
        how far a client's own timestamp was ahead of the wall clock.
        """
        skew = self._skew_by_environment[environment]
        unconfirmed_offset, skew.unconfirmed_offset = skew.unconfirmed_offset, None
        if sample.is_consistent_with_correction(skew.correction):
            skew.confirmed_date, skew.max_error = date, skew.max_error or 0.0
            return
        skew.max_error = max(skew.max_error or 0.0, abs(sample.offset - skew.correction))
        # The sample contradicts the fact that the service accepted the timestamp: a proxy's date.
        used_offset = skew.correction if stamp_offset is None else stamp_offset
        if not sample.is_timestamp_acceptable(used_offset):
            return
        if (
            unconfirmed_offset is not None
            and abs(sample.offset - unconfirmed_offset) <= SKEW_TOLERANCE_SECONDS
        ):
            self._set_correction(environment, sample.correction, is_proven=False)
        else:
            skew.unconfirmed_offset = sample.offset

    def select_retry_correction(
        self, environment: str, sample: SkewSample | None, correction: float
    ) -> float | None:
        """Selects the correction for another try of a call refused with ``correction``.

        Returns the sample of the refusal, or 0.0 if the call already used that sample, because the
        correction itself may be wrong. Returns None if there is nothing else to try.
        """
        # A refused call proves that its timestamp was wrong, so one sample is enough here.
        if sample and not sample.is_consistent_with_correction(correction):
            return sample.correction
        # The current correction is unproven, so the local clock may be right.
        if correction and not self._skew_by_environment[environment].is_proven:
            return 0.0
        return None

    def record_proven_correction(self, environment: str, correction: float) -> None:
        """Records that a refused call was accepted with this correction."""
        self._set_correction(environment, correction, is_proven=True)

    def _set_correction(self, environment: str, correction: float, *, is_proven: bool) -> None:
        skew = self._skew_by_environment[environment]
        old_correction, skew.correction, skew.is_proven = skew.correction, correction, is_proven
        skew.unconfirmed_offset, skew.confirmed_date = None, b""
        skew.max_error = max(skew.max_error or 0.0, abs(correction - old_correction))
        # Concurrent calls measure slightly different skews: log only real changes.
        if abs(correction - old_correction) > SKEW_TOLERANCE_SECONDS:
            log.warning(
                "clock_corrected", environment=environment, offset_seconds=round(correction, 1)
            )
