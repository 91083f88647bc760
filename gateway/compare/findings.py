"""What was found, brought together: the same difference in many answers is one finding."""

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
"""A path is noise where control differs from itself in one of so many of its answers, or more."""


@dataclass(slots=True)
class Finding:
    """A kind of difference at one place of one operation. ``answers`` counts those that have it."""

    asked: Asked
    kind: Kind
    place: str
    count: int = 0
    answers: int = 0
    examples: list[Example] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Tally:
    """An operation: how many of its answers were compared, and what came of it."""

    asked: Asked
    compared: int = 0
    asked_twice: int = 0
    statuses: Counter[tuple[int, int]] = field(default_factory=Counter)
    unlike: Counter[frozenset[tuple[Kind, str]]] = field(default_factory=Counter)
    """How many of its answers had just these differences."""


@dataclass(frozen=True, slots=True)
class NotCompared:
    """A step without a comparison, and why."""

    source: str
    number: int
    name: str
    request: str
    why: str
    unsent: bool = False
    """It is a write that was not to be sent, or needs what one makes."""


_Key = tuple[Asked, Kind, str]


@dataclass(slots=True)
class Findings:
    """Filled step by step, in the order of the steps; holds few examples however much is asked."""

    viewer: Viewer
    most_examples: int = 5
    tallies: dict[Asked, Tally] = field(default_factory=dict)
    found: dict[_Key, Finding] = field(default_factory=dict)
    measured: dict[_Key, Finding] = field(default_factory=dict)
    """Where control differs from itself, and candidate from it in the same answer."""
    noisy: Counter[tuple[Asked, str, bool]] = field(default_factory=Counter)
    """In how many answers control differs from itself, by place, and by more than values or not."""
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
        """``itself`` is how control's two answers differ, where it was asked twice."""
        asked = step.asked
        tally = self.tallies.setdefault(asked, Tally(asked))
        noise = {
            (one.place, in_form)
            for one in itself or ()
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
        """Where control differs from itself: in that very answer, or often enough."""
        often = [one for key, one in self.found.items() if self._is_noise(key)]
        return [*self.measured.values(), *often]

    def different(self, tally: Tally) -> int:
        """How many answers of an operation differ by more than noise."""
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
    """Whether it is more than another value: that control's values waver excuses no such difference."""
    return kind in ("missing", "extra", "type", "duplicate")
