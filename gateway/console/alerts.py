"""Alerts for operators, and manual overrides that are still active."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from gateway.console.dependencies import Parts
from gateway.operator.metrics_page import Figures
from gateway.operator.restore_check import DO, HAPPENED
from gateway.storage.brownout_rows import open_brownouts
from gateway.storage.difference_rows import all_tallies
from gateway.storage.traffic_rows import Traffic

FAILING = 0.05
"""Alert if a larger share of recent requests failed."""


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert. ``href`` is the page with details."""

    level: Literal["error", "warning"]
    says: str
    href: str


_RESTORED = (Alert("error", f"{HAPPENED}, so no batch is started: {DO}", "/service"),)


async def load_alerts(
    parts: Parts,
    faults: Mapping[str, str | None],
    figures: Figures,
    recent: Traffic,
    near_their_limit: int,
) -> list[Alert]:
    """Loads all alerts, errors first; raises StoreUnavailable."""
    windows = [one for one in await open_brownouts(parts.store, parts.store.clock()) if one.refuses]
    differ = {
        (one.owner, one.key)
        for one, tally in (await all_tallies(parts.store)).items()
        if tally.places
    }
    failing = recent.failed if recent.failed > FAILING * recent.requests else 0
    of = f"of the last {recent.requests:,} requests failed (5xx)"
    return [
        *(Alert("error", f"{name}: {fault}", "/service") for name, fault in faults.items() if fault),
        *(_RESTORED if figures.is_restored else ()),
        *_wrong(figures.unsettled, "write is", "writes are", "in doubt", "/writes"),
        *_wrong(failing, of, of, "", "/traffic?hours=1"),
        *_look(figures.abandoned, "batch is", "batches are", "superseded at the service", "/writes"),
        *_look(figures.freezes, "write freeze is", "write freezes are", "active", "/switches"),
        *_look(
            len(windows), "brownout is", "brownouts are", "active or scheduled", "/switches"
        ),
        *_look(near_their_limit, "key is near its", "keys are near their", "limit", "/limits"),
        *_look(
            len(differ), "compared key has", "compared keys have", "answers that differ", "/compare"
        ),
    ]  # fmt: skip


def _wrong(number: int, one: str, many: str, rest: str, href: str) -> Iterator[Alert]:
    if number:
        yield Alert("error", f"{number:,} {one if number == 1 else many} {rest}".rstrip(), href)


def _look(number: int, one: str, many: str, rest: str, href: str) -> Iterator[Alert]:
    for found in _wrong(number, one, many, rest, href):
        yield Alert("warning", found.says, found.href)
