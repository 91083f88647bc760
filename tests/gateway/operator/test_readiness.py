"""Readiness of a key for cutover, derived from its recorded usage and comparisons."""

from __future__ import annotations

from gateway.operator.readiness import KeyReadiness, _build_readiness
from gateway.storage import Tenant
from gateway.storage.difference_rows import Tally, TallyKey

OWNER = Tenant("acme", "live")


def build_readiness(compared: set[str], used: set[str]) -> KeyReadiness:
    tallies = {TallyKey(OWNER, "shop", name): Tally(compared=3) for name in compared}
    return _build_readiness(OWNER, "shop", tallies, {(*OWNER, "shop", name) for name in used}, [])


def test_key_is_ready_when_all_its_reads_were_compared() -> None:
    assert build_readiness({"list_batches"}, {"list_batches", "create_batch"}).is_ready
    assert not build_readiness({"list_batches"}, {"list_batches", "read_batch"}).is_ready


def test_optional_reads_must_be_compared_if_used() -> None:
    wanting = build_readiness({"list_batches"}, {"list_batches", "list_payments"})
    assert not wanting.is_ready
    assert wanting.missing_reads == ["list_payments"]
    assert build_readiness(
        {"list_batches", "list_payments"}, {"list_batches", "list_payments"}
    ).is_ready
    assert "list_payments" not in build_readiness({"list_batches"}, {"list_batches"}).never_seen


def test_single_item_is_reported_in_singular() -> None:
    one = KeyReadiness(
        OWNER, "shop", {"list_batches": Tally(compared=1)}, never_seen=["read_batch"]
    )
    assert one.sentence == (
        "ready for cutover. 1 answer compared, 0 unexplained differences, 1 read never compared."
    )
