"""The explain page: a pasted legacy request beside the current calls that it becomes.

The request is not sent, stored or logged, and no file is read for it.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import simplejson
from aiohttp import web

from gateway.compare.mask import Redactor
from gateway.console.dependencies import Parts
from gateway.console.pages import Pages
from gateway.docgen.curl import Asked, NoRequest, parse_curl
from gateway.docgen.explain import Explained, Made, NoOperation, Origin, explain_request
from gateway.docgen.request_examples import build_request_example
from mappings import OPERATIONS
from mappings.current import ENDPOINTS
from mappings.grammar import JSON, Invalid

LONGEST = 64 * 1024
"""Longest request accepted, in characters; nobody reads a longer explanation."""

WORDS = frozenset(part for one in (*ENDPOINTS, *OPERATIONS) for part in one.path.split("/"))
"""All path parts of both interfaces, except ids."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A field of the legacy request.

    ``mark`` is its number in the calls; 0 if no call contains it, and ``why`` is the reason.
    """

    name: str
    value: str
    mark: int
    why: str


@dataclass(frozen=True, slots=True)
class Given:
    """A field of a call. ``mark`` is the number of the legacy field that it comes from."""

    name: str
    value: str
    mark: int
    rule: str


@dataclass(frozen=True, slots=True)
class Call:
    made: Made
    target: str
    fields: Sequence[Given]
    signed: Sequence[str]


@dataclass(frozen=True, slots=True)
class Sides:
    """Both columns of the page. ``request_line`` is the method and path of the legacy request."""

    told: Explained
    asked: str
    sent: Sequence[Sent]
    calls: Sequence[Call]
    refusal: str
    answered: Sequence[tuple[str, str, str]]


class ExplainPage:
    def __init__(self, parts: Parts, pages: Pages) -> None:
        self._settings = parts.settings
        self._pages = pages

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        chosen = next((one for one in OPERATIONS if one.name == request.query.get("example")), None)
        before = build_request_example(self._settings, chosen) if chosen else None
        text = format_curl_command(before.method, before.target, before.body) if before else ""
        return self._page(request, text)

    async def asked(self, request: web.Request, fields: Mapping[str, str]) -> web.StreamResponse:
        text, shows = fields.get("request", ""), bool(fields.get("values"))
        try:
            # In a thread: a long request takes a while and must not delay payments.
            sides = await asyncio.to_thread(self._sides, text, Redactor(sees_all=shows))
        except (NoRequest, NoOperation) as why:
            return self._page(request, text, why=str(why), shows=shows)
        except Invalid as invalid:
            return self._page(request, text, why=invalid.problems[0].message, shows=shows)
        return self._page(request, text, sides=sides, shows=shows)

    def _sides(self, text: str, eye: Redactor) -> Sides:
        asked = parse_request_text(text)
        told = explain_request(self._settings, asked.method, asked.target, asked.body)
        return _sides(told, asked, eye)

    def _page(
        self,
        request: web.Request,
        text: str,
        *,
        sides: Sides | None = None,
        why: str = "",
        shows: bool = False,
    ) -> web.StreamResponse:
        return self._pages.page(
            request,
            "explain",
            422 if why else 200,
            text=text,
            sides=sides,
            why=why,
            shows=shows,
            operations=[one for one in OPERATIONS if one.takes is not None],
        )


def parse_request_text(text: str) -> Asked:
    """Parses a curl command, or an HTTP request without headers; raises NoRequest."""
    if len(text) > LONGEST:
        raise NoRequest("the request is too long")
    try:
        words = shlex.split(text.replace("\\\r\n", " ").replace("\\\n", " "))
    except ValueError:
        raise NoRequest("unclosed quote: paste the whole command") from None
    return parse_curl(words, _no_file)


def _no_file(_named: str) -> NoReturn:
    raise NoRequest("files are not read: put the body itself after -d")


def format_curl_command(method: str, target: str, body: JSON) -> str:
    data = "" if body is None else f" \\\n  -d {shlex.quote(_written(body, indent=2))}"
    return f"curl -X {method} {shlex.quote(target)}{data}"


def _written(value: JSON, indent: int | None = None) -> str:
    return simplejson.dumps(value, use_decimal=True, ensure_ascii=False, indent=indent, default=str)


def _sides(told: Explained, asked: Asked, eye: Redactor) -> Sides:
    used = {one.sent_in for made in told.calls for one in made.fields if one.sent_in}
    names = [name for name, _ in told.sent if not used.isdisjoint(_wholes(name))]
    numbers = {name: number for number, name in enumerate(names, 1)}
    marks: dict[str, int] = {}
    for name, number in numbers.items():
        for whole in _wholes(name):
            marks.setdefault(whole, number)
    kept = dict(told.kept)
    sent = [
        Sent(name, _shown(eye, name, value), numbers.get(name, 0), _why(kept, name))
        for name, value in told.sent
    ]
    return Sides(
        told,
        f"{asked.method} {_target(eye, asked.target)}",
        sent,
        [_call(made, marks, eye) for made in told.calls],
        _refusal(told),
        told.answered,
    )


def _wholes(name: str) -> Iterator[str]:
    """Yields a field and all that contain it: ``a.b[0].c``, ``a.b[0]``, ``a.b``, ``a``."""
    while name:
        yield name
        name = name[: max(name.rfind("."), name.rfind("["), 0)]


def _why(kept: Mapping[str, str], name: str) -> str:
    return next((kept[one] for one in _wholes(name) if one in kept), "")


def _call(made: Made, marks: Mapping[str, int], eye: Redactor) -> Call:
    fields = [
        Given(
            one.field,
            _told(eye, one),
            marks.get(one.sent_in or "", 0),
            one.rule,
        )
        for one in made.fields
    ]
    signed = made.signed.split("\n")[:-1]
    if not eye.sees_all:
        path, body = _target(eye, signed[2]), signed[3:]
        signed = [*signed[:2], path, *("(the body as sent)" for one in body if one)]
    return Call(made, _target(eye, made.target), fields, signed)


def _told(eye: Redactor, one: Origin) -> str:
    """Formats the value of a field. Query values are hidden: a search term may be personal data."""
    hides = one.in_query and not eye.sees_all
    return "…" if hides else _shown(eye, one.field, one.value, one.sent_in)


def _target(eye: Redactor, target: str) -> str:
    """Redacts a target: shows documented words, ids and parameter names only."""
    if eye.sees_all:
        return target
    path, mark, query = target.partition("?")
    parts = [part if part in WORDS else eye.target(part) for part in path.split("/")]
    names = [eye.key(one.partition("=")[0]) for one in query.split("&") if one]
    return "/".join(parts) + mark + "&".join(f"{name}=…" for name in names)


def _shown(eye: Redactor, name: str, value: Any, sent_in: str | None = None) -> str:
    """Redacts a value: masked if either its current or its legacy field name requires it."""
    text = value if isinstance(value, str) else _written(value)
    if eye.sees_all or value is None or isinstance(value, bool):
        return text
    seen = [eye.value(_path(one), text).text for one in (name, sent_in) if one]
    return next((one for one in seen if one != text), text)


def _path(name: str) -> tuple[str, ...]:
    return tuple(part.partition("[")[0] for part in name.split("."))


def _refusal(told: Explained) -> str:
    """The error response as JSON. Its messages contain field names only, no values."""
    return _written(told.refusal.body(), indent=2) if told.refusal else ""
