"""Matching of payments to their entries; position decides between equal candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mappings.lazy_sequences import SerializedSequence
from mappings.matching import match_payments_with_entries

RECIPIENT = {"recipient": {"id": "R-1"}}
ENTRIES: list[dict[str, Any]] = [
    {**RECIPIENT, "targetAmount": "0.01", "targetCurrency": "CAD", "memo": "in dollars of Canada"},
    {**RECIPIENT, "sourceAmount": "0.01", "memo": "in the batch's own"},
]
PAYMENTS: list[dict[str, Any]] = [
    {
        **RECIPIENT,
        "id": f"P-{index}",
        "sourceAmount": "0.01",
        "targetAmount": "0.01",
        "targetCurrency": currency,
    }
    for index, currency in enumerate(("CAD", "USD"))
]

SequenceFactory = Callable[[Sequence[Any]], Sequence[Any]]


def match_memos(payments: Sequence[Any], entries: Sequence[Any]) -> list[Any]:
    return [
        entry and entry["memo"]
        for _, entry in match_payments_with_entries(payments, entries, "USD")
    ]


@pytest.mark.parametrize("kind", [list, SerializedSequence])
def test_position_decides_between_equal_candidates(kind: SequenceFactory) -> None:
    assert match_memos(kind(PAYMENTS), ENTRIES) == [entry["memo"] for entry in ENTRIES]


@pytest.mark.parametrize("kind", [list, SerializedSequence])
def test_reordered_payment_is_matched_by_its_content(kind: SequenceFactory) -> None:
    changed_entries = [{**entry, "sourceAmount": "5.00"} for entry in ENTRIES]
    listed_payments = [
        {**PAYMENTS[0], "sourceAmount": "7.00"},
        {**PAYMENTS[1], "sourceAmount": "5.00"},
    ]
    sent_entries = [changed_entries[1], ENTRIES[0]]
    assert match_memos(kind(listed_payments), sent_entries) == [
        ENTRIES[0]["memo"],
        changed_entries[1]["memo"],
    ]


@pytest.mark.parametrize("kind", [list, SerializedSequence])
def test_unrequested_payment_has_no_entry(kind: SequenceFactory) -> None:
    assert match_memos(kind(PAYMENTS), []) == [None, None]
    assert match_memos(kind([]), []) == []


@pytest.mark.parametrize("kind", [list, SerializedSequence])
def test_payment_shown_by_its_recipient_alone_has_one_of_several_equal_entries(
    kind: SequenceFactory,
) -> None:
    assert match_memos(kind([{**RECIPIENT, "id": "P-0"}]), kind([ENTRIES[1]] * 2)) == [
        ENTRIES[1]["memo"]
    ]


class CountingEntry(dict[str, Any]):
    """An entry that counts how often a field of it is read."""

    read_count = 0

    def get(self, name: str, default: Any = None) -> Any:
        self.read_count += 1
        return super().get(name, default)


def test_comparisons_grow_linearly_with_entries_in_another_currency() -> None:
    counts = []
    for size in (100, 200):
        payments = [{**PAYMENTS[0], "sourceAmount": "0.02", "id": f"P-{n}"} for n in range(size)]
        entry = CountingEntry(ENTRIES[0], targetCurrency="EUR")
        match_payments_with_entries(payments, [entry] * (size + 1), "USD")
        counts.append(entry.read_count)
    assert counts[1] <= 2.1 * counts[0]
