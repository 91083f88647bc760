"""Retention and erasure: deleted rows, and rows that are kept to prevent double payments."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import select, update

from gateway.config.settings import Retention, State
from gateway.operator.restore_check import is_restored
from gateway.operator.retention import MAX_ROWS_PER_TRANSACTION, RetentionTask, delete_expired_data
from gateway.storage import ObjectStateStore, Store, Tenant, open_store
from gateway.storage.audit_log import list_audit_events
from gateway.storage.id_rows import load_current_ids_by_legacy_id
from gateway.storage.request_counts import load_usage
from gateway.storage.state_tables import batch_payments, draft_payments, signed_changes
from gateway.storage.tables import (
    audit_events,
    operation_objects,
    operation_steps,
    operations,
    request_counts,
    upstream_writes,
)
from tests.gateway.storage.conftest import (  # noqa: F401 - fixtures
    database,
    postgres,
    sqlite,
    state,
)
from tests.operator_commands import (
    OperatedGateway,
    lose_batch_create,
    open_operated_gateway,
    wait_until_async,
)
from tests.payouts import (
    create_batch,
    create_recipient,
    load_payment_ids,
    open_gateway_and_service,
    request_successfully,
)
from tests.running_gateway import GatewayUnderTest
from tests.simulator import Service, ServiceOptions
from tests.state import compare_and_set, execute, fetch

TENANT = Tenant("demo", "sandbox")
MEMO = "for the operation of Ada's knee"
LONG_TIME = timedelta(days=500)
DEFAULT_RETENTION = Retention()


@dataclass
class GatewayWithStore:
    gateway: GatewayUnderTest
    store: Store

    async def load_entries(self, batch: str) -> list[dict[str, Any]]:
        current_id = (await load_current_ids_by_legacy_id(self.store, TENANT, [batch])).get(
            batch, batch
        )
        payments_state = await ObjectStateStore(self.store).load(TENANT, "payments", current_id)
        return list(payments_state["entries"])

    async def count_rows(self, *tables: Any) -> list[int]:
        return [len(await fetch(self.store, select(table))) for table in tables]

    async def wait_until_idle(self) -> None:
        """Waits until no operation is open."""

        async def is_idle() -> bool:
            open_ids = select(operations.c.id).where(operations.c.state.in_(("running", "done")))
            return not await fetch(self.store, open_ids)

        await wait_until_async(is_idle)

    async def make_old(self, table: Any, *columns: str) -> None:
        for row in await fetch(self.store, select(table)):
            key_columns = [column == getattr(row, column.name) for column in table.primary_key]
            old_times = {name: getattr(row, name) - LONG_TIME for name in columns}
            await execute(self.store, update(table).where(*key_columns).values(**old_times))


@asynccontextmanager
async def open_gateway_with_store(
    folder: Path,
    state: State,  # noqa: F811
    *,
    inferred: bool = True,
) -> AsyncIterator[GatewayWithStore]:
    settings = {"url": state.url, "encryption_key_file": str(state.encryption_key_file)}
    async with (
        open_gateway_and_service(
            folder, Service(seed=1, options=ServiceOptions(inferred=inferred)), state=settings
        ) as (gateway, _simulator),
        open_store(state) as store,
    ):
        yield GatewayWithStore(gateway, store)


async def create_batch_by_addresses(gateway: GatewayUnderTest, *addresses: str) -> str:
    """Creates a batch that names recipients by email, so that the ledger stores their names."""
    payments = [
        {"recipient": {"email": address}, "sourceAmount": "10.00", "memo": MEMO}
        for address in addresses
    ]
    body = {"sourceCurrency": "USD", "payments": payments}
    return str((await request_successfully(gateway, "POST", "/batches", body))["batch"]["id"])


# On request


async def test_erasure_removes_personal_data_of_a_recipient(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, seconds=5) as setup, setup.open_store() as store:
        stored = GatewayWithStore(setup.gateway, store)
        await create_recipient(setup.gateway, "ada")
        other_recipient = await create_recipient(setup.gateway, "eve")
        hold = {"holdup": {"limit": 5, "active": False}}
        await request_successfully(
            setup.gateway, "PATCH", f"/recipients/{other_recipient}", {"payout": hold}
        )
        batch = await create_batch_by_addresses(setup.gateway, "ada@example.com", "eve@example.com")
        await stored.wait_until_idle()
        object_states = ObjectStateStore(store)
        entries = await stored.load_entries(batch)
        assert [entry["memo"] for entry in entries] == [MEMO, MEMO]
        assert entries[1]["recipient"]["email"] == "eve@example.com"
        output = await setup.run_command(
            "erase", other_recipient, "--key", await load_key_name(setup), "--yes"
        )
        assert "1 payment in 1 batch, and 1 stored field" in output.stdout
        assert "2 encrypted responses" in output.stdout
        repeated = await setup.run_command(
            "erase", other_recipient, "--key", await load_key_name(setup), "--yes"
        )
        assert "0 payments in 0 batches, and 0 stored fields" in repeated.stdout
        assert "2 encrypted responses" in repeated.stdout
        ada, erased_entry = await stored.load_entries(batch)
        assert ada == entries[0]
        stored_states = {
            name: value for name, value in entries[1].items() if name not in ("memo", "recipient")
        }
        assert erased_entry == {**stored_states, "recipient": {"id": entries[1]["recipient"]["id"]}}
        assert await object_states.load(TENANT, "recipient", other_recipient) == {}
        assert [event.action for event in await list_audit_events(store)] == [
            "imported 1 key",
            "erased a recipient",
        ]
        batch_body = await request_successfully(setup.gateway, "GET", f"/batches/{batch}")
        assert batch_body["batch"]["totalPayments"] == 2, "the batch is what it was"


async def test_erasure_counts_answers_not_yet_delivered(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path, seconds=5) as setup:
        setup.add_fault("POST", "/v1/recipients", close="after")
        with pytest.raises(AssertionError):
            await create_recipient(setup.gateway, "eve")

        await setup.wait_until_nothing_in_doubt()
        (other_recipient,) = setup.service.find_or_create_tenant().recipients
        output = await setup.run_command(
            "erase", other_recipient, "--key", await load_key_name(setup), "--yes"
        )
        assert "1 encrypted response." in output.stdout
        nothing = await setup.run_command(
            "erase", "R-nonsense", "--key", await load_key_name(setup), "--yes", code=2
        )
        assert "nothing to erase: " in nothing.output


async def load_key_name(setup: OperatedGateway) -> str:
    return str((await setup.run_json_command("keys", "list"))["keys"][0]["name"])


async def test_deleted_recipient_stays_deleted_after_erasure(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as setup:
        other_recipient = await create_recipient(setup.gateway, "eve")
        await request_successfully(setup.gateway, "DELETE", f"/recipients/{other_recipient}")
        async with setup.open_store() as store:
            await GatewayWithStore(setup.gateway, store).wait_until_idle()
        await setup.run_command(
            "erase", other_recipient, "--key", await load_key_name(setup), "--yes"
        )
        assert (
            await setup.gateway.request("GET", f"/v1/recipients/{other_recipient}")
        ).status == 404


async def test_erasure_of_unknown_id_is_reported(tmp_path: Path) -> None:
    """A mistyped id must not look like a successful erasure."""
    async with open_operated_gateway(tmp_path) as setup:
        recipient = await create_recipient(setup.gateway)
        output = await setup.run_command(
            "erase", "R-nobody", "--key", await load_key_name(setup), "--yes", code=2
        )
        assert "no data of R-nobody is stored for demo sandbox" in output.output
        # An event of the merchant would be in the trace of anything that existed before.
        assert "erased" not in (await setup.run_command("trace", recipient)).stdout


async def test_recipient_in_a_draft_is_not_erased(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as setup:
        other_recipient = await create_recipient(setup.gateway, "eve")
        batch = await create_batch(setup.gateway, other_recipient, "10.00", "20.00")
        body = {"payments": [{"recipient": {"id": other_recipient}, "sourceAmount": "5.00"}]}
        await request_successfully(setup.gateway, "PATCH", f"/batches/{batch}", body)
        async with setup.open_store() as store:
            await GatewayWithStore(setup.gateway, store).wait_until_idle()
        output = await setup.run_command(
            "erase", other_recipient, "--key", await load_key_name(setup), "--yes", code=2
        )
        assert "draft batches contain this recipient" in output.output
        await request_successfully(setup.gateway, "DELETE", f"/batches/{batch}")
        async with setup.open_store() as store:
            await GatewayWithStore(setup.gateway, store).wait_until_idle()
        await setup.run_command(
            "erase", other_recipient, "--key", await load_key_name(setup), "--yes"
        )


async def test_recipient_with_a_write_in_doubt_is_not_erased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.operator.retention.UNFINISHED_TIMEOUT_SECONDS", 0.5)
    async with open_operated_gateway(tmp_path, inferred=False) as setup:
        other_recipient = await create_recipient(setup.gateway, "eve")
        await lose_batch_create(setup, other_recipient)
        output = await setup.run_command(
            "erase", other_recipient, "--key", await load_key_name(setup), "--yes", code=2
        )
        assert "unsettled" in output.output
        assert (
            await setup.run_command("erase", other_recipient, "--key", "nobody", "--yes", code=2)
        ).output


# By itself


async def test_old_journal_rows_are_deleted_except_the_latest(
    tmp_path: Path,
    state: State,  # noqa: F811
) -> None:
    async with open_gateway_with_store(tmp_path, state) as setup:
        ada = await create_recipient(setup.gateway)
        await create_batch(setup.gateway, ada, "10.00")
        await setup.wait_until_idle()
        counts_before = await setup.count_rows(operations, upstream_writes, operation_objects)
        assert all(count > 1 for count in counts_before)
        assert (await delete_expired_data(setup.store, DEFAULT_RETENTION))["journal"] == 0
        await setup.make_old(operations, "started_at")
        deleted_counts = await delete_expired_data(setup.store, DEFAULT_RETENTION)
        assert deleted_counts["journal"] == counts_before[0] - 1
        rows, steps = await setup.count_rows(operations, operation_steps)
        assert (rows, steps) == (1, 0)
        remaining_ids = await fetch(setup.store, select(upstream_writes.c.operation_id).distinct())
        newest = (await fetch(setup.store, select(operations.c.id)))[0].id
        assert {row.operation_id for row in remaining_ids} <= {newest}
        # The last row's number shows that the database is not older than the mark file.
        assert not await is_restored(setup.store, setup.gateway.settings.state.restore_mark_path)
        await create_batch(setup.gateway, ada, "20.00")


async def test_write_in_doubt_is_never_deleted(tmp_path: Path) -> None:
    async with (
        open_operated_gateway(tmp_path, inferred=False) as setup,
        setup.open_store() as store,
    ):
        stored = GatewayWithStore(setup.gateway, store)
        await lose_batch_create(setup)
        # A later operation, because the last row is always kept.
        await create_recipient(setup.gateway, "eve")
        await stored.make_old(operations, "started_at")
        await delete_expired_data(store, DEFAULT_RETENTION)
        listed_writes = await setup.run_json_command("writes", "unsettled")
        assert len(listed_writes["writes"]) == 1


async def test_batch_that_may_exist_is_never_started_after_its_writes_expire(
    tmp_path: Path,
) -> None:
    async with (
        open_operated_gateway(tmp_path, inferred=False) as setup,
        setup.open_store() as store,
    ):
        stored = GatewayWithStore(setup.gateway, store)
        await lose_batch_create(setup)
        (lost_batch,) = setup.service.find_or_create_tenant().batches
        await setup.age_sent_writes()

        async def list_superseded() -> Any:
            return (await setup.run_json_command("batches", "abandoned"))["batches"]

        await wait_until_async(list_superseded)
        # A later operation, because the last row is always kept.
        await create_recipient(setup.gateway, "eve")
        await stored.wait_until_idle()
        await stored.make_old(operations, "started_at")
        deleted = await delete_expired_data(store, DEFAULT_RETENTION)
        assert deleted["journal"] == 1, "the creation of the recipient"
        assert len(await list_superseded()) == 1
        path = f"/v1/batches/{lost_batch}/start-processing"
        assert (await setup.gateway.request("POST", path)).status == 406


async def test_names_and_memos_of_old_batches_are_deleted_and_payments_kept(
    tmp_path: Path,
    state: State,  # noqa: F811
) -> None:
    async with open_gateway_with_store(tmp_path, state) as setup:
        await create_recipient(setup.gateway, "ada")
        old_batch = await create_batch_by_addresses(setup.gateway, "ada@example.com")
        await setup.wait_until_idle()
        await setup.make_old(batch_payments, "updated_at")
        new_batch = await create_batch_by_addresses(setup.gateway, "ada@example.com")
        await setup.wait_until_idle()
        entries_before = await setup.load_entries(old_batch)
        assert (await delete_expired_data(setup.store, DEFAULT_RETENTION))["texts"] == 1
        (old_entry,) = await setup.load_entries(old_batch)
        assert set(entries_before[0]) - set(old_entry) == {"memo"}
        assert old_entry["recipient"].keys() == {"id"}
        (new_entry,) = await setup.load_entries(new_batch)
        assert (new_entry["memo"], new_entry["recipient"]["email"]) == (MEMO, "ada@example.com")
        assert (await delete_expired_data(setup.store, DEFAULT_RETENTION))["texts"] == 0, "once"
        batch_body = await request_successfully(setup.gateway, "GET", f"/batches/{old_batch}")
        assert batch_body["batch"]["amount"] == "10.00"


async def test_names_and_memos_of_old_drafts_are_kept_until_they_are_deleted(
    tmp_path: Path,
    state: State,  # noqa: F811
) -> None:
    async with open_gateway_with_store(tmp_path, state, inferred=False) as setup:
        await create_recipient(setup.gateway, "ada")
        batch = await create_batch_by_addresses(setup.gateway, "ada@example.com")
        (payment,) = await load_payment_ids(setup.gateway, batch)
        await request_successfully(
            setup.gateway, "PATCH", f"/batches/{batch}/payments/{payment}", {"sourceAmount": "6.00"}
        )
        await setup.wait_until_idle()
        await setup.make_old(batch_payments, "updated_at")
        for count in (1, 0):
            deleted_counts = await delete_expired_data(setup.store, DEFAULT_RETENTION)
            assert deleted_counts["texts"] == count, "looked at once"
            (entry,) = await setup.load_entries(batch)
            assert (entry["memo"], entry["recipient"]["email"]) == (MEMO, "ada@example.com")
        await request_successfully(setup.gateway, "DELETE", f"/batches/{batch}")
        await setup.wait_until_idle()
        await setup.make_old(batch_payments, "updated_at")
        assert (await delete_expired_data(setup.store, DEFAULT_RETENTION))["texts"] == 1
        (entry,) = await setup.load_entries(batch)
        assert "memo" not in entry
        assert entry["recipient"].keys() == {"id"}
        assert not await fetch(setup.store, select(draft_payments))


async def test_payment_without_known_payee_does_not_block_deletion(
    tmp_path: Path,
    state: State,  # noqa: F811
) -> None:
    async with open_gateway_with_store(tmp_path, state) as setup:
        entry = {"id": "P-1", "recipient": {}, "sourceAmount": "1.00", "memo": MEMO}
        state_store = ObjectStateStore(setup.store)
        await compare_and_set(state_store, TENANT, "payments", "B-1", {"entries": [entry]})
        await setup.make_old(batch_payments, "updated_at")
        assert (await delete_expired_data(setup.store, DEFAULT_RETENTION))["texts"] == 1
        assert await setup.load_entries("B-1") == [
            {"id": "P-1", "recipient": {}, "sourceAmount": "1.00"}
        ]


async def test_usage_and_audit_log_have_their_own_retention(
    tmp_path: Path,
    state: State,  # noqa: F811
) -> None:
    async with open_gateway_with_store(tmp_path, state) as setup:
        await create_recipient(setup.gateway)

        async def is_usage_counted() -> bool:
            return bool(await load_usage(setup.store))

        await wait_until_async(is_usage_counted)
        await setup.make_old(request_counts, "began_at")
        row = {"id": "1", "action": "froze", "actor": "x", "merchant": "", "environment": ""}
        await execute(
            setup.store, audit_events.insert().values(**row, at=setup.store.clock() - 3 * LONG_TIME)
        )
        await delete_expired_data(setup.store, Retention(usage_days=0, audit_days=0))
        assert await setup.count_rows(request_counts, audit_events) == [3, 2]
        await delete_expired_data(setup.store, Retention(usage_days=600, audit_days=1600))
        assert await setup.count_rows(request_counts, audit_events) == [3, 2]
        deleted_counts = await delete_expired_data(setup.store, DEFAULT_RETENTION)
        assert (deleted_counts["usage"], deleted_counts["audit"]) == (1, 1)
        assert await setup.count_rows(request_counts, audit_events) == [2, 1], (
            "that a key was imported was just noted"
        )


async def test_running_gateway_deletes_expired_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.operator.retention.SWEEP_INTERVAL_SECONDS", 0.05)
    async with open_operated_gateway(tmp_path) as setup, setup.open_store() as store:
        stored = GatewayWithStore(setup.gateway, store)
        await create_recipient(setup.gateway)
        await create_recipient(setup.gateway, "eve")
        await stored.wait_until_idle()
        await stored.make_old(operations, "started_at")
        async with RetentionTask(store, DEFAULT_RETENTION):

            async def is_deleted() -> bool:
                return (await stored.count_rows(operations)) == [1]

            await wait_until_async(is_deleted)


@pytest.mark.parametrize("days", [1, 29, -1])
def test_retention_below_the_minimum_is_refused(days: int) -> None:
    with pytest.raises(ValidationError):
        Retention(journal_days=days)


async def test_signed_changes_are_deleted_after_a_day(state: State) -> None:  # noqa: F811
    async with open_store(state) as store:
        state_store = ObjectStateStore(store)
        for number in range(MAX_ROWS_PER_TRANSACTION + 1):
            await compare_and_set(state_store, TENANT, "signed", f"B-{number}", {"last": "a name"})
        old = update(signed_changes).where(signed_changes.c.id != "B-0")
        await execute(store, old.values(updated_at=store.clock() - timedelta(days=2)))
        await compare_and_set(state_store, TENANT, "batch", "B-1", {"phase": "sent"})
        await delete_expired_data(store, DEFAULT_RETENTION)
        assert list(await state_store.load_facts_by_id(TENANT, "signed")) == ["B-0"]
        assert await state_store.load(TENANT, "batch", "B-1")
