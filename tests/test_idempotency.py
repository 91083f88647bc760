"""``Idempotency-Key`` on all writes, after a restart and with two instances."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.config.settings import Settings, State
from gateway.server.app import run_gateway
from gateway.simulator import Fault, Service, Switches, start
from tests.gateway.store import conftest
from tests.house import KEY, Got, House, import_lines, open_house, settings_for
from tests.payday import WALLET, make_batch, make_recipient, open_town
from tests.sockets import until

database, postgres = conftest.database, conftest.postgres

ADA = {"type": "individual", "firstName": "Ada", "lastName": "Lovelace", "email": "ada@example.com"}
OTHER = {**ADA, "firstName": "Augusta"}


def key(name: str) -> Mapping[str, str]:
    return {"Idempotency-Key": name}


async def create(house: House, name: str, body: Any = ADA) -> Got:
    return await house.ask("POST", "/v1/recipients", body, headers=key(name))


def is_of_another_body(got: Got) -> bool:
    (told,) = got.body["errors"]
    return (got.status, told["code"], told["field"]) == (406, "invalid_field", "Idempotency-Key")


async def test_it_holds_on_every_post(tmp_path: Path) -> None:
    service = Service(switches=Switches(), seed=1)
    async with open_town(tmp_path, service) as (house, _simulator):
        payee, bare = await make_recipient(house), await make_recipient(house, "bare")
        batch = await make_batch(house, payee, "5.00")
        payment = {"recipient": {"id": payee}, "sourceAmount": "7.00"}
        asked = (
            ("/v1/recipients", ADA),
            (f"/v1/recipients/{bare}/payout-methods", WALLET),
            ("/v1/batches", {"sourceCurrency": "USD", "payments": [payment]}),
            (f"/v1/batches/{batch}/payments", payment),
            (f"/v1/batches/{batch}/generate-quote", None),
            (f"/v1/batches/{batch}/start-processing", None),
        )
        for number, (path, body) in enumerate(asked):
            first = await house.ask("POST", path, body, headers=key(f"key {number}"))
            assert first.status == 200, (path, first.text)
            writes = _writes(service)
            again = await house.ask("POST", path, body, headers=key(f"key {number}"))
            assert (again.status, again.text) == (200, first.text), path
            assert _writes(service) == writes, path


def _writes(service: Service) -> int:
    return len([one for one in service.calls() if one.method != "GET"])


async def test_it_holds_on_changes_and_deletions_too(tmp_path: Path) -> None:
    service = Service(seed=1)
    async with open_town(tmp_path, service) as (house, _simulator):
        payee = await make_recipient(house)
        batch, other = await make_batch(house, payee, "5.00"), await make_batch(house, payee)
        more = {"payments": [{"recipient": {"id": payee}, "sourceAmount": "7.00"}]}
        asked = (
            ("PATCH", f"/v1/batches/{batch}", more),
            ("DELETE", f"/v1/batches/{other}", None),
        )
        for number, (method, path, body) in enumerate(asked):
            for _ in range(2):
                got = await house.ask(method, path, body, headers=key(f"key {number}"))
                assert got.status == 200, (path, got.text)
        whole = (await house.ask("GET", f"/v1/batches/{batch}")).body["batch"]
        assert (whole["totalPayments"], whole["amount"]) == (2, "12.00")
        got = await house.ask("PATCH", f"/v1/batches/{batch}", more, headers=key("key 1"))
        assert is_of_another_body(got)


async def test_validation_error_is_replayed_and_a_wrong_status_is_not(tmp_path: Path) -> None:
    service = Service(seed=1)
    async with open_town(tmp_path, service) as (house, _simulator):
        recipient = await make_recipient(house)
        batch = await make_batch(house, recipient)
        path = f"/v1/batches/{batch}/start-processing"
        for _ in range(2):
            calls = len(service.calls())
            got = await house.ask("POST", path, headers=key("one"))
            assert (got.status, got.body["errors"][0]["code"]) == (406, "invalid_status")
            assert len(service.calls()) > calls
        path, body = f"/v1/recipients/{recipient}", {"email": "no address"}
        first = await house.ask("PATCH", path, body, headers=key("two"))
        calls = len(service.calls())
        again = await house.ask("PATCH", path, body, headers=key("two"))
        assert (first.status, again.status, again.text) == (406, 406, first.text)
        assert again.headers["Idempotent-Replayed"] == "true"
        assert len(service.calls()) == calls


async def test_the_first_answer_is_given_again_after_a_restart(tmp_path: Path) -> None:
    service = Service(seed=1)
    simulator = await start(service=service)
    try:
        settings = settings_for(tmp_path, simulator.url)
        await import_lines(settings, [KEY])
        first = await _by_another(settings, "one", ADA)
        again = await _by_another(settings, "one", ADA)
        assert (first.status, again.text) == (200, first.text)
        assert is_of_another_body(await _by_another(settings, "one", OTHER))
        assert service.created["recipient"] == 1
    finally:
        await simulator.stop()


async def _by_another(settings: Settings, name: str, body: Any) -> Got:
    """Sends the request to a gateway that runs only for it."""
    async with run_gateway(settings) as running, aiohttp.ClientSession() as session:
        return await create(House(running, settings, session), name, body)


async def test_two_instances_give_one_answer_while_the_first_is_under_way_too(
    tmp_path: Path, postgres: State
) -> None:
    service = Service(seed=1)
    simulator = await start(service=service)
    state = dict(postgres)
    try:
        async with (
            open_house(tmp_path, simulator.url, state=state) as here,
            open_house(tmp_path, simulator.url, state=state) as there,
        ):
            service.faults.append(Fault("POST", "/v1/recipients", answer_delay=1))
            first = asyncio.ensure_future(create(here, "one"))
            await until(lambda: service.created["recipient"] == 1)
            assert is_of_another_body(await create(there, "one", OTHER))
            again = await create(there, "one")
            assert ((await first).status, again.text) == (200, (await first).text)
            assert (await create(there, "one")).text == again.text
            assert service.created["recipient"] == 1
            assert is_of_another_body(await create(here, "one", OTHER))
            other = await create(there, "two", OTHER)
            assert other.status == 200
            assert service.created["recipient"] == 2
    finally:
        await simulator.stop()


@pytest.mark.parametrize("name", ["", "x" * 256, "ä", "one\ttwo"])
async def test_one_that_cannot_be_compared_is_refused(name: str, tmp_path: Path) -> None:
    service = Service(seed=1)
    async with open_town(tmp_path, service) as (house, _simulator):
        got = await create(house, name)
        assert is_of_another_body(got), got.text
        assert service.calls("POST") == []
