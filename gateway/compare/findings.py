"""Collects the differences of a comparison by operation, kind and path, with redacted examples."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.compare.differences import Difference, DifferenceKind
from gateway.compare.masking import Redactor
from gateway.compare.requests import RequestedOperation
from gateway.compare.rules import Rule
from gateway.compare.steps import Step

MAX_NOTES = 5

Entry = dict[str, Any]

_FindingKey = tuple[RequestedOperation, DifferenceKind, str]


@dataclass(slots=True)
class Findings:
    """Collects findings step by step, with at most ``max_examples`` examples each.

    Examples hold redacted text only, never values of an answer.
    """

    redactor: Redactor
    max_examples: int = 5
    entry_by_operation: dict[RequestedOperation, Entry] = field(default_factory=dict)
    """How many answers were compared and differ, and how often each pair of statuses came."""
    found_by_key: dict[_FindingKey, Entry] = field(default_factory=dict)
    rule_uses: Counter[Rule] = field(default_factory=Counter)
    not_sent: list[Entry] = field(default_factory=list)
    skipped: list[Entry] = field(default_factory=list)
    failed: list[Entry] = field(default_factory=list)
    needing_writes: int = 0
    """How many were skipped because they need the result of a write that was not sent."""

    def record_comparison(
        self,
        step: Step,
        request: str,
        statuses: tuple[int, int],
        differences: Sequence[Difference],
    ) -> None:
        operation = step.operation
        names = {"operation": operation.name, "request": operation.title}
        counts = {"compared": 0, "different": 0, "statuses": Counter()}
        entry = self.entry_by_operation.setdefault(operation, {**names, **counts})
        entry["compared"] += 1
        entry["different"] += bool(differences)
        entry["statuses"][statuses] += 1
        seen_keys: set[_FindingKey] = set()
        for difference in differences:
            key = (operation, difference.kind, difference.normal_path)
            path = self.redactor.redact_normal_path(difference.control_path)
            place = {**names, "kind": difference.kind, "path": path}
            empty = {"count": 0, "answers": 0, "notes": Counter(), "examples": []}
            finding = self.found_by_key.setdefault(key, {**place, **empty})
            finding["count"] += 1
            if note := self.redactor.remove_api_keys(difference.note):
                finding["notes"][note] += 1
            # One example for each answer: ten wrong items of one list are the same mistake.
            if key not in seen_keys:
                finding["answers"] += 1
                if len(finding["examples"]) < self.max_examples:
                    example = self._build_example(step, request, statuses, difference)
                    finding["examples"].append(example)
            seen_keys.add(key)

    def _build_example(
        self, step: Step, request: str, statuses: tuple[int, int], difference: Difference
    ) -> Entry:
        redactor, path = self.redactor, difference.control_path
        return {
            "input": step.source,
            "step": step.number,
            "name": step.name,
            "request": request,
            "control_status": statuses[0],
            "candidate_status": statuses[1],
            "control_path": redactor.redact_path(path),
            "candidate_path": redactor.redact_path(difference.candidate_path),
            "control": redactor.redact_value(path, difference.control),
            "candidate": redactor.redact_value(path, difference.candidate),
            "note": redactor.remove_api_keys(difference.note),
        }

    def list_differences(self) -> list[Entry]:
        def build_key(item: tuple[_FindingKey, Entry]) -> tuple[Any, ...]:
            (operation, kind, _), entry = item
            return (build_sort_key(operation), -entry["answers"], entry["path"], kind)

        return [
            {**entry, "notes": dict(entry["notes"].most_common(MAX_NOTES))}
            for _, entry in sorted(self.found_by_key.items(), key=build_key)
        ]


def build_sort_key(operation: RequestedOperation) -> tuple[bool, str, str]:
    # Unknown operations come last; a path groups the operations of one object.
    return (not operation.name, operation.path, operation.method)
