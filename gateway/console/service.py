"""The service page: clock, signature scope and optional endpoints of each environment, and checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog
from aiohttp import web

from gateway.console.pages import Page
from gateway.operator.rehearsal.report import CAPABILITY_NAME as REHEARSAL
from gateway.reads.recipient_cache import CacheFigures
from gateway.storage import ObjectStateStore
from gateway.upstream.clock import NOTEWORTHY_SKEW_SECONDS
from gateway.upstream.optional_endpoints import describe_endpoint_finding
from gateway.upstream.signed_target import CAPABILITY_NAME
from mappings.current import ENDPOINTS

if TYPE_CHECKING:
    from gateway.operator.doctor import Finding

log = structlog.get_logger()

STATE_ORDER = ("error", "warning", "skipped", "ok")


@dataclass(frozen=True, slots=True)
class OptionalEndpoint:
    """An optional endpoint. ``present`` is None if no request has needed it yet."""

    name: str
    present: bool | None
    state: str
    found_at: datetime | None


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """An environment's service.

    ``offset`` is how far its clock is ahead, in seconds; ``index`` the recipient cache, None if it is
    off. Both are this worker's own.
    """

    name: str
    base_url: str
    legacy_base_url: str
    offset: float
    is_off: bool
    form: str | None
    form_found_at: datetime | None
    form_is_set: bool
    operations: list[OptionalEndpoint]
    index: CacheFigures | None
    rehearsal: Mapping[str, Any] | None
    rehearsed_at: datetime | None
    problems: list[str]


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
        names = self._dependencies.settings.environments.map_configured_environments_by_name()
        problems = await self._health.find_problems()
        services = [
            self._build_status(name, await ledger.load_capabilities(name), problems)
            for name in names
        ]
        upstream = self._dependencies.settings.upstream
        return self._pages.render_page(
            request,
            "service",
            services=services,
            findings=findings,
            inferred=upstream.inferred_operations,
        )

    def _build_status(
        self,
        name: str,
        learned: Mapping[str, tuple[Any, datetime]],
        problems: Mapping[str, str | None],
    ) -> ServiceStatus:
        environment = (
            self._dependencies.settings.environments.map_configured_environments_by_name()[name]
        )
        setting = self._dependencies.settings.upstream.signed_target
        form, found_at = learned.get(CAPABILITY_NAME, (None, None))
        offset = self._dependencies.clock.offset(name)
        rehearsal, rehearsed_at = learned.get(REHEARSAL, (None, None))
        return ServiceStatus(
            name,
            environment.base_url,
            environment.legacy_base_url,
            offset,
            abs(offset) >= NOTEWORTHY_SKEW_SECONDS,
            form if setting == "auto" else setting,
            found_at if setting == "auto" else None,
            setting != "auto",
            [
                _build_endpoint(f"{endpoint.method} {endpoint.path}", learned)
                for endpoint in ENDPOINTS
                if endpoint.is_optional
            ],
            self._dependencies.indexes.calculate_cache_statistics(name)
            if self._dependencies.settings.lists.index
            else None,
            rehearsal,
            rehearsed_at,
            [
                problem
                for kind in ("environments", "service", "legacy")
                if (problem := problems.get(f"{kind}.{name}"))
            ],
        )


def _build_endpoint(name: str, learned: Mapping[str, tuple[Any, datetime]]) -> OptionalEndpoint:
    value, _ = learned.get(f"inferred {name}", (None, None))
    if not isinstance(value, Mapping):
        return OptionalEndpoint(name, None, "not needed yet", None)
    timestamp = value.get("at")
    found_at = datetime.fromtimestamp(timestamp, UTC) if isinstance(timestamp, int) else None
    return OptionalEndpoint(
        name, bool(value.get("present")), describe_endpoint_finding(value), found_at
    )
