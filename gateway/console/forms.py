"""Protection of the console's forms against cross-site request forgery.

Three checks, each sufficient alone: the browser reports the same origin, the cookie is SameSite=Strict,
and the form contains a token, an HMAC of the cookie.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from urllib.parse import urlsplit

from aiohttp import web

from gateway.admin.session import COOKIE, SESSION_SECONDS, is_equal_constant_time

CSRF_FIELD = "csrf"

EXPIRED_MESSAGE = "This form has expired or was not sent by this page. Open the page again."


class FormRejected(Exception):
    """The request was not sent by a form of this console. The message is shown on a page."""


class CsrfForms:
    def __init__(self, key: bytes) -> None:
        self._key = key

    def build_token(self, cookie: str) -> str:
        # Bound to the cookie, so that a token from another browser is not valid here.
        return hmac.digest(self._key, cookie.encode(), hashlib.sha256).hex()

    async def read_verified_form_fields(self, request: web.Request) -> Mapping[str, str]:
        """Reads and checks a form; returns its fields. Raises FormRejected."""
        if not is_same_origin(request):
            raise FormRejected("This request was not sent by a page of this console.")
        # Not multipart: aiohttp would write files in it to disk.
        if request.content_type != "application/x-www-form-urlencoded":
            raise FormRejected("This request is not a form.")
        fields = {name: str(value) for name, value in (await request.post()).items()}
        cookie = request.cookies.get(COOKIE, "")
        if not cookie or not is_equal_constant_time(
            fields.pop(CSRF_FIELD, ""), self.build_token(cookie)
        ):
            raise FormRejected(EXPIRED_MESSAGE)
        return fields


def is_same_origin(request: web.Request) -> bool:
    """Whether the browser reports that a page of the same origin sent the request."""
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    # Every browser with a form sends one of them. A program can use the commands.
    if site is None and origin is None:
        return False
    try:
        # Host and port only: behind a proxy that ends TLS, the scheme differs.
        host = urlsplit(origin).netloc if origin is not None else request.headers.get("Host")
    except ValueError:
        return False
    return site in (None, "same-origin") and bool(host) and host == request.headers.get("Host")


def generate_session_cookie_value() -> str:
    return secrets.token_hex(16)


def set_session_cookie(request: web.Request, response: web.StreamResponse, value: str) -> None:
    """Sets the session cookie, as Secure if the browser uses TLS, through a proxy in front."""
    response.set_cookie(
        COOKIE,
        value,
        max_age=SESSION_SECONDS,
        path="/",
        httponly=True,
        samesite="Strict",
        # Not always Secure: on http://127.0.0.1 some browsers would drop the cookie.
        secure=request.headers.get("Origin", "").startswith("https://"),
    )
