"""Operations that read several summaries read them in parallel.

The service delays every answer until as many requests wait as are sent in parallel; sequential
requests would never be answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web

from gateway.storage import ObjectStateStore, open_store
from mappings.batch_reads import SUMMARIES_PER_CHUNK
from mappings.effects import MAX_PARALLEL_CALLS
from tests.running_gateway import GatewayUnderTest, open_gateway
from tests.state import TENANT, compare_and_set

BATCH_COUNT = SUMMARIES_PER_CHUNK + MAX_PARALLEL_CALLS
"""Batches: more than one slice, and each slice a whole number of turns."""


class BarrierService:
    """Answers summaries when ``SIDE_BY_SIDE`` of them wait, with one payment each."""

    def __init__(self) -> None:
        self.barrier = asyncio.Barrier(MAX_PARALLEL_CALLS)
        self.deleted_ids: list[str] = []
        self.read_ids: list[str] = []

    async def respond(self, request: web.BaseRequest) -> web.Response:
        if request.path == "/v1/batches":
            return web.json_response({"ok": False, "errors": []}, status=404)
        if request.path == "/v1/recipients":
            return web.json_response({"ok": True, "recipients": []})
        id_ = request.path.split("/")[3]
        if request.method == "DELETE":
            self.deleted_ids.append(id_)
            return web.json_response({"ok": True})
        self.read_ids.append(id_)
        assert not self.deleted_ids, "all are checked before the first is deleted"
        async with asyncio.timeout(30):
            await self.barrier.wait()
        payment = {"id": id_.replace("B", "P"), "recipient": {"id": "R-1"}, "memo": id_}
        batch = {"id": id_, "status": "open", "payments": [payment]}
        return web.json_response({"ok": True, "batchSummary": batch})


@asynccontextmanager
async def _open_gateway(
    folder: Path,
) -> AsyncIterator[tuple[GatewayUnderTest, BarrierService, list[str]]]:
    """With as many batches in the ledger, the oldest first."""
    service = BarrierService()
    runner = web.ServerRunner(web.Server(service.respond))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with open_gateway(folder, url) as gateway:
            async with open_store(gateway.settings.state) as store:
                ids = await _record_batches(ObjectStateStore(store))
            yield gateway, service, ids
    finally:
        await runner.cleanup()


async def _record_batches(object_states: ObjectStateStore) -> list[str]:
    ids = [f"B-{number:03}" for number in range(BATCH_COUNT)]
    first_time = datetime(2026, 3, 1, tzinfo=UTC)
    for number, id_ in enumerate(ids):
        created_at = (first_time + timedelta(minutes=number)).isoformat()
        batch_state = {"phase": "sent", "version": 1, "upstream": id_, "createdAt": created_at}
        await compare_and_set(object_states, TENANT, "batch", id_, batch_state)
    return ids


async def test_payments_of_all_batches_are_listed_newest_first(tmp_path: Path) -> None:
    async with _open_gateway(tmp_path) as (gateway, service, ids):
        response = await gateway.request("GET", f"/v1/payments?pageSize={BATCH_COUNT}")
    assert response.status == 200, response.text
    assert [payment["memo"] for payment in response.body["payments"]] == ids[::-1]
    assert set(service.read_ids[:SUMMARIES_PER_CHUNK]) == set(ids[-SUMMARIES_PER_CHUNK:]), (
        "a slice is done before the next"
    )


async def test_all_batches_are_read_before_the_first_is_deleted(tmp_path: Path) -> None:
    async with _open_gateway(tmp_path) as (gateway, service, ids):
        response = await gateway.request("DELETE", "/v1/batches", {"ids": ids})
    assert response.status == 200, response.text
    assert sorted(service.read_ids) == ids
    assert service.deleted_ids == ids


@pytest.mark.parametrize("page_size", [MAX_PARALLEL_CALLS, BATCH_COUNT])
async def test_batches_of_a_page_are_read_in_parallel(page_size: int, tmp_path: Path) -> None:
    async with _open_gateway(tmp_path) as (gateway, service, _ids):
        response = await gateway.request("GET", f"/v1/batches?pageSize={page_size}")
    assert response.status == 200, response.text
    assert len(service.read_ids) == page_size
