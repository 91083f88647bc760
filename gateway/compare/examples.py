"""Builds examples of differences: the request and the nearby fields of both answers, redacted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gateway.compare import paths
from gateway.compare.differences import Difference
from gateway.compare.mask import Redactor, Shown
from gateway.compare.paths import Path
from gateway.compare.steps import Step
from gateway.compare.strict_json import ABSENT, JSON

Alike = Callable[[str, JSON, JSON], bool]
"""Whether two values at a path (in normal form) count as equal."""

AROUND = 3
"""Fields shown before and after the one that differs."""

MOST_ROWS = 12


@dataclass(frozen=True, slots=True)
class Row:
    """A field of both answers side by side. ``name`` is the field name, or the index in a list."""

    name: str
    control: Shown
    candidate: Shown
    differs: bool
    is_it: bool
    overlooked: bool
    """The texts differ, but ids are paired or a rule ignores it."""


@dataclass(frozen=True, slots=True)
class Example:
    """One occurrence of a difference. All texts are redacted."""

    source: str
    number: int
    name: str
    request: str
    statuses: tuple[int, int]
    path: str
    there: str
    control: Shown
    candidate: Shown
    note: str
    rows: tuple[Row, ...]
    before: int = 0
    after: int = 0
    """Numbers of rows left out above and below ``rows``."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """Builds examples from answers. Examples hold redacted text only, never values of an answer."""

    eye: Redactor

    def place(self, one: Difference) -> str:
        return self.eye.place(one.path)

    def example(
        self,
        step: Step,
        request: str,
        statuses: tuple[int, int],
        one: Difference,
        alike: Alike,
    ) -> Example:
        control, candidate = self.eye.both(one.path, one.control, one.candidate)
        rows = [*self._rows(one, alike)]
        first, last = _window(rows)
        return Example(
            source=step.source,
            number=step.number,
            name=step.name,
            request=request,
            statuses=statuses,
            path=self.eye.path(one.path),
            there=self.eye.path(one.there),
            control=control,
            candidate=candidate,
            note=self.eye.plain(one.note),
            rows=tuple(rows[first:last]),
            before=first,
            after=len(rows) - last,
        )

    def _rows(self, one: Difference, alike: Alike) -> Iterator[Row]:
        if one.moves:
            yield from self._items(one)
        elif one.kind in ("missing", "extra") and isinstance(_there(one), dict):
            yield from self._fields(one.path, *_either(one), None, alike)
        elif isinstance(one.within[0], dict) and isinstance(one.within[1], dict) and one.path:
            yield from self._fields(one.path[:-1], *one.within, one.path[-1], alike)

    def _items(self, moved: Difference) -> Iterator[Row]:
        """Yields a row for each item that both lists have, with its indices."""
        for one, other in moved.moves:
            control, candidate = (
                self.eye.value((*moved.path, index, "id"), _known_by(side[index]))
                for side, index in ((moved.control, one), (moved.candidate, other))
            )
            name = f"[{one}]" if one == other else f"[{one}] → [{other}]"
            overlooked = one == other and control != candidate
            yield Row(name, control, candidate, one != other, is_it=False, overlooked=overlooked)

    def _fields(
        self,
        path: Path,
        control: dict[str, JSON],
        candidate: dict[str, JSON],
        it: str | int | None,
        alike: Alike,
    ) -> Iterator[Row]:
        for key in [*control, *(key for key in candidate if key not in control)]:
            one, other = control.get(key, ABSENT), candidate.get(key, ABSENT)
            below = (*path, key)
            state = "it" if key == it else _state(below, one, other, alike)
            yield self._row(below, self.eye.key(key), one, other, state)

    def _row(self, path: Path, name: str, one: Any, other: Any, state: str) -> Row:
        differs = state in ("it", "differs")
        control, candidate = (
            self.eye.both(path, one, other)
            if differs
            else (self.eye.value(path, one), self.eye.value(path, other))
        )
        return Row(name, control, candidate, differs, state == "it", state == "overlooked")


def _state(path: Path, one: Any, other: Any, alike: Alike) -> str:
    if one is ABSENT or other is ABSENT:
        return "differs"
    if one == other:
        return "same"
    return "overlooked" if alike(paths.normalize_path(path), one, other) else "differs"


def are_equal(_place: str, control: JSON, candidate: JSON) -> bool:
    return bool(control == candidate)


def _there(one: Difference) -> Any:
    return one.control if one.kind == "missing" else one.candidate


def _either(one: Difference) -> tuple[dict[str, JSON], dict[str, JSON]]:
    return (one.control, {}) if one.kind == "missing" else ({}, one.candidate)


def _known_by(item: Any) -> Any:
    """The id of a list item; the item itself if it has none."""
    return item.get("id", item) if isinstance(item, dict) else item


def _window(rows: list[Row]) -> tuple[int, int]:
    """Selects the rows to show, as a slice around the row of the difference."""
    if len(rows) <= MOST_ROWS:
        return 0, len(rows)
    it = next((index for index, row in enumerate(rows) if row.is_it), None)
    if it is None:
        return 0, MOST_ROWS
    return max(0, it - AROUND), min(len(rows), it + AROUND + 1)
