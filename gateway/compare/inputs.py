"""Loads input files: lists of reads, scenarios and recorded traffic, told apart by their content.

A list of reads is a text file with one request per line: ``GET /v1/recipients?page=1``. A scenario is
a TOML file with requests that build on each other. ``deploy/compare/README.md`` describes
them all.
"""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from gateway.compare.har import parse_har
from gateway.compare.paths import parse_scenario_path
from gateway.compare.requests import (
    READ_METHODS,
    REQUEST_LINE_START,
    InputError,
    parse_request_line,
)
from gateway.compare.rules import Rules, build_rules, describe_mistakes
from gateway.compare.steps import (
    OWN_VARIABLE,
    RUN_VARIABLE,
    Capture,
    Input,
    Step,
    Template,
    WaitCondition,
    encode_body,
    validate_text,
)
from mappings.exact_json import ExactDecimal


def load_inputs(files: Sequence[Path], rules: Rules) -> list[Input]:
    """Loads input files; raises InputError, also if they contain no request to send."""
    inputs = [parse_input(read_input_text(path), str(path), rules) for path in files]
    if not any(input_file.steps for input_file in inputs):
        details = [
            f"{each.name}: {reason}: {count}"
            for each in inputs
            for reason, count in each.omitted_counts.items()
        ]
        raise InputError(f"there are no requests to send ({'; '.join(details) or 'no requests'})")
    return inputs


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
    try:
        method, target = parse_request_line(line)
    except ValueError as error:
        raise InputError(f"{name}, line {number}: {error}") from None
    if method not in READ_METHODS:
        problem = f"{method} is a write; a list of reads may contain only GET and HEAD"
        raise InputError(f"{name}, line {number}: {problem}")
    return Step(method, Template((target,)), name, number, rules=rules)


class _ScenarioStep(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    request: Annotated[tuple[str, str], validate_text(parse_request_line)]
    name: str = ""
    body: Annotated[
        Template | None, BeforeValidator(lambda body: Template.parse(encode_body(body).decode()))
    ] = None
    captures: dict[
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w-]*$")],
        Annotated[Capture, validate_text(lambda path: Capture(parse_scenario_path(path)))],
    ] = Field({}, alias="capture")
    key: Literal["own", "none", "wrong"] = "own"
    wait_condition: WaitCondition | None = Field(None, alias="until")

    @model_validator(mode="after")
    def _check_only_reads_wait(self) -> Self:
        if self.wait_condition and self.request[0] not in READ_METHODS:
            raise ValueError("until is only for reads; a write is sent once")
        return self

    def build_step(self, source: str, number: int, rules: Rules) -> Step:
        method, target = self.request
        fields = {name: value for name, value in self if name != "request"}
        return Step(method, Template.parse(target), source, number, rules=rules, **fields)


class _Scenario(BaseModel):
    model_config = ConfigDict(extra="forbid")
    title: str = ""
    rules: dict[str, Any] = {}
    steps: Annotated[list[_ScenarioStep], Field(min_length=1)]


def _parse_scenario(text: str, name: str, rules: Rules) -> Input:
    """Parses a scenario; raises InputError with the number of the invalid step."""
    try:
        # An amount without quotes is sent exactly as it was written.
        scenario = _Scenario.model_validate(tomllib.loads(text, parse_float=ExactDecimal))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name}: not TOML: {error}") from None
    except ValidationError as error:
        raise InputError(f"{name}: {describe_mistakes(error, _Scenario)}") from None
    rules = rules.combine(build_rules(scenario.rules, name)) if scenario.rules else rules
    steps = [step.build_step(name, number, rules) for number, step in enumerate(scenario.steps, 1)]
    known_names = {RUN_VARIABLE, OWN_VARIABLE}
    for step in steps:
        if unknown_names := sorted(step.placeholder_names - known_names):
            problem = f"no earlier step captures {unknown_names[0]}"
            raise InputError(f"{name}: steps #{step.number}: {problem}")
        # After the check, because a step cannot use its own answer.
        known_names |= step.captures.keys()
    return Input(name, "scenario", tuple(steps), scenario.title)
