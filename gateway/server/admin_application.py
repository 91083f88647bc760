"""Assembles the application of the admin port, with the checks behind `/readyz`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import aiohttp
from aiohttp import web
from sqlalchemy import select

from gateway import console
from gateway.admin.authentication import create_auth_middleware
from gateway.admin.port import Check, create_monitoring_application
from gateway.admission.limits import RateLimiter
from gateway.config.settings import Settings
from gateway.docgen import openapi
from gateway.operator.metrics_page import MetricsPage
from gateway.storage import Store, StoreUnavailable
from gateway.upstream.egress import EgressConfig
from mappings.effects import JSON


def create_admin_application(
    console_parts: console.ConsoleDependencies,
    list_breaker_states: Callable[[], Mapping[str, str]],
    client_port: int,
) -> web.Application:
    """Creates the application of the admin port. ``client_port`` is the bound port of clients."""
    settings, environments = (
        console_parts.settings,
        console_parts.settings.environments.map_configured_environments_by_name(),
    )
    application = create_monitoring_application(
        console_parts.checks,
        # Built on the first request, to keep the start fast.
        cache(partial(_build_legacy_openapi_document, settings, client_port)),
        MetricsPage(
            console_parts.store,
            console_parts.limits,
            console_parts.clock,
            console_parts.indexes,
            environments,
        ).render,
        list_breaker_states,
        # Only the supervisor can reach a worker's admin socket, and it has authenticated the
        # request.
        [] if console_parts.has_parent else [create_auth_middleware(settings.server)],
    )
    console.add_console_routes(application, console_parts)
    return application


def _build_legacy_openapi_document(settings: Settings, port: int) -> Mapping[str, JSON]:
    """Builds the OpenAPI document of the legacy interface, with the public URLs."""
    addresses = openapi.list_public_urls(settings.server, port)
    return openapi.build_openapi_document(settings.vocabulary.build_vocabulary(), addresses)


def create_readiness_checks(
    settings: Settings, store: Store, limits: RateLimiter
) -> dict[str, Check]:
    async def find_database_problem() -> str | None:
        try:
            await store.read(lambda tx: tx.fetch(select(1)))
        except StoreUnavailable as error:
            return str(error)
        # A database on a full disk can still be read. No write is needed to find out, because every
        # process writes a heartbeat every few seconds.
        return str(store.write_error) if store.write_error else None

    egress = EgressConfig(settings)

    def create_environment_check(name: str, origin: str) -> Check:
        async def find_environment_problem() -> str | None:
            return (
                None
                if await _is_origin_reachable(origin, egress.build_request_options(name))
                else "base_url does not answer; see network and TLS"
            )

        return find_environment_problem

    environments = {
        f"environments.{name}": create_environment_check(name, environment_settings.base_url)
        for name, environment_settings in settings.environments.map_configured_environments_by_name().items()
    }
    return {"state": find_database_problem, "limits": limits.find_limiter_problem, **environments}


async def _is_origin_reachable(origin: str, request_options: Mapping[str, Any]) -> bool:
    """Whether a server speaks HTTP there; sends an unsigned request that changes nothing."""
    try:
        async with (
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
            # Any status suffices, even 401 or a redirect: a server that speaks HTTP has answered.
            session.get(f"{origin}/v1/", allow_redirects=False, **request_options),
        ):
            return True
    except (aiohttp.ClientError, TimeoutError):
        return False
