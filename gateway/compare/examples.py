"""Builds examples of differences: the request and the nearby fields of both answers, redacted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gateway.compare import paths
from gateway.compare.differences import Difference
from gateway.compare.masking import Redactor
from gateway.compare.report_schema import ExampleEntry, RowEntry
from gateway.compare.steps import Step
from gateway.compare.strict_json import ABSENT, JSON

EqualityCheck = Callable[[str, JSON, JSON], bool]
"""Whether two values at a path (in normal form) count as equal."""

CONTEXT_ROWS = 3
"""Fields shown before and after the one that differs."""

MAX_ROWS = 12


@dataclass(frozen=True, slots=True)
class ExampleBuilder:
    """Builds examples from answers. Examples hold redacted text only, never values of an answer."""

    redactor: Redactor

    def build_example(
        self,
        step: Step,
        request: str,
        statuses: tuple[int, int],
        difference: Difference,
        is_equal: EqualityCheck,
    ) -> ExampleEntry:
        control, candidate = self.redactor.redact_pair_and_mark_differences(
            difference.control_path, difference.control, difference.candidate
        )
        rows = [*self._build_rows(difference, is_equal)]
        first, last = _select_row_range(rows)
        return {
            "input": step.source,
            "step": step.number,
            "name": step.name,
            "request": request,
            "control_status": statuses[0],
            "candidate_status": statuses[1],
            "control_path": self.redactor.redact_path(difference.control_path),
            "candidate_path": self.redactor.redact_path(difference.candidate_path),
            "control": control,
            "candidate": candidate,
            "note": self.redactor.remove_api_keys(difference.note),
            "around": rows[first:last],
            "around_left_out": (first, len(rows) - last),
        }

    def _build_rows(self, difference: Difference, is_equal: EqualityCheck) -> Iterator[RowEntry]:
        path, objects = difference.control_path[:-1], difference.containers
        subject_key: str | int | None = None
        if difference.index_pairs:
            yield from self._build_moved_rows(difference)
            return
        present = difference.control if difference.kind == "missing" else difference.candidate
        # The fields of an object that one side lacks say more than those around it.
        if difference.kind in ("missing", "extra") and isinstance(present, dict):
            path = difference.control_path
            objects = (present, {}) if difference.kind == "missing" else ({}, present)
        elif difference.control_path:
            subject_key = difference.control_path[-1]
        control, candidate = objects
        if not (
            difference.control_path and isinstance(control, dict) and isinstance(candidate, dict)
        ):
            return
        # In control's order, in which readers know the answer.
        for key in {**control, **candidate}:
            values = control.get(key, ABSENT), candidate.get(key, ABSENT)
            field_path = (*path, key)
            is_ignored = (
                key != subject_key
                and ABSENT not in values
                and is_equal(paths.normalize_path(field_path), *values)
            )
            # Parts are marked only if the values count as different; paired ids do not.
            differs = values[0] != values[1] and not is_ignored
            displays = (
                self.redactor.redact_pair_and_mark_differences(field_path, *values)
                if differs
                else tuple(self.redactor.redact_value(field_path, value) for value in values)
            )
            yield {
                "name": self.redactor.redact_object_key(key),
                "control": displays[0],
                "candidate": displays[1],
                "differs": differs or key == subject_key,
                "is_it": key == subject_key,
                "overlooked": is_ignored and values[0] != values[1],
            }

    def _build_moved_rows(self, difference: Difference) -> Iterator[RowEntry]:
        """Yields a row for each item that both lists have, with its indices."""
        for i, j in difference.index_pairs:
            items = difference.control[i], difference.candidate[j]
            ids = [item.get("id", item) if isinstance(item, dict) else item for item in items]
            control, candidate = (
                self.redactor.redact_value((*difference.control_path, index, "id"), id_)
                for index, id_ in zip((i, j), ids, strict=True)
            )
            yield {
                "name": f"[{i}]" if i == j else f"[{i}] → [{j}]",
                "control": control,
                "candidate": candidate,
                "differs": i != j,
                "is_it": False,
                "overlooked": i == j and control != candidate,
            }


def are_equal(_normal_path: str, control: JSON, candidate: JSON) -> bool:
    return bool(control == candidate)


def _select_row_range(rows: list[RowEntry]) -> tuple[int, int]:
    """Selects the range of rows to show, around the row of the difference."""
    subject_index = next((index for index, row in enumerate(rows) if row["is_it"]), None)
    if len(rows) <= MAX_ROWS or subject_index is None:
        return 0, min(len(rows), MAX_ROWS)
    return max(0, subject_index - CONTEXT_ROWS), min(len(rows), subject_index + CONTEXT_ROWS + 1)
