"""Parses scenarios: TOML files with requests that build on each other.

    title = "A recipient comes and goes"

    [[steps]]
    name = "create"
    request = "POST /v1/recipients"
    body = { type = "individual", firstName = "Ada", lastName = "Lovelace", email = "${own}@example.com" }
    capture = { recipient = "recipient.id" }

    [[steps]]
    request = "GET /v1/recipients/${recipient}"

Each side captures its own values. ``${run}`` is a new text for each run, the same on both sides;
``${own}`` differs between the sides and counts as equal in answers.
``deploy/compare/README.md`` describes all keys.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from gateway.compare import paths
from gateway.compare.errors import Unusable
from gateway.compare.requests import parse_request_line
from gateway.compare.rules import Rules, validate_rules
from gateway.compare.steps import Capture, Input, Step, Template, Until
from gateway.compare.strict_json import loads_strict
from gateway.payloads import json_codec

RUN = "run"
OWN = "own"

_Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w-]*$")]

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+: [ -~]*")

_OURS = {"x-api-key", "authorization", "cookie", "host", "content-length", "transfer-encoding"}


class _Until(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    path: str
    is_: Any = Field(alias="is")
    within: Annotated[float, Field(gt=0, le=600)] = 30


class _Step(BaseModel):
    model_config = ConfigDict(extra="forbid")
    request: str
    name: str = ""
    body: Any = None
    text: str | None = None
    capture: dict[_Name, str] = {}
    headers: dict[str, str] = {}
    key: Literal["own", "none", "wrong"] = "own"
    until: _Until | None = None


class _Scenario(BaseModel):
    model_config = ConfigDict(extra="forbid")
    title: str = ""
    rules: dict[str, Any] = {}
    steps: Annotated[list[_Step], Field(min_length=1)]


def parse_scenario(text: str, name: str, rules: Rules) -> Input:
    """Parses a scenario; raises InputError with the number of the invalid step."""
    try:
        # ``Number`` sends an amount without quotes exactly as it was written.
        written = tomllib.loads(text, parse_float=json_codec.Number)
        scenario = _Scenario.model_validate(written)
    except tomllib.TOMLDecodeError as error:
        raise Unusable(f"{name}: not TOML: {error}") from None
    except ValidationError as error:
        raise Unusable(f"{name}: {'; '.join(_problems(error))}") from None
    own = rules.and_then(validate_rules(scenario.rules, name)) if scenario.rules else rules
    steps: list[Step] = []
    known = {RUN, OWN}
    for number, one in enumerate(scenario.steps, start=1):
        step = _step(one, name, number, own)
        if unknown := sorted(step.names - known):
            raise Unusable(f"{name}, step {number}: no earlier step captures {unknown[0]}")
        steps.append(step)
        known |= step.captures.keys()
    return Input(name, "scenario", tuple(steps), scenario.title)


def _step(one: _Step, name: str, number: int, rules: Rules) -> Step:
    where = f"{name}, step {number}"
    method, target = parse_request_line(one.request, where)
    if forbidden := sorted(_OURS & {header.lower() for header in one.headers}):
        raise Unusable(
            f"{where}: a scenario cannot set {forbidden[0]}; API keys come from the environment"
        )
    if not all(_HEADER.fullmatch(f"{key}: {value}") for key, value in one.headers.items()):
        raise Unusable(f"{where}: not a header: expected a name and a value in printable ASCII")
    if one.until and method not in ("GET", "HEAD"):
        raise Unusable(f"{where}: until is only for reads; a write is sent once")
    return Step(
        method,
        Template.of(target),
        name,
        number,
        name=one.name,
        body=_body(one, where),
        headers={name: Template.of(text) for name, text in one.headers.items()},
        captures={key: Capture(_path(path, where)) for key, path in one.capture.items()},
        key=one.key,
        until=_until(one.until, where) if one.until else None,
        rules=rules,
    )


def _body(one: _Step, where: str) -> Template | None:
    if one.text is not None:
        if one.body is not None:
            raise Unusable(f"{where}: give either body or text, not both")
        return Template.of(one.text)
    if one.body is None:
        return None
    try:
        return Template.of(json_codec.dumps(one.body).decode())
    except (TypeError, ValueError):
        raise Unusable(
            f"{where}: body: write dates as text; nan and inf are not JSON numbers"
        ) from None


def _until(one: _Until, where: str) -> Until:
    return Until(_path(one.path, where), loads_strict(json_codec.dumps(one.is_)), one.within)


def _path(text: str, where: str) -> paths.Path:
    try:
        return paths.parse_scenario_path(text)
    except ValueError:
        raise Unusable(
            f"{where}: not a path: write it like recipient.id or payments[0].id"
        ) from None


def _problems(error: ValidationError) -> Iterator[str]:
    for one in error.errors(include_input=False, include_url=False):
        yield f"{_where(one['loc'])}: {one['msg'][0].lower()}{one['msg'][1:]}"


def _where(place: tuple[int | str, ...]) -> str:
    if len(place) > 1 and place[0] == "steps":
        return ", ".join([f"step {int(place[1]) + 1}", *map(str, place[2:3])])
    return ".".join(map(str, place))
