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
from gateway.compare.errors import InputError
from gateway.compare.requests import parse_request_line
from gateway.compare.rules import Rules, build_rules
from gateway.compare.steps import Capture, Input, Step, Template, WaitCondition
from gateway.compare.strict_json import loads_strict
from gateway.payloads import json_codec

RUN_VARIABLE = "run"
OWN_VARIABLE = "own"

_CaptureName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w-]*$")]

_HEADER_LINE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+: [ -~]*")

# Credentials, and headers that the HTTP client computes itself.
_RESERVED_HEADERS = {
    "x-api-key",
    "authorization",
    "cookie",
    "host",
    "content-length",
    "transfer-encoding",
}


class _UntilModel(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    path: str
    is_: Any = Field(alias="is")
    wait_seconds: float = Field(30, gt=0, le=600, alias="within")


class _StepModel(BaseModel):
    model_config = ConfigDict(extra="forbid")
    request: str
    name: str = ""
    body: Any = None
    text: str | None = None
    capture: dict[_CaptureName, str] = {}
    headers: dict[str, str] = {}
    key: Literal["own", "none", "wrong"] = "own"
    until: _UntilModel | None = None


class _ScenarioModel(BaseModel):
    model_config = ConfigDict(extra="forbid")
    title: str = ""
    rules: dict[str, Any] = {}
    steps: Annotated[list[_StepModel], Field(min_length=1)]


def parse_scenario(text: str, name: str, rules: Rules) -> Input:
    """Parses a scenario; raises InputError with the number of the invalid step."""
    try:
        # ``Number`` sends an amount without quotes exactly as it was written.
        document = tomllib.loads(text, parse_float=json_codec.ExactDecimal)
        scenario = _ScenarioModel.model_validate(document)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name}: not TOML: {error}") from None
    except ValidationError as error:
        raise InputError(f"{name}: {'; '.join(_describe_problems(error))}") from None
    scenario_rules = rules.combine(build_rules(scenario.rules, name)) if scenario.rules else rules
    steps: list[Step] = []
    known_names = {RUN_VARIABLE, OWN_VARIABLE}
    for number, model in enumerate(scenario.steps, start=1):
        step = _build_step(model, name, number, scenario_rules)
        if unknown_names := sorted(step.placeholder_names - known_names):
            raise InputError(f"{name}, step {number}: no earlier step captures {unknown_names[0]}")
        steps.append(step)
        # After the check, because a step cannot use its own answer.
        known_names |= step.captures.keys()
    return Input(name, "scenario", tuple(steps), scenario.title)


def _build_step(model: _StepModel, name: str, number: int, rules: Rules) -> Step:
    location = f"{name}, step {number}"
    method, target = parse_request_line(model.request, location)
    if forbidden_headers := sorted(
        _RESERVED_HEADERS & {header.lower() for header in model.headers}
    ):
        raise InputError(
            f"{location}: a scenario cannot set {forbidden_headers[0]}; API keys come from the environment"
        )
    if not all(_HEADER_LINE.fullmatch(f"{key}: {value}") for key, value in model.headers.items()):
        raise InputError(
            f"{location}: not a header: expected a name and a value in printable ASCII"
        )
    if model.until and method not in ("GET", "HEAD"):
        raise InputError(f"{location}: until is only for reads; a write is sent once")
    return Step(
        method,
        Template.parse(target),
        name,
        number,
        name=model.name,
        body=_build_body(model, location),
        headers={name: Template.parse(text) for name, text in model.headers.items()},
        captures={
            key: Capture(_parse_answer_path(path, location)) for key, path in model.capture.items()
        },
        key=model.key,
        wait_condition=_build_wait_condition(model.until, location) if model.until else None,
        rules=rules,
    )


def _build_body(model: _StepModel, location: str) -> Template | None:
    if model.text is not None:
        if model.body is not None:
            raise InputError(f"{location}: give either body or text, not both")
        return Template.parse(model.text)
    if model.body is None:
        return None
    try:
        return Template.parse(json_codec.dumps(model.body).decode())
    except (TypeError, ValueError):
        raise InputError(
            f"{location}: body: write dates as text; nan and inf are not JSON numbers"
        ) from None


def _build_wait_condition(model: _UntilModel, location: str) -> WaitCondition:
    return WaitCondition(
        _parse_answer_path(model.path, location),
        # In the form that decoded answers have, so that the two can be compared.
        loads_strict(json_codec.dumps(model.is_)),
        model.wait_seconds,
    )


def _parse_answer_path(text: str, location: str) -> paths.Path:
    try:
        return paths.parse_scenario_path(text)
    except ValueError:
        raise InputError(
            f"{location}: not a path: write it like recipient.id or payments[0].id"
        ) from None


def _describe_problems(error: ValidationError) -> Iterator[str]:
    for problem in error.errors(include_input=False, include_url=False):
        yield f"{_format_location(problem['loc'])}: {problem['msg'][0].lower()}{problem['msg'][1:]}"


def _format_location(location: tuple[int | str, ...]) -> str:
    if len(location) > 1 and location[0] == "steps":
        return ", ".join([f"step {int(location[1]) + 1}", *map(str, location[2:3])])
    return ".".join(map(str, location))
