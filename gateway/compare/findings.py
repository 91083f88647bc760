"""Collects the differences of a comparison by operation, kind and path, and tells noise from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.compare import paths
from gateway.compare.differences import Difference, DifferenceKind
from gateway.compare.examples import EqualityCheck, ExampleBuilder, are_equal
from gateway.compare.report_schema import DifferenceEntry, NotComparedEntry
from gateway.compare.requests import RequestedOperation
from gateway.compare.rules import Rule
from gateway.compare.steps import Step

NOISE_ONE_IN = 5
"""A path is noise if control differs from itself in at least one of this many answers."""

MAX_NOTES = 5

_FindingKey = tuple[RequestedOperation, DifferenceKind, str]


@dataclass(slots=True)
class Tally:
    """Totals of an operation. ``repeated`` counts steps sent to control twice to measure noise."""

    operation: RequestedOperation
    compared: int = 0
    repeated: int = 0
    statuses: Counter[tuple[int, int]] = field(default_factory=Counter)
    difference_sets: Counter[frozenset[tuple[DifferenceKind, str]]] = field(default_factory=Counter)
    """Answers by their exact set of differences; which of them are noise is known at the end."""


@dataclass(frozen=True, slots=True)
class NotCompared:
    """A step that was not compared. ``is_write_withheld``: it is a write, or needs the result of one,
    and writes were not allowed.
    """

    entry: NotComparedEntry
    is_write_withheld: bool = False


@dataclass(slots=True)
class Findings:
    """Collects findings step by step, with at most ``max_examples`` examples each."""

    example_builder: ExampleBuilder
    max_examples: int = 5
    tallies: dict[RequestedOperation, Tally] = field(default_factory=dict)
    found_by_key: dict[_FindingKey, DifferenceEntry] = field(default_factory=dict)
    noise_by_key: dict[_FindingKey, DifferenceEntry] = field(default_factory=dict)
    """Differences at paths at which control differed from itself in the same step."""
    noise_counts: Counter[tuple[RequestedOperation, str, bool]] = field(default_factory=Counter)
    """Answers in which control differed from itself, by operation, path and whether structurally."""
    rule_uses: Counter[Rule] = field(default_factory=Counter)
    not_sent: list[NotCompared] = field(default_factory=list)
    skipped: list[NotCompared] = field(default_factory=list)
    failed: list[NotCompared] = field(default_factory=list)

    def record_comparison(
        self,
        step: Step,
        request: str,
        statuses: tuple[int, int],
        differences: Sequence[Difference],
        *,
        repeat_differences: Sequence[Difference] | None = None,
        is_equal: EqualityCheck = are_equal,
    ) -> None:
        """Records the comparison of one step.

        ``repeat_differences``: how control's two answers differ; None if it got one request.
        """
        operation = step.operation
        tally = self.tallies.setdefault(operation, Tally(operation))
        noise = {
            (difference.normal_path, is_structural)
            for difference in repeat_differences or ()
            # If control's structure varies, so may its values.
            for is_structural in {False, _is_structural(difference.kind)}
        }
        tally.compared += 1
        tally.repeated += repeat_differences is not None
        tally.statuses[statuses] += 1
        self.noise_counts.update((operation, *path_and_form) for path_and_form in noise)
        seen_keys: dict[_FindingKey, bool] = {}
        for difference in differences:
            is_noise = (difference.normal_path, _is_structural(difference.kind)) in noise
            key = (operation, difference.kind, difference.normal_path)
            # The report lists noise too, because it may hide a difference.
            finding = self._find_or_create_finding(
                self.noise_by_key if is_noise else self.found_by_key, key, difference
            )
            finding["count"] += 1
            if note := self.example_builder.redactor.remove_api_keys(difference.note):
                finding["notes"][note] = finding["notes"].get(note, 0) + 1
            # One example for each answer: ten wrong items of one list are the same mistake.
            if key not in seen_keys:
                finding["answers"] += 1
                if len(finding["examples"]) < self.max_examples:
                    finding["examples"].append(
                        self.example_builder.build_example(
                            step, request, statuses, difference, is_equal
                        )
                    )
            seen_keys[key] = is_noise
        if difference_set := frozenset(
            key[1:] for key, is_noise in seen_keys.items() if not is_noise
        ):
            tally.difference_sets[difference_set] += 1

    def _find_or_create_finding(
        self,
        findings: dict[_FindingKey, DifferenceEntry],
        key: _FindingKey,
        difference: Difference,
    ) -> DifferenceEntry:
        operation, kind, _ = key
        if key not in findings:
            path = self.example_builder.redactor.redact_normal_path(difference.control_path)
            findings[key] = {
                "operation": operation.name,
                "request": operation.title,
                "kind": kind,
                "path": path,
                "field": _extract_field_name(path),
                "count": 0,
                "answers": 0,
                "notes": {},
                "examples": [],
            }
        return findings[key]

    def list_differences(self) -> list[DifferenceEntry]:
        found = self.found_by_key.items()
        return _sort_findings((key, entry) for key, entry in found if not self._is_noise(key))

    def list_noise(self) -> list[DifferenceEntry]:
        """Returns differences at paths at which control differs from itself, now or often."""
        found = self.found_by_key.items()
        frequent = [(key, entry) for key, entry in found if self._is_noise(key)]
        return _sort_findings([*self.noise_by_key.items(), *frequent])

    def count_different_answers(self, tally: Tally) -> int:
        """Counts the answers of an operation that differ by more than noise."""
        return sum(
            count
            for difference_set, count in tally.difference_sets.items()
            if any(not self._is_noise((tally.operation, *found)) for found in difference_set)
        )

    def _is_noise(self, key: _FindingKey) -> bool:
        operation, kind, normal_path = key
        # In integers, because a float division could miss "one in five" by a rounding error.
        scaled_count = (
            self.noise_counts[operation, normal_path, _is_structural(kind)] * NOISE_ONE_IN
        )
        return scaled_count > 0 and scaled_count >= self.tallies[operation].repeated


def _is_structural(kind: DifferenceKind) -> bool:
    """Whether a difference is more than another value. Varying values of control do not excuse it."""
    return kind in ("missing", "extra", "type")


def build_sort_key(operation: RequestedOperation) -> tuple[bool, str, str]:
    # Unknown operations come last; a path groups the operations of one object.
    return (not operation.name, operation.path, operation.method)


def _sort_findings(
    findings: Iterable[tuple[_FindingKey, DifferenceEntry]],
) -> list[DifferenceEntry]:
    def build_key(item: tuple[_FindingKey, DifferenceEntry]) -> tuple[Any, ...]:
        (operation, kind, _), entry = item
        return (build_sort_key(operation), -entry["answers"], entry["path"], kind)

    return [
        {**entry, "notes": dict(Counter(entry["notes"]).most_common(MAX_NOTES))}
        for _, entry in sorted(findings, key=build_key)
    ]


def _extract_field_name(normal_path: str) -> str:
    """Returns the field name at the end of a normalised path."""
    if normal_path == paths.BODY_PATH or normal_path.startswith("@header."):
        return normal_path.removeprefix("@header.")
    return normal_path.rpartition(".")[2].removesuffix("[]") or normal_path
