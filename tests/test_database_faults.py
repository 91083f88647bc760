"""A database that is locked, full, moved or corrupt: no write is sent, and clients get an error."""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.simulator import Service, start_simulator
from tests.journal_check import check_journal
from tests.legacy_and_current import GatewayBetween, open_gateway_between
from tests.metrics_scrape import fetch_metrics
from tests.operator_commands import wait_until_async
from tests.payouts import create_recipient
from tests.running_gateway import GatewayResponse, open_gateway
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
    other = sqlite3.connect(file, isolation_level=None, timeout=0)
    while True:
        try:
            other.execute(begin)
            break
        except sqlite3.OperationalError:  # the gateway has it at this moment
            await asyncio.sleep(0.005)
    try:
        yield
    finally:
        other.rollback()
        other.close()


@asynccontextmanager
async def fill_disk(file: Path) -> AsyncIterator[None]:
    """Limits the file size, so that only the first pages can be written."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size // 8, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@asynccontextmanager
async def move_database(file: Path) -> AsyncIterator[None]:
    """SQLite treats a moved database file as read-only."""
    elsewhere = file.with_name("elsewhere")
    file.rename(elsewhere)
    try:
        yield
    finally:
        elsewhere.replace(file)


@asynccontextmanager
async def corrupt_database(file: Path) -> AsyncIterator[None]:
    good = file.read_bytes()
    file.write_bytes(os.urandom(len(good)))
    try:
        yield
    finally:
        file.write_bytes(good)


FAULTS: tuple[DatabaseFault, ...] = (lock_database, fill_disk, move_database, corrupt_database)


def is_refused(response: GatewayResponse) -> bool:
    """Whether the error has the legacy form and does not mention databases."""
    code = response.body["errors"][0]["code"]
    told = (response.status, code) == (500, "internal_server_error")
    return (
        told
        and response.text.startswith('{"ok":false,"errors":[')
        and "sqlite" not in response.text
    )


@pytest.mark.parametrize("fault", FAULTS)
async def test_writes_are_refused_during_a_database_fault_and_work_after_it(
    fault: DatabaseFault, tmp_path: Path
) -> None:
    async with open_gateway_and_recorder(tmp_path) as setup:
        batch, _ = await create_batch_now(setup, "before", "10.00")
        writes = len(setup.judge.list_writes())
        async with fault(tmp_path / "gateway.db"):
            requests = (
                ("POST", "/v1/recipients", build_person("during")),
                ("POST", "/v1/batches", build_batch_body(setup, "during", "1.00")),
                ("POST", f"/v1/batches/{batch}/start-processing", None),
            )
            told = await asyncio.gather(*(setup.house.request(*entry) for entry in requests))
            assert all(map(is_refused, told)), [response.text for response in told]
            assert len(setup.judge.list_writes()) == writes
            assert (await setup.house.request("GET", "/v1/profile/balances")).status == 200
            assert (await setup.house.request("GET", "/v1/geography/countries/US")).status == 200
        await create_recipient_now(setup, "during")
        start = await setup.house.request("POST", f"/v1/batches/{batch}/start-processing")
        assert start.status == 200, start.text
        assert len(setup.judge.list_executed_writes("POST", "/v1/recipients", about="during")) == 1
        assert set(setup.judge.list_starts.values()) == {1}
        await check_journal(setup.house.settings, setup.judge)


@pytest.mark.parametrize("fault", FAULTS)
async def test_write_executed_during_a_database_fault_is_not_sent_again(
    fault: DatabaseFault, tmp_path: Path
) -> None:
    async with open_gateway_and_recorder(tmp_path, seconds=20) as setup:
        response = await _create_during_fault(setup, fault, tmp_path / "gateway.db")
        assert is_refused(response), response.text
        assert "unknown" in response.body["errors"][0]["message"]
        await create_recipient_now(setup, "between")
        assert len(setup.judge.list_executed_writes("POST", "/v1/recipients", about="between")) == 1
        await check_journal(setup.house.settings, setup.judge)


async def test_full_disk_is_reported_by_readiness_without_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.operator.metrics_page.MAX_AGE_SECONDS", 0)
    simulator = await start_simulator(service=Service(seed=1))
    async with open_gateway(tmp_path, simulator.url, lease_seconds=0.8) as gateway:

        async def load_state_fault() -> str | None:
            """What is wrong with it, as `/readyz` says."""
            async with gateway.session.get(f"{gateway.running.admin_url}/readyz") as answer:
                body = await answer.json()
                assert (
                    (answer.status == 200) is (body["status"] == "ok") is not bool(body["faults"])
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
        async with fill_disk(tmp_path / "gateway.db"):
            await wait_until_async(is_faulty)
            said = await load_state_fault() or ""
            assert "gateway.db cannot be written (" in said
            assert "writes of clients are refused" in said
            assert "check that its disk has free space" in said
            assert await load_database_up() == 0
            assert (await gateway.request("GET", "/v1/profile/balances")).status == 200
        await wait_until_async(is_healthy)
        assert await load_database_up() == 1
    await simulator.stop()


async def _create_during_fault(
    setup: GatewayAndService, fault: DatabaseFault, file: Path
) -> GatewayResponse:
    """A create that the service has carried out, and of which the state cannot be told."""
    address = {"street1": "1 Main Street", "city": "New York", "region": "NY", "country": "US"}
    body = build_person("between", address=address)
    setup.judge.add_fault("slow", "POST", "/v1/recipients", about="between", seconds=1)
    asking = asyncio.ensure_future(setup.house.request("POST", "/v1/recipients", body))
    async with asyncio.timeout(20):
        while not setup.judge.list_executed_writes("POST", "/v1/recipients", about="between"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    async with fault(file):
        return await asking


async def _create_batch_at_legacy(
    setup: GatewayBetween, **answer: Any
) -> tuple[dict[str, Any], asyncio.Future[GatewayResponse]]:
    """A forwarded batch that was made, and its request, which is answered two seconds later."""
    await setup.set_mode("forward")
    payment = {"recipient": {"id": await create_recipient(setup.gateway)}, "sourceAmount": "5.00"}
    body = {"sourceCurrency": "USD", "payments": [payment]}
    setup.add_legacy_fault("POST", "/v1/batches", answer_delay=2, **answer)
    asking = asyncio.ensure_future(setup.gateway.request("POST", "/v1/batches", body))
    await wait_until(lambda: setup.legacy.creation_counts["batch"] == 1)
    return body, asking


async def test_legacy_batch_created_during_a_database_fault_stays_at_legacy(
    tmp_path: Path,
) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True, seconds=20) as setup:
        body, asking = await _create_batch_at_legacy(setup)
        async with lock_database(tmp_path / "gateway.db"):
            made = await asking
        assert made.status == 200, made.text

        async def is_over() -> bool:
            response = await setup.gateway.request("POST", "/v1/batches", body)
            return (
                response.status == 200 and response.body["batch"]["id"] != made.body["batch"]["id"]
            )

        await wait_until_async(is_over)
        await setup.set_mode("translate")
        batch = made.body["batch"]["id"]

        async def is_readable() -> bool:
            return (await setup.gateway.request("GET", f"/v1/batches/{batch}")).status == 200

        await wait_until_async(is_readable)


async def test_legacy_write_in_doubt_during_a_database_fault_is_listed(
    tmp_path: Path,
) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True, seconds=20) as setup:
        _, asking = await _create_batch_at_legacy(setup, status=502, executes=True)
        async with lock_database(tmp_path / "gateway.db"):
            assert (await asking).status == 500

        async def is_listed() -> bool:
            return len((await setup.run_json_command("writes", "unsettled"))["writes"]) == 1

        await wait_until_async(is_listed)
        assert setup.legacy.creation_counts["batch"] == 1
