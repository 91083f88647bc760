"""Aggregates differences: the same difference in many answers is one finding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.compare.differences import Difference, Kind
from gateway.compare.examples import Alike, Example, Viewer, are_equal
from gateway.compare.operations import Asked
from gateway.compare.rules import Rule
from gateway.compare.steps import Step

NOISY = 5
"""A path is noise if control differs from itself in at least one of this many answers."""


@dataclass(slots=True)
class Finding:
    """All differences of one kind at one path of an operation. ``answers`` counts affected answers."""

    asked: Asked
    kind: Kind
    place: str
    count: int = 0
    answers: int = 0
    examples: list[Example] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Tally:
    """Totals of an operation. ``repeated`` counts steps sent to control twice to measure noise."""

    asked: Asked
    compared: int = 0
    asked_twice: int = 0
    statuses: Counter[tuple[int, int]] = field(default_factory=Counter)
    unlike: Counter[frozenset[tuple[Kind, str]]] = field(default_factory=Counter)
    """Answers by their exact set of differences; which of them are noise is known at the end."""


@dataclass(frozen=True, slots=True)
class NotCompared:
    """A step that was not compared, and the reason."""

    source: str
    number: int
    name: str
    request: str
    why: str
    unsent: bool = False
    """It is a write, or needs the result of one, and writes were not allowed."""


_Key = tuple[Asked, Kind, str]


@dataclass(slots=True)
class Findings:
    """Collects findings step by step, with at most ``max_examples`` examples each."""

    viewer: Viewer
    most_examples: int = 5
    tallies: dict[Asked, Tally] = field(default_factory=dict)
    found: dict[_Key, Finding] = field(default_factory=dict)
    measured: dict[_Key, Finding] = field(default_factory=dict)
    """Differences at paths at which control differed from itself in the same step."""
    noisy: Counter[tuple[Asked, str, bool]] = field(default_factory=Counter)
    """Answers in which control differed from itself, by operation, path and whether structurally."""
    excused: Counter[Rule] = field(default_factory=Counter)
    not_sent: list[NotCompared] = field(default_factory=list)
    skipped: list[NotCompared] = field(default_factory=list)
    failed: list[NotCompared] = field(default_factory=list)

    def compared(
        self,
        step: Step,
        request: str,
        statuses: tuple[int, int],
        differences: Sequence[Difference],
        *,
        itself: Sequence[Difference] | None = None,
        alike: Alike = are_equal,
    ) -> None:
        """Records the comparison of one step.

        ``repeat_differences``: how control's two answers differ; None if it was asked once.
        """
        asked = step.asked
        tally = self.tallies.setdefault(asked, Tally(asked))
        noise = {
            (one.place, in_form)
            for one in itself or ()
            # If control's structure varies, so may its values.
            for in_form in ((False, True) if _is_in_form(one.kind) else (False,))
        }
        tally.compared += 1
        tally.asked_twice += itself is not None
        tally.statuses[statuses] += 1
        self.noisy.update((asked, *one) for one in noise)
        if those := frozenset(
            (one.kind, one.place)
            for one in differences
            if (one.place, _is_in_form(one.kind)) not in noise
        ):
            tally.unlike[those] += 1
        seen: set[_Key] = set()
        for one in differences:
            is_noise = (one.place, _is_in_form(one.kind)) in noise
            into = self.measured if is_noise else self.found
            finding = self._finding(into, asked, one)
            key = (asked, one.kind, one.place)
            finding.count += 1
            finding.answers += key not in seen
            if one.note:
                finding.notes[self.viewer.eye.plain(one.note)] += 1
            if key not in seen and len(finding.examples) < self.most_examples:
                finding.examples.append(self.viewer.example(step, request, statuses, one, alike))
            seen.add(key)

    def _finding(self, into: dict[_Key, Finding], asked: Asked, one: Difference) -> Finding:
        key = (asked, one.kind, one.place)
        if key not in into:
            into[key] = Finding(asked, one.kind, self.viewer.place(one))
        return into[key]

    def differences(self) -> list[Finding]:
        return [one for key, one in self.found.items() if not self._is_noise(key)]

    def noise(self) -> list[Finding]:
        """Differences at paths at which control differs from itself, in the same step or frequently."""
        often = [one for key, one in self.found.items() if self._is_noise(key)]
        return [*self.measured.values(), *often]

    def different(self, tally: Tally) -> int:
        """Counts the answers of an operation that differ by more than noise."""
        return sum(
            count
            for those, count in tally.unlike.items()
            if any(not self._is_noise((tally.asked, *one)) for one in those)
        )

    def _is_noise(self, key: _Key) -> bool:
        asked, kind, place = key
        often = self.noisy[asked, place, _is_in_form(kind)] * NOISY
        return often > 0 and often >= self.tallies[asked].asked_twice


def _is_in_form(kind: Kind) -> bool:
    """Whether a difference is more than another value. Varying values of control do not excuse it."""
    return kind in ("missing", "extra", "type", "duplicate")
