"""The explain page: a pasted legacy request beside the current calls that it becomes.

The request is not sent, stored or logged, and no file is read for it.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import simplejson
from aiohttp import web

from gateway.compare.masking import Redactor
from gateway.console.pages import Page
from gateway.docgen.curl import CurlRequest, InvalidCurlCommand, parse_curl
from gateway.docgen.examples import build_request_example
from gateway.docgen.explain import (
    ExplainedCall,
    Explanation,
    FieldOrigin,
    UnknownOperation,
    explain_request,
)
from mappings import OPERATIONS
from mappings.current import ENDPOINTS
from mappings.effects import JSON
from mappings.failures import Invalid

MAX_REQUEST_CHARS = 64 * 1024
"""Longest request accepted, in characters; nobody reads a longer explanation."""

PUBLIC_PATH_PARTS = frozenset(
    part for endpoint in (*ENDPOINTS, *OPERATIONS) for part in endpoint.path.split("/")
)
"""All path parts of both interfaces, except ids."""


class ExplainPage(Page):
    async def __call__(self, request: web.Request) -> web.StreamResponse:
        name = request.query.get("example")
        operation = next((each for each in OPERATIONS if each.name == name), None)
        example = (
            build_request_example(self._dependencies.settings, operation) if operation else None
        )
        text = format_curl_command(example.method, example.target, example.body) if example else ""
        return self._render(request, text)

    async def explain(self, request: web.Request, fields: Mapping[str, str]) -> web.StreamResponse:
        text, is_unmasked = fields.get("request", ""), bool(fields.get("values"))
        try:
            # In a thread: a long request takes a while and must not delay payments.
            sides = await asyncio.to_thread(self._explain, text, Redactor(is_unmasked=is_unmasked))
        except (InvalidCurlCommand, UnknownOperation) as error:
            return self._render(request, text, error=str(error), is_unmasked=is_unmasked)
        except Invalid as invalid:
            message = invalid.problems[0].message
            return self._render(request, text, error=message, is_unmasked=is_unmasked)
        return self._render(request, text, sides=sides, is_unmasked=is_unmasked)

    def _explain(self, text: str, redactor: Redactor) -> dict[str, Any]:
        parsed = parse_request_text(text)
        explained = explain_request(
            self._dependencies.settings, parsed.method, parsed.target, parsed.body
        )
        return _describe_sides(explained, parsed, redactor)

    def _render(
        self,
        request: web.Request,
        text: str,
        *,
        sides: Mapping[str, Any] | None = None,
        error: str = "",
        is_unmasked: bool = False,
    ) -> web.StreamResponse:
        return self._pages.render_page(
            request,
            "explain",
            422 if error else 200,
            text=text,
            sides=sides,
            why=error,
            shows=is_unmasked,
            operations=[operation for operation in OPERATIONS if operation.body_shape is not None],
        )


def parse_request_text(text: str) -> CurlRequest:
    """Parses a curl command, or an HTTP request without headers; raises InvalidCurlCommand."""
    if len(text) > MAX_REQUEST_CHARS:
        raise InvalidCurlCommand("the request is too long")
    # Otherwise `-d @file` would show a file of this machine in the browser.
    return parse_curl([text], _reject_curl_data_file)


def _reject_curl_data_file(_name: str) -> NoReturn:
    raise InvalidCurlCommand("files are not read: put the body itself after -d")


def format_curl_command(method: str, target: str, body: JSON) -> str:
    data = "" if body is None else f" \\\n  -d {shlex.quote(_format_json(body, indent=2))}"
    return f"curl -X {method} {shlex.quote(target)}{data}"


def _format_json(value: JSON, indent: int | None = None) -> str:
    return simplejson.dumps(value, use_decimal=True, ensure_ascii=False, indent=indent, default=str)


def _describe_sides(
    explained: Explanation, parsed: CurlRequest, redactor: Redactor
) -> dict[str, Any]:
    """Returns both columns of the page. A field's mark is the number of the legacy field.

    It is 0 for legacy fields that no call contains, and for fields that come from none.
    """
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

    return {
        "explained": explained,
        "request_line": f"{parsed.method} {_redact_target(redactor, parsed.target)}",
        "sent": [
            (
                name,
                _redact_value(redactor, name, value),
                marks.get(name, 0),
                next((reasons[n] for n in _iter_enclosing_field_names(name) if n in reasons), ""),
            )
            for name, value in explained.sent
        ],
        "calls": [
            (
                made,
                _redact_target(redactor, made.target),
                [
                    (
                        origin,
                        _format_call_field_value(redactor, origin),
                        marks.get(origin.sent_in or "", 0),
                    )
                    for origin in made.fields
                ],
                _list_signed_lines(made, redactor),
            )
            for made in explained.calls
        ],
        # Its messages contain field names only, no values.
        "refusal": explained.refusal and _format_json(explained.refusal.build_body(), indent=2),
    }


def _iter_enclosing_field_names(name: str) -> Iterator[str]:
    """Yields a field and all that contain it: ``a.b[0].c``, ``a.b[0]``, ``a.b``, ``a``."""
    while name:
        yield name
        name = name[: max(name.rfind("."), name.rfind("["), 0)]


def _list_signed_lines(made: ExplainedCall, redactor: Redactor) -> list[str]:
    signed = made.signed_text.split("\n")[:-1]
    if redactor.is_unmasked:
        return signed
    # The string to sign contains the path and the body, which the columns beside it mask.
    path, body = _redact_target(redactor, signed[2]), signed[3:]
    return [*signed[:2], path, *("(the body as sent)" for body_line in body if body_line)]


def _format_call_field_value(redactor: Redactor, origin: FieldOrigin) -> str:
    """Formats the value of a field. Query values are hidden: a search term may be personal data."""
    is_hidden = origin.in_query and not redactor.is_unmasked
    return "…" if is_hidden else _redact_value(redactor, origin.field, origin.value, origin.sent_in)


def _redact_target(redactor: Redactor, target: str) -> str:
    """Redacts a target: shows documented words, ids and parameter names only."""
    if redactor.is_unmasked:
        return target
    path, separator, query = target.partition("?")
    parts = [
        part if part in PUBLIC_PATH_PARTS else redactor.redact_target(part)
        for part in path.split("/")
    ]
    names = [
        redactor.redact_object_key(parameter.partition("=")[0])
        for parameter in query.split("&")
        if parameter
    ]
    return "/".join(parts) + separator + "&".join(f"{name}=…" for name in names)


def _redact_value(redactor: Redactor, name: str, value: Any, sent_in: str | None = None) -> str:
    """Redacts a value: masked if either its current or its legacy field name requires it."""
    text = value if isinstance(value, str) else _format_json(value)
    if redactor.is_unmasked or value is None or isinstance(value, bool):
        return text
    redacted = [
        redactor.redact_value(tuple(re.sub(r"\[[^.]*", "", each).split(".")), text)["text"]
        for each in (name, sent_in)
        if each
    ]
    return next((redacted_text for redacted_text in redacted if redacted_text != text), text)
