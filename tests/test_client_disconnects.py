"""Clients that disconnect before their write was started: it is dropped, because they may have
retried.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from gateway.storage import open_store
from gateway.storage.request_counts import load_usage
from gateway.storage.sqlite_database import SqliteDatabase
from tests.legacy_and_current import open_gateway_between
from tests.payouts import create_batch, create_recipient, open_gateway_and_service
from tests.running_gateway import GatewayUnderTest
from tests.signed_requests import CLIENT, build_response, open_raw_service, open_signed_gateway
from tests.simulator import Fault, Service
from tests.sockets import open_connection, wait_until
from tests.test_migration_modes import build_batch_body

PAUSE_SECONDS = 0.3
"""Long enough for an undelayed request to complete."""


@asynccontextmanager
async def hold_database(*, holds_reads: bool = True) -> AsyncIterator[None]:
    """Delays writes of the database, and reads too, until the block ends."""
    may_continue = asyncio.Event()
    original_read, original_write = SqliteDatabase.read, SqliteDatabase.write

    async def read(database: SqliteDatabase, *arguments: Any, **options: Any) -> Any:
        await may_continue.wait()
        return await original_read(database, *arguments, **options)

    async def write(database: SqliteDatabase, *arguments: Any, **options: Any) -> Any:
        await may_continue.wait()
        return await original_write(database, *arguments, **options)

    with ExitStack() as patches:
        patches.enter_context(patch.object(SqliteDatabase, "write", write))
        if holds_reads:
            patches.enter_context(patch.object(SqliteDatabase, "read", read))
            patches.enter_context(patch.object(SqliteDatabase, "fetch_now", lambda *_: None))
        yield
        may_continue.set()


async def send_and_disconnect(
    gateway: GatewayUnderTest, data: bytes, *, holds_reads: bool = True
) -> None:
    """Sends a request while the database is delayed, and disconnects before it goes on."""
    async with hold_database(holds_reads=holds_reads):
        async with await open_connection(gateway.running.port) as connection:
            await connection.send(data)
            await asyncio.sleep(PAUSE_SECONDS)
        await asyncio.sleep(PAUSE_SECONDS)
    await asyncio.sleep(PAUSE_SECONDS)


def build_request(api_key: str, target: str, body: object = None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    lines = [f"POST {target} HTTP/1.1", "Host: gateway", f"X-API-Key: {api_key}"]
    lines += [f"Content-Length: {len(data)}", "", ""]
    return "\r\n".join(lines).encode() + data


async def test_batch_is_not_started_if_the_client_disconnects_during_key_lookup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _):
        batch = await create_batch(gateway, await create_recipient(gateway), "5.00")
        key = await gateway.import_key(api_key="one-that-was-never-used", name="another")
        target = f"/v1/batches/{batch}/start-processing"
        await send_and_disconnect(gateway, build_request(key, target))
    assert service.batch_starts == []
    log = capsys.readouterr().out
    assert "error.type=client_disconnected" in log
    assert "in_doubt" not in log, "nothing was sent"
    assert not re.search(r"\berror\b.*\brequest\b.*error\.type=client_disconnected", log)
    async with open_store(gateway.settings.state) as store:
        usage = await load_usage(store)
    counts = [
        count for each in usage if each.key == "another" for count in each.operations.values()
    ]
    assert [(count.requests, count.failed) for count in counts] == [(1, 0)]


@pytest.mark.parametrize("has_delay", [True, False])
async def test_one_of_the_waiting_retries_becomes_the_request_of_a_disconnected_client(
    tmp_path: Path, has_delay: bool
) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _):
        batch = await create_batch(gateway, recipient := await create_recipient(gateway), "5.00")
        body = {"recipient": {"id": recipient}, "sourceAmount": "7.00"}
        path = f"/v1/batches/{batch}/payments"
        # The first attempt is still reading, and has sent no write, when its client disconnects.
        service.faults.append(Fault("GET", "*", delay=1))
        async with await open_connection(gateway.running.port) as connection:
            await connection.send(build_request(gateway.api_key, path, body))
            await asyncio.sleep(PAUSE_SECONDS)
            retries = [asyncio.ensure_future(gateway.request("POST", path, body)) for _ in range(3)]
            await asyncio.sleep(PAUSE_SECONDS)
        if has_delay:
            service.faults.append(Fault("GET", "*", delay=1))
        responses = await asyncio.gather(*retries)
    assert [response.status for response in responses] == [200] * 3
    assert len({response.body["payment"]["id"] for response in responses}) == 1
    assert service.creation_counts["payment"] == 2


@pytest.mark.parametrize("holds_reads", [True, False], ids=["reads and writes", "writes"])
async def test_write_is_not_forwarded_if_the_client_disconnects_first(
    tmp_path: Path, holds_reads: bool
) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        recipient = await create_recipient(setup.gateway)
        request_bytes = build_request(
            setup.gateway.api_key, "/v1/batches", build_batch_body(recipient, "10.00")
        )
        await send_and_disconnect(setup.gateway, request_bytes, holds_reads=holds_reads)
        assert setup.count_legacy_calls("POST", "/v1/batches") == 0
        # The client's retry is the first request that is executed.
        await create_batch(setup.gateway, recipient, "10.00")
        assert setup.count_legacy_calls("POST", "/v1/batches") == 1


async def test_signed_write_is_not_passed_on_if_the_client_disconnects_first(
    tmp_path: Path,
) -> None:
    async with (
        open_raw_service() as recorder,
        open_signed_gateway(tmp_path, recorder.url) as gateway,
    ):
        async with await open_connection(gateway.running.port) as connection:
            await connection.send(CLIENT.build_request())
            assert await connection.read_response()
        request_bytes = CLIENT.build_request("POST", "/v1/batches", b'{"currency":"USD"}')
        await send_and_disconnect(gateway, request_bytes)
    assert [request.method for request in recorder.requests] == ["GET"]


async def test_signed_write_waiting_for_a_connection_is_dropped_if_the_client_disconnects(
    tmp_path: Path,
) -> None:
    goes_on = asyncio.Event()

    async def wait_forever(_: Any, _reader: Any, writer: asyncio.StreamWriter) -> None:
        await goes_on.wait()
        writer.write(build_response())

    sections = {"upstream": {"connections": 1}}
    request_bytes = CLIENT.build_request("POST", "/v1/batches", b'{"currency":"USD"}')
    async with (
        open_raw_service(wait_forever) as recorder,
        open_signed_gateway(tmp_path, recorder.url, **sections) as gateway,
    ):
        async with await open_connection(gateway.running.port) as holding_connection:
            await holding_connection.send(request_bytes)
            # Two requests that arrive at the same time may overtake each other.
            await wait_until(lambda: bool(recorder.requests))
            async with await open_connection(gateway.running.port) as waiting_connection:
                await waiting_connection.send(request_bytes)
                await asyncio.sleep(PAUSE_SECONDS)
            await asyncio.sleep(PAUSE_SECONDS)
            goes_on.set()
            assert await holding_connection.read_response()
        await asyncio.sleep(PAUSE_SECONDS)
    assert len(recorder.requests) == 1
