"""The service page: clock, signature scope and optional endpoints of each environment, and checks."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog
from aiohttp import web

from gateway.console.pages import Page
from gateway.operator.rehearsal.report import CAPABILITY_NAME as REHEARSAL
from gateway.storage import ObjectStateStore
from gateway.upstream.clock import NOTEWORTHY_SKEW_SECONDS
from gateway.upstream.optional_endpoints import describe_endpoint_finding
from gateway.upstream.signed_target import CAPABILITY_NAME
from mappings.current import ENDPOINTS

if TYPE_CHECKING:
    from gateway.operator.doctor import Finding

log = structlog.get_logger()

STATE_ORDER = ("error", "warning", "skipped", "ok")


class ServicePage(Page):
    async def __call__(self, request: web.Request) -> web.StreamResponse:
        return await self._render(request, None)

    async def run_and_show_doctor_checks(
        self, request: web.Request, _fields: Mapping[str, str]
    ) -> web.StreamResponse:
        """Runs the checks of `doctor`, which only read, and shows the results."""
        from gateway.operator.doctor import run_doctor  # noqa: PLC0415 - a start does not need its imports

        log.info(
            "console_doctor_run", **{"client.address": self._pages.find_client_address(request)}
        )
        # It has its own connections, so its probes do not count for the circuit breaker.
        findings = await run_doctor(self._dependencies.settings)
        # A stable sort: the checks of one state stay in their order.
        findings.sort(key=lambda finding: STATE_ORDER.index(finding.state))
        return await self._render(request, findings)

    async def _render(
        self, request: web.Request, findings: list[Finding] | None
    ) -> web.StreamResponse:
        ledger = ObjectStateStore(self._store)
        settings = self._dependencies.settings
        environments = settings.environments.map_configured_environments_by_name()
        problems = await self._health.find_problems()
        return self._pages.render_page(
            request,
            "service",
            services=[
                {
                    "name": name,
                    "environment": environment,
                    # In the order of the checks.
                    "problems": [
                        problem
                        for kind in ("environments", "service", "legacy")
                        if (problem := problems.get(f"{kind}.{name}"))
                    ],
                    **self._describe_worker_state(name),
                    **_describe_findings(await ledger.load_capabilities(name)),
                }
                for name, environment in environments.items()
            ],
            findings=findings,
            inferred=settings.upstream.inferred_operations,
            scope_setting=settings.upstream.signed_target,
        )

    def _describe_worker_state(self, name: str) -> dict[str, Any]:
        """Returns how far the service's clock is ahead, in seconds, and the cache if it is on."""
        offset = self._dependencies.clock.offset(name)
        is_on = self._dependencies.settings.lists.index
        indexes = self._dependencies.indexes
        return {
            "offset": offset,
            "is_off": abs(offset) >= NOTEWORTHY_SKEW_SECONDS,
            "index": indexes.calculate_cache_statistics(name) if is_on else None,
        }


def _describe_findings(learned: Mapping[str, tuple[Any, datetime]]) -> dict[str, Any]:
    """Returns what was detected of a service, each with its time."""
    return {
        "scope": learned.get(CAPABILITY_NAME, (None, None)),
        "rehearsal": learned.get(REHEARSAL, (None, None)),
        "endpoints": [
            _describe_endpoint(f"{endpoint.method} {endpoint.path}", learned)
            for endpoint in ENDPOINTS
            if endpoint.is_optional
        ],
    }


def _describe_endpoint(
    name: str, learned: Mapping[str, tuple[Any, datetime]]
) -> tuple[str, bool | None, str, datetime | None]:
    """Returns an endpoint's name, presence (None if not needed yet), finding, and its time."""
    value, _ = learned.get(f"inferred {name}", (None, None))
    if not isinstance(value, Mapping):
        return name, None, "not needed yet", None
    timestamp = value.get("at")
    found_at = datetime.fromtimestamp(timestamp, UTC) if isinstance(timestamp, int) else None
    return name, bool(value.get("present")), describe_endpoint_finding(value), found_at
