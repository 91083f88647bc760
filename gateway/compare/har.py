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

from gateway.compare.errors import InputError
from gateway.compare.operations import ID_IN_TEXT, OBJECT_ID
from gateway.compare.paths import Path
from gateway.compare.requests import METHODS, SECRET_PARAMETER
from gateway.compare.rules import Rules
from gateway.compare.scrub import OMITTED_BODY
from gateway.compare.steps import Capture, Input, Placeholder, Step, Template
from gateway.compare.strict_json import JSON, InvalidJson, loads_strict

LINES_HEADER = '{"log":{"version":"1.2","creator":{"name":"payout-gateway","version":"1"}}}'
"""First line of a recording in lines; each further line is one entry of ``log.entries``."""


@dataclass(frozen=True, slots=True)
class _RecordedRequest:
    """The used parts of an entry. ``answer`` is None if unknown or not JSON."""

    number: int
    method: str
    target: str
    body: str | None
    headers: Mapping[str, str]
    answer: JSON


def parse_har(document: Any, name: str, rules: Rules) -> Input:
    """Builds the input from a decoded HAR; raises InputError with the number of an invalid entry."""
    requests: list[_RecordedRequest] = []
    omitted_counts: Counter[str] = Counter()
    for number, entry in enumerate(document["log"]["entries"], start=1):
        try:
            if reason := _find_omission_reason(entry["request"]):
                omitted_counts[reason] += 1
            else:
                requests.append(_parse_entry(number, entry))
        except (KeyError, TypeError, AttributeError, ValueError):
            raise InputError(f"{name}, entry {number}: not an entry of HAR 1.2") from None
    return Input(
        name,
        "recorded traffic",
        _build_steps(requests, name, rules),
        omitted_counts=dict(omitted_counts),
    )


def parse_har_lines(text: str, name: str) -> dict[str, Any]:
    """Decodes a recording in lines. An incomplete last line is skipped; raises InputError for others."""
    lines = text.split("\n")[1:]
    entries: list[Any] = []
    for number, line in enumerate(lines, start=2):
        try:
            entries += [json.loads(line)] if line else []
        except (ValueError, RecursionError):
            # The recorder may still be writing the last line.
            if number < len(lines) + 1:
                raise InputError(f"{name}, line {number}: not JSON") from None
    return {"log": {"entries": entries}}


def _find_omission_reason(request: Mapping[str, Any]) -> str:
    """Returns the reason to omit a request; empty if it is used."""
    if "/v1/" not in f"{urlsplit(request['url']).path}/":
        return "not a request of the legacy interface (no /v1)"
    if request["method"] == "OPTIONS":
        return "a CORS preflight of a browser"
    if request["method"] not in METHODS:
        return "a method that no interface has"
    header_names = {str(header["name"]).lower() for header in request.get("headers", [])}
    # A recorded signature has expired, and the legacy interface has no signatures.
    if "x-api-key" not in header_names and "authorization" in header_names:
        return "signed, so a request of the current interface"
    return "" if _is_request_body_complete(request) else "its body was not recorded as text"


def _is_request_body_complete(request: Mapping[str, Any]) -> bool:
    """Whether the body was recorded as sent, or the request had none."""
    post_data = request.get("postData")
    if not post_data:
        size = request.get("bodySize")
        return not (isinstance(size, int) and size > 0)
    if post_data.get("encoding") != "base64":
        return bool(post_data.get("text", OMITTED_BODY) != OMITTED_BODY)
    try:
        _decode_base64(post_data["text"])
    except (KeyError, ValueError):
        return False
    return True


def _decode_base64(text: str) -> str:
    return base64.b64decode(text, validate=True).decode()


def _parse_entry(number: int, entry: Mapping[str, Any]) -> _RecordedRequest:
    request = entry["request"]
    post_data = request.get("postData") or {}
    media_type = str(post_data.get("mimeType") or "application/json")
    return _RecordedRequest(
        number,
        request["method"],
        _extract_target_without_secrets(request["url"]),
        _decode_request_body(post_data),
        {"Content-Type": media_type} if post_data and media_type.isprintable() else {},
        _parse_recorded_response_json(entry.get("response") or {}),
    )


def _decode_request_body(post_data: Mapping[str, Any]) -> str | None:
    """Decodes a request body. ``encoding`` is not HAR 1.2 for requests, but some tools write it."""
    text = post_data.get("text") or None
    return _decode_base64(text) if text and post_data.get("encoding") == "base64" else text


def _extract_target_without_secrets(url: str) -> str:
    """Returns the target from ``/v1`` on, without secret parameters."""
    parts = urlsplit(url)
    path = parts.path[f"{parts.path}/".index("/v1/") :]
    query = "&".join(
        parameter
        for parameter in parts.query.split("&")
        if not SECRET_PARAMETER.fullmatch(parameter.partition("=")[0])
    )
    target = f"{path}?{query}" if query else path
    # Some tools write URLs decoded for reading, not as they were sent.
    return re.sub("[^!-~]+", lambda match: quote(match[0]), target)


def _parse_recorded_response_json(response: Mapping[str, Any]) -> JSON:
    content = response.get("content") or {}
    text = content.get("text") or ""
    try:
        is_base64 = content.get("encoding") == "base64"
        return loads_strict(base64.b64decode(text) if is_base64 else text.encode())
    # Without the answer its ids are unknown, but the request can still be sent.
    except (InvalidJson, binascii.Error, UnicodeEncodeError):
        return None


def _build_steps(requests: list[_RecordedRequest], name: str, rules: Rules) -> tuple[Step, ...]:
    """Builds steps. An id that first appears in an answer is captured there for later requests."""
    id_origins: dict[str, tuple[int, Path]] = {}
    # Ids that a request had before any answer did: the client knew them already.
    request_ids: set[str] = set()
    steps: list[Step] = []
    for index, request in enumerate(requests):
        target = _build_id_placeholder_template(request.target, id_origins)
        body = (
            None
            if request.body is None
            else _build_id_placeholder_template(request.body, id_origins)
        )
        request_ids.update(ID_IN_TEXT.findall(f"{request.target} {request.body}"))
        steps.append(
            Step(
                request.method,
                target,
                name,
                request.number,
                body=body,
                headers={name: Template((text,)) for name, text in request.headers.items()},
                rules=rules,
            )
        )
        for id_, path in _iter_ids(request.answer):
            # An id that an earlier request had was not learned from this answer.
            if id_ not in request_ids:
                id_origins.setdefault(id_, (index, path))
        # Only ids that a later request uses are captured.
        for id_ in steps[-1].placeholder_names:
            source, path = id_origins[id_]
            captures = {**steps[source].captures, id_: Capture(path, recorded_value=id_)}
            steps[source] = replace(steps[source], captures=captures)
    return tuple(steps)


def _build_id_placeholder_template(text: str, id_origins: Mapping[str, Any]) -> Template:
    parts: list[str | Placeholder] = []
    position = 0
    for match in ID_IN_TEXT.finditer(text):
        if match[0] in id_origins:
            parts += [text[position : match.start()], Placeholder(match[0])]
            position = match.end()
    return Template((*parts, text[position:]))


def _iter_ids(value: JSON, path: Path = ()) -> Iterator[tuple[str, Path]]:
    if isinstance(value, str) and OBJECT_ID.fullmatch(value):
        yield value, path
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _iter_ids(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _iter_ids(item, (*path, index))
