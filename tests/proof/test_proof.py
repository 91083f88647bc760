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
from gateway.compare.operations import identify_operation
from mappings import OPERATIONS
from tests.house import describe_interface
from tests.proof.coverage import EVERY_FIELD, coverage
from tests.proof.described import differs
from tests.proof.drawing import drawn
from tests.proof.findings import Findings, shortest
from tests.proof.named import NAMED
from tests.proof.sequences import ENDS, Asking, R, sequences
from tests.proof.worlds import OWN_WORDS, Unexplained, open_worlds, told

EACH = 4
"""Sequences per last operation: over a hundred in all."""


class Proof:
    """``merchants`` is how many sequences it can play."""

    def __init__(self, folder: Path, merchants: int, words: dict[str, str]) -> None:
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        opening = open_worlds(folder, merchants, words)
        self.worlds = self._runner.run(self._stack.enter_async_context(opening))

    def play(self, askings: list[Asking]) -> list[Unexplained]:
        return self._runner.run(self.worlds.play(askings))

    def end(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proof]:
    proof = Proof(tmp_path_factory.mktemp("proof"), len(coverage()) + 1, {})
    yield proof
    proof.end()


@pytest.fixture(scope="module")
def proof_in_own_words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proof]:
    """In front of a service with its own words for the documents' neutral ones."""
    proof = Proof(tmp_path_factory.mktemp("own"), len(ENDS) * EACH * 10, OWN_WORDS)
    yield proof
    proof.end()


@pytest.mark.parametrize("last", range(len(ENDS)))
def test_random_sequences_are_answered_alike(proof_in_own_words: Proof, last: int) -> None:
    @settings(
        max_examples=EACH,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(askings=sequences(last))
    def plays(askings: list[Asking]) -> None:
        found = proof_in_own_words.play(askings)
        assert not found, told(found)

    plays()


@pytest.mark.parametrize("place", range(len(coverage())))
def test_what_is_asked_every_time_is_answered_alike(proof: Proof, place: int) -> None:
    found = proof.play(coverage()[place][1])
    assert not found, told(found)


def test_what_is_described_is_what_the_legacy_document_shows(proof: Proof) -> None:
    proof.worlds.shown = set()
    found = proof.play(EVERY_FIELD)
    assert not found, told(found)
    assert differs(describe_interface(), proof.worlds.shown) == ""


def test_what_is_described_otherwise_is_told(proof: Proof) -> None:
    shown, description = {"read_country country.code"}, describe_interface()
    assert differs(description, shown).startswith("described, and not shown: ")
    assert differs({"paths": {}}, shown) == "shown, and not described: read_country country.code"


def test_every_difference_that_is_named_says_where_the_documents_leave_it_open() -> None:
    for one in NAMED:
        assert re.match(r"(legacy|current) \d", one.section), one.name
        assert one.operations <= {operation.name for operation in OPERATIONS}, one.name
        assert not any("*" in place for place in one.places), one.name
        assert "status" not in one.kinds, "no status is another"


def test_what_is_drawn_hangs_on_its_seed_alone() -> None:
    some = sequences(least=10, most=40)
    assert drawn(some, "1 1") == drawn(some, "1 1") != drawn(some, "1 2")


def test_the_shortest_sequence_has_what_is_needed_alone() -> None:
    askings = [Asking("GET", path) for path in "abcdef"]

    async def shows(tried: list[Asking]) -> bool:
        return {"b", "e"} <= {one.path for one in tried}

    assert asyncio.run(shortest(askings, shows)) == [askings[1], askings[4]]


def test_a_difference_is_told_once_with_how_often_it_was_found() -> None:
    difference = Difference("value", ("name",), ("name",), "name", "Ada", "Bea")
    found = [Unexplained("GET /v1/recipients", "list_recipients", difference, (b"{}", b"[]"))]
    findings = Findings()
    findings.add(1, [], [])
    findings.add(2, found, [Asking("GET", R)])
    findings.add(3, found, [])
    kind = ("list_recipients", "value", "name")
    assert findings.first == {kind: (2, found, [Asking("GET", R)])}
    assert findings.count[kind] == 2
    assert told(found).split("\n")[1:3] == [
        "GET /v1/recipients", "  list_recipients value name: 'Ada' is 'Bea' "
    ]  # fmt: skip


def test_every_operation_ends_some_of_them() -> None:
    ends = {identify_operation(method, f"/v1{path}").name for method, path in ENDS}
    assert ends >= {one.name for one in OPERATIONS}
