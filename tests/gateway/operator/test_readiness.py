"""Readiness of a key for cutover, derived from its recorded usage and comparisons."""

from __future__ import annotations

from gateway.operator.readiness import KeyReadiness, _build_cutover_readiness
from gateway.storage import Tenant
from gateway.storage.difference_rows import Tally

TENANT = Tenant("acme", "live")


def build_readiness(compared_operations: set[str], used_operations: set[str]) -> KeyReadiness:
    tallies = {name: Tally(compared=3) for name in compared_operations}
    return _build_cutover_readiness(TENANT, "shop", tallies, used_operations, [])


def test_key_is_ready_when_all_its_reads_were_compared() -> None:
    assert build_readiness({"list_batches"}, {"list_batches", "create_batch"}).is_ready
    assert not build_readiness({"list_batches"}, {"list_batches", "read_batch"}).is_ready


def test_optional_reads_must_be_compared_if_used() -> None:
    readiness = build_readiness({"list_batches"}, {"list_batches", "list_payments"})
    assert not readiness.is_ready
    assert readiness.missing_reads == ["list_payments"]
    assert build_readiness(
        {"list_batches", "list_payments"}, {"list_batches", "list_payments"}
    ).is_ready
    assert "list_payments" not in build_readiness({"list_batches"}, {"list_batches"}).never_seen


def test_readiness_is_said_of_the_used_reads_only() -> None:
    ready = build_readiness({"list_batches"}, {"list_batches"})
    assert ready.sentence.startswith("ready for cutover of the reads that it uses. ")
    assert "read_batch" in ready.unused_reads
    missing = build_readiness({"list_batches"}, {"list_batches", "read_batch"})
    assert missing.sentence.startswith("not ready for cutover. ")
    assert "read_batch" not in missing.unused_reads
    assert "Used by the key but never compared: read_batch" in missing.obstacles[0]


def test_single_item_is_reported_in_singular() -> None:
    readiness = KeyReadiness(
        TENANT, "shop", {"list_batches": Tally(compared=1)}, never_seen=["read_batch"]
    )
    assert readiness.sentence == (
        "ready for cutover of the reads that it uses. 1 response compared, 0 not comparable, "
        "0 unexplained differences, 1 read not used and not compared."
    )
