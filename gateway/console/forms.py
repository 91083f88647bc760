"""Forms that only a page of this console can have sent.

Three things have to be right, each of which would do: the browser says that the request comes from
this very origin, the cookie is sent to the same site alone, and the form has a word in it that only
who got the page can know: a keyed digest of the cookie.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from urllib.parse import urlsplit

from aiohttp import web

from gateway.admin.session import COOKIE, SECONDS, is_equal_constant_time

WORD = "csrf"

OLD = "This form is not from this page, or from before it was opened anew. Open the page again."


class Refused(Exception):
    """A request that no form of ours sent, in words for whoever sees the page."""


class Forms:
    def __init__(self, key: bytes) -> None:
        self._key = key

    def word(self, cookie: str) -> str:
        return hmac.digest(self._key, cookie.encode(), hashlib.sha256).hex()

    async def read(self, request: web.Request) -> Mapping[str, str]:
        """The fields of a form; Refused."""
        if not is_same_origin(request):
            raise Refused("This was not sent by a page of this console.")
        if request.content_type != "application/x-www-form-urlencoded":
            raise Refused("This is no form.")
        fields = {name: str(value) for name, value in (await request.post()).items()}
        cookie = request.cookies.get(COOKIE, "")
        if not cookie or not is_equal_constant_time(fields.pop(WORD, ""), self.word(cookie)):
            raise Refused(OLD)
        return fields


def is_same_origin(request: web.Request) -> bool:
    """Whether the browser says that a page of this very origin sent it."""
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site is None and origin is None:
        return False
    try:
        host = urlsplit(origin).netloc if origin is not None else request.headers.get("Host")
    except ValueError:
        return False
    return site in (None, "same-origin") and bool(host) and host == request.headers.get("Host")


def new_session_cookie() -> str:
    return secrets.token_hex(16)


def set_cookie(request: web.Request, response: web.StreamResponse, value: str) -> None:
    """Only over TLS where the browser came by it: a proxy in front, since this port speaks none."""
    response.set_cookie(
        COOKIE,
        value,
        max_age=SECONDS,
        path="/",
        httponly=True,
        samesite="Strict",
        secure=request.headers.get("Origin", "").startswith("https://"),
    )
