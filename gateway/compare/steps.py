"""The steps of a comparison: requests with placeholders, sent to both sides in order."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote

from gateway.compare.operations import IN_TEXT, READS, Asked, identify_operation
from gateway.compare.paths import Path
from gateway.compare.rules import Rules
from gateway.compare.strict_json import Number


@dataclass(frozen=True, slots=True)
class Ref:
    """A placeholder of a template. ``is_whole_value``: its quotes are part of it, so any JSON value fits."""

    name: str
    whole: bool = False


_REF = re.compile(r'"\$\{(?P<whole>[\w-]+)\}"|(?<!\$)\$\{(?P<part>[\w-]+)\}')


@dataclass(frozen=True, slots=True)
class Template:
    """A text with placeholders for values that earlier steps captured."""

    parts: tuple[str | Ref, ...] = ()

    @classmethod
    def of(cls, text: str) -> Template:
        """Parses a text. ``${name}`` is a placeholder; ``$${`` stands for ``${``."""
        parts: list[str | Ref] = []
        end = 0
        for found in _REF.finditer(text):
            parts.append(text[end : found.start()].replace("$${", "${"))
            parts.append(Ref(found["whole"] or found["part"], bool(found["whole"])))
            end = found.end()
        return cls((*parts, text[end:].replace("$${", "${")))

    @property
    def names(self) -> set[str]:
        return {part.name for part in self.parts if isinstance(part, Ref)}

    @property
    def mentions_ids(self) -> bool:
        return any(isinstance(part, str) and IN_TEXT.search(part) for part in self.parts)

    def filled(
        self, spell: Callable[[Ref], str], literal: Callable[[str], str] = lambda text: text
    ) -> str:
        return "".join(
            spell(part) if isinstance(part, Ref) else literal(part) for part in self.parts
        )


def create_json_speller(values: Mapping[str, Any]) -> Callable[[Ref], str]:
    """Returns a function that formats captured values for a JSON text."""

    def spell(ref: Ref) -> str:
        value = values[ref.name]
        if isinstance(value, Number):
            return value.text
        text = json.dumps(value, ensure_ascii=False)
        return text if ref.whole or not isinstance(value, str) else text[1:-1]

    return spell


def as_text(value: Any) -> str:
    """Formats a captured value for a path or query, not yet percent-encoded."""
    if isinstance(value, Number):
        return value.text
    return value if isinstance(value, str) else json.dumps(value)


def create_header_speller(values: Mapping[str, Any]) -> Callable[[Ref], str]:
    """Returns a function that formats captured values for headers, percent-encoding other characters."""

    def spell(ref: Ref) -> str:
        text = quote(as_text(values[ref.name]), safe=_IN_A_HEADER, errors="replace")
        return f'"{text}"' if ref.whole else text

    return spell


_IN_A_HEADER = "".join(map(chr, range(0x20, 0x7F)))


@dataclass(frozen=True, slots=True)
class Capture:
    """A value of an answer that later steps use.

    ``recorded_value`` is its value in recorded traffic. If an answer contains that value anywhere, it is
    captured as it is; a read that has neither it nor an id at ``path`` keeps the recorded value.
    """

    path: Path
    recorded: str = ""


@dataclass(frozen=True, slots=True)
class Until:
    """A read is repeated until the value at ``path`` is ``value``, for ``timeout_seconds``."""

    path: Path
    value: Any
    seconds: float


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
    headers: Mapping[str, Template] = field(default_factory=dict)
    captures: Mapping[str, Capture] = field(default_factory=dict)
    key: Literal["own", "none", "wrong"] = "own"
    until: Until | None = None
    rules: Rules = field(default_factory=Rules)

    @property
    def reads(self) -> bool:
        return self.method in READS

    @property
    def asked(self) -> Asked:
        return identify_operation(self.method, self.target.filled(lambda ref: f"R-{ref.name}"))

    @property
    def names(self) -> set[str]:
        return {name for one in self._templates for name in one.names}

    @property
    def mentions_ids(self) -> bool:
        return any(one.mentions_ids for one in self._templates)

    @property
    def _templates(self) -> tuple[Template, ...]:
        return (self.target, *((self.body,) if self.body else ()), *self.headers.values())


@dataclass(frozen=True, slots=True)
class Input:
    """An input file: its steps, and how many of its requests are omitted, by reason."""

    name: str
    kind: Literal["scenario", "recorded traffic", "list of reads"]
    steps: tuple[Step, ...]
    title: str = ""
    left_out: Mapping[str, int] = field(default_factory=dict)


def waits_for(steps: list[Step]) -> Iterator[int]:
    """Yields for each step how many of the steps before it must be compared before it is sent.

    A write waits for all steps before it, and all later steps wait for it. A read with ids in it waits
    for the answers that may show candidate's ids: all earlier ones, except those of the directly
    preceding steps of the same operation. Other reads wait only for values that they capture.
    """
    after_write = same = 0
    captured: dict[str, int] = {}
    for index, step in enumerate(steps):
        if index and step.asked != steps[index - 1].asked:
            same = index
        needed = [captured[name] for name in step.names if name in captured]
        yield max(
            index if not step.reads else after_write,
            same if step.mentions_ids else 0,
            *needed,
            0,
        )
        captured |= dict.fromkeys(step.captures, index + 1)
        if not step.reads:
            after_write = index + 1
