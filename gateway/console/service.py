"""The service page: clock, signature scope and optional endpoints of each environment, and checks."""

from __future__ import annotations

from collections.abc import Mapping

import structlog
from aiohttp import web

from gateway.console.pages import Page
from gateway.operator.doctor import Finding, iter_stored_findings, run_doctor
from gateway.storage import ObjectStateStore
from gateway.upstream.capabilities import load_capabilities
from gateway.upstream.clock import NOTEWORTHY_SKEW_SECONDS

log = structlog.get_logger()


class ServicePage(Page):
    async def __call__(self, request: web.Request) -> web.StreamResponse:
        return await self._render(request, None)

    async def run_and_show_doctor_checks(
        self, request: web.Request, _fields: Mapping[str, str]
    ) -> web.StreamResponse:
        """Runs the checks of `doctor`, which only read, and shows the results."""
        log.info(
            "console_doctor_run", **{"client.address": self._pages.find_client_address(request)}
        )
        # It has its own connections, so its probes do not count for the circuit breaker.
        return await self._render(request, await run_doctor(self._dependencies.settings))

    async def _render(
        self, request: web.Request, findings: list[Finding] | None
    ) -> web.StreamResponse:
        settings = self._dependencies.settings
        environments = settings.environments.map_configured_environments_by_name()
        capabilities = await load_capabilities(ObjectStateStore(self._store))
        problems = await self._health.find_problems()
        is_cached, indexes = settings.lists.index, self._dependencies.indexes
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
                    "stored": [*iter_stored_findings(name, settings.upstream, capabilities)],
                    # How far the service's clock is ahead, in seconds.
                    "offset": (offset := self._dependencies.clock.offset(name)),
                    "is_off": abs(offset) >= NOTEWORTHY_SKEW_SECONDS,
                    "index": indexes.calculate_cache_statistics(name) if is_cached else None,
                }
                for name, environment in environments.items()
            ],
            findings=findings,
        )
