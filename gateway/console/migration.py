"""The migration page: legacy usage by key, and time left until the sunset date."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from aiohttp import web

from gateway.auth.key_rows import load_listed_keys
from gateway.console.charts import Plot, build_plot, select_axis_labels
from gateway.console.dependencies import Parts
from gateway.console.pages import Pages
from gateway.operator.key_usage import KeyUse, group_usage_by_key, list_replacement_calls
from gateway.storage.usage_rows import Day, Used, used_by_day, used_since

DAYS = 60
RECENT = timedelta(days=7)
SIGNED = "signed"

SHOWN = 200
"""Keys on the page; `report usage` lists all."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Time until the sunset. The dates are None if none is announced; ``elapsed`` is from 0 to 1."""

    announced: date | None
    sunset: date | None
    left: int
    gone: float


def compute_migration_progress(
    announced: date | None, sunset: date | None, today: date
) -> Progress:
    if announced is None or sunset is None:
        return Progress(announced, sunset, 0, 0.0)
    whole = (sunset - announced).days or 1
    gone = min(max((today - announced).days / whole, 0.0), 1.0)
    return Progress(announced, sunset, (sunset - today).days, gone)


@dataclass(frozen=True, slots=True)
class Left:
    """Legacy usage of a key in the period; ``is_recent``: also in the last days."""

    use: KeyUse
    is_recent: bool
    operations: list[Used]


class MigrationPage:
    def __init__(self, parts: Parts, pages: Pages) -> None:
        self._parts = parts
        self._pages = pages

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        store, now = self._parts.store, self._parts.store.clock()
        today = now.date()
        since = today - timedelta(days=DAYS - 1)
        keys = group_usage_by_key(await used_since(store, since))
        left = [_left(one, now) for one in keys if one.key]
        left.sort(key=lambda one: (not one.is_recent, -one.use.requests))
        active = sum(one.revoked_at is None for one in await load_listed_keys(store))
        deprecation = self._parts.settings.deprecation
        return self._pages.page(
            request,
            "migration",
            days=DAYS,
            recent_days=RECENT.days,
            progress=compute_migration_progress(
                deprecation.announced, deprecation.sunset_date, today
            ),
            refuses=deprecation.after_sunset == "refuse",
            left=left[:SHOWN],
            more=len(left) - SHOWN,
            quiet=sum(not one.is_recent for one in left),
            recent=sum(one.is_recent for one in left),
            keys=active,
            signed=sorted(filter(_is_signed, keys), key=lambda one: -one.requests),
            unknown=next((one for one in keys if not one.owner.merchant), None),
            plot=_plot(await used_by_day(store, since), since, today),
            becomes=list_replacement_calls(),
        )


def _is_signed(one: KeyUse) -> bool:
    return not one.key and any(each.operation == SIGNED for each in one.operations)


def _left(one: KeyUse, now: datetime) -> Left:
    operations = sorted(one.operations, key=lambda each: -each.requests)
    return Left(one, now - one.last_at < RECENT, operations)


def _plot(days: Sequence[Day], since: date, today: date) -> Plot:
    moments = [since + timedelta(days=number) for number in range((today - since).days + 1)]
    bars = {one: {"legacy": 0.0, "signed": 0.0} for one in moments}
    for each in days:
        if each.day in bars:
            bars[each.day]["signed" if each.operation == SIGNED else "legacy"] += each.requests
    midnights = [datetime.combine(one, datetime.min.time()) for one in moments]
    return build_plot(
        [(f"{one}", values) for one, values in bars.items()], select_axis_labels(midnights, "%d %b")
    )
