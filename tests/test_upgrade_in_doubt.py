"""An upgrade while writes are in doubt: each ends as it would have without the upgrade."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from sqlalchemy import bindparam, select, text, update

from gateway.config.settings import Settings, State
from gateway.payloads import json_codec
from gateway.storage import ObjectStateStore, open_store
from gateway.storage.encryption import EncryptionContext
from gateway.storage.key_file import read_key_file
from gateway.storage.state_tables import STATE_TABLES
from gateway.storage.store import utc_now
from gateway.storage.tables import UTCDateTime, operations, upstream_writes
from gateway.writes import step_records
from gateway.writes.states import IN_DOUBT, RUNNING, SENT
from tests.gateway.storage.conftest import open_store_at_revision
from tests.gateway_processes import open_forker, request_gateway
from tests.operator_commands import (
    AdjustableClock,
    disable_immediate_read,
    run_command,
    wait_until_async,
)
from tests.payouts import create_batch, create_recipient, load_payment_ids, request_successfully
from tests.running_gateway import (
    KEY,
    GatewayUnderTest,
    build_settings,
    import_api_keys,
    open_gateway,
)
from tests.simulator import (
    DEMO_CREDENTIALS,
    Fault,
    Service,
    ServiceOptions,
    Simulator,
    start_simulator,
)
from tests.state import (
    TENANT,
    count_operations_by_state,
    execute,
    load_objects,
    load_writes,
    open_state,
)
from tests.test_signed_batches import start_signed

INSERTION = text(
    "INSERT INTO object_states (merchant, environment, kind, id, facts, updated_at)"
    " VALUES (:merchant, :environment, :kind, :id, :facts, :at)"
).bindparams(bindparam("at", type_=UTCDateTime))


async def downgrade(state: State) -> None:
    """Moves the rows into the tables of the version that had all object states in one."""
    file = Path(state.url.removeprefix("sqlite:///"))
    keys = read_key_file(state.encryption_key_file)
    assert keys is not None
    statements = []
    async with open_store(state) as store:
        for kind, table in STATE_TABLES.items():
            facts_by_id = await ObjectStateStore(store).load_facts_by_id(TENANT, kind)
            for id_, facts in facts_by_id.items():
                stored = json_codec.dumps_trusted(facts).decode()
                if table.is_encrypted:
                    context = EncryptionContext("remembered", *TENANT, f"facts of a {kind}")
                    stored = keys.encrypt(stored, context)
                values = {**TENANT._asdict(), "kind": kind, "id": id_, "at": utc_now()}
                statements.append(INSERTION.bindparams(**values, facts=stored))
    new_file = file.rename(file.with_suffix(".new"))
    async with open_store_at_revision(state, "0022") as store:
        await execute(store, *statements)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("ATTACH ? AS new", (str(new_file),))
        tables = "SELECT name FROM {}.sqlite_master WHERE type = 'table'"
        query = f"{tables.format('main')} INTERSECT {tables.format('new')}"
        for (name,) in connection.execute(query).fetchall():
            if name != "alembic_version":
                rows = connection.execute(f"PRAGMA main.table_info({name})").fetchall()
                columns = ", ".join(f'"{row[1]}"' for row in rows)
                connection.execute(f"DELETE FROM main.{name}")
                connection.execute(
                    f"INSERT INTO main.{name} ({columns}) SELECT {columns} FROM new.{name}"
                )
    file.chmod(0o600)


def configure(folder: Path, simulator: Simulator) -> dict[str, Any]:
    """Writes the configuration of commands; returns the sections of the gateway's."""
    addresses = {"base_url": simulator.url, "legacy_base_url": simulator.legacy_url}
    sections = {"environments": {"sandbox": addresses}}
    state = build_settings(folder, simulator.url, **sections).state
    (folder / "gateway.toml").write_text(
        "[environments.sandbox]\n"
        + "".join(f'{name} = "{url}"\n' for name, url in addresses.items())
        + f'[state]\nurl = "{state.url}"\nencryption_key_file = "{state.encryption_key_file}"\n'
    )
    return sections


async def request_forwarded_batch(gateway: GatewayUnderTest) -> int:
    headers = {"X-API-Key": DEMO_CREDENTIALS.api_key}
    body = {"sourceCurrency": "USD"}
    return (await gateway.request("POST", "/v1/batches", body, headers=headers)).status


async def mark_open_operations(settings: Settings, operation_state: str) -> None:
    """Makes the operations of open writes older, and as a process left them."""
    is_open = operations.c.id.in_(
        select(upstream_writes.c.operation_id).where(upstream_writes.c.state == SENT)
    )
    async with open_state(settings) as state:
        await state.age_writes(60)
        await execute(state.store, update(operations).where(is_open).values(state=operation_state))


@pytest.mark.parametrize("operation_state", [IN_DOUBT, RUNNING], ids=["in doubt", "killed"])
@pytest.mark.parametrize("is_executed", [True, False], ids=["executed", "not executed"])
async def test_writes_in_doubt_end_as_without_an_upgrade(
    *, is_executed: bool, operation_state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An added payment and a signed start end; a forwarded batch still needs an operator."""
    service = Service(options=ServiceOptions(inferred=True), seed=1)
    simulator = await start_simulator(service=service, legacy_port=0)
    sections = configure(tmp_path, simulator)
    settings = build_settings(tmp_path, simulator.url, **sections)
    close = "after" if is_executed else "before"
    shop_key = {**KEY, "api_key": DEMO_CREDENTIALS.api_key, "name": "shop"}
    try:
        await import_api_keys(settings, [KEY, shop_key])
        await run_command(tmp_path, "modes", "set", "--key", "shop", "forward", "--yes")
        with monkeypatch.context() as patch, disable_immediate_read():
            # The version before the upgrade does not come to reconcile them.
            patch.setattr("gateway.writes.reconciler.SWEEP_SECONDS", 1000)
            async with open_gateway(tmp_path, simulator.url, **sections) as gateway:
                recipient = await create_recipient(gateway)
                batch = await create_batch(gateway, recipient, "5.00")
                await create_batch(gateway, recipient, "5.00")
                upstream = [*service.find_or_create_tenant().batches][-1]
                add_path = f"/v1/batches/{batch}/payments"
                add_body = {"recipient": {"id": recipient}, "sourceAmount": "7.00"}
                service.faults += [
                    Fault("POST", "/v1/batches/*/payments", close=close),
                    Fault("POST", "/v1/batches/*/start-processing", close=close),
                    Fault("POST", "/v1/batches", close=close, interface="legacy"),
                ]
                assert (await gateway.request("POST", add_path, add_body)).status == 500
                assert (await start_signed(gateway, upstream)).status == 500
                assert await request_forwarded_batch(gateway) == 500
        assert sum(write.is_open for write in await load_writes(settings)) == 3
        await downgrade(settings.state)
        await mark_open_operations(settings, operation_state)
        clock = AdjustableClock()
        async with open_gateway(tmp_path, simulator.url, clock, **sections) as gateway:

            async def is_only_forwarded_write_open() -> bool:
                clock.ahead_seconds += 2  # until no sent write can be executed any more
                return sum(write.is_open for write in await load_writes(settings)) == 1

            await wait_until_async(is_only_forwarded_write_open, 30)
            assert await request_forwarded_batch(gateway) == 500
            assert (await gateway.request("POST", add_path, add_body)).status == 200
            start_response = await start_signed(gateway, upstream)
            assert start_response.status == (400 if is_executed else 200)
            batch_body = (await gateway.request("GET", f"/v1/batches/{batch}")).body["batch"]
            assert batch_body["totalPayments"] == 2
        assert len(service.batch_starts) == 1
        assert service.creation_counts["payment"] == 3
        assert len(service.find_or_create_tenant().batches) == (3 if is_executed else 2)
        batches = (await load_objects(settings, ["batch"]))["batch"]
        assert [facts for facts in batches.values() if "since" in facts] == [], "a lock remains"
    finally:
        await simulator.stop()


@pytest.mark.parametrize("is_draft", [False, True], ids=["not changed", "changed"])
async def test_batch_is_not_locked_by_an_edit_that_the_new_version_cannot_continue(
    *, is_draft: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the edit had changed anything, or after: then its payment is not added again."""
    service = Service(options=ServiceOptions(inferred=False), seed=1)
    simulator = await start_simulator(service=service)
    settings = build_settings(tmp_path, simulator.url)
    try:
        async with open_gateway(tmp_path, simulator.url) as gateway:
            recipient = await create_recipient(gateway)
            edited_batch = await create_batch(gateway, recipient, "5.00")
            (payment,) = await load_payment_ids(gateway, edited_batch)
            edit = {"update_payments": [{"id": payment, "sourceAmount": "6.00"}]}
            await request_successfully(gateway, "PATCH", f"/batches/{edited_batch}", edit)
            batch = edited_batch if is_draft else await create_batch(gateway, recipient, "6.00")
        added = {"recipient": {"id": recipient}, "sourceAmount": "7.00"}
        method, path, body = (
            ("POST", f"/v1/batches/{batch}/payments", added)
            if is_draft
            else ("PATCH", f"/v1/batches/{batch}", {"payments": [added]})
        )
        batches_before = (await load_objects(settings, ["batch"]))["batch"]

        async def is_under_way() -> bool:
            batches = (await load_objects(settings, ["batch"]))["batch"]
            (changed,) = [
                each for each in batches.values() if each not in batches_before.values()
            ] or [{}]
            return changed.get("phase") == ("draft" if is_draft else "editing")

        async with open_forker() as forker, aiohttp.ClientSession() as session:
            process = await forker.start(settings, tmp_path)
            service.faults.append(Fault("GET", "/v1/recipients/*", delay=1, times=9))
            request = asyncio.create_task(
                request_gateway(session, process, method, path, json=body)
            )
            await wait_until_async(is_under_way)
            await process.stop()
            assert await request is None
        service.faults.clear()
        fingerprint_step = step_records.fingerprint_step
        monkeypatch.setattr(
            step_records, "fingerprint_step", lambda step: f"changed {fingerprint_step(step)}"
        )
        # The retry waits for two timeouts.
        upstream = {"timeout_seconds": 2}
        async with open_gateway(tmp_path, simulator.url, upstream=upstream) as gateway:

            async def is_closed() -> bool:
                return not (await count_operations_by_state(settings)).keys() & {IN_DOUBT, RUNNING}

            await wait_until_async(is_closed)
            retry_response = await gateway.request(method, path, body)
            assert retry_response.status == (500 if is_draft else 200), retry_response.text
            answer = await request_successfully(
                gateway, "POST", f"/batches/{batch}/start-processing"
            )
            assert (answer["batch"]["amount"], answer["batch"]["totalPayments"]) == ("13.00", 2)
    finally:
        await simulator.stop()
