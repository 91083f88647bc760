"""Timestamps (ISO 8601, UTC) and the date filters of list queries."""

import re
from datetime import UTC, date, datetime, time

from mappings.effects import JSON

EARLIEST_INSTANT = datetime.min.replace(tzinfo=UTC)


def parse_instant_or_earliest(text: JSON) -> datetime:
    """Parses a timestamp, as UTC if it has no offset; returns the earliest instant if invalid.

    A row without a valid date thus sorts first, instead of failing the whole list.
    """
    try:
        instant = datetime.fromisoformat(text)
        return instant.astimezone(UTC) if instant.tzinfo else instant.replace(tzinfo=UTC)
    except (TypeError, ValueError, OverflowError):
        return EARLIEST_INSTANT


def format_timestamp(now: datetime) -> str:
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_date_span(text: str) -> tuple[datetime, datetime] | None:
    """Returns the first and last instant of a date; without a time, it covers its whole day.

    Returns None if the text is not a date.
    """
    text = text.strip().upper()
    day = _parse_day(text.removesuffix("Z"))
    # Query decoding turned the plus sign of an offset into a space.
    start = parse_instant_or_earliest(str(day or re.sub(r" ([0-9]{2}:?[0-9]{2})$", r"+\1", text)))
    if start == EARLIEST_INSTANT:
        return None
    # Both ends of a span are included, so a day ends with its last microsecond.
    return start, datetime.combine(day, time.max, UTC) if day else start


def _parse_day(text: str) -> date | None:
    """Parses a date without a time, in any ISO 8601 format."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None
