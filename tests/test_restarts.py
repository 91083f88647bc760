"""The complete payout with a restart of the gateway between any two steps: the same answers."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from sqlalchemy import update

from gateway.config.settings import Settings
from gateway.server.app import run_gateway
from gateway.storage import open_store
from gateway.storage.key_file import add_encryption_key
from gateway.storage.tables import operations
from gateway.writes.states import DONE
from tests.operator_commands import RESPONSE_LOST, disable_immediate_read, wait_until_async
from tests.payouts import create_batch, create_recipient
from tests.running_gateway import (
    KEY,
    GatewayResponse,
    GatewayUnderTest,
    build_settings,
    import_api_keys,
    open_gateway,
)
from tests.simulator import Fault, Service, ServiceOptions, start_simulator
from tests.state import count_operations_by_state, execute
from tests.test_complete_payout import COMBINATIONS, NormalizedSession, run_payout


class RestartingGateway:
    """A gateway that is started for each request, and stopped after it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.open_count = 0

    async def request(self, method: str, path: str, body: Any = None) -> GatewayResponse:
        self.open_count += 1
        async with run_gateway(self.settings) as running, aiohttp.ClientSession() as session:
            return await GatewayUnderTest(running, self.settings, session).request(
                method, path, body
            )


@pytest.mark.parametrize("kind", COMBINATIONS, ids=json.dumps)
async def test_payout_is_answered_alike_with_restarts_between_steps(
    kind: dict[str, Any], tmp_path: Path
) -> None:
    recorded_exchanges: list[list[str]] = []
    for name in ("once", "again"):
        service = Service(options=ServiceOptions(**kind, processing_seconds=1), seed=1)
        simulator = await start_simulator(service=service)
        folder = tmp_path / name
        folder.mkdir()
        try:
            if name == "once":
                async with open_gateway(folder, simulator.url) as gateway:
                    session = NormalizedSession(gateway)
                    await run_payout(session)
            else:
                settings = build_settings(folder, simulator.url)
                await import_api_keys(settings, [KEY])
                restarting_gateway = RestartingGateway(settings)
                session = NormalizedSession(restarting_gateway)  # type: ignore[arg-type]
                await run_payout(session)
                assert restarting_gateway.open_count > 20
        finally:
            await simulator.stop()
        assert len(service.batch_starts) == 1
        recorded_exchanges.append(session.exchanges)
    assert recorded_exchanges[0] == recorded_exchanges[1]


async def test_retry_is_recognized_after_key_file_lines_are_reordered(
    tmp_path: Path,
) -> None:
    """The last one encrypts: to have another do so again, its line is moved."""
    service = Service(seed=1)
    simulator = await start_simulator(service=service)
    try:
        async with open_gateway(tmp_path, simulator.url) as gateway:
            recipient = await create_recipient(gateway)
            batch = await create_batch(gateway, recipient, "5.00")
            add_encryption_key(gateway.settings.state.encryption_key_file)
        requests = (
            "POST",
            f"/v1/batches/{batch}/payments",
            {"recipient": {"id": recipient}, "sourceAmount": "7.00"},
        )
        async with open_gateway(tmp_path, simulator.url) as gateway:
            service.faults.append(Fault("POST", "/v1/batches/*/payments", **RESPONSE_LOST))
            with disable_immediate_read():
                assert (await gateway.request(*requests)).status == 500
            file = gateway.settings.state.encryption_key_file
        file.write_text("".join(reversed(file.read_text().splitlines(keepends=True))))
        async with open_gateway(tmp_path, simulator.url) as gateway:
            assert (await gateway.request(*requests)).status == 200
            batch_body = (await gateway.request("GET", f"/v1/batches/{batch}")).body["batch"]
    finally:
        await simulator.stop()
    assert (batch_body["totalPayments"], service.creation_counts["payment"]) == (2, 2)


async def test_replay_seconds_end_although_the_gateway_was_restarted_meanwhile(
    tmp_path: Path,
) -> None:
    service = Service(seed=1)
    simulator = await start_simulator(service=service)
    writes = {"replay_seconds": 2}
    try:
        responses = []
        for pause_seconds in (0.0, 2.5):
            async with open_gateway(tmp_path, simulator.url, writes=writes) as gateway:
                if not responses:
                    recipient = await create_recipient(gateway)
                payments = [{"recipient": {"id": recipient}, "sourceAmount": "5.00"}]
                body = {"sourceCurrency": "USD", "payments": payments}
                await asyncio.sleep(pause_seconds)
                responses.append(await gateway.request("POST", "/v1/batches", body))
        assert [response.status for response in responses] == [200, 200]
        assert service.creation_counts["batch"] == 2
    finally:
        await simulator.stop()


async def test_request_is_no_retry_of_one_that_was_given_up_a_day_ago(tmp_path: Path) -> None:
    """With ``replay_seconds``, the end of the first is its delivery, which never came."""
    service = Service(seed=1)
    simulator = await start_simulator(service=service)
    writes = {"replay_seconds": 60}
    body = {"sourceCurrency": "USD", "payments": []}
    try:
        async with open_gateway(tmp_path, simulator.url, writes=writes) as gateway:
            assert (await gateway.request("POST", "/v1/batches", body)).status == 200
        yesterday = datetime.now(UTC) - timedelta(hours=24, minutes=5)
        undelivered = {"state": DONE, "ended_at": None, "started_at": yesterday}
        async with open_store(gateway.settings.state) as store:
            await execute(store, update(operations).values(undelivered))
        async with open_gateway(tmp_path, simulator.url, writes=writes) as gateway:

            async def is_closed() -> bool:
                return not (await count_operations_by_state(gateway.settings))[DONE]

            await wait_until_async(is_closed)
            assert (await gateway.request("POST", "/v1/batches", body)).status == 200
        assert service.creation_counts["batch"] == 2
    finally:
        await simulator.stop()
