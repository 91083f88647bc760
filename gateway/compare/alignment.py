"""Pairs the items of two lists.

First by identifier, then by equal content at the same position, then by equal content anywhere. The
remaining items are paired by similarity: an item with a wrong amount is reported as such, not as one
missing and one extra item.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

FEW = 64
"""Up to this many remaining items are paired by similarity, which is quadratic; more in order."""


MANY = 250_000
"""Limit of the quadratic search for a common order, in pairs of items."""


@dataclass(frozen=True, slots=True)
class Item:
    """A list item as it is matched.

    ``identifier`` is its id on candidate; ``is_same_on_control``: control has the same id.
    ``content`` is its canonical value, without the parts that may differ; ``leaves`` are its parts.
    """

    own: Hashable | None
    as_it_is: bool
    look: Hashable
    leaves: frozenset[Hashable]


@dataclass(slots=True)
class Alignment:
    """Indices of paired items, and of items that only one side has."""

    pairs: list[tuple[int, int]] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    extra: list[int] = field(default_factory=list)
    in_order: bool = True


def align(control: Sequence[Item], candidate: Sequence[Item]) -> Alignment:
    return _Aligner(control, candidate).done()


class _Aligner:
    def __init__(self, control: Sequence[Item], candidate: Sequence[Item]) -> None:
        self.left = dict(enumerate(control))
        self.right = dict(enumerate(candidate))
        self.pairs: list[tuple[int, int]] = []
        self.one_world = False
        """Both sides use the same ids, so two items with different ids are never the same."""

    def done(self) -> Alignment:
        self._by_what_is_known()
        self._in_place()
        self._by_look()
        # Items paired only by similarity say nothing about order.
        places = [there for _, there in sorted(self.pairs)]
        self._by_likeness()
        return Alignment(
            sorted(self.pairs), [*self.left], [*self.right], in_order=places == sorted(places)
        )

    def _take(self, one: int, other: int) -> None:
        self.pairs.append((one, other))
        del self.left[one], self.right[other]

    def _by_what_is_known(self) -> None:
        known: dict[Hashable, int] = {}
        for index, item in self.right.items():
            if item.own is not None:
                known.setdefault(item.own, index)
        for index, item in [*self.left.items()]:
            there = None if item.own is None else known.pop(item.own, None)
            if there is not None:
                self.one_world |= item.as_it_is
                self._take(index, there)

    def _in_place(self) -> None:
        """Pairs equal items at the same index, or in the same order if the lengths differ."""
        if len(self.left) == len(self.right):
            same = [(index, index) for index in self.left if index in self.right]
        else:
            same = self._in_order()
        for index, there in same:
            if self.left[index].look == self.right[there].look:
                self._take(index, there)

    def _in_order(self) -> list[tuple[int, int]]:
        """The largest set of equal items that are in the same order in both lists."""
        left = [(index, item.look) for index, item in self.left.items()]
        right = [(index, item.look) for index, item in self.right.items()]
        start = _alike(left, right)
        end = _alike(left[start:][::-1], right[start:][::-1])
        middle = left[start : len(left) - end], right[start : len(right) - end]
        pairs = [*zip(left[:start], right[:start], strict=True), *_longest(*middle)]
        pairs += zip(left[len(left) - end :], right[len(right) - end :], strict=True)
        return [(one[0], other[0]) for one, other in pairs]

    def _by_look(self) -> None:
        looks: dict[Hashable, deque[int]] = defaultdict(deque)
        for index, item in self.right.items():
            looks[item.look].append(index)
        for index, item in [*self.left.items()]:
            if looks[item.look]:
                self._take(index, looks[item.look].popleft())

    def _by_likeness(self) -> None:
        if len(self.left) <= FEW and len(self.right) <= FEW:
            scored = [
                (-_likeness(item, other), abs(one - there), one, there)
                for one, item in self.left.items()
                for there, other in self.right.items()
            ]
            for score, _distance, one, there in sorted(scored):
                if score and one in self.left and there in self.right:
                    self._take_if_one(one, there)
        for one, there in [*zip(self.left, self.right, strict=False)]:
            self._take_if_one(one, there)

    def _take_if_one(self, one: int, there: int) -> None:
        names = self.left[one].own, self.right[there].own
        if not (self.one_world and None not in names):
            self._take(one, there)


_Seen = list[tuple[int, Hashable]]


def _alike(left: _Seen, right: _Seen) -> int:
    """The number of equal items at the start."""
    pairs = zip(left, right, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0][1] == pair[1][1], pairs))


def _longest(left: _Seen, right: _Seen) -> list[tuple[tuple[int, Any], tuple[int, Any]]]:
    """The longest common subsequence; empty if the search would exceed the limit."""
    if len(left) * len(right) > MANY:
        return []
    lengths = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i, (_, look) in reversed([*enumerate(left)]):
        for j, (_, other) in reversed([*enumerate(right)]):
            skipped = max(lengths[i + 1][j], lengths[i][j + 1])
            lengths[i][j] = lengths[i + 1][j + 1] + 1 if look == other else skipped
    found = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i][1] == right[j][1]:
            found.append((left[i], right[j]))
            i, j = i + 1, j + 1
        elif lengths[i + 1][j] >= lengths[i][j + 1]:
            i += 1
        else:
            j += 1
    return found


def _likeness(one: Item, other: Item) -> float:
    either = len(one.leaves | other.leaves)
    return len(one.leaves & other.leaves) / either if either else 0.0
