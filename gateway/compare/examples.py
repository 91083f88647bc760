"""Builds examples of differences: the request and the nearby fields of both answers, redacted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gateway.compare import paths
from gateway.compare.differences import Difference
from gateway.compare.mask import DisplayValue, Redactor
from gateway.compare.paths import Path
from gateway.compare.steps import Step
from gateway.compare.strict_json import ABSENT, JSON

EqualityCheck = Callable[[str, JSON, JSON], bool]
"""Whether two values at a path (in normal form) count as equal."""

CONTEXT_ROWS = 3
"""Fields shown before and after the one that differs."""

MAX_ROWS = 12


@dataclass(frozen=True, slots=True)
class Row:
    """A field of both answers side by side. ``name`` is the field name, or the index in a list."""

    name: str
    control: DisplayValue
    candidate: DisplayValue
    differs: bool
    is_subject: bool
    is_ignored: bool
    """The texts differ, but ids are paired or a rule ignores it."""


@dataclass(frozen=True, slots=True)
class Example:
    """One occurrence of a difference. All texts are redacted."""

    source: str
    number: int
    name: str
    request: str
    statuses: tuple[int, int]
    control_path: str
    candidate_path: str
    control: DisplayValue
    candidate: DisplayValue
    note: str
    rows: tuple[Row, ...]
    rows_before: int = 0
    rows_after: int = 0
    """Numbers of rows left out above and below ``rows``."""


@dataclass(frozen=True, slots=True)
class ExampleBuilder:
    """Builds examples from answers. Examples hold redacted text only, never values of an answer."""

    redactor: Redactor

    def redact_normal_path(self, difference: Difference) -> str:
        return self.redactor.redact_normal_path(difference.control_path)

    def build_example(
        self,
        step: Step,
        request: str,
        statuses: tuple[int, int],
        difference: Difference,
        is_equal: EqualityCheck,
    ) -> Example:
        control, candidate = self.redactor.redact_pair_and_mark_differences(
            difference.control_path, difference.control, difference.candidate
        )
        rows = [*self._build_rows(difference, is_equal)]
        first, last = _select_row_range(rows)
        return Example(
            source=step.source,
            number=step.number,
            name=step.name,
            request=request,
            statuses=statuses,
            control_path=self.redactor.redact_path(difference.control_path),
            candidate_path=self.redactor.redact_path(difference.candidate_path),
            control=control,
            candidate=candidate,
            note=self.redactor.remove_api_keys(difference.note),
            rows=tuple(rows[first:last]),
            rows_before=first,
            rows_after=len(rows) - last,
        )

    def _build_rows(self, difference: Difference, is_equal: EqualityCheck) -> Iterator[Row]:
        if difference.index_pairs:
            yield from self._build_moved_rows(difference)
        # The fields of an object that one side lacks say more than those around it.
        elif difference.kind in ("missing", "extra") and isinstance(
            _select_present_value(difference), dict
        ):
            yield from self._build_field_rows(
                difference.control_path, *_select_present_fields(difference), None, is_equal
            )
        elif (
            isinstance(difference.containers[0], dict)
            and isinstance(difference.containers[1], dict)
            and difference.control_path
        ):
            yield from self._build_field_rows(
                difference.control_path[:-1],
                *difference.containers,
                difference.control_path[-1],
                is_equal,
            )

    def _build_moved_rows(self, difference: Difference) -> Iterator[Row]:
        """Yields a row for each item that both lists have, with its indices."""
        for control_index, candidate_index in difference.index_pairs:
            control, candidate = (
                self.redactor.redact_value(
                    (*difference.control_path, index, "id"), _select_item_id(side[index])
                )
                for side, index in (
                    (difference.control, control_index),
                    (difference.candidate, candidate_index),
                )
            )
            name = (
                f"[{control_index}]"
                if control_index == candidate_index
                else f"[{control_index}] → [{candidate_index}]"
            )
            is_ignored = control_index == candidate_index and control != candidate
            yield Row(
                name,
                control,
                candidate,
                control_index != candidate_index,
                is_subject=False,
                is_ignored=is_ignored,
            )

    def _build_field_rows(
        self,
        path: Path,
        control: dict[str, JSON],
        candidate: dict[str, JSON],
        subject_key: str | int | None,
        is_equal: EqualityCheck,
    ) -> Iterator[Row]:
        # In control's order, in which readers know the answer.
        for key in [*control, *(key for key in candidate if key not in control)]:
            control_value, candidate_value = control.get(key, ABSENT), candidate.get(key, ABSENT)
            field_path = (*path, key)
            state = (
                "it"
                if key == subject_key
                else _classify_field_difference(
                    field_path, control_value, candidate_value, is_equal
                )
            )
            yield self._build_row(
                field_path,
                self.redactor.redact_object_key(key),
                control_value,
                candidate_value,
                state,
            )

    def _build_row(
        self, path: Path, name: str, control_value: Any, candidate_value: Any, state: str
    ) -> Row:
        # Parts are marked only if the values count as different; paired ids do not.
        differs = state in ("it", "differs")
        control, candidate = (
            self.redactor.redact_pair_and_mark_differences(path, control_value, candidate_value)
            if differs
            else (
                self.redactor.redact_value(path, control_value),
                self.redactor.redact_value(path, candidate_value),
            )
        )
        return Row(name, control, candidate, differs, state == "it", state == "overlooked")


def _classify_field_difference(
    path: Path, control: Any, candidate: Any, is_equal: EqualityCheck
) -> str:
    if control is ABSENT or candidate is ABSENT:
        return "differs"
    if control == candidate:
        return "same"
    return "overlooked" if is_equal(paths.normalize_path(path), control, candidate) else "differs"


def are_equal(_normal_path: str, control: JSON, candidate: JSON) -> bool:
    return bool(control == candidate)


def _select_present_value(difference: Difference) -> Any:
    return difference.control if difference.kind == "missing" else difference.candidate


def _select_present_fields(difference: Difference) -> tuple[dict[str, JSON], dict[str, JSON]]:
    return (difference.control, {}) if difference.kind == "missing" else ({}, difference.candidate)


def _select_item_id(item: Any) -> Any:
    """Returns the id of a list item; the item itself if it has none."""
    return item.get("id", item) if isinstance(item, dict) else item


def _select_row_range(rows: list[Row]) -> tuple[int, int]:
    """Selects the range of rows to show, around the row of the difference."""
    if len(rows) <= MAX_ROWS:
        return 0, len(rows)
    subject_index = next((index for index, row in enumerate(rows) if row.is_subject), None)
    if subject_index is None:
        return 0, MAX_ROWS
    return max(0, subject_index - CONTEXT_ROWS), min(len(rows), subject_index + CONTEXT_ROWS + 1)
