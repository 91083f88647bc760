"""Recorded traffic: HAR 1.2 from browsers and proxies.

Only requests of the legacy interface are used. None of their headers is sent, so no API key or cookie
is; parameters with secrets are dropped. Recorded answers serve only to find which
answer an id came from, so that each side gets its own id in later requests.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated
from urllib.parse import SplitResult, quote, urlsplit

from pydantic import AliasPath, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from gateway.compare.paths import Path
from gateway.compare.requests import ID_IN_TEXT, METHODS, OBJECT_ID, SECRET_PARAMETER, InputError
from gateway.compare.rules import Rules, describe_mistakes
from gateway.compare.steps import Capture, Input, Placeholder, Step, Template, validate_text
from gateway.compare.strict_json import JSON, InvalidJson, loads_strict


class _HarObject(BaseModel):
    """An object of HAR 1.2. Members that are null count as absent; unknown ones are not read."""

    model_config = ConfigDict(alias_generator=to_camel, arbitrary_types_allowed=True)


class HarHeader(_HarObject):
    name: str | None = None


class HarContent(_HarObject):
    """A body. ``encoding`` is not HAR 1.2 for requests, but some tools write it."""

    text: str | None = None
    encoding: str | None = None

    def decode(self) -> bytes:
        """Returns the bytes; raises ValueError if its encoding is invalid."""
        text = self.text or ""
        if self.encoding == "base64":
            return base64.b64decode(text, validate=True)
        return text.encode()


class HarRequest(_HarObject):
    method: str
    url: Annotated[SplitResult, validate_text(urlsplit)]
    headers: list[HarHeader] | None = None
    post_data: HarContent | None = None
    body_size: int | None = None


class HarEntry(_HarObject):
    request: HarRequest
    answer: Annotated[
        HarContent | None, Field(validation_alias=AliasPath("response", "content"))
    ] = None


class Har(_HarObject):
    entries: Annotated[list[HarEntry], Field(validation_alias=AliasPath("log", "entries"))]


def parse_har(text: str, name: str, rules: Rules) -> Input:
    """Parses a HAR document; raises InputError with the invalid entry."""
    try:
        document = Har.model_validate(json.loads(text))
    except ValidationError as error:
        raise InputError(f"{name}: not HAR 1.2: {describe_mistakes(error, Har)}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{name}: starts with {{ but is not valid JSON") from None
    steps: list[Step] = []
    ids = _RecordedIds()
    omitted_counts: Counter[str] = Counter()
    for number, entry in enumerate(document.entries, start=1):
        if reason := _find_omission_reason(entry.request):
            omitted_counts[reason] += 1
        else:
            steps.append(_build_step(entry.request, name, number, ids, rules))
            ids.learn_from_answer(entry.answer, step_index=len(steps) - 1)
    steps = [replace(step, captures=ids.captures.get(n, {})) for n, step in enumerate(steps)]
    return Input(name, "recorded traffic", tuple(steps), omitted_counts=dict(omitted_counts))


def _find_omission_reason(request: HarRequest) -> str:
    """Returns the reason to omit a request; empty if it is used."""
    if "/v1/" not in f"{request.url.path}/":
        return "not a request of the legacy interface (no /v1)"
    if request.method == "OPTIONS":
        return "a CORS preflight of a browser"
    if request.method not in METHODS:
        return "a method that no interface has"
    header_names = {(header.name or "").lower() for header in request.headers or []}
    # A recorded signature has expired, and the legacy interface has no signatures.
    if "x-api-key" not in header_names and "authorization" in header_names:
        return "signed, so a request of the current interface"
    return "" if _is_body_complete(request) else "its body was not recorded as text"


def _is_body_complete(request: HarRequest) -> bool:
    """Whether the body was recorded as sent, or the request had none."""
    if (content := request.post_data) is None:
        return (request.body_size or 0) <= 0
    try:
        content.decode().decode()
    except ValueError:
        return False
    return content.text is not None


def _build_step(
    request: HarRequest, name: str, number: int, ids: _RecordedIds, rules: Rules
) -> Step:
    post_data = request.post_data or HarContent()
    body = post_data.decode().decode()
    return Step(
        request.method,
        ids.build_template(_extract_target_without_secrets(request.url)),
        name,
        number,
        body=ids.build_template(body) if body else None,
        rules=rules,
    )


def _extract_target_without_secrets(url: SplitResult) -> str:
    """Returns the target from ``/v1`` on, without secret parameters."""
    path = url.path[f"{url.path}/".index("/v1/") :]
    query = "&".join(
        parameter
        for parameter in url.query.split("&")
        if not SECRET_PARAMETER.fullmatch(parameter.partition("=")[0])
    )
    target = f"{path}?{query}" if query else path
    # Some tools write URLs decoded for reading, not as they were sent.
    return re.sub("[^!-~]+", lambda match: quote(match[0]), target)


class _RecordedIds:
    """Where ids came from: one that first appears in an answer is captured there for later requests."""

    def __init__(self) -> None:
        self._origins: dict[str, tuple[int, Path]] = {}
        # Ids that a request had before any answer did: the client knew them already.
        self._request_ids: set[str] = set()
        self.captures: dict[int, dict[str, Capture]] = {}
        """Captures by step; only of ids that a later request uses."""

    def learn_from_answer(self, content: HarContent | None, step_index: int) -> None:
        try:
            answer = loads_strict(content.decode() if content else b"")
        # Without the answer its ids are unknown, but the request can still be sent.
        except (InvalidJson, ValueError):
            return
        for id_, path in _iter_ids(answer):
            if id_ not in self._request_ids:
                self._origins.setdefault(id_, (step_index, path))

    def build_template(self, text: str) -> Template:
        """Replaces ids that came from answers by placeholders."""
        parts: list[str | Placeholder] = []
        position = 0
        for match in ID_IN_TEXT.finditer(text):
            id_ = match[0]
            self._request_ids.add(id_)
            if id_ in self._origins:
                parts += [text[position : match.start()], Placeholder(id_)]
                position = match.end()
                source, path = self._origins[id_]
                self.captures.setdefault(source, {})[id_] = Capture(path, recorded_value=id_)
        return Template((*parts, text[position:]))


def _iter_ids(value: JSON, path: Path = ()) -> Iterator[tuple[str, Path]]:
    if isinstance(value, str) and OBJECT_ID.fullmatch(value):
        yield value, path
    elif isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _iter_ids(item, (*path, key))
