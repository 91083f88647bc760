"""The announced end of the legacy interface, told with every answer (current interface, section 9).

``Deprecation`` is RFC 9745's, ``Sunset`` RFC 8594's. If a page about it is
configured, links lead there and to what takes its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from email.utils import format_datetime

from gateway.config.settings import Deprecation, Environments
from mappings.grammar import Problem


class End:
    """When the legacy interface ends, and what clients are told of it."""

    def __init__(self, settings: Deprecation, environments: Environments) -> None:
        self._announced = _midnight(settings.announced) if settings.announced else None
        self._sunset = _midnight(settings.sunset_date) if settings.sunset_date else None
        self._refuses = settings.after_sunset == "refuse"
        self._page = settings.page
        self._successors = {
            name: f"{one.base_url}/v1/" for name, one in environments.configured().items()
        }
        self._headers = {name: self._told(name) for name in (None, *self._successors)}

    def headers(self, environment: str | None = None) -> Mapping[str, str]:
        """``Deprecation``, ``Sunset`` and ``Link``; none where nothing is announced."""
        return self._headers.get(environment, {})

    def refusal(self, now: datetime) -> Problem | None:
        """What a client is told after the sunset, where it is refused then."""
        if self._sunset is None or not self._refuses or now < self._sunset:
            return None
        return Problem(
            "not_authorized",
            f"This interface was shut down on {self._sunset:%Y-%m-%d}; "
            "the current interface takes its place.",
        )

    def _told(self, environment: str | None) -> dict[str, str]:
        if self._announced is None or self._sunset is None:
            return {}
        dates = {
            "Deprecation": f"@{int(self._announced.timestamp())}",
            "Sunset": format_datetime(self._sunset, usegmt=True),
        }
        if not self._page:
            return dates
        successor = self._successors.get(environment or next(iter(self._successors), ""))
        links = [f'<{successor}>; rel="successor-version"'] if successor else []
        links += [f'<{self._page}>; rel="deprecation"', f'<{self._page}>; rel="sunset"']
        return {**dates, "Link": ", ".join(links)}


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
