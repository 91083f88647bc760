"""Parts of the admin port: readiness, metrics, and how commands reach it."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

import aiohttp
from aiohttp import web

from gateway.config.sections import build_url
from gateway.config.settings import Server
from gateway.http.responses import SERVER
from gateway.operator.preflight import WILDCARD_HOSTS

Check = Callable[[], Awaitable[str | None]]
"""Returns None if all is well, else a description of the fault for operators."""

Metrics = Callable[[str], Awaitable[tuple[bytes, str]]]
"""Renders the metrics for an Accept header; returns the body and its content type."""

CHECK_SECONDS = 3

SERVICE_CHECK_PREFIXES = ("service.", "legacy.")
"""Checks of what a service does with the gateway's requests; they never make it unready."""


async def hide_server_version(_request: web.Request, response: web.StreamResponse) -> None:
    """Replaces aiohttp's Server header: versions should not be public, and two paths need no token."""
    response.headers["Server"] = SERVER


def create_metrics_handler(metrics: Metrics) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle_metrics(request: web.Request) -> web.Response:
        body, content_type = await metrics(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    return handle_metrics


async def answer_readiness(
    checks: Mapping[str, Check],
    breakers: Mapping[str, str],
    list_forwarded_environments: Callable[[], Awaitable[Collection[str]]],
) -> web.Response:
    """Runs the checks. The legacy service answers clients of the ``list_forwarded_environments``."""
    # In parallel, each with its own timeout: a slow check must not hide the others.
    results = await asyncio.gather(*map(find_readiness_problem, checks.values()))
    faults = {name: fault for name, fault in zip(checks, results, strict=True) if fault}
    is_ready = _is_ready(checks, faults)
    if not is_ready and "state" not in faults:
        forwarded = await list_forwarded_environments()
        is_ready = _is_ready(checks, _drop_forwarded(faults, forwarded))
    return web.json_response(
        build_readiness_body(drop_consequences(faults), breakers, is_ready=is_ready),
        status=200 if is_ready else 503,
    )


async def answer_liveness(_request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


def _is_ready(checks: Mapping[str, Check], faults: Mapping[str, str]) -> bool:
    """Whether all own checks pass and at least one environment is usable.

    A refusing or silent service is reported, but clients get its errors in the legacy format, so
    the gateway stays ready.
    """
    own_faults = {name for name in faults if not name.startswith(SERVICE_CHECK_PREFIXES)}
    environments = {name for name in checks if name.startswith("environments.")}
    return own_faults < environments


def _drop_forwarded(faults: Mapping[str, str], environments: Collection[str]) -> dict[str, str]:
    """Drops the faults of addresses that forwarded clients do not need."""
    unneeded = {f"environments.{name}" for name in environments if f"legacy.{name}" not in faults}
    return {name: fault for name, fault in faults.items() if name not in unneeded}


def drop_consequences(faults: Mapping[str, str]) -> dict[str, str]:
    """Drops the faults that follow from an address that does not answer, so that an outage is one."""
    return {
        name: fault
        for name, fault in faults.items()
        if not (
            name.startswith("service.") and name.replace("service", "environments", 1) in faults
        )
    }


def build_readiness_body(
    faults: Mapping[str, str], breakers: Mapping[str, str], *, is_ready: bool
) -> dict[str, Any]:
    """Returns the body of /readyz. ``degraded``: ready, but some clients are refused."""
    status = "error" if not is_ready else "degraded" if faults else "ok"
    return {"status": status, "faults": faults, "circuit_breakers": breakers}


def build_admin_url(server: Server) -> str:
    """Builds the URL at which a command of the same host reaches the gateway."""
    host = "127.0.0.1" if server.admin_host in WILDCARD_HOSTS else server.admin_host
    return build_url(host, server.admin_port)


async def fetch_faults(server: Server) -> Mapping[str, str] | None:
    """Returns the faults that the running gateway reports; None if none answers here."""
    url = build_admin_url(server) + "/readyz"
    timeout = aiohttp.ClientTimeout(CHECK_SECONDS + 2)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
            faults: Mapping[str, str] = (await response.json())["faults"]
            return faults
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError):
        return None


async def find_readiness_problem(check: Check) -> str | None:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return await check()
    except TimeoutError:
        return f"no answer within {CHECK_SECONDS} s"
