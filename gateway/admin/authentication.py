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
from gateway.operator.preflight import is_loopback_host

log = structlog.get_logger()

UNAUTHENTICATED_PATHS = ("/healthz", "/readyz")
"""Health checks of orchestrators and load balancers, which have no token."""


LOGIN_PATH = "/login"
LOGOUT_PATH = "/logout"
ASSETS_PREFIX = "/assets/"
"""Needed before login; the console protects these paths itself."""


CLIENT_ADDRESS_HEADER = "X-Payout-Gateway-Asked-From"
"""Header in which the parent process passes the client's address to a worker."""


def create_auth_middleware(server: Server) -> Middleware:
    token = server.admin_token.get_secret_value()
    sessions = Sessions(token)
    throttle = Throttle()

    def is_authenticated(request: web.Request) -> bool:
        return _has_valid_bearer_token(request, token) or sessions.is_valid(
            request.cookies.get(COOKIE, "")
        )

    @web.middleware
    async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
        if token and not _is_unauthenticated_path(request) and not is_authenticated(request):
            # Only browsers are redirected: a program would take the login page for its response.
            if _accepts_html(request):
                headers = {"Location": LOGIN_PATH, "Cache-Control": "no-store"}
                return web.Response(status=303, headers=headers)
            # Without a token nothing was guessed, so there is nothing to slow down or to log.
            if "Authorization" in request.headers:
                log.warning("admin_token_refused", **{"client.address": request.remote})
                await throttle.delay_authentication_failure(request.remote or "")
            return web.json_response(
                _build_error_body("not_authorized", "The admin token is missing or wrong."),
                status=401,
                headers={"WWW-Authenticate": "Bearer"},
            )
        if not token and not _has_loopback_host_header(request):
            message = "The admin port requires a local Host header: 127.0.0.1 or localhost."
            return web.json_response(_build_error_body("not_authorized", message), status=403)
        response = await handler(request)
        # A worker has ended the session, but this process verifies its cookie.
        if request.path == LOGOUT_PATH and response.status == 303:
            sessions.revoke(request.cookies.get(COOKIE, ""))
        return response

    return authenticate


def _is_unauthenticated_path(request: web.Request) -> bool:
    # The raw path: an encoded spelling of these paths must not pass without a token.
    path = request.raw_path.partition("?")[0]
    return path in (*UNAUTHENTICATED_PATHS, LOGIN_PATH) or (
        path.startswith(ASSETS_PREFIX) and "/" not in path[len(ASSETS_PREFIX) :]
    )


def _accepts_html(request: web.Request) -> bool:
    """Whether a browser requests a page; without a login it is redirected instead of refused."""
    return request.method == "GET" and "text/html" in request.headers.get("Accept", "")


def _has_valid_bearer_token(request: web.Request, token: str) -> bool:
    headers = request.headers.getall("Authorization", [])
    # With several headers, a proxy in front may have checked a different one.
    scheme, _, given_token = headers[0].partition(" ") if len(headers) == 1 else ("", "", "")
    is_equal = is_equal_constant_time(given_token.strip(), token)
    return is_equal and scheme.lower() == "bearer"


def _has_loopback_host_header(request: web.Request) -> bool:
    """Whether the Host header names this machine, or is missing: only HTTP/1.0 allows that, which no
    browser sends.
    """
    hosts = request.headers.getall("Host", [])
    return not hosts or all(is_loopback_host(_strip_port(host)) for host in hosts)


def _strip_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0]
    return host.partition(":")[0]


def _build_error_body(code: str, message: str) -> dict[str, object]:
    return {"ok": False, "errors": [{"code": code, "message": message}]}
