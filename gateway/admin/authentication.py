"""Access control of the admin port: by token, or by loopback.

Programs send the token with each request. Browsers send it once, to the login page, and then the
session cookie (``session``).

Without a token the port listens on loopback only. A web page in a browser on this machine could still
reach it through a host name that resolves to 127.0.0.1 (DNS rebinding). Such a request carries that
name in its Host header, and is refused.
"""

from __future__ import annotations

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.admin.session import COOKIE, Sessions, Throttle, is_equal_constant_time
from gateway.config.settings import Server
from gateway.operator.preflight import is_loopback

log = structlog.get_logger()

FOR_ALL = ("/healthz", "/readyz")
"""Health checks of orchestrators and load balancers, which have no token."""


LOGIN = "/login"
ASSETS = "/assets/"
"""Needed before login; the console protects these paths itself."""


ASKED_FROM = "X-Payout-Gateway-Asked-From"
"""Header in which the parent process passes the client's address to a worker."""


def create_auth_middleware(server: Server) -> Middleware:
    token = server.admin_token.get_secret_value()
    sessions = Sessions(token)
    throttle = Throttle()

    def is_known(request: web.Request) -> bool:
        return _has(request, token) or sessions.is_good(request.cookies.get(COOKIE, ""))

    @web.middleware
    async def admits(request: web.Request, handler: Handler) -> web.StreamResponse:
        if token and not _is_for_all(request) and not is_known(request):
            if _wants_a_page(request):
                headers = {"Location": LOGIN, "Cache-Control": "no-store"}
                return web.Response(status=303, headers=headers)
            if "Authorization" in request.headers:
                log.warning("admin_token_refused", **{"client.address": request.remote})
                await throttle.fail(request.remote or "")
            refused = web.json_response(
                _told("not_authorized", "The admin token is missing or wrong."), status=401
            )
            refused.headers["WWW-Authenticate"] = "Bearer"
            return refused
        if not token and not _names_this_machine(request):
            message = "The admin port requires a local Host header: 127.0.0.1 or localhost."
            return web.json_response(_told("not_authorized", message), status=403)
        return await handler(request)

    return admits


def _is_for_all(request: web.Request) -> bool:
    # The raw path: an encoded spelling of these paths must not pass without a token.
    path = request.raw_path.partition("?")[0]
    return path in (*FOR_ALL, LOGIN) or (path.startswith(ASSETS) and "/" not in path[len(ASSETS) :])


def _wants_a_page(request: web.Request) -> bool:
    """Whether a browser asks for a page, which is redirected to the login instead of refused."""
    return request.method == "GET" and "text/html" in request.headers.get("Accept", "")


def _has(request: web.Request, token: str) -> bool:
    given = request.headers.getall("Authorization", [])
    scheme, _, told = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    is_it = is_equal_constant_time(told.strip(), token)
    return is_it and scheme.lower() == "bearer"


def _names_this_machine(request: web.Request) -> bool:
    """Whether the Host header names this machine. Only HTTP/1.0 has none, which no browser sends."""
    named = request.headers.getall("Host", [])
    return not named or all(is_loopback(_without_port(one)) for one in named)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0]
    return host.partition(":")[0]


def _told(code: str, message: str) -> dict[str, object]:
    return {"ok": False, "errors": [{"code": code, "message": message}]}
