"""Alerts for operators, and manual overrides that are still active."""

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from gateway.admin.port import drop_consequences, find_readiness_problem
from gateway.console.dependencies import ConsoleDependencies, WorkerList
from gateway.observability.plurals import join_names, pluralize
from gateway.operator.doctor import check_interruptions
from gateway.operator.mode_switches import list_switched_keys, name_affected_clients
from gateway.operator.restore_check import RESTORED_ADVICE, RESTORED_MESSAGE
from gateway.operator.state_gauges import StateGauges
from gateway.operator.usage import LimitUse
from gateway.storage.difference_rows import load_comparison_tallies_by_key
from gateway.storage.request_counts import RequestCounts, sum_request_counts
from gateway.upstream.service_problems import Refusal

CHECK_CACHE_SECONDS = 2.0
"""Checks are cached this long, however many clients refresh a page."""

CHECK_LABELS = {
    "state": "database",
    "limits": "rate limiter",
    "environments": "address of",
    "service": "service",
    "legacy": "legacy service",
}
"""How operators read the names of the checks of `/readyz`."""

FAILURE_RATIO = 0.05
"""Alert if a larger share of recent requests failed."""

REFUSAL_RATIO = 0.5
"""Alert if a larger share of recent requests was refused: the cause is hardly each client's own."""

MIN_REQUESTS = 3
"""Warn of one merchant's errors after at least as many of its requests."""


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert. ``href`` is the page with details."""

    level: Literal["error", "warning"]
    text: str
    href: str


class HealthChecks:
    """The checks of `/readyz` of all workers, run for all pages, which therefore agree."""

    def __init__(self, dependencies: ConsoleDependencies) -> None:
        self._dependencies = dependencies
        self.refusals = WorkerList(
            dependencies, "/service/refusals", self._list_own_refusals, tuple[str, Refusal]
        )
        """The refused merchants, each with its environment."""
        self._problems: dict[str, str | None] = {}
        # So that the first request always runs the checks.
        self._checked_at = -math.inf
        self._lock = asyncio.Lock()

    def _list_own_refusals(self) -> list[tuple[str, Refusal]]:
        refusals = self._dependencies.service_problems.map_refusals_by_environment()
        return [(environment, each) for environment in refusals for each in refusals[environment]]

    async def find_problems(self) -> dict[str, str | None]:
        # One at a time: several browsers that refresh must not multiply the calls of the service.
        async with self._lock:
            now = asyncio.get_running_loop().time
            if now() - self._checked_at >= CHECK_CACHE_SECONDS:
                self._problems = await self._run_checks()
                self._checked_at = now()
            return self._problems

    async def _run_checks(self) -> dict[str, str | None]:
        """Runs the checks of all workers; names the clients that a fault affects."""
        checks, store = self._dependencies.checks, self._dependencies.store
        # Each worker has its own circuit breakers, and sees the answers to its own calls.
        results, bodies, refusals = await asyncio.gather(
            asyncio.gather(*map(find_readiness_problem, checks.values())),
            self._dependencies.fetch_from_other_workers("/readyz"),
            self.refusals.load(),
        )
        problems = dict(zip(checks, results, strict=True))
        for body in bodies:
            problems.update(json.loads(body)["faults"])
        faults = drop_consequences({name: fault for name, fault in problems.items() if fault})
        settings = self._dependencies.settings
        # A legacy service that has no address, and that nobody needs, is not shown as "ok".
        addresses = settings.environments.map_legacy_base_urls_by_environment()
        fine = {name for name, fault in problems.items() if not fault}
        fine -= {name for name in fine if name.startswith("legacy.") and name[7:] not in addresses}
        forwarding_modes = settings.comparing.forwarding_modes
        switched_keys = await list_switched_keys(store)
        switched_keys |= await list_switched_keys(store, forwarding_modes)
        named = name_affected_clients(faults, {*refusals}, switched_keys)
        return {name: named.get(name) for name in problems if name in fine or name in named}


def format_check_name(name: str) -> str:
    kind, _, environment = name.partition(".")
    return f"{CHECK_LABELS[kind]} {environment}".rstrip()


async def load_alerts(
    dependencies: ConsoleDependencies,
    faults: Mapping[str, str | None],
    figures: StateGauges,
    recent_by_merchant: Mapping[str, RequestCounts],
    limited_keys: Sequence[LimitUse],
    *,
    last_failure_at: datetime | None,
) -> list[Alert]:
    """Loads all alerts, errors first; ``last_failure_at`` is set if failures have ended.

    Raises StoreUnavailable.
    """
    interruptions = await check_interruptions(dependencies.settings, dependencies.store)
    differing_keys = {
        (operation.tenant, operation.key)
        for operation, tally in (await load_comparison_tallies_by_key(dependencies.store)).items()
        if tally.places
    }
    recent = sum_request_counts(recent_by_merchant.values())
    # A share, because a few failures among many requests are normal.
    is_failing = recent.failed > FAILURE_RATIO * recent.requests
    last_failure = f", the last at {last_failure_at:%H:%M} UTC" if last_failure_at else ""
    is_refusing = recent.refused > REFUSAL_RATIO * recent.requests
    requests = f"of {recent.requests:,} requests"
    # One merchant of many hardly changes the shares of all requests.
    afflicted = [
        merchant
        for merchant, counts in recent_by_merchant.items()
        if (merchant and not is_failing and not is_refusing)
        and counts.requests >= MIN_REQUESTS
        and counts.refused + counts.failed > REFUSAL_RATIO * counts.requests
    ]
    exhausted, nearly_exhausted = (
        [str(use) for use in limited_keys if use.level == level] for level in ("reached", "near")
    )
    in_doubt, superseded = figures.in_doubt_operations, figures.superseded_batches
    started = figures.started_superseded_batches
    # What must be true, or how many there are; and the alert.
    candidates: list[tuple[object, Literal["error", "warning"], str, str]] = [
        # Of an environment its name only, because its faults say which service they are about.
        *((fault, "error", f"{name.partition('.')[2] or format_check_name(name)}: {fault}", "/service") for name, fault in faults.items()),
        (figures.is_restored, "error", f"{RESTORED_MESSAGE}, so no batch is started: {RESTORED_ADVICE}", "/service"),
        (not any(figures.keys.values()), "error", "no API key is imported: every client is refused; run `payout-gateway keys import`", "/limits"),
        (started, "error", f"{pluralize(started, 'superseded batch was', 'superseded batches were')} started outside the gateway: a recipient may be paid twice", "/writes"),
        (in_doubt, "error", f"{pluralize(in_doubt, 'write is', 'writes are')} in doubt", "/writes"),
        (
            is_failing,
            "warning" if last_failure else "error",
            f"{recent.failed:,} {requests} failed (5xx) in the last 15 minutes{last_failure}",
            "/requests?status=5xx",
        ),
        (is_refusing, "warning", f"{recent.refused:,} {requests} refused (4xx) in the last 15 minutes", "/requests?status=4xx"),
        (exhausted, "warning", f"reached the hourly limit, so clients are refused (429): {join_names(exhausted)}", "/limits"),
        (afflicted, "warning", f"most requests of the last 15 minutes got errors: {join_names(afflicted)}", "/requests?status=errors"),
        (superseded, "warning", f"{pluralize(superseded, 'batch is', 'batches are')} superseded at the service", "/writes"),
        *((True, "warning", f"{each.result}; {each.advice}", "/switches") for each in interruptions),
        (nearly_exhausted, "warning", f"near the hourly limit: {join_names(nearly_exhausted)}", "/limits"),
        (differing_keys, "warning", f"{pluralize(len(differing_keys), 'compared key has', 'compared keys have')} responses that differ", "/compare"),
    ]  # fmt: skip
    return [Alert(level, text, href) for condition, level, text, href in candidates if condition]
