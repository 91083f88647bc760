"""Clients that disconnect before their write was started: it is dropped, because they may have
retried.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.simulator import Service
from tests.house import House
from tests.payday import make_batch, make_recipient, open_town
from tests.signed import CLIENT, http, open_signed, recording
from tests.sockets import wire
from tests.test_forwarding import paying
from tests.test_state_faults import locked
from tests.valley import open_valley

A_MOMENT = 0.3
"""Long enough for an undelayed request to complete."""


READS, WRITES = "BEGIN EXCLUSIVE", "BEGIN IMMEDIATE"
"""Locks by another process that delay reads and writes, or writes only."""


async def asks_and_goes(house: House, file: Path, data: bytes, waits: str = READS) -> None:
    """Sends a request while the database is locked, and disconnects before the lock is released."""
    async with locked(file, waits):
        async with await wire(house.running.port) as connection:
            await connection.say(data)
            await asyncio.sleep(A_MOMENT)
        await asyncio.sleep(A_MOMENT)
    await asyncio.sleep(A_MOMENT)


def request(api_key: str, target: str, body: object = None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    lines = [f"POST {target} HTTP/1.1", "Host: gateway", f"X-API-Key: {api_key}"]
    lines += [f"Content-Length: {len(data)}", "", ""]
    return "\r\n".join(lines).encode() + data


async def test_nothing_is_started_for_it_though_its_key_had_to_be_looked_up_first(
    tmp_path: Path,
) -> None:
    service = Service(seed=1)
    async with open_town(tmp_path, service) as (house, _):
        batch = await make_batch(house, await make_recipient(house), "5.00")
        key = await house.import_key(api_key="one-that-was-never-used", name="another")
        target = f"/v1/batches/{batch}/start-processing"
        await asks_and_goes(house, tmp_path / "gateway.db", request(key, target))
    assert service.starts == []


@pytest.mark.parametrize("waits", [READS, WRITES])
async def test_nothing_is_forwarded_for_it(tmp_path: Path, waits: str) -> None:
    async with open_valley(tmp_path, apart=True) as here:
        await here.switch("forward")
        recipient = await make_recipient(here.house)
        asked = request(here.house.api_key, "/v1/batches", paying(recipient, "10.00"))
        await asks_and_goes(here.house, tmp_path / "gateway.db", asked, waits)
        assert here.asked_legacy("POST", "/v1/batches") == 0
        # The client's retry is the first request that is executed.
        await make_batch(here.house, recipient, "10.00")
        assert here.asked_legacy("POST", "/v1/batches") == 1


async def test_nothing_that_it_signed_is_passed_on(tmp_path: Path) -> None:
    async with recording() as recorder, open_signed(tmp_path, recorder.url) as house:
        async with await wire(house.running.port) as connection:
            await connection.say(CLIENT.request())
            assert await connection.answer()
        asked = CLIENT.request("POST", "/v1/batches", b'{"currency":"USD"}')
        await asks_and_goes(house, tmp_path / "gateway.db", asked)
    assert [one.method for one in recorder.requests] == ["GET"]


async def test_nothing_that_it_signed_leaves_once_there_is_a_connection_for_it(
    tmp_path: Path,
) -> None:
    goes_on = asyncio.Event()

    async def play(_: Any, _reader: Any, writer: asyncio.StreamWriter) -> None:
        await goes_on.wait()
        writer.write(http())

    only = {"upstream": {"connections": 1}}
    asked = CLIENT.request("POST", "/v1/batches", b'{"currency":"USD"}')
    async with recording(play) as recorder, open_signed(tmp_path, recorder.url, **only) as house:
        async with await wire(house.running.port) as first:
            await first.say(asked)
            async with await wire(house.running.port) as second:
                await second.say(asked)
                await asyncio.sleep(A_MOMENT)
            await asyncio.sleep(A_MOMENT)
            goes_on.set()
            assert await first.answer()
        await asyncio.sleep(A_MOMENT)
    assert len(recorder.requests) == 1
