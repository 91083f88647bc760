"""Pairs the items of two lists.

Items are paired by identifier, then by equal content at the same position, then by equal content
anywhere. The remaining items are paired by similarity: an item with a wrong amount is reported as such, not as one
missing and one extra item.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

MAX_SCORED_ITEMS = 64
"""Up to this many remaining items are paired by similarity, which is quadratic; more in order."""


MAX_ORDERED_PAIRS = 250_000
"""Limit of the quadratic search for a common order, in pairs of items."""


@dataclass(frozen=True, slots=True)
class Item:
    """A list item as it is matched.

    ``identifier`` is its id on candidate; ``is_same_on_control``: control has the same id.
    ``content`` is its canonical value, without the parts that may differ; ``leaves`` are its parts.
    """

    identifier: Hashable | None
    is_same_on_control: bool
    content: Hashable
    leaves: frozenset[Hashable]


@dataclass(slots=True)
class Alignment:
    """Indices of paired items, and of items that only one side has."""

    pairs: list[tuple[int, int]] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    extra: list[int] = field(default_factory=list)
    in_order: bool = True


def align(control: Sequence[Item], candidate: Sequence[Item]) -> Alignment:
    return _Aligner(control, candidate).align()


class _Aligner:
    def __init__(self, control: Sequence[Item], candidate: Sequence[Item]) -> None:
        self.left = dict(enumerate(control))
        self.right = dict(enumerate(candidate))
        self.pairs: list[tuple[int, int]] = []
        self.has_shared_ids = False
        """Both sides use the same ids, so two items with different ids are never the same."""

    def align(self) -> Alignment:
        # From the strongest evidence to the weakest, because pairs are never revised.
        self._pair_by_identifier()
        self._pair_by_position()
        self._pair_by_content()
        # Items paired only by similarity say nothing about order.
        candidate_indices = [candidate_index for _, candidate_index in sorted(self.pairs)]
        self._pair_by_similarity()
        return Alignment(
            sorted(self.pairs),
            [*self.left],
            [*self.right],
            in_order=candidate_indices == sorted(candidate_indices),
        )

    def _pair_items(self, control_index: int, candidate_index: int) -> None:
        self.pairs.append((control_index, candidate_index))
        del self.left[control_index], self.right[candidate_index]

    def _pair_by_identifier(self) -> None:
        index_by_identifier: dict[Hashable, int] = {}
        for index, item in self.right.items():
            if item.identifier is not None:
                # The first of several items with one id counts; the others are paired by content.
                index_by_identifier.setdefault(item.identifier, index)
        for index, item in [*self.left.items()]:
            candidate_index = (
                None if item.identifier is None else index_by_identifier.pop(item.identifier, None)
            )
            if candidate_index is not None:
                # From now on, items with different ids are different objects, however similar.
                self.has_shared_ids |= item.is_same_on_control
                self._pair_items(index, candidate_index)

    def _pair_by_position(self) -> None:
        """Pairs equal items at the same index, or in the same order if the lengths differ."""
        if len(self.left) == len(self.right):
            candidates = [(index, index) for index in self.left if index in self.right]
        else:
            candidates = self._list_pairs_in_common_order()
        for index, candidate_index in candidates:
            if self.left[index].content == self.right[candidate_index].content:
                self._pair_items(index, candidate_index)

    def _list_pairs_in_common_order(self) -> list[tuple[int, int]]:
        """Returns the largest set of equal items that are in the same order in both lists."""
        left = [(index, item.content) for index, item in self.left.items()]
        right = [(index, item.content) for index, item in self.right.items()]
        # The search is quadratic, and two answers usually differ in few places.
        start = _count_common_prefix(left, right)
        end = _count_common_prefix(left[start:][::-1], right[start:][::-1])
        middle = left[start : len(left) - end], right[start : len(right) - end]
        pairs = [
            *zip(left[:start], right[:start], strict=True),
            *_find_longest_common_subsequence(*middle),
        ]
        pairs += zip(left[len(left) - end :], right[len(right) - end :], strict=True)
        return [(control_item[0], candidate_item[0]) for control_item, candidate_item in pairs]

    def _pair_by_content(self) -> None:
        indices_by_content: dict[Hashable, deque[int]] = defaultdict(deque)
        for index, item in self.right.items():
            indices_by_content[item.content].append(index)
        for index, item in [*self.left.items()]:
            if indices_by_content[item.content]:
                self._pair_items(index, indices_by_content[item.content].popleft())

    def _pair_by_similarity(self) -> None:
        if len(self.left) <= MAX_SCORED_ITEMS and len(self.right) <= MAX_SCORED_ITEMS:
            scored = [
                (
                    -_score_similarity(item, candidate_item),
                    abs(control_index - candidate_index),
                    control_index,
                    candidate_index,
                )
                for control_index, item in self.left.items()
                for candidate_index, candidate_item in self.right.items()
            ]
            # Equally similar items are paired by distance, so that the result is repeatable.
            for score, _distance, control_index, candidate_index in sorted(scored):
                # A better pair may have taken either item. Items without anything in common follow
                # below.
                if score and control_index in self.left and candidate_index in self.right:
                    self._pair_unless_ids_differ(control_index, candidate_index)
        # The rest is paired in order: one difference reads better than a missing and an extra item.
        for control_index, candidate_index in [*zip(self.left, self.right, strict=False)]:
            self._pair_unless_ids_differ(control_index, candidate_index)

    def _pair_unless_ids_differ(self, control_index: int, candidate_index: int) -> None:
        identifiers = self.left[control_index].identifier, self.right[candidate_index].identifier
        if not (self.has_shared_ids and None not in identifiers):
            self._pair_items(control_index, candidate_index)


_IndexedContents = list[tuple[int, Hashable]]


def _count_common_prefix(left: _IndexedContents, right: _IndexedContents) -> int:
    """Returns the number of equal items at the start."""
    pairs = zip(left, right, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0][1] == pair[1][1], pairs))


def _find_longest_common_subsequence(
    left: _IndexedContents, right: _IndexedContents
) -> list[tuple[tuple[int, Any], tuple[int, Any]]]:
    """Returns the longest common subsequence; empty if the search would exceed the limit."""
    if len(left) * len(right) > MAX_ORDERED_PAIRS:
        return []
    # `lengths[i][j]` is the length of the longest common subsequence from `i` and `j` to the ends.
    lengths = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i, (_, left_content) in reversed([*enumerate(left)]):
        for j, (_, right_content) in reversed([*enumerate(right)]):
            skipped = max(lengths[i + 1][j], lengths[i][j + 1])
            lengths[i][j] = lengths[i + 1][j + 1] + 1 if left_content == right_content else skipped
    pairs = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i][1] == right[j][1]:
            pairs.append((left[i], right[j]))
            i, j = i + 1, j + 1
        elif lengths[i + 1][j] >= lengths[i][j + 1]:
            i += 1
        else:
            j += 1
    return pairs


def _score_similarity(left: Item, right: Item) -> float:
    # The Jaccard index: the shared parts as a fraction of all parts.
    union_size = len(left.leaves | right.leaves)
    return len(left.leaves & right.leaves) / union_size if union_size else 0.0
