"""The service page: clock, signature scope and optional endpoints of each environment, and checks."""

from collections.abc import Mapping

import structlog
from aiohttp import web

from gateway.console.pages import Pages
from gateway.operator.doctor import Finding, iter_stored_findings, run_doctor
from gateway.storage.capability_cache import load_capabilities
from gateway.upstream.clock import NOTEWORTHY_SKEW_SECONDS

log = structlog.get_logger()


async def run_and_show_doctor_checks(
    pages: Pages, request: web.Request, _fields: Mapping[str, str]
) -> web.StreamResponse:
    """Runs the checks of `doctor`, which only read, and shows the results."""
    log.info("console_doctor_run", **{"client.address": pages.find_client_address(request)})
    # It has its own connections, so its probes do not count for the circuit breaker.
    return await show_service(pages, request, await run_doctor(pages.dependencies.settings))


async def show_service(
    pages: Pages, request: web.Request, findings: list[Finding] | None = None
) -> web.StreamResponse:
    settings = pages.dependencies.settings
    environments = settings.environments.map_configured_environments_by_name()
    capabilities = await load_capabilities(pages.store)
    problems = await pages.health.find_problems()
    is_cached, indexes = settings.lists.index, pages.dependencies.indexes
    return pages.render_page(
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
                "offset": (offset := pages.dependencies.clock.offset(name)),
                "is_off": abs(offset) >= NOTEWORTHY_SKEW_SECONDS,
                "index": indexes.calculate_cache_statistics(name) if is_cached else None,
            }
            for name, environment in environments.items()
        ],
        findings=findings,
    )
