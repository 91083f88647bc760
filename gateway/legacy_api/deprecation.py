"""Deprecation of the legacy interface (current interface, section 9).

Each response carries ``Deprecation`` (RFC 9745) and ``Sunset`` (RFC 8594). If a page about the
deprecation is configured, ``Link`` refers to it and to the successor.
"""

from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from email.utils import format_datetime

from gateway.config.settings import Deprecation, Environments
from mappings.failures import Problem


class DeprecationNotice:
    """The configured deprecation: response headers, and the refusal after the sunset."""

    def __init__(self, settings: Deprecation, environments: Environments) -> None:
        self._announcement = _build_midnight(settings.announced) if settings.announced else None
        self._sunset = _build_midnight(settings.sunset_date) if settings.sunset_date else None
        self._settings = settings
        self.is_refused_after_sunset = settings.after_sunset == "refuse"
        self._page = settings.page
        self._successors = {
            name: f"{environment.base_url}/v1/"
            for name, environment in environments.map_configured_environments_by_name().items()
        }
        # Built once at start, because every response carries them.
        self.headers_by_environment: Mapping[str | None, Mapping[str, str]] = {
            name: self._build_headers(name) for name in (None, *self._successors)
        }
        """``Deprecation``, ``Sunset`` and ``Link``; empty if no end is announced."""

    def find_sunset_problem(self, now: datetime) -> Problem | None:
        """Returns the problem with which requests are refused after the sunset, if they are.

        ``now`` is in UTC.
        """
        if not self._settings.is_refused_on(now.date()):
            return None
        return Problem(
            "not_authorized",
            f"This interface was shut down on {self._settings.sunset_date}; "
            "the current interface takes its place.",
        )

    def _build_headers(self, environment: str | None) -> dict[str, str]:
        if self._announcement is None or self._sunset is None:
            return {}
        dates = {
            "Deprecation": f"@{int(self._announcement.timestamp())}",
            "Sunset": format_datetime(self._sunset, usegmt=True),
        }
        if not self._page:
            return dates
        # Without a key the environment is unknown; any configured one shows clients where to
        # migrate.
        successor = self._successors.get(environment or next(iter(self._successors), ""))
        links = [f'<{successor}>; rel="successor-version"'] if successor else []
        links += [f'<{self._page}>; rel="deprecation"', f'<{self._page}>; rel="sunset"']
        return {**dates, "Link": ", ".join(links)}


def _build_midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
