"""Access control of the admin port: by token, or by loopback.

Programs send the token as a bearer token, browsers as the password of any user name (HTTP Basic).

Without a token the port listens on loopback only. A web page in a browser on this machine could still
reach it through a host name that resolves to 127.0.0.1 (DNS rebinding). Such a request carries that
name in its Host header, and is refused.
"""

import asyncio
import base64
import hmac
from weakref import WeakValueDictionary

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.config.settings import Server
from gateway.config.value_types import is_loopback_host
from gateway.http.client_address import format_address_rate_limit_name, resolve_client_address

log = structlog.get_logger()

UNAUTHENTICATED_PATHS = ("/healthz", "/readyz")
"""Health checks of orchestrators and load balancers, which have no token."""

CLIENT_ADDRESS_HEADER = "X-Payout-Gateway-Asked-From"
"""Header in which the parent process passes the client's address to a worker."""

BASIC_CHALLENGE = 'Basic realm="payout-gateway, with the admin token as password", charset="UTF-8"'

FAILURE_DELAY_SECONDS = 1.0
"""Delay of the answer to a wrong token."""

MAX_PARALLEL_FAILURES = 4
"""Wrong tokens of one address that are delayed in parallel; further ones queue."""


def create_auth_middleware(server: Server) -> Middleware:
    token = server.admin_token.get_secret_value()
    # Weak: an address is forgotten when no answer to it is delayed any more.
    delays: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def delay_authentication_failure(address: str) -> None:
        # An IPv6 network counts as one address, because a client can choose any address in it.
        address_group = format_address_rate_limit_name(resolve_client_address(address, (), ()))
        semaphore = delays.setdefault(address_group, asyncio.Semaphore(MAX_PARALLEL_FAILURES))
        async with semaphore:
            await asyncio.sleep(FAILURE_DELAY_SECONDS)

    @web.middleware
    async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
        # The raw path: an encoded spelling of these paths must not pass without a token.
        is_public = request.raw_path.partition("?")[0] in UNAUTHENTICATED_PATHS
        if token and not is_public and not _has_token(request, token):
            # Without a token nothing was guessed, so there is nothing to slow down or to log.
            if "Authorization" in request.headers:
                log.warning("admin_token_refused", **{"client.address": request.remote})
                await delay_authentication_failure(request.remote or "")
            # A browser asks its user, or takes the password of its address, which it sends after a
            # challenge only: also for the style sheet of a page, of which Accept says nothing.
            is_browser = (
                "text/html" in request.headers.get("Accept", "")
                or "Sec-Fetch-Dest" in request.headers
            )
            is_page = request.method == "GET" and is_browser
            return web.json_response(
                _build_error_body("The admin token is missing or wrong."),
                status=401,
                headers={"WWW-Authenticate": BASIC_CHALLENGE if is_page else "Bearer"},
            )
        if not token and not _has_loopback_host_header(request):
            message = "The admin port requires a local Host header: 127.0.0.1 or localhost."
            return web.json_response(_build_error_body(message), status=403)
        return await handler(request)

    return authenticate


def _has_token(request: web.Request, token: str) -> bool:
    headers = request.headers.getall("Authorization", [])
    # With several headers, a proxy in front may have checked a different one.
    scheme, _, given_token = headers[0].partition(" ") if len(headers) == 1 else ("", "", "")
    if scheme.lower() == "basic":
        try:
            given_token = base64.b64decode(given_token, validate=True).decode().partition(":")[2]
        except ValueError:
            return False
    elif scheme.lower() != "bearer":
        return False
    # In constant time, so that timing does not reveal a matching prefix.
    return hmac.compare_digest(
        given_token.strip().encode("utf-8", "surrogateescape"), token.encode()
    )


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


def _build_error_body(message: str) -> dict[str, object]:
    return {"ok": False, "errors": [{"code": "not_authorized", "message": message}]}
