"""The steps of a comparison: requests with placeholders, sent to both sides in order."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from gateway.compare.paths import Path, parse_scenario_path
from gateway.compare.requests import READ_METHODS, RequestedOperation, identify_operation
from gateway.compare.rules import Rules
from gateway.compare.strict_json import Number, loads_strict
from gateway.payloads import json_codec

RUN_VARIABLE = "run"
OWN_VARIABLE = "own"


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A placeholder of a template. ``is_whole_value``: its quotes are part of it, so any JSON value fits."""

    name: str
    is_whole_value: bool = False


# With its quotes, a placeholder is a whole JSON value; elsewhere, `$$` escapes it.
_PLACEHOLDER = re.compile(r'"\$\{(?P<whole>[\w-]+)\}"|(?<!\$)\$\{(?P<part>[\w-]+)\}')


@dataclass(frozen=True, slots=True)
class Template:
    """A text with placeholders for values that earlier steps captured."""

    parts: tuple[str | Placeholder, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Template:
        """Parses a text. ``${name}`` is a placeholder; ``$${`` stands for ``${``."""
        parts: list[str | Placeholder] = []
        position = 0
        for match in _PLACEHOLDER.finditer(text):
            parts.append(text[position : match.start()].replace("$${", "${"))
            parts.append(Placeholder(match["whole"] or match["part"], bool(match["whole"])))
            position = match.end()
        return cls((*parts, text[position:].replace("$${", "${")))

    @property
    def placeholder_names(self) -> set[str]:
        return {part.name for part in self.parts if isinstance(part, Placeholder)}

    def fill(
        self,
        format_placeholder: Callable[[Placeholder], str],
        format_literal: Callable[[str], str] = lambda text: text,
    ) -> str:
        return "".join(
            format_placeholder(part) if isinstance(part, Placeholder) else format_literal(part)
            for part in self.parts
        )


def validate_text(parse: Callable[[str], Any]) -> BeforeValidator:
    """Returns a validator of pydantic that parses a text; ``parse`` raises ValueError."""

    def validate(value: Any) -> Any:
        if not isinstance(value, str):
            raise ValueError("must be text, in quotes")  # noqa: TRY004 - pydantic reports ValueErrors
        return parse(value)

    return BeforeValidator(validate)


def encode_body(value: Any) -> bytes:
    """Encodes a value of a scenario as JSON; raises ValueError."""
    try:
        return json_codec.dumps(value)
    except (TypeError, ValueError):
        raise ValueError("write dates as text; nan and inf are not JSON numbers") from None


def encode_in_json(value: Any, is_whole_value: bool) -> str:
    if isinstance(value, Number):
        return value.text
    text = json.dumps(value, ensure_ascii=False)
    # Inside a string of the body, the value needs its escapes but not its own quotes.
    return text if is_whole_value or not isinstance(value, str) else text[1:-1]


def encode_in_target(value: Any, _is_whole_value: bool = False) -> str:
    # Percent-encoded: a captured value must not add a path part or a parameter.
    text = value.text if isinstance(value, Number) else value
    text = text if isinstance(text, str) else json.dumps(text)
    return quote(text, safe="", errors="replace")


@dataclass(frozen=True, slots=True)
class Capture:
    """A value of an answer that later steps use.

    ``recorded_value`` is its value in recorded traffic. If an answer contains that value anywhere, it is
    captured as it is; a read that has neither it nor an id at ``path`` keeps the recorded value.
    """

    path: Path
    recorded_value: str = ""


class WaitCondition(BaseModel):
    """A read is repeated until the value at ``path`` is ``value``, for ``timeout_seconds``."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)
    path: Annotated[tuple[str | int, ...], validate_text(parse_scenario_path)]
    # In the form that decoded answers have, so that the two can be compared.
    value: Annotated[Any, AfterValidator(lambda value: loads_strict(encode_body(value)))] = Field(
        alias="is"
    )
    timeout_seconds: float = Field(30, gt=0, le=600, alias="within")


@dataclass(frozen=True, slots=True)
class Step:
    """A request to send to both sides. ``target`` is path and query, beginning with ``/v1``."""

    method: str
    target: Template
    source: str
    number: int
    """``source`` is the input file, ``number`` the step, line or entry in it."""
    name: str = ""
    body: Template | None = None
    captures: Mapping[str, Capture] = field(default_factory=dict)
    key: Literal["own", "none", "wrong"] = "own"
    wait_condition: WaitCondition | None = None
    rules: Rules = field(default_factory=Rules)

    @property
    def is_read(self) -> bool:
        return self.method in READ_METHODS

    @property
    def operation(self) -> RequestedOperation:
        # Any id will do, because only the shape of the path matters.
        target = self.target.fill(lambda placeholder: f"R-{placeholder.name}")
        return identify_operation(self.method, target)

    @property
    def placeholder_names(self) -> set[str]:
        names = self.target.placeholder_names
        return names | self.body.placeholder_names if self.body else names


@dataclass(frozen=True, slots=True)
class Input:
    """An input file: its steps, and how many of its requests are omitted, by reason."""

    name: str
    kind: Literal["scenario", "recorded traffic", "list of reads"]
    steps: tuple[Step, ...]
    title: str = ""
    omitted_counts: Mapping[str, int] = field(default_factory=dict)
