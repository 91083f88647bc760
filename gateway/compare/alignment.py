"""Pairs the items of two lists: by identifier, then by equal content, then by similarity.

So an item with a wrong amount is reported as such, not as one missing and one extra item.
"""

from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

MAX_SCORED_ITEMS = 64
"""Up to this many remaining items are paired by similarity, which is quadratic; more in order."""


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
    # Items paired only by similarity say nothing about order.
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
        for (i, control_item), (j, candidate_item) in zip(control, candidate, strict=False):
            if control_item.content != candidate_item.content:
                break
            alignment.add_pair(i, j)
    indices_by_content: dict[Hashable, deque[int]] = defaultdict(deque)
    for index, item in alignment.extra.items():
        indices_by_content[item.content].append(index)
    for index, item in [*alignment.missing.items()]:
        if indices_by_content[item.content]:
            alignment.add_pair(index, indices_by_content[item.content].popleft())


def _pair_remaining_items(alignment: Alignment) -> None:
    missing, extra = alignment.missing, alignment.extra
    if len(missing) <= MAX_SCORED_ITEMS and len(extra) <= MAX_SCORED_ITEMS:
        features = {index: _list_features(item.content) for index, item in extra.items()}
        # Equally similar items are paired by distance, so that the result is repeatable.
        scored = sorted(
            (-_compute_similarity(control_features, features[j]), abs(i - j), i, j)
            for i, item in missing.items()
            for control_features in [_list_features(item.content)]
            for j in extra
        )
        for score, _distance, i, j in scored:
            # A better pair may have taken either item.
            if score and i in missing and j in extra:
                _add_pair_unless_ids_differ(alignment, i, j)
    # The rest is paired in order: one difference reads better than a missing and an extra item.
    for i, j in [*zip(missing, extra, strict=False)]:
        _add_pair_unless_ids_differ(alignment, i, j)


def _add_pair_unless_ids_differ(alignment: Alignment, i: int, j: int) -> None:
    identifiers = alignment.missing[i].identifier, alignment.extra[j].identifier
    if not (alignment.has_shared_ids and None not in identifiers):
        alignment.add_pair(i, j)


def _list_features(content: Hashable) -> frozenset[Hashable]:
    """Returns the parts of a canonical value and their keys, because equal keys are similar."""
    if isinstance(content, frozenset):
        return content | {key for key, _ in content}
    return frozenset((content, type(content)))


def _compute_similarity(left: frozenset[Hashable], right: frozenset[Hashable]) -> float:
    # The Jaccard index: the shared parts as a fraction of all parts.
    return len(left & right) / len(left | right) if left or right else 0.0
