"""The admin port: whether the process is up, and whether it can do its work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

Check = Callable[[], Awaitable[str | None]]
"""None where all is well, else what is not, in words for an operator."""

CHECK_SECONDS = 3


def admin_application(checks: Mapping[str, Check]) -> web.Application:
    async def up(_request: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    async def ready(_request: web.Request) -> web.Response:
        found = await asyncio.gather(*(_checked(check) for check in checks.values()))
        faults = {name: fault for name, fault in zip(checks, found, strict=True) if fault}
        return web.json_response(
            {"ok": not faults, "faults": faults}, status=503 if faults else 200
        )

    application = web.Application()
    application.router.add_get("/healthz", up)
    application.router.add_get("/readyz", ready)
    return application


def _is_ready(checks: Mapping[str, Check], faults: Mapping[str, str]) -> bool:
    """Everything of our own must be well, and at least one environment."""
    environments = {name for name in checks if name.startswith("environments.")}
    return not faults.keys() - environments and not environments <= faults.keys()


async def _checked(check: Check) -> str | None:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return await check()
    except TimeoutError:
        return f"no answer within {CHECK_SECONDS} s"
