"""Fixed and random sequences are answered alike by the legacy service and the gateway."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from gateway.compare.differences import Difference
from gateway.compare.requests import identify_operation
from mappings import OPERATIONS
from tests.proof.compared_services import (
    OWN_WORDS,
    UnexplainedDifference,
    format_differences,
    open_compared_services,
)
from tests.proof.coverage import EVERY_FIELD, coverage
from tests.proof.findings import Findings, shorten_sequence
from tests.proof.known_differences import ALL_OPERATIONS, KNOWN_DIFFERENCES
from tests.proof.openapi_check import compare_openapi
from tests.proof.seeded_draw import draw_from_seed
from tests.proof.sequences import LAST_REQUESTS, ProofRequest, R, sequences
from tests.running_gateway import describe_interface

SEQUENCES_PER_END = 2
"""Sequences per last operation; `make proof` plays others for an hour."""


class Proof:
    """``merchants`` is how many sequences it can play."""

    def __init__(self, folder: Path, merchants: int, vocabulary: dict[str, str]) -> None:
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        services_context = open_compared_services(folder, merchants, vocabulary)
        self.services = self._runner.run(self._stack.enter_async_context(services_context))

    def compare_sequence(self, requests: list[ProofRequest]) -> list[UnexplainedDifference]:
        return self._runner.run(self.services.compare_sequence(requests))

    def close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proof]:
    proof = Proof(tmp_path_factory.mktemp("proof"), len(coverage()) + 1, {})
    yield proof
    proof.close()


@pytest.fixture(scope="module")
def proof_in_own_words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proof]:
    """In front of a service with its own words for the documents' neutral ones."""
    proof = Proof(
        tmp_path_factory.mktemp("own"), len(LAST_REQUESTS) * SEQUENCES_PER_END * 10, OWN_WORDS
    )
    yield proof
    proof.close()


@pytest.mark.parametrize("last", range(len(LAST_REQUESTS)))
def test_random_sequences_are_answered_alike(proof_in_own_words: Proof, last: int) -> None:
    @settings(
        max_examples=SEQUENCES_PER_END,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(requests=sequences(last))
    def play_sequence(requests: list[ProofRequest]) -> None:
        differences = proof_in_own_words.compare_sequence(requests)
        assert not differences, format_differences(differences)

    play_sequence()


@pytest.mark.parametrize("index", range(len(coverage())))
def test_fixed_sequence_is_answered_alike(proof: Proof, index: int) -> None:
    differences = proof.compare_sequence(coverage()[index][1])
    assert not differences, format_differences(differences)


def test_openapi_document_matches_responses(proof: Proof) -> None:
    proof.services.shown_fields = set()
    differences = proof.compare_sequence(EVERY_FIELD)
    assert not differences, format_differences(differences)
    assert compare_openapi(describe_interface(), proof.services.shown_fields) == ""


def test_openapi_differences_are_reported(proof: Proof) -> None:
    shown_fields, description = {"read_country country.code"}, describe_interface()
    assert compare_openapi(description, shown_fields).startswith("described, and not shown: ")
    assert (
        compare_openapi({"paths": {}}, shown_fields)
        == "shown, and not described: read_country country.code"
    )


def test_known_differences_cite_documents() -> None:
    for entry in KNOWN_DIFFERENCES:
        assert re.match(r"(legacy|current) \d", entry.section), entry.name
        assert entry.operations <= ALL_OPERATIONS, entry.name
        assert not any("*" in path for path in entry.places), entry.name
        assert "status" not in entry.kinds, "no status is another"


def test_draw_depends_on_seed_only() -> None:
    strategy = sequences(min_requests=10, max_requests=40)
    assert (
        draw_from_seed(strategy, "1 1")
        == draw_from_seed(strategy, "1 1")
        != draw_from_seed(strategy, "1 2")
    )


def test_shortest_sequence_is_minimal() -> None:
    requests = [ProofRequest("GET", path) for path in "abcdef"]

    async def shows_difference(candidate_requests: list[ProofRequest]) -> bool:
        return {"b", "e"} <= {entry.path for entry in candidate_requests}

    assert asyncio.run(shorten_sequence(requests, shows_difference)) == [requests[1], requests[4]]


def test_repeated_difference_is_counted() -> None:
    difference = Difference("value", ("name",), ("name",), "name", "Ada", "Bea")
    differences = [
        UnexplainedDifference("GET /v1/recipients", "list_recipients", difference, (b"{}", b"[]"))
    ]
    findings = Findings()
    findings.add(1, [], [])
    findings.add(2, differences, [ProofRequest("GET", R)])
    findings.add(3, differences, [])
    kind = ("list_recipients", "value", "name")
    assert findings.first_by_kind == {kind: (2, differences, [ProofRequest("GET", R)])}
    assert findings.count[kind] == 2
    assert format_differences(differences).split("\n")[1:3] == [
        "GET /v1/recipients", "  list_recipients value name: 'Ada' is 'Bea' "
    ]  # fmt: skip


def test_every_operation_ends_a_sequence() -> None:
    last_operations = {
        identify_operation(method, f"/v1{path}").name for method, path in LAST_REQUESTS
    }
    assert last_operations >= {entry.name for entry in OPERATIONS}
