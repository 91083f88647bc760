"""The explain page: a pasted legacy request beside the current calls that it becomes.

The request is not sent, stored or logged, and no file is read for it.
"""

import asyncio
import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from aiohttp import web

from gateway.config.settings import Settings
from gateway.console.pages import Pages
from gateway.docgen.curl import CurlRequest, InvalidRequestText, parse_curl
from gateway.docgen.explain import FieldOrigin, explain_request, format_value

MAX_REQUEST_CHARS = 64 * 1024
"""Longest request accepted, in characters; nobody reads a longer explanation."""

EXAMPLE = """\
curl -X POST /v1/recipients -d '{
  "type": "individual", "firstName": "Ada", "lastName": "Lovelace", "email": "ada@example.com",
  "address": {"street1": "1 Main Street", "city": "New York", "region": "NY", "country": "US"},
  "payout": {"primary": {"method": "bank", "currency": "USD"}, "autoswitch": {"limit": 5, "active": true},
    "accounts": {"bank": {"country": "US", "accountNum": "1234567", "routing": "021000021"}}}}'"""


async def show_explain_form(pages: Pages, request: web.Request) -> web.StreamResponse:
    return pages.render_page(request, "explain", text=EXAMPLE, sides=None, why="")


async def explain_request_text(
    pages: Pages, request: web.Request, fields: Mapping[str, str]
) -> web.StreamResponse:
    text, sides, error = fields.get("request", ""), None, ""
    try:
        # In a thread: a long request takes a while and must not delay payments.
        sides = await asyncio.to_thread(_describe_sides, pages.dependencies.settings, text)
    except InvalidRequestText as invalid:
        error = str(invalid)
    return pages.render_page(
        request, "explain", 422 if error else 200, text=text, sides=sides, why=error
    )


def parse_request_text(text: str) -> CurlRequest:
    """Parses a curl command, or an HTTP request without headers; raises InvalidRequestText."""
    if len(text) > MAX_REQUEST_CHARS:
        raise InvalidRequestText("the request is too long")
    # Otherwise `-d @file` would show a file of this machine in the browser.
    return parse_curl([text], _reject_curl_data_file)


def _reject_curl_data_file(_name: str) -> NoReturn:
    raise InvalidRequestText("files are not read: put the body itself after -d")


def _describe_sides(settings: Settings, text: str) -> dict[str, Any]:
    """Returns both columns of the page. A field's mark is the number of the legacy field.

    It is 0 for legacy fields that no call contains, and for fields that come from none.
    """
    parsed = parse_request_text(text)
    explained = explain_request(settings, parsed.method, parsed.target, parsed.body)
    used = {origin.sent_in for made in explained.calls for origin in made.fields if origin.sent_in}
    marks: dict[str, int] = {}
    numbers = itertools.count(1)
    for name, _ in explained.sent:
        # Only fields that a call contains get a number; the others have a reason instead.
        if not used.isdisjoint(containers := [*_iter_enclosing_field_names(name)]):
            number = next(numbers)
            for container in containers:
                # An object gets the number of the first field in it.
                marks.setdefault(container, number)
    reasons = dict(explained.kept)

    def find_reason(name: str) -> str:
        return next((reasons[n] for n in _iter_enclosing_field_names(name) if n in reasons), "")

    def describe_origin(origin: FieldOrigin) -> tuple[FieldOrigin, str, int]:
        return origin, format_value(origin.value), marks.get(origin.sent_in or "", 0)

    return {
        "explained": explained,
        "request_line": f"{parsed.method} {parsed.target}",
        "sent": [
            (name, format_value(value), marks.get(name, 0), find_reason(name))
            for name, value in explained.sent
        ],
        "calls": [(made, [*map(describe_origin, made.fields)]) for made in explained.calls],
        "refusal": explained.refusal
        and json.dumps(explained.refusal.build_body(), indent=2, ensure_ascii=False),
    }


def _iter_enclosing_field_names(name: str) -> Iterator[str]:
    """Yields a field and all that contain it: ``a.b[0].c``, ``a.b[0]``, ``a.b``, ``a``."""
    while name:
        yield name
        name = name[: max(name.rfind("."), name.rfind("["), 0)]
