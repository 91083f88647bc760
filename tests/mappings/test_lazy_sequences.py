"""Lazy sequences: they read like lists and are built in chunks."""

from __future__ import annotations

from decimal import Decimal

import pytest

from mappings import lazy_sequences
from mappings.exact_json import ExactDecimal
from mappings.failures import Problem
from mappings.lazy_sequences import (
    SLICE_SIZE,
    MappedSequence,
    SerializedSequence,
    filter_rows,
    iterate_chunks,
    map_rows,
    materialize_rows,
)

ROW_COUNTS = [0, 1, SLICE_SIZE - 1, SLICE_SIZE, SLICE_SIZE + 1, 2 * SLICE_SIZE + 7]


def build_rows(count: int) -> list[dict[str, object]]:
    return [{"id": f"P-{number}", "inner": {"number": number}} for number in range(count)]


@pytest.mark.parametrize("count", ROW_COUNTS)
def test_packed_rows_equal_their_list(count: int) -> None:
    plain_rows = build_rows(count)
    packed_rows = SerializedSequence(iter(plain_rows))
    assert (len(packed_rows), bool(packed_rows), [*packed_rows]) == (
        count,
        bool(plain_rows),
        plain_rows,
    )
    assert packed_rows == plain_rows
    assert plain_rows == packed_rows
    assert packed_rows != [*plain_rows, {}]
    for position in {0, count // 2, count - 1} & set(range(count)):
        assert packed_rows[position] == plain_rows[position]
        assert packed_rows[position - count] == plain_rows[position - count]
    assert packed_rows[5:-3] == plain_rows[5:-3]
    with pytest.raises(IndexError):
        packed_rows[count]


@pytest.mark.parametrize("uncompressed_bytes", [0, 10**6])
def test_any_row_round_trips(monkeypatch: pytest.MonkeyPatch, uncompressed_bytes: int) -> None:
    monkeypatch.setattr(lazy_sequences, "UNSERIALIZED_BYTES", 0)
    monkeypatch.setattr(lazy_sequences, "UNCOMPRESSED_BYTES", uncompressed_bytes)
    number = ExactDecimal("1.10")
    plain_row = {
        "text": "ä",
        "number": 10**30,
        "none": None,
        "true": True,
        "nested": [1, {"in": number}],
        "exact": ExactDecimal("1E5"),
    }
    other_rows = [
        "text",
        None,
        (1, (2, "b")),
        Decimal("1E+5"),
        number,
        Problem("invalid_field", "No.", "memo"),
    ]
    for row in (plain_row, *other_rows):
        for mixed_rows in ([row], [plain_row, row, plain_row]):
            sequence = SerializedSequence(mixed_rows)
            assert [(repr(row_value), type(row_value)) for row_value in sequence] == [
                (repr(row_value), type(row_value)) for row_value in mixed_rows
            ]
            assert sequence == mixed_rows


@pytest.mark.parametrize("count", ROW_COUNTS)
def test_map_rows_gives_equal_results_for_packed_rows_and_lists(count: int) -> None:
    rows, numbers = build_rows(count), range(count)
    expected_results = map_rows(lambda number, row: (number, row["id"]), numbers, rows)
    mapped_sequence = map_rows(
        lambda number, row: (number, row["id"]), numbers, SerializedSequence(rows)
    )
    assert isinstance(expected_results, list)
    assert isinstance(mapped_sequence, MappedSequence)
    assert mapped_sequence == expected_results
    assert materialize_rows(mapped_sequence) == expected_results
    assert materialize_rows(expected_results) is expected_results
    assert isinstance(materialize_rows(mapped_sequence), SerializedSequence)
    assert mapped_sequence[-1:] == expected_results[-1:]


def test_rows_are_mapped_one_chunk_at_a_time() -> None:
    mapped_rows: list[int] = []
    mapped_sequence = map_rows(mapped_rows.append, SerializedSequence(range(2 * SLICE_SIZE)))
    iterator = iter(mapped_sequence)
    next(iterator)
    assert mapped_rows == [*range(SLICE_SIZE)]


def test_sources_of_unequal_length_are_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        [
            *map_rows(
                lambda *both: both, SerializedSequence(range(SLICE_SIZE)), range(SLICE_SIZE - 1)
            )
        ]


def test_filtered_rows_are_packed() -> None:
    packed_rows = filter_rows(
        SerializedSequence(range(3 * SLICE_SIZE)), lambda number: number % 2 == 0
    )
    assert packed_rows == [*range(0, 3 * SLICE_SIZE, 2)]
    assert isinstance(packed_rows, SerializedSequence)
    assert filter_rows([1, 2], lambda number: number > 1) == [2]


def test_chunks_contain_all_items() -> None:
    assert [*iterate_chunks(range(5), 2)] == [[0, 1], [2, 3], [4]]
    assert [*iterate_chunks([], 2)] == []
