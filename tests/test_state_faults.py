"""A state that is locked, full, moved away or spoilt: nothing leaves, and clients are told so."""

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

from gateway.simulator import Service, start
from tests.audit import audit
from tests.house import Got, open_house
from tests.operating import eventually
from tests.payday import make_recipient
from tests.scrape import scraped
from tests.sockets import until
from tests.test_faults import Town, batch_body, made_batch, made_recipient, person, town
from tests.valley import Valley, open_valley

Fault = Callable[[Path], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def locked(file: Path, begin: str = "BEGIN EXCLUSIVE") -> AsyncIterator[None]:
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
async def full(file: Path) -> AsyncIterator[None]:
    """No file of this process grows, or is changed beyond its first pages."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size // 8, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@asynccontextmanager
async def moved(file: Path) -> AsyncIterator[None]:
    """SQLite takes it for one that may only be read."""
    elsewhere = file.with_name("elsewhere")
    file.rename(elsewhere)
    try:
        yield
    finally:
        elsewhere.replace(file)


@asynccontextmanager
async def spoilt(file: Path) -> AsyncIterator[None]:
    good = file.read_bytes()
    file.write_bytes(os.urandom(len(good)))
    try:
        yield
    finally:
        file.write_bytes(good)


FAULTS: tuple[Fault, ...] = (locked, full, moved, spoilt)


def is_refused(got: Got) -> bool:
    """Told as the legacy interface tells it, and no word of databases."""
    code = got.body["errors"][0]["code"]
    told = (got.status, code) == (500, "internal_server_error")
    return told and got.text.startswith('{"ok":false,"errors":[') and "sqlite" not in got.text


@pytest.mark.parametrize("fault", FAULTS)
async def test_while_the_state_cannot_be_written_nothing_leaves_and_after_it_all_goes_on(
    fault: Fault, tmp_path: Path
) -> None:
    async with town(tmp_path) as here:
        batch, _ = await made_batch(here, "before", "10.00")
        writes = len(here.judge.writes())
        async with fault(tmp_path / "gateway.db"):
            asked = (
                ("POST", "/v1/recipients", person("during")),
                ("POST", "/v1/batches", batch_body(here, "during", "1.00")),
                ("POST", f"/v1/batches/{batch}/start-processing", None),
            )
            told = await asyncio.gather(*(here.house.ask(*one) for one in asked))
            assert all(map(is_refused, told)), [got.text for got in told]
            assert len(here.judge.writes()) == writes
            assert (await here.house.ask("GET", "/v1/profile/balances")).status == 200
            assert (await here.house.ask("GET", "/v1/geography/countries/US")).status == 200
        await made_recipient(here, "during")
        start = await here.house.ask("POST", f"/v1/batches/{batch}/start-processing")
        assert start.status == 200, start.text
        assert len(here.judge.done("POST", "/v1/recipients", about="during")) == 1
        assert set(here.judge.starts.values()) == {1}
        await audit(here.house.settings, here.judge)


@pytest.mark.parametrize("fault", FAULTS)
async def test_what_was_executed_while_the_state_went_away_is_not_sent_again(
    fault: Fault, tmp_path: Path
) -> None:
    async with town(tmp_path, seconds=20) as here:
        got = await _lost_on_the_way(here, fault, tmp_path / "gateway.db")
        assert is_refused(got), got.text
        assert "unknown" in got.body["errors"][0]["message"]
        await made_recipient(here, "between")
        assert len(here.judge.done("POST", "/v1/recipients", about="between")) == 1
        await audit(here.house.settings, here.judge)


async def test_a_full_disk_shows_in_readiness_though_nobody_writes_and_goes_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.operator.metrics_page.MAX_AGE_SECONDS", 0)
    simulator = await start(service=Service(seed=1))
    async with open_house(tmp_path, simulator.url, gone_seconds=0.8) as house:

        async def state() -> str | None:
            """What is wrong with it, as `/readyz` says."""
            async with house.session.get(f"{house.running.admin_url}/readyz") as answer:
                told = await answer.json()
                assert (
                    (answer.status == 200) is (told["status"] == "ok") is not bool(told["faults"])
                )
                return told["faults"].get("state")

        async def up() -> float:
            found = await scraped(house.session, house.running.admin_url)
            return found.sum("payout_gateway_database_up")

        async def is_wrong() -> bool:
            return await state() is not None

        async def is_well() -> bool:
            return await state() is None

        assert (await house.ask("GET", "/v1/profile/balances")).status == 200
        assert (await is_well(), await up()) == (True, 1)
        async with full(tmp_path / "gateway.db"):
            await eventually(is_wrong)
            said = await state() or ""
            assert "gateway.db cannot be written (" in said
            assert "no write of a client goes out" in said
            assert "see that its disk has room" in said
            assert await up() == 0
            assert (await house.ask("GET", "/v1/profile/balances")).status == 200
        await eventually(is_well)
        assert await up() == 1
    await simulator.stop()


async def _lost_on_the_way(here: Town, fault: Fault, file: Path) -> Got:
    """A create that the service has carried out, and of which the state cannot be told."""
    address = {"street1": "1 Main Street", "city": "New York", "region": "NY", "country": "US"}
    body = person("between", address=address)
    here.judge.does("slow", "POST", "/v1/recipients", about="between", seconds=1)
    asking = asyncio.ensure_future(here.house.ask("POST", "/v1/recipients", body))
    async with asyncio.timeout(20):
        while not here.judge.done("POST", "/v1/recipients", about="between"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    async with fault(file):
        return await asking


async def _made_at_legacy(
    here: Valley, **answer: Any
) -> tuple[dict[str, Any], asyncio.Future[Got]]:
    """A forwarded batch that was made, and its request, which is answered two seconds later."""
    await here.switch("forward")
    payment = {"recipient": {"id": await make_recipient(here.house)}, "sourceAmount": "5.00"}
    body = {"sourceCurrency": "USD", "payments": [payment]}
    here.breaks_legacy("POST", "/v1/batches", answer_delay=2, **answer)
    asking = asyncio.ensure_future(here.house.ask("POST", "/v1/batches", body))
    await until(lambda: here.legacy.created["batch"] == 1)
    return body, asking


async def test_a_batch_made_at_the_legacy_service_while_the_state_went_away_stays_there(
    tmp_path: Path,
) -> None:
    async with open_valley(tmp_path, apart=True, seconds=20) as here:
        body, asking = await _made_at_legacy(here)
        async with locked(tmp_path / "gateway.db"):
            made = await asking
        assert made.status == 200, made.text

        async def is_over() -> bool:
            got = await here.house.ask("POST", "/v1/batches", body)
            return got.status == 200 and got.body["batch"]["id"] != made.body["batch"]["id"]

        await eventually(is_over)
        await here.switch("translate")
        batch = made.body["batch"]["id"]

        async def is_there() -> bool:
            return (await here.house.ask("GET", f"/v1/batches/{batch}")).status == 200

        await eventually(is_there)


async def test_a_lost_write_at_the_legacy_service_is_listed_though_the_state_was_away_then(
    tmp_path: Path,
) -> None:
    async with open_valley(tmp_path, apart=True, seconds=20) as here:
        _, asking = await _made_at_legacy(here, status=502, executes=True)
        async with locked(tmp_path / "gateway.db"):
            assert (await asking).status == 500

        async def is_listed() -> bool:
            return len((await here.told("writes", "unsettled"))["writes"]) == 1

        await eventually(is_listed)
        assert here.legacy.created["batch"] == 1
