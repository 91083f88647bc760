"""Assembles the application of the admin port, with the checks behind `/readyz`."""

from collections.abc import Collection
from functools import partial

import aiohttp
from aiohttp import web
from sqlalchemy import select

from gateway import console
from gateway.admin.authentication import create_auth_middleware
from gateway.admin.port import (
    CHECK_SECONDS,
    Check,
    answer_liveness,
    answer_readiness,
    create_metrics_handler,
    hide_server_version,
)
from gateway.operator.mode_switches import list_switched_keys
from gateway.server.assembly import GatewayParts
from gateway.server.metrics_page import MetricsPage
from gateway.storage import Store, StoreUnavailable
from gateway.storage.mode_rows import COMPARE, FORWARD
from gateway.upstream.transport import Egress, build_egress_by_environment

OPEN_BREAKER = (
    "the {service} is down: it does not respond, and the circuit breaker is open; {effect}, "
    "and the next request tries it again"
)


def create_admin_application(
    console_parts: console.ConsoleDependencies, parts: GatewayParts
) -> web.Application:
    settings = parts.settings
    list_forwarded_environments = partial(
        _list_switched_environments, parts.store, settings.comparing.forwarding_modes
    )

    async def handle_readyz(_request: web.Request) -> web.Response:
        return await answer_readiness(
            console_parts.checks, parts.list_breaker_states(), list_forwarded_environments
        )

    application = web.Application(
        # Only the supervisor can reach a worker's admin socket, and it has authenticated the
        # request.
        middlewares=[] if console_parts.admin_socket else [create_auth_middleware(settings.server)]
    )
    # A signal instead of a middleware, because it covers aiohttp's own 404 and 405 too.
    application.on_response_prepare.append(hide_server_version)
    application.router.add_get("/metrics", create_metrics_handler(MetricsPage(parts).render))
    application.router.add_get("/healthz", answer_liveness)
    application.router.add_get("/readyz", handle_readyz)
    console.add_console_routes(application, console_parts)
    return application


async def _list_switched_environments(store: Store, modes: Collection[str]) -> set[str]:
    try:
        return set(await list_switched_keys(store, modes))
    except StoreUnavailable:
        return set()  # a fault of its own


def create_readiness_checks(parts: GatewayParts) -> dict[str, Check]:
    settings, store = parts.settings, parts.store
    addresses = settings.environments.map_base_urls_by_environment()
    egress = build_egress_by_environment(settings, addresses)

    async def find_database_problem() -> str | None:
        try:
            await store.fetch(select(1))
        except StoreUnavailable as error:
            return str(error)
        # A database on a full disk can still be read. No write is needed to find out, because every
        # process renews its lease every few seconds.
        return str(store.database.write_error) if store.database.write_error else None

    async def find_environment_problem(name: str) -> str | None:
        if await _find_origin_status(addresses[name], egress[name]):
            return None
        return (
            "the service is down: base_url does not answer, and clients get 500; check the network "
            "and TLS"
        )

    async def find_service_problem(name: str) -> str | None:
        if not parts.breakers[name].is_closed:
            return OPEN_BREAKER.format(service="service", effect="clients get 500")
        return parts.upstream.problems.describe_problem(name)

    return {
        "state": find_database_problem,
        "limits": parts.rate_limiter.find_limiter_problem,
        **{f"environments.{name}": partial(find_environment_problem, name) for name in addresses},
        **{f"service.{name}": partial(find_service_problem, name) for name in addresses},
        **_create_legacy_checks(parts),
    }


def _create_legacy_checks(parts: GatewayParts) -> dict[str, Check]:
    settings = parts.settings
    addresses = settings.environments.map_legacy_base_urls_by_environment()
    egress = build_egress_by_environment(settings, addresses)
    forwarding_modes = settings.comparing.forwarding_modes

    async def find_legacy_problem(name: str) -> str | None:
        if name not in await _list_switched_environments(parts.store, (FORWARD, COMPARE)):
            return None
        if name not in await _list_switched_environments(parts.store, forwarding_modes):
            effect = "no answers are compared"
        else:
            effect = "the keys that it answers (`payout-gateway modes list`) get 500"
        if name not in addresses:
            return f"this process has read no legacy_base_url; {effect}; set it and restart"
        if not parts.legacy_breakers[name].is_closed:
            return OPEN_BREAKER.format(service="legacy service", effect=effect)
        if await _find_origin_status(addresses[name], egress[name]):
            return None
        return f"the legacy service is down: legacy_base_url does not answer; {effect}"

    names = settings.environments.map_configured_environments_by_name()
    return {f"legacy.{name}": partial(find_legacy_problem, name) for name in names}


async def _find_origin_status(origin: str, egress: Egress) -> int | None:
    """Sends an unsigned request that changes nothing; None if no server speaks HTTP there."""
    # Shorter than the check, whose own timeout does not say what did not answer.
    timeout = aiohttp.ClientTimeout(CHECK_SECONDS - 0.5)
    authorization = egress.proxy_authorization
    try:
        async with (
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), timeout=timeout) as session,
            session.get(
                f"{origin}/v1/",
                allow_redirects=False,
                ssl=egress.ssl_context or True,
                proxy=egress.proxy,
                proxy_headers={"Proxy-Authorization": authorization} if authorization else None,
            ) as response,
        ):
            return response.status
    except (aiohttp.ClientError, TimeoutError):
        return None
