"""What is to be asked of both sides, one step after another."""

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
    """The place of a captured value in a template; ``whole`` where it is a JSON value by itself."""

    name: str
    whole: bool = False


_REF = re.compile(r'"\$\{(?P<whole>[\w-]+)\}"|(?<!\$)\$\{(?P<part>[\w-]+)\}')


@dataclass(frozen=True, slots=True)
class Template:
    """Text with places for what earlier steps captured."""

    parts: tuple[str | Ref, ...] = ()

    @classmethod
    def of(cls, text: str) -> Template:
        """``${name}`` is a place; ``$${`` is ``${`` itself."""
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
    """Spells captured values inside a JSON text."""

    def spell(ref: Ref) -> str:
        value = values[ref.name]
        if isinstance(value, Number):
            return value.text
        text = json.dumps(value, ensure_ascii=False)
        return text if ref.whole or not isinstance(value, str) else text[1:-1]

    return spell


def as_text(value: Any) -> str:
    """A captured value as a path or a query takes it."""
    if isinstance(value, Number):
        return value.text
    return value if isinstance(value, str) else json.dumps(value)


def create_header_speller(values: Mapping[str, Any]) -> Callable[[Ref], str]:
    """Spells captured values inside a header: what may not stand there is percent-encoded."""

    def spell(ref: Ref) -> str:
        text = quote(as_text(values[ref.name]), safe=_IN_A_HEADER, errors="replace")
        return f'"{text}"' if ref.whole else text

    return spell


_IN_A_HEADER = "".join(map(chr, range(0x20, 0x7F)))


@dataclass(frozen=True, slots=True)
class Capture:
    """A value of an answer that later steps use.

    ``recorded`` is what it was when traffic was recorded: where an answer has that very value it is
    taken, wherever it stands; a read that has neither leaves it as it was.
    """

    path: Path
    recorded: str = ""


@dataclass(frozen=True, slots=True)
class Until:
    """A read is asked again until a value is there, for so many seconds."""

    path: Path
    value: Any
    seconds: float


@dataclass(frozen=True, slots=True)
class Step:
    """One request for each side. ``target`` is its path and query, from ``/v1`` on."""

    method: str
    target: Template
    source: str
    number: int
    """The input it is of, and its place there: a step, a line or an entry."""
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
    """One file: its steps, and what of it is not asked, by reason."""

    name: str
    kind: Literal["scenario", "recorded traffic", "list of reads"]
    steps: tuple[Step, ...]
    title: str = ""
    left_out: Mapping[str, int] = field(default_factory=dict)


def waits_for(steps: list[Step]) -> Iterator[int]:
    """For each step, how many of those before it must have been compared when it is asked.

    A write waits for everything, and everything waits for it. A read that names no object waits for
    nothing else; one that does waits for what may tell how candidate calls it: all that came before,
    but for the steps right before it that ask for the same operation.
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
