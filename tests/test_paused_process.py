"""A process that was stopped while a request waited in its socket."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gateway.writes import call_sender
from tests.payouts import create_batch, create_recipient, open_gateway_and_service
from tests.running_gateway import KEY
from tests.simulator import Service
from tests.sockets import open_connection


@pytest.mark.parametrize(("seconds", "start_count"), [(0.0, 1), (2.5, 0)])
@pytest.mark.parametrize("is_new", [True, False])
async def test_start_is_not_sent_if_its_request_came_before_a_long_pause(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    start_count: int,
    *,
    is_new: bool,
) -> None:
    monkeypatch.setattr(call_sender, "START_DEADLINE_SECONDS", 2.0)
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _):
        batch = await create_batch(gateway, await create_recipient(gateway), "5.00")
        key = f"Host: gateway\r\nX-API-Key: {KEY['api_key']}\r\n"
        async with await open_connection(gateway.running.port) as connection:
            if not is_new:
                await connection.send(f"GET /v1/batches/{batch} HTTP/1.1\r\n{key}\r\n".encode())
                assert await connection.read_response()
            target = f"/v1/batches/{batch}/start-processing"
            head = f"POST {target} HTTP/1.1\r\n{key}Content-Length: 0\r\n\r\n"
            connection.writer.write(head.encode())  # the system takes it at once
            time.sleep(seconds)  # noqa: ASYNC251 - nothing runs, as in a process that is stopped
            response = await connection.read_response()
        assert response is not None
        assert response.status == (200 if start_count else 500)
        assert len(service.batch_starts) == start_count
