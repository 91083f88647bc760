"""A database that is locked, full, moved or corrupt: no write is sent, and clients get an error."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.storage.sqlite_driver import sqlite3
from tests.journal_check import check_journal
from tests.legacy_and_current import GatewayBetween, open_gateway_between
from tests.metrics_scrape import fetch_metrics
from tests.operator_commands import wait_until_async
from tests.payouts import create_recipient
from tests.running_gateway import GatewayResponse, open_gateway
from tests.simulator import Service, start_simulator
from tests.sockets import wait_until
from tests.test_upstream_faults import (
    GatewayAndService,
    build_batch_body,
    build_person,
    create_batch_now,
    create_recipient_now,
    open_gateway_and_recorder,
)

DatabaseFault = Callable[[Path], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def lock_database(file: Path, begin: str = "BEGIN EXCLUSIVE") -> AsyncIterator[None]:
    locking_connection = sqlite3.connect(file, isolation_level=None, timeout=0)
    while True:
        try:
            locking_connection.execute(begin)
            break
        except sqlite3.OperationalError:  # the gateway has it at this moment
            await asyncio.sleep(0.005)
    try:
        yield
    finally:
        locking_connection.rollback()
        locking_connection.close()


@pytest.fixture(autouse=True)
def wait_briefly_for_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.storage.sqlite_database.BUSY_SECONDS", 1)


FULL_DISK_BYTES = 16 * 1024


@asynccontextmanager
async def fill_disk(_file: Path, max_bytes: int = FULL_DISK_BYTES) -> AsyncIterator[None]:
    """Limits the file size, so that only the first pages can be written."""
    original_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, original_limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, original_limit)


@asynccontextmanager
async def move_database(file: Path) -> AsyncIterator[None]:
    """SQLite treats a moved database file as read-only."""
    moved_file = file.with_name("elsewhere")
    file.rename(moved_file)
    try:
        yield
    finally:
        moved_file.replace(file)


@asynccontextmanager
async def corrupt_database(file: Path) -> AsyncIterator[None]:
    async with lock_database(file):  # not in the middle of a commit of the gateway
        original_data = file.read_bytes()
        file.write_bytes(os.urandom(len(original_data)))
    try:
        yield
    finally:
        file.write_bytes(original_data)


FAULTS: tuple[DatabaseFault, ...] = (lock_database, fill_disk, move_database, corrupt_database)


def is_refused(response: GatewayResponse) -> bool:
    """Whether the error has the legacy form, asks for a retry, and does not mention databases."""
    code = response.body["errors"][0]["code"]
    is_error = (response.status, code) == (500, "internal_server_error")
    return (
        is_error
        and int(response.headers.get("Retry-After", 0)) > 0
        and response.text.startswith('{"ok":false,"errors":[')
        and "sqlite" not in response.text
    )


@pytest.mark.parametrize("fault", FAULTS)
async def test_writes_are_refused_during_a_database_fault_and_work_after_it(
    fault: DatabaseFault, tmp_path: Path
) -> None:
    async with open_gateway_and_recorder(tmp_path) as setup:
        batch, _ = await create_batch_now(setup, "before", "10.00")
        writes = len(setup.recorder.list_writes())
        async with fault(tmp_path / "gateway.db"):
            requests = (
                ("POST", "/v1/recipients", build_person("during")),
                ("POST", "/v1/batches", build_batch_body(setup, "during", "1.00")),
                ("POST", f"/v1/batches/{batch}/start-processing", None),
            )
            responses = await asyncio.gather(*(setup.gateway.request(*entry) for entry in requests))
            assert all(map(is_refused, responses)), [response.text for response in responses]
            assert len(setup.recorder.list_writes()) == writes
            assert (await setup.gateway.request("GET", "/v1/profile/balances")).status == 200
            assert (await setup.gateway.request("GET", "/v1/geography/countries/US")).status == 200
        await create_recipient_now(setup, "during")
        start_response = await setup.gateway.request(
            "POST", f"/v1/batches/{batch}/start-processing"
        )
        assert start_response.status == 200, start_response.text
        assert (
            len(setup.recorder.list_executed_writes("POST", "/v1/recipients", text="during")) == 1
        )
        assert set(setup.recorder.list_starts.values()) == {1}
        await check_journal(setup.gateway.settings, setup.recorder)


@pytest.mark.parametrize("fault", FAULTS)
async def test_write_executed_during_a_database_fault_is_not_sent_again(
    fault: DatabaseFault, tmp_path: Path
) -> None:
    async with open_gateway_and_recorder(tmp_path, seconds=20) as setup:
        response = await _create_during_fault(setup, fault, tmp_path / "gateway.db")
        assert is_refused(response), response.text
        assert "unknown" in response.body["errors"][0]["message"]
        await create_recipient_now(setup, "between")
        assert (
            len(setup.recorder.list_executed_writes("POST", "/v1/recipients", text="between")) == 1
        )
        await check_journal(setup.gateway.settings, setup.recorder)


async def test_full_disk_is_reported_by_readiness_without_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.server.metrics_page.MAX_AGE_SECONDS", 0)
    simulator = await start_simulator(service=Service(seed=1))
    async with open_gateway(tmp_path, simulator.url, lease_seconds=0.8) as gateway:

        async def load_state_fault() -> str | None:
            """The fault of the database according to `/readyz`."""
            async with gateway.session.get(f"{gateway.running.admin_url}/readyz") as response:
                body = await response.json()
                assert (
                    (response.status == 200) is (body["status"] == "ok") is not bool(body["faults"])
                )
                return body["faults"].get("state")

        async def load_database_up() -> float:
            metrics = await fetch_metrics(gateway.session, gateway.running.admin_url)
            return metrics.sum("payout_gateway_database_up")

        async def is_faulty() -> bool:
            return await load_state_fault() is not None

        async def is_healthy() -> bool:
            return await load_state_fault() is None

        assert (await gateway.request("GET", "/v1/profile/balances")).status == 200
        assert (await is_healthy(), await load_database_up()) == (True, 1)
        # Captured from here on, because the gateway may notice the end before this test does.
        with capture_logs() as log_entries:
            # So full that not even the lease can be renewed, which would end the fault.
            async with fill_disk(tmp_path / "gateway.db", 4096):
                await wait_until_async(is_faulty)
                fault = await load_state_fault() or ""
                assert "gateway.db cannot be written (" in fault
                assert "writes of clients are refused" in fault
                assert "check that its disk has free space" in fault
                assert await load_database_up() == 0
                assert (await gateway.request("GET", "/v1/profile/balances")).status == 200
            await wait_until_async(is_healthy)
        (recovery,) = [entry for entry in log_entries if entry["event"] == "database_available"]
        assert recovery["outage_seconds"] > 0
        assert await load_database_up() == 1
    await simulator.stop()


async def _create_during_fault(
    setup: GatewayAndService, fault: DatabaseFault, file: Path
) -> GatewayResponse:
    """Starts a create that the service executes, but that the gateway cannot record."""
    address = {"street1": "1 Main Street", "city": "New York", "region": "NY", "country": "US"}
    body = build_person("between", address=address)
    setup.recorder.add_fault("slow", "POST", "/v1/recipients", text="between", seconds=1)
    pending_response = asyncio.ensure_future(setup.gateway.request("POST", "/v1/recipients", body))
    async with asyncio.timeout(20):
        while not setup.recorder.list_executed_writes("POST", "/v1/recipients", text="between"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    async with fault(file):
        return await pending_response


async def _create_batch_at_legacy(
    setup: GatewayBetween, **fault: Any
) -> tuple[dict[str, Any], asyncio.Future[GatewayResponse]]:
    """Starts a forwarded create of a batch, which is executed now and answered two seconds later."""
    await setup.set_mode("forward")
    payment = {"recipient": {"id": await create_recipient(setup.gateway)}, "sourceAmount": "5.00"}
    body = {"sourceCurrency": "USD", "payments": [payment]}
    setup.add_legacy_fault("POST", "/v1/batches", answer_delay=2, **fault)
    pending_response = asyncio.ensure_future(setup.gateway.request("POST", "/v1/batches", body))
    await wait_until(lambda: setup.legacy.creation_counts["batch"] == 1)
    return body, pending_response


async def test_legacy_batch_created_during_a_database_fault_stays_at_legacy(
    tmp_path: Path,
) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True, seconds=20) as setup:
        body, pending_response = await _create_batch_at_legacy(setup)
        async with lock_database(tmp_path / "gateway.db"):
            create_response = await pending_response
        assert create_response.status == 200, create_response.text

        async def is_over() -> bool:
            response = await setup.gateway.request("POST", "/v1/batches", body)
            return (
                response.status == 200
                and response.body["batch"]["id"] != create_response.body["batch"]["id"]
            )

        await wait_until_async(is_over)
        await setup.set_mode("translate")
        batch = create_response.body["batch"]["id"]

        async def is_readable() -> bool:
            return (await setup.gateway.request("GET", f"/v1/batches/{batch}")).status == 200

        await wait_until_async(is_readable)


async def test_legacy_write_in_doubt_during_a_database_fault_is_listed(
    tmp_path: Path,
) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True, seconds=20) as setup:
        _, pending_response = await _create_batch_at_legacy(setup, status=502, executes=True)
        async with lock_database(tmp_path / "gateway.db"):
            assert (await pending_response).status == 500

        async def is_listed() -> bool:
            return len(await setup.list_writes_in_doubt()) == 1

        await wait_until_async(is_listed)
        assert setup.legacy.creation_counts["batch"] == 1
