"""The circuit breaker: it opens for a service that does not answer, probes it and closes again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.house import KEY, House
from tests.processes import free_port
from tests.signed import (
    CLIENT,
    INTERNAL,
    NOTHING_HELD,
    Written,
    http,
    open_signed,
    recording,
    refused,
    says,
)
from tests.sockets import Heard, assert_legacy, heard

READ = (
    f"GET /v1/profile/balances HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEY['api_key']}\r\n\r\n".encode()
)
BODY = b'{"type":"individual","firstName":"Ada","lastName":"Byron","email":"ada@example.com"}'
WRITE = (
    b"POST /v1/recipients HTTP/1.1\r\nHost: x\r\nX-API-Key: %b\r\nContent-Length: %d\r\n\r\n%b"
    % (KEY["api_key"].encode(), len(BODY), BODY)
)
UPSTREAM = {"timeout_seconds": 5, "breaker_failures": 3, "breaker_seconds": 30}


async def asked(house: House, data: bytes) -> Heard:
    answer = await heard(house.running.port, data)
    assert answer is not None
    return answer


def assert_shed(answer: Heard) -> None:
    assert_legacy(answer)
    assert (answer.status, answer.code) == INTERNAL
    assert 1 <= int(answer.headers["retry-after"]) <= 30


async def test_reads_and_writes_that_were_not_sent_are_refused_at_once_on_both_faces(
    tmp_path: Path,
) -> None:
    async with (
        recording(says(b"", resets=True)) as recorder,
        open_signed(tmp_path, recorder.url, upstream=UPSTREAM) as house,
    ):
        for _ in range(3):
            assert "retry-after" not in (await asked(house, READ)).headers
        before = recorder.connections
        assert_shed(await asked(house, READ))
        assert_shed(await asked(house, WRITE))
        signed = await asked(house, CLIENT.request("POST", "/v1/recipients", BODY))
        assert refused(signed) == INTERNAL
        assert signed.headers["retry-after"]
        assert recorder.connections == before, "nobody knocks any more"
        async with house.session.get(house.running.admin_url + "/readyz") as ready:
            assert (await ready.json())["circuit_breakers"] == {"sandbox": "open"}


async def test_a_service_that_cannot_be_reached_is_a_fault(tmp_path: Path) -> None:
    async with (
        open_signed(tmp_path, f"http://127.0.0.1:{free_port()}") as house,
        house.session.get(house.running.admin_url + "/readyz") as ready,
    ):
        told = await ready.json()
    assert (told["status"], set(told["faults"])) == ("error", {"environments.sandbox"})


async def test_the_signed_faces_failures_count_as_well(tmp_path: Path) -> None:
    async with (
        recording(says(b"", resets=True)) as recorder,
        open_signed(tmp_path, recorder.url, upstream=UPSTREAM) as house,
    ):
        for _ in range(3):
            assert refused(await asked(house, CLIENT.request())) == INTERNAL
        before = recorder.connections
        assert_shed(await asked(house, READ))
        assert recorder.connections == before


async def test_a_refusal_is_an_answer_whatever_its_status(tmp_path: Path) -> None:
    trouble = b'{"ok":false,"errors":[{"code":"internal_server_error","message":"No."}]}'
    async with (
        recording(says(http(500, trouble))) as recorder,
        open_signed(tmp_path, recorder.url, upstream=UPSTREAM) as house,
    ):
        for status in (500, 400, 404, 429, 503) * 2:
            recorder.play = says(http(status, trouble))
            assert "retry-after" not in (await asked(house, READ)).headers
        assert len(recorder.requests) == 10


async def test_one_request_tries_it_and_its_answer_opens_the_way_for_all(tmp_path: Path) -> None:
    upstream = {**UPSTREAM, "breaker_seconds": 0.2}
    async with (
        recording(says(b"", resets=True)) as recorder,
        open_signed(tmp_path, recorder.url, upstream=upstream) as house,
    ):
        for _ in range(3):
            await asked(house, READ)
        answers = asyncio.Event()

        async def play(
            _written: Written, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            await answers.wait()
            writer.write(NOTHING_HELD)

        recorder.play = play
        recorder.requests.clear()
        await asyncio.sleep(0.3)
        probe = asyncio.ensure_future(asked(house, READ))
        while not recorder.requests:  # noqa: ASYNC110 - the recorder tells nobody
            await asyncio.sleep(0.01)
        for _ in range(5):
            assert_shed(await asked(house, READ))
        assert len(recorder.requests) == 1
        answers.set()
        assert (await probe).status == 200
        assert (await asked(house, READ)).status == 200


@pytest.mark.parametrize("write", [WRITE, CLIENT.request("POST", "/v1/recipients", BODY)])
async def test_a_write_that_was_sent_is_never_told_as_one_that_was_not(
    tmp_path: Path, write: bytes
) -> None:
    upstream = {**UPSTREAM, "breaker_failures": 1}
    async with (
        recording(says(b"", resets=True)) as recorder,
        open_signed(tmp_path, recorder.url, upstream=upstream) as house,
    ):
        answer = await asked(house, write)
        assert "unknown" in answer.json["errors"][0]["message"]
        assert len([one for one in recorder.requests if one.method == "POST"]) == 1
        again = await asked(house, write)
        if write is WRITE:
            # Its retry cannot read what became of it: that stays open, and nothing is sent.
            assert "unknown" in again.json["errors"][0]["message"]
        assert len([one for one in recorder.requests if one.method == "POST"]) == 1
