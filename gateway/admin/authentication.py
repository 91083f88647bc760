"""Who may ask the admin port: whoever is on this machine, or whoever has its token.

A program sends the token with every request; a browser once, to the console's login, and from then on
the cookie of that login (``session``).

Without a token it listens on loopback alone. A page that a browser on this machine shows could still
ask it, by a name of its own that it lets stand for 127.0.0.1 (DNS rebinding): such a request names
that host, and is refused.
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
"""What whatever watches the process asks, and has no token for."""


LOGIN = "/login"
ASSETS = "/assets/"
"""What a browser asks before anybody is logged in; the console sees to these itself."""


ASKED_FROM = "X-Payout-Gateway-Asked-From"
"""In which a parent tells its worker the address of whoever asks; of others it is not believed."""


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
            message = "The admin port is asked by a name of this machine: 127.0.0.1 or localhost."
            return web.json_response(_told("not_authorized", message), status=403)
        return await handler(request)

    return admits


def _is_for_all(request: web.Request) -> bool:
    # As it came: what only means the same once it is decoded is not let in.
    path = request.raw_path.partition("?")[0]
    return path in (*FOR_ALL, LOGIN) or (path.startswith(ASSETS) and "/" not in path[len(ASSETS) :])


def _wants_a_page(request: web.Request) -> bool:
    """A browser that goes somewhere, rather than a program that asks for something."""
    return request.method == "GET" and "text/html" in request.headers.get("Accept", "")


def _has(request: web.Request, token: str) -> bool:
    given = request.headers.getall("Authorization", [])
    scheme, _, told = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    is_it = is_equal_constant_time(told.strip(), token)
    return is_it and scheme.lower() == "bearer"


def _names_this_machine(request: web.Request) -> bool:
    """A browser always names a host; what names none (HTTP/1.0) is none."""
    named = request.headers.getall("Host", [])
    return not named or all(is_loopback(_without_port(one)) for one in named)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0]
    return host.partition(":")[0]


def _told(code: str, message: str) -> dict[str, object]:
    return {"ok": False, "errors": [{"code": code, "message": message}]}
