"""Pairs the items of two lists: by identifier, then by equal content, then in order.

So an item with a wrong amount is reported as such, not as one missing and one extra item.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile


@dataclass(frozen=True, slots=True)
class Item:
    """A list item as it is matched.

    ``identifier`` is its id on candidate; ``is_same_on_control``: control has the same id.
    ``content`` is its canonical value, without the parts that may differ.
    """

    identifier: Hashable | None
    is_same_on_control: bool
    content: Hashable


@dataclass(slots=True)
class Alignment:
    """Indices of paired items; ``missing`` and ``extra`` are those that only one side has."""

    missing: dict[int, Item]
    extra: dict[int, Item]
    pairs: list[tuple[int, int]] = field(default_factory=list)
    is_in_order: bool = True
    has_shared_ids: bool = False
    """Both sides use the same ids, so two items with different ids are never the same."""

    def add_pair(self, control_index: int, candidate_index: int) -> None:
        self.pairs.append((control_index, candidate_index))
        del self.missing[control_index], self.extra[candidate_index]


def align(control: Sequence[Item], candidate: Sequence[Item]) -> Alignment:
    alignment = Alignment(dict(enumerate(control)), dict(enumerate(candidate)))
    # From the strongest evidence to the weakest, because pairs are never revised.
    _pair_by_identifier(alignment)
    _pair_by_content(alignment)
    # The remaining items say nothing about order.
    candidate_indices = [candidate_index for _, candidate_index in sorted(alignment.pairs)]
    alignment.is_in_order = candidate_indices == sorted(candidate_indices)
    _pair_remaining_items(alignment)
    alignment.pairs.sort()
    return alignment


def _pair_by_identifier(alignment: Alignment) -> None:
    index_by_identifier: dict[Hashable, int] = {}
    for index, item in alignment.extra.items():
        # The first of several items with one id counts; the others are paired by content.
        index_by_identifier.setdefault(item.identifier, index)
    for index, item in [*alignment.missing.items()]:
        if item.identifier is not None and item.identifier in index_by_identifier:
            alignment.add_pair(index, index_by_identifier.pop(item.identifier))
            alignment.has_shared_ids |= item.is_same_on_control


def _pair_by_content(alignment: Alignment) -> None:
    # First at both ends: of several equal items, the one that the other side lacks is between them.
    for is_reversed in (False, True):
        control, candidate = (
            [*side.items()][:: -1 if is_reversed else 1]
            for side in (alignment.missing, alignment.extra)
        )
        for (control_index, _), (candidate_index, _) in takewhile(
            lambda pair: pair[0][1].content == pair[1][1].content,
            zip(control, candidate, strict=False),
        ):
            alignment.add_pair(control_index, candidate_index)
    _pair_by_key(alignment, lambda item: item.content)


def _pair_by_key(alignment: Alignment, find_key: Callable[[Item], Hashable]) -> None:
    """Pairs items of equal keys in their order; items whose key is None stay unpaired."""
    indices_by_key: dict[Hashable, deque[int]] = defaultdict(deque)
    for index, item in alignment.extra.items():
        indices_by_key[find_key(item)].append(index)
    for index, item in [*alignment.missing.items()]:
        if (key := find_key(item)) is not None and indices_by_key[key]:
            alignment.add_pair(index, indices_by_key[key].popleft())


def _pair_remaining_items(alignment: Alignment) -> None:
    # In order, of the same type first: one difference reads better than two unmatched items.
    def is_other_object(item: Item) -> bool:
        return alignment.has_shared_ids and item.identifier is not None

    _pair_by_key(alignment, lambda each: None if is_other_object(each) else type(each.content))
    _pair_by_key(alignment, lambda each: None if is_other_object(each) else "any type")
