"""Aggregates differences: the same difference in many answers is one finding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.compare.differences import Difference, DifferenceKind
from gateway.compare.examples import EqualityCheck, Example, ExampleBuilder, are_equal
from gateway.compare.operations import RequestedOperation
from gateway.compare.rules import Rule
from gateway.compare.steps import Step

NOISE_ONE_IN = 5
"""A path is noise if control differs from itself in at least one of this many answers."""


@dataclass(slots=True)
class Finding:
    """All differences of one kind at one path of an operation. ``answers`` counts affected answers."""

    operation: RequestedOperation
    kind: DifferenceKind
    path: str
    count: int = 0
    answers: int = 0
    examples: list[Example] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)


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
    """A step that was not compared, and the reason."""

    source: str
    number: int
    name: str
    request: str
    reason: str
    is_write_withheld: bool = False
    """It is a write, or needs the result of one, and writes were not allowed."""


_FindingKey = tuple[RequestedOperation, DifferenceKind, str]


@dataclass(slots=True)
class Findings:
    """Collects findings step by step, with at most ``max_examples`` examples each."""

    example_builder: ExampleBuilder
    max_examples: int = 5
    tallies: dict[RequestedOperation, Tally] = field(default_factory=dict)
    found_by_key: dict[_FindingKey, Finding] = field(default_factory=dict)
    noise_by_key: dict[_FindingKey, Finding] = field(default_factory=dict)
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
            for is_structural in ((False, True) if _is_structural(difference.kind) else (False,))
        }
        tally.compared += 1
        tally.repeated += repeat_differences is not None
        tally.statuses[statuses] += 1
        self.noise_counts.update((operation, *path_and_form) for path_and_form in noise)
        if difference_set := frozenset(
            (difference.kind, difference.normal_path)
            for difference in differences
            if (difference.normal_path, _is_structural(difference.kind)) not in noise
        ):
            tally.difference_sets[difference_set] += 1
        seen_keys: set[_FindingKey] = set()
        for difference in differences:
            is_noise = (difference.normal_path, _is_structural(difference.kind)) in noise
            # The report lists noise too, because it may hide a difference.
            findings = self.noise_by_key if is_noise else self.found_by_key
            finding = self._ensure_finding(findings, operation, difference)
            key = (operation, difference.kind, difference.normal_path)
            finding.count += 1
            finding.answers += key not in seen_keys
            if difference.note:
                finding.notes[self.example_builder.redactor.remove_api_keys(difference.note)] += 1
            # One example for each answer: ten wrong items of one list are the same mistake.
            if key not in seen_keys and len(finding.examples) < self.max_examples:
                finding.examples.append(
                    self.example_builder.build_example(
                        step, request, statuses, difference, is_equal
                    )
                )
            seen_keys.add(key)

    def _ensure_finding(
        self,
        findings: dict[_FindingKey, Finding],
        operation: RequestedOperation,
        difference: Difference,
    ) -> Finding:
        key = (operation, difference.kind, difference.normal_path)
        if key not in findings:
            findings[key] = Finding(
                operation, difference.kind, self.example_builder.redact_normal_path(difference)
            )
        return findings[key]

    def list_differences(self) -> list[Finding]:
        return [finding for key, finding in self.found_by_key.items() if not self._is_noise(key)]

    def list_noise_findings(self) -> list[Finding]:
        """Returns differences at paths at which control differs from itself, now or often."""
        frequent = [finding for key, finding in self.found_by_key.items() if self._is_noise(key)]
        return [*self.noise_by_key.values(), *frequent]

    def count_different_answers(self, tally: Tally) -> int:
        """Counts the answers of an operation that differ by more than noise."""
        return sum(
            count
            for difference_set, count in tally.difference_sets.items()
            if any(
                not self._is_noise((tally.operation, *kind_and_path))
                for kind_and_path in difference_set
            )
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
    return kind in ("missing", "extra", "type", "duplicate")
