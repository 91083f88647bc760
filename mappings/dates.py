"""Dates as both interfaces write them (ISO 8601, UTC), and the span of time that one means in a query."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time

from mappings.grammar import JSON

BEGINNING = datetime.min.replace(tzinfo=UTC)


def parse_instant(text: JSON) -> datetime:
    """A date of the interfaces (ISO 8601, UTC where it does not say); the beginning of time if none."""
    try:
        read = datetime.fromisoformat(text)
        return read.astimezone(UTC) if read.tzinfo else read.replace(tzinfo=UTC)
    except (TypeError, ValueError, OverflowError):
        return BEGINNING


def parse_span(text: str) -> tuple[datetime, datetime] | None:
    """The first and the last instant that a date means; one without a time means its whole day.

    None for what is no date.
    """
    text = text.strip().upper()
    day = _day(text.removesuffix("Z"))
    # A plus sign in a query is read as a space; before an offset it was a plus.
    start = parse_instant(str(day or re.sub(r" ([0-9]{2}:?[0-9]{2})$", r"+\1", text)))
    if start == BEGINNING:
        return None
    return start, datetime.combine(day, time.max, UTC) if day else start


def _day(text: str) -> date | None:
    """A date without a time, in any of ISO 8601's ways to write it."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None
