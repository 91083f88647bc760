"""Requests that are written byte for byte, each with its expected answers and the reason
(tests/raw).

The gateway is a process of its own, as it is deployed, in front of the simulator. Each test checks
the answers (all in legacy form, in number and order), the state of the connection, the upstream
calls, and that no client data is repeated or logged.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.house import KEY
from tests.placed import Place, open_place
from tests.processes import Process
from tests.raw.bodies import BODIES
from tests.raw.framing import FRAMING
from tests.raw.heads import HEADS
from tests.raw.rows import CANARY, HOST, Row, get
from tests.sockets import Heard, Wire, assert_legacy, wire

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROWS = {**FRAMING, **HEADS, **BODIES}
BODY_BYTES = 100_000
LAST = get("/v1/last", f"{HOST}Connection: close\r\n").encode()
"""Sent after each row that leaves the connection open: it must be read as the request it is."""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    async with open_place(tmp_path_factory.mktemp("place"), BODY_BYTES) as place:
        yield place
        _assert_nothing_was_our_fault_or_is_in_the_log(place.gateway)


def _assert_nothing_was_our_fault_or_is_in_the_log(gateway: Process) -> None:
    lines = gateway.lines()
    assert lines
    assert not [line for line in lines if line["level"] == "error"]
    logged = gateway.logged()
    for word in ("Traceback", CANARY, KEY["api_key"]):
        assert word not in logged


async def test_there_are_enough_rows_and_each_says_why() -> None:
    assert len(ROWS) >= 150
    assert all(row.why for row in ROWS.values())
    assert {row.then for row in ROWS.values()} == {"on", "stays", "closed", "lingers", "ended"}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
async def test_a_raw_request_gets_just_its_answers(place: Place, row: Row) -> None:
    seen = len(place.simulator.service.requests)
    async with await wire(place.gateway.port) as connection:
        answers = await _answers(connection, row)
    expected = [*row.statuses, *([404] if row.then in ("on", "stays") else [])]
    assert [answer.status for answer in answers] == expected, row.why
    for answer in answers:
        _assert_nothing_comes_back(answer)
    calls = [f"{one.method} {one.path}" for one in list(place.simulator.service.requests)[seen:]]
    assert calls == list(row.calls), row.why


async def _answers(connection: Wire, row: Row) -> list[Heard]:
    await connection.say(row.data + (LAST if row.then == "on" else b""))
    if row.then == "ended":
        connection.end()
    answers: list[Heard] = []
    if row.then in ("stays", "lingers"):
        answers += [answer for _ in row.statuses if (answer := await connection.answer())]
        await connection.say(LAST)
    if row.then == "lingers":
        assert await connection.silent()
        return answers
    bodiless = row.data.startswith(b"HEAD ")
    while answer := await connection.answer(bodiless=bodiless and not answers):
        answers.append(answer)
    return answers


def _assert_nothing_comes_back(answer: Heard) -> None:
    if answer.body:
        assert_legacy(answer)
    said = answer.body.decode() + json.dumps(answer.headers)
    assert CANARY not in said.lower()
    assert KEY["api_key"] not in said
