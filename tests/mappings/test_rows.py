"""Lazy sequences: they read like lists and are built in chunks."""

from __future__ import annotations

import random
import sys
from decimal import Decimal

import pytest

from gateway.payloads.json_codec import Number
from mappings.failures import Problem
from mappings.lazy_sequences import (
    SLICE_SIZE,
    CompressedMapping,
    CompressedSequence,
    MappedSequence,
    build_row_mapping,
    filter_rows,
    iterate_chunks,
    map_rows,
    materialize_rows,
)

COUNTS = [0, 1, SLICE_SIZE - 1, SLICE_SIZE, SLICE_SIZE + 1, 2 * SLICE_SIZE + 7]


def rows(count: int) -> list[dict[str, object]]:
    return [{"id": f"P-{number}", "inner": {"number": number}} for number in range(count)]


@pytest.mark.parametrize("count", COUNTS)
def test_packed_rows_are_read_as_the_list_that_they_were_made_of(count: int) -> None:
    those = rows(count)
    there = CompressedSequence(iter(those))
    assert (len(there), bool(there), [*there]) == (count, bool(those), those)
    assert there == those
    assert those == there
    assert there != [*those, {}]
    for place in {0, count // 2, count - 1} & set(range(count)):
        assert there[place] == those[place]
        assert there[place - count] == those[place - count]
    assert there[5:-3] == those[5:-3]
    with pytest.raises(IndexError):
        there[count]


def test_whatever_is_in_a_row_is_the_same_when_it_is_read_again() -> None:
    plain = {
        "text": "ä\ud800",
        "number": 10**30,
        "none": None,
        "true": True,
        "nested": [1, (2, "b")],
    }
    number = Number("1.10")
    others = [Decimal("1E+5"), number, Problem("invalid_field", "No.", "memo"), {"in": [number]}]
    for row in (plain, *others):
        for mixed in ([row], [plain, row, plain]):
            (*read,) = CompressedSequence(mixed)
            assert [(repr(one), type(one)) for one in read] == [
                (repr(one), type(one)) for one in mixed
            ]
            assert read == mixed
    (read,) = CompressedSequence([number])
    assert str(read) == "1.10"


@pytest.mark.parametrize("count", COUNTS)
def test_what_is_made_of_each_is_the_same_of_rows_and_of_lists(count: int) -> None:
    those, numbers = rows(count), range(count)
    made = map_rows(lambda number, row: (number, row["id"]), numbers, those)
    view = map_rows(lambda number, row: (number, row["id"]), numbers, CompressedSequence(those))
    assert isinstance(made, list)
    assert isinstance(view, MappedSequence)
    assert view == made
    assert materialize_rows(view) == made
    assert materialize_rows(made) is made
    assert isinstance(materialize_rows(view), CompressedSequence)
    assert view[-1:] == made[-1:]


def test_no_more_than_a_slice_is_made_at_a_time() -> None:
    begun: list[int] = []
    view = map_rows(begun.append, CompressedSequence(range(2 * SLICE_SIZE)))
    reading = iter(view)
    next(reading)
    assert begun == [*range(SLICE_SIZE)]


def test_sources_that_are_not_equally_long_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="shorter"):
        [
            *map_rows(
                lambda *both: both, CompressedSequence(range(SLICE_SIZE)), range(SLICE_SIZE - 1)
            )
        ]


def test_those_that_are_kept_are_rows_again() -> None:
    there = filter_rows(CompressedSequence(range(3 * SLICE_SIZE)), lambda number: number % 2 == 0)
    assert there == [*range(0, 3 * SLICE_SIZE, 2)]
    assert isinstance(there, CompressedSequence)
    assert filter_rows([1, 2], lambda number: number > 1) == [2]


def test_some_at_a_time_are_all_of_them() -> None:
    assert [*iterate_chunks(range(5), 2)] == [[0, 1], [2, 3], [4]]
    assert [*iterate_chunks([], 2)] == []


@pytest.mark.parametrize("count", COUNTS)
def test_named_values_are_read_in_any_order_as_the_dictionary_that_they_are(count: int) -> None:
    pairs = [(f"P-{number}", {"number": number}) for number in range(count)]
    there, like = CompressedMapping(iter(pairs)), dict(pairs)
    assert (len(there), bool(there), dict(there)) == (count, bool(like), like)
    for name, value in random.Random(1).sample(pairs, count):
        assert there[name] == value
        assert f"{name}-" not in there
    assert there.get("P-") is None
    with pytest.raises(KeyError):
        there["R-1"]


def test_of_what_is_named_twice_the_last_is_read() -> None:
    names = [f"P-{number % 50}" for number in range(SLICE_SIZE)]
    there = CompressedMapping()
    for start in range(0, SLICE_SIZE, 7):
        there.update((names[at], at) for at in range(start, min(start + 7, SLICE_SIZE)))
    assert dict(there) == {name: at for at, name in enumerate(names)}
    assert len(there) == len([*there]) == 50


def test_named_values_of_rows_are_a_few_large_pieces_and_of_lists_a_dictionary() -> None:
    pairs = [(f"P-{number:022}", {"id": f"P-{number:022}"}) for number in range(50 * SLICE_SIZE)]
    assert build_row_mapping([], iter(pairs)) == dict(pairs)
    there = build_row_mapping(CompressedSequence([]), iter(pairs))
    assert isinstance(there, CompressedMapping)
    held = sum(map(sys.getsizeof, vars(there).values()))
    names = dict(pairs)
    assert held < (sys.getsizeof(names) + sum(map(sys.getsizeof, names))) / 2
