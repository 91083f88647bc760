"""Readiness of a key for cutover, derived from its recorded usage and comparisons."""

from __future__ import annotations

from gateway.operator.readiness import KeyReadiness, _build_readiness
from gateway.storage import Tenant
from gateway.storage.difference_rows import Asked, Tally

OWNER = Tenant("acme", "live")


def standing(compared: set[str], used: set[str]) -> KeyReadiness:
    tallies = {Asked(OWNER, "shop", name): Tally(compared=3) for name in compared}
    return _build_readiness(OWNER, "shop", tallies, {(*OWNER, "shop", name) for name in used}, [])


def test_a_key_is_ready_when_all_reads_that_it_uses_were_compared() -> None:
    assert standing({"list_batches"}, {"list_batches", "create_batch"}).is_ready
    assert not standing({"list_batches"}, {"list_batches", "read_batch"}).is_ready


def test_reads_that_no_document_lists_have_to_be_compared_where_they_are_used() -> None:
    wanting = standing({"list_batches"}, {"list_batches", "list_payments"})
    assert not wanting.is_ready
    assert wanting.uncompared == ["list_payments"]
    assert standing({"list_batches", "list_payments"}, {"list_batches", "list_payments"}).is_ready
    assert "list_payments" not in standing({"list_batches"}, {"list_batches"}).never_seen


def test_one_of_something_is_told_as_one() -> None:
    one = KeyReadiness(
        OWNER, "shop", {"list_batches": Tally(compared=1)}, never_seen=["read_batch"]
    )
    assert one.sentence == (
        "ready for cutover. 1 answer compared, 0 unexplained differences, 1 read never compared."
    )
