"""Loads input files: lists of reads, scenarios and recorded traffic, told apart by their content.

A list of reads is a text file with one request per line: ``GET /v1/recipients?page=1``. A scenario is
a TOML file with requests that build on each other:

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
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from gateway.compare import paths
from gateway.compare.har import parse_har
from gateway.compare.requests import REQUEST_LINE_START, InputError, parse_request_line
from gateway.compare.rules import Rules, build_rules, describe_problem
from gateway.compare.steps import (
    OWN_VARIABLE,
    RUN_VARIABLE,
    Capture,
    Input,
    Step,
    Template,
    WaitCondition,
)
from gateway.compare.strict_json import loads_strict
from gateway.payloads import json_codec
from mappings.exact_json import ExactDecimal


def load_inputs(files: Sequence[Path], rules: Rules) -> list[Input]:
    """Loads input files; raises InputError, also if they contain no request to send."""
    inputs = [parse_input(read_input_text(path), str(path), rules) for path in files]
    if not any(input_file.steps for input_file in inputs):
        details = "; ".join(
            f"{input_file.name}: {_describe_omissions(input_file)}" for input_file in inputs
        )
        raise InputError(f"there are no requests to send ({details})")
    return inputs


def _describe_omissions(input_file: Input) -> str:
    omissions = [f"{reason}: {count}" for reason, count in input_file.omitted_counts.items()]
    return ", ".join(omissions) or "no requests"


def read_input_text(path: Path) -> str:
    try:
        # Some tools of Windows write a byte order mark.
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or 'cannot be read'}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8") from None


def parse_input(text: str, name: str, rules: Rules) -> Input:
    """Detects the kind: JSON is HAR, TOML a scenario, a request line begins a list of reads."""
    # Neither TOML nor a request line can begin with a brace.
    if text.lstrip().startswith("{"):
        return parse_har(text, name, rules)
    lines = [
        (number, request_line)
        for number, line in enumerate(text.splitlines(), start=1)
        if (request_line := re.sub(r"(^|\s)#.*", "", line).strip())
    ]
    if not lines:
        raise InputError(f"{name}: the file is empty")
    first_line = lines[0][1]
    if REQUEST_LINE_START.match(first_line):
        steps = tuple(_parse_read(line, name, number, rules) for number, line in lines)
        return Input(name, "list of reads", steps)
    if re.match(r"""\[|[\w."'-]+\s*=""", first_line):
        return _parse_scenario(text, name, rules)
    raise InputError(
        f"{name}: neither a scenario (TOML with [[steps]]), recorded traffic (HAR 1.2), "
        "nor a list of reads (GET /v1/…)"
    )


def _parse_read(line: str, name: str, number: int, rules: Rules) -> Step:
    method, target = parse_request_line(line, f"{name}, line {number}")
    step = Step(method, Template((target,)), name, number, rules=rules)
    if not step.is_read:
        raise InputError(
            f"{name}, line {number}: {method} is a write; a list of reads may contain only GET and HEAD"
        )
    return step


# Scenarios


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
    capture: dict[Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w-]*$")], str] = {}
    key: Literal["own", "none", "wrong"] = "own"
    until: _UntilModel | None = None


class _ScenarioModel(BaseModel):
    model_config = ConfigDict(extra="forbid")
    title: str = ""
    rules: dict[str, Any] = {}
    steps: Annotated[list[_StepModel], Field(min_length=1)]


def _parse_scenario(text: str, name: str, rules: Rules) -> Input:
    """Parses a scenario; raises InputError with the number of the invalid step."""
    try:
        # ``Number`` sends an amount without quotes exactly as it was written.
        document = tomllib.loads(text, parse_float=ExactDecimal)
        if "steps" not in document:
            raise InputError(f"{name}: not a scenario: it has no [[steps]]")
        scenario = _ScenarioModel.model_validate(document)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name}: not TOML: {error}") from None
    except ValidationError as error:
        raise InputError(f"{name}: {'; '.join(map(_describe_problem, error.errors()))}") from None
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
    if model.until and method not in ("GET", "HEAD"):
        raise InputError(f"{location}: until is only for reads; a write is sent once")
    return Step(
        method,
        Template.parse(target),
        name,
        number,
        name=model.name,
        body=_build_body(model, location),
        captures={
            key: Capture(_parse_answer_path(path, location)) for key, path in model.capture.items()
        },
        key=model.key,
        wait_condition=_build_wait_condition(model.until, location) if model.until else None,
        rules=rules,
    )


def _build_body(model: _StepModel, location: str) -> Template | None:
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


def _describe_problem(problem: Any) -> str:
    location = problem["loc"]
    if len(location) > 1 and location[0] == "steps":
        place = ", ".join([f"step {location[1] + 1}", *map(str, location[2:3])])
    else:
        place = ".".join(map(str, location))
    return describe_problem(place, problem)
