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
from tests.legacy_and_current import open_gateway_between
from tests.payouts import create_batch, create_recipient, open_gateway_and_service
from tests.running_gateway import GatewayUnderTest
from tests.signed_requests import CLIENT, build_response, open_raw_service, open_signed_gateway
from tests.sockets import open_connection
from tests.test_database_faults import lock_database
from tests.test_migration_modes import build_batch_body

PAUSE_SECONDS = 0.3
"""Long enough for an undelayed request to complete."""


LOCK_READS, LOCK_WRITES = "BEGIN EXCLUSIVE", "BEGIN IMMEDIATE"
"""Locks by another process that delay reads and writes, or writes only."""


async def send_and_disconnect(
    gateway: GatewayUnderTest, file: Path, data: bytes, blocked_statement: str = LOCK_READS
) -> None:
    """Sends a request while the database is locked, and disconnects before the lock is released."""
    async with lock_database(file, blocked_statement):
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
    tmp_path: Path,
) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _):
        batch = await create_batch(gateway, await create_recipient(gateway), "5.00")
        key = await gateway.import_key(api_key="one-that-was-never-used", name="another")
        target = f"/v1/batches/{batch}/start-processing"
        await send_and_disconnect(gateway, tmp_path / "gateway.db", build_request(key, target))
    assert service.batch_starts == []


@pytest.mark.parametrize("blocked_statement", [LOCK_READS, LOCK_WRITES])
async def test_write_is_not_forwarded_if_the_client_disconnects_first(
    tmp_path: Path, blocked_statement: str
) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        recipient = await create_recipient(setup.gateway)
        request_bytes = build_request(
            setup.gateway.api_key, "/v1/batches", build_batch_body(recipient, "10.00")
        )
        await send_and_disconnect(
            setup.gateway, tmp_path / "gateway.db", request_bytes, blocked_statement
        )
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
        await send_and_disconnect(gateway, tmp_path / "gateway.db", request_bytes)
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
            async with await open_connection(gateway.running.port) as waiting_connection:
                await waiting_connection.send(request_bytes)
                await asyncio.sleep(PAUSE_SECONDS)
            await asyncio.sleep(PAUSE_SECONDS)
            goes_on.set()
            assert await holding_connection.read_response()
        await asyncio.sleep(PAUSE_SECONDS)
    assert len(recorder.requests) == 1
