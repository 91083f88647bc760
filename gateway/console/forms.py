"""Protection of the console's forms against cross-site request forgery.

The browser says which origin a request comes from. Every browser has done so for years.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from aiohttp import web


class FormRejected(Exception):
    """The request was not sent by a form of this console. The message is shown on a page."""


async def read_form_fields(request: web.Request) -> Mapping[str, str]:
    """Reads the fields of a form of this console; raises FormRejected."""
    if not _is_same_origin(request):
        raise FormRejected("This request was not sent by a page of this console.")
    # Not multipart: aiohttp would write files in it to disk.
    if request.content_type != "application/x-www-form-urlencoded":
        raise FormRejected("This request is not a form.")
    return {name: str(value) for name, value in (await request.post()).items()}


def _is_same_origin(request: web.Request) -> bool:
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
