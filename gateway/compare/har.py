"""Parses recorded traffic: HAR 1.2 from browsers and proxies, or one entry per line from the recorder.

Only requests of the legacy interface are used. Of their headers only the content type is read, so no
API key or cookie is; parameters with secrets are dropped. Recorded answers serve only to find which
answer an id came from, so that each side gets its own id in later requests.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlsplit

from gateway.compare.errors import Unusable
from gateway.compare.operations import ID, IN_TEXT
from gateway.compare.paths import Path
from gateway.compare.requests import METHODS, SECRET
from gateway.compare.rules import Rules
from gateway.compare.scrub import LEFT_OUT
from gateway.compare.steps import Capture, Input, Ref, Step, Template
from gateway.compare.strict_json import JSON, NotJson, loads_strict

LINES_BEGIN = '{"log":{"version":"1.2","creator":{"name":"payout-gateway","version":"1"}}}'
"""First line of a recording in lines; each further line is one entry of ``log.entries``."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """The used parts of an entry. ``answer`` is None if unknown or not JSON."""

    number: int
    method: str
    target: str
    body: str | None
    headers: Mapping[str, str]
    answer: JSON


def parse_har(written: Any, name: str, rules: Rules) -> Input:
    """Builds the input from a decoded HAR; raises InputError with the number of an invalid entry."""
    taken: list[_Entry] = []
    left_out: Counter[str] = Counter()
    for number, entry in enumerate(written["log"]["entries"], start=1):
        try:
            if why := _why_not(entry["request"]):
                left_out[why] += 1
            else:
                taken.append(_entry(number, entry))
        except (KeyError, TypeError, AttributeError, ValueError):
            raise Unusable(f"{name}, entry {number}: not an entry of HAR 1.2") from None
    return Input(name, "recorded traffic", _steps(taken, name, rules), left_out=dict(left_out))


def parse_har_lines(text: str, name: str) -> dict[str, Any]:
    """Decodes a recording in lines. An incomplete last line is skipped; raises InputError for others."""
    lines = text.split("\n")[1:]
    entries: list[Any] = []
    for number, line in enumerate(lines, start=2):
        try:
            entries += [json.loads(line)] if line else []
        except (ValueError, RecursionError):
            if number < len(lines) + 1:
                raise Unusable(f"{name}, line {number}: not JSON") from None
    return {"log": {"entries": entries}}


def _why_not(request: Mapping[str, Any]) -> str:
    """The reason to omit a request; empty if it is used."""
    if "/v1/" not in f"{urlsplit(request['url']).path}/":
        return "not a request of the legacy interface (no /v1)"
    if request["method"] == "OPTIONS":
        return "a CORS preflight of a browser"
    if request["method"] not in METHODS:
        return "a method that no interface has"
    names = {str(one["name"]).lower() for one in request.get("headers", [])}
    if "x-api-key" not in names and "authorization" in names:
        return "signed, so a request of the current interface"
    return "" if _has_its_body(request) else "its body was not recorded as text"


def _has_its_body(request: Mapping[str, Any]) -> bool:
    """Whether the body was recorded as sent, or the request had none."""
    posted = request.get("postData")
    if not posted:
        size = request.get("bodySize")
        return not (isinstance(size, int) and size > 0)
    if posted.get("encoding") != "base64":
        return bool(posted.get("text", LEFT_OUT) != LEFT_OUT)
    try:
        _decoded(posted["text"])
    except (KeyError, ValueError):
        return False
    return True


def _decoded(text: str) -> str:
    return base64.b64decode(text, validate=True).decode()


def _entry(number: int, entry: Mapping[str, Any]) -> _Entry:
    request = entry["request"]
    posted = request.get("postData") or {}
    kind = str(posted.get("mimeType") or "application/json")
    return _Entry(
        number,
        request["method"],
        _target(request["url"]),
        _body(posted),
        {"Content-Type": kind} if posted and kind.isprintable() else {},
        _recorded_answer(entry.get("response") or {}),
    )


def _body(posted: Mapping[str, Any]) -> str | None:
    """Decodes a request body. ``encoding`` is not HAR 1.2 for requests, but some tools write it."""
    text = posted.get("text") or None
    return _decoded(text) if text and posted.get("encoding") == "base64" else text


def _target(url: str) -> str:
    """The target from ``/v1`` on, without secret parameters."""
    parts = urlsplit(url)
    path = parts.path[f"{parts.path}/".index("/v1/") :]
    query = "&".join(
        one for one in parts.query.split("&") if not SECRET.fullmatch(one.partition("=")[0])
    )
    target = f"{path}?{query}" if query else path
    # Some tools write URLs decoded for reading, not as they were sent.
    return re.sub("[^!-~]+", lambda found: quote(found[0]), target)


def _recorded_answer(response: Mapping[str, Any]) -> JSON:
    content = response.get("content") or {}
    text = content.get("text") or ""
    try:
        is_coded = content.get("encoding") == "base64"
        return loads_strict(base64.b64decode(text) if is_coded else text.encode())
    except (NotJson, binascii.Error, UnicodeEncodeError):
        return None


def _steps(taken: list[_Entry], name: str, rules: Rules) -> tuple[Step, ...]:
    """Builds steps. An id that first appears in an answer is captured there for later requests."""
    origins: dict[str, tuple[int, Path]] = {}
    # Ids that a request had before any answer: these the client knew from control.
    own: set[str] = set()
    steps: list[Step] = []
    for index, entry in enumerate(taken):
        target = _template(entry.target, origins)
        body = None if entry.body is None else _template(entry.body, origins)
        own.update(IN_TEXT.findall(f"{entry.target} {entry.body}"))
        steps.append(
            Step(
                entry.method,
                target,
                name,
                entry.number,
                body=body,
                headers={name: Template((text,)) for name, text in entry.headers.items()},
                rules=rules,
            )
        )
        for id_, path in _ids(entry.answer):
            if id_ not in own:
                origins.setdefault(id_, (index, path))
        for id_ in steps[-1].names:
            source, path = origins[id_]
            captures = {**steps[source].captures, id_: Capture(path, recorded=id_)}
            steps[source] = replace(steps[source], captures=captures)
    return tuple(steps)


def _template(text: str, origins: Mapping[str, Any]) -> Template:
    parts: list[str | Ref] = []
    end = 0
    for found in IN_TEXT.finditer(text):
        if found[0] in origins:
            parts += [text[end : found.start()], Ref(found[0])]
            end = found.end()
    return Template((*parts, text[end:]))


def _ids(value: JSON, path: Path = ()) -> Iterator[tuple[str, Path]]:
    if isinstance(value, str) and ID.fullmatch(value):
        yield value, path
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _ids(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _ids(item, (*path, index))
