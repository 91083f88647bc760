"""What is forgotten by itself and on request, and what stays because nobody may be paid twice."""

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
from gateway.operator.retention import (
    MAX_ROWS_PER_TRANSACTION,
    RetentionTask,
    delete_expired,
    delete_expired_signed_changes,
)
from gateway.simulator import Service
from gateway.storage import Ledger, Store, Tenant, open_store
from gateway.storage.audit_log import acts_of
from gateway.storage.id_rows import current_ids
from gateway.storage.tables import (
    acts,
    journal,
    journal_steps,
    journal_subjects,
    remembered,
    usage,
    writes,
)
from gateway.storage.usage_rows import used_since
from tests.gateway.store.conftest import (  # noqa: F401 - fixtures
    database,
    postgres,
    sqlite,
    state,
)
from tests.house import House
from tests.operating import Post, eventually, lose_a_batch, post
from tests.payday import done, make_batch, make_recipient, open_town
from tests.states import execute, fetch

OWNER = Tenant("demo", "sandbox")
MEMO = "for the operation of Ada's knee"
AGES = timedelta(days=500)
DAYS = Retention()


@dataclass
class Town:
    house: House
    store: Store

    async def entries(self, batch: str) -> list[dict[str, Any]]:
        real = (await current_ids(self.store, OWNER, [batch])).get(batch, batch)
        found = await Ledger(self.store).recall(OWNER, "payments", real)
        return list(found["entries"])

    async def count(self, *tables: Any) -> list[int]:
        return [len(await fetch(self.store, select(one))) for one in tables]

    async def over(self) -> None:
        """Until nobody is waiting for anything any more."""

        async def none_is_open() -> bool:
            open_ones = select(journal.c.id).where(journal.c.state.in_(("running", "done")))
            return not await fetch(self.store, open_ones)

        await eventually(none_is_open)

    async def age(self, table: Any, *columns: str) -> None:
        for row in await fetch(self.store, select(table)):
            those = [column == getattr(row, column.name) for column in table.primary_key]
            earlier = {name: getattr(row, name) - AGES for name in columns}
            await execute(self.store, update(table).where(*those).values(**earlier))


@asynccontextmanager
async def town(folder: Path, state: State) -> AsyncIterator[Town]:  # noqa: F811
    settings = {"url": state.url, "encryption_key_file": str(state.encryption_key_file)}
    async with (
        open_town(folder, Service(seed=1), state=settings) as (house, _simulator),
        open_store(state) as store,
    ):
        yield Town(house, store)


async def paid(house: House, *addresses: str) -> str:
    """A batch that pays people by their addresses, so that the ledger has their names."""
    payments = [
        {"recipient": {"email": one}, "sourceAmount": "10.00", "memo": MEMO} for one in addresses
    ]
    body = {"sourceCurrency": "USD", "payments": payments}
    return str((await done(house, "POST", "/batches", body))["batch"]["id"])


# On request


async def test_of_an_erased_recipient_nothing_is_left_that_says_who_it_is(tmp_path: Path) -> None:
    async with post(tmp_path, seconds=5) as here, here.store() as store:
        here_town = Town(here.house, store)
        await make_recipient(here.house, "ada")
        eve = await make_recipient(here.house, "eve")
        hold = {"holdup": {"limit": 5, "active": False}}
        await done(here.house, "PATCH", f"/recipients/{eve}", {"payout": hold})
        batch = await paid(here.house, "ada@example.com", "eve@example.com")
        await here_town.over()
        ledger = Ledger(store)
        real = await here_town.entries(batch)
        assert [one["memo"] for one in real] == [MEMO, MEMO]
        assert real[1]["recipient"]["email"] == "eve@example.com"
        told = await here.told("erase", eve, "--key", await key_name(here), "--yes")
        assert told == {"payments": 1, "batches": 1, "facts": 1, "answers": 2}
        ada, erased = await here_town.entries(batch)
        assert ada == real[0]
        kept = {name: value for name, value in real[1].items() if name not in ("memo", "recipient")}
        assert erased == {**kept, "recipient": {"id": real[1]["recipient"]["id"]}}
        assert await ledger.recall(OWNER, "recipient", eve) == {}
        assert [act.what for act in await acts_of(store)] == [
            "imported 1 key",
            "erased a recipient",
        ]
        whole = await done(here.house, "GET", f"/batches/{batch}")
        assert whole["batch"]["totalPayments"] == 2, "the batch is what it was"


async def test_of_an_erased_recipient_answers_are_told_that_nobody_has_asked_for_yet(
    tmp_path: Path,
) -> None:
    async with post(tmp_path, seconds=5) as here:
        here.breaks("POST", "/v1/recipients", close="after")
        with pytest.raises(AssertionError):
            await make_recipient(here.house, "eve")

        async def is_settled() -> bool:
            return not (await here.told("writes", "unsettled"))["writes"]

        await eventually(is_settled)
        (eve,) = here.service.world().recipients
        told = await here.told("erase", eve, "--key", await key_name(here), "--yes")
        assert told["answers"] == 1


async def key_name(here: Post) -> str:
    return str((await here.told("keys", "list"))["keys"][0]["name"])


async def test_who_is_erased_and_was_deleted_stays_deleted(tmp_path: Path) -> None:
    async with post(tmp_path) as here:
        eve = await make_recipient(here.house, "eve")
        await done(here.house, "DELETE", f"/recipients/{eve}")
        async with here.store() as store:
            await Town(here.house, store).over()
        await here.says("erase", eve, "--key", await key_name(here), "--yes")
        assert (await here.house.ask("GET", f"/v1/recipients/{eve}")).status == 404


async def test_an_id_that_is_nobody_s_is_told_so(tmp_path: Path) -> None:
    """Who mistypes it has erased nobody."""
    async with post(tmp_path) as here:
        said = await here.says("erase", "R-nobody", "--key", await key_name(here), "--yes")
        assert "no data of R-nobody is stored for demo sandbox" in said.stdout


async def test_nobody_is_erased_whose_payment_is_still_being_made(tmp_path: Path) -> None:
    async with post(tmp_path, inferred=False) as here:
        eve = await make_recipient(here.house, "eve")
        batch = await make_batch(here.house, eve, "10.00", "20.00")
        body = {"payments": [{"recipient": {"id": eve}, "sourceAmount": "5.00"}]}
        await done(here.house, "PATCH", f"/batches/{batch}", body)
        async with here.store() as store:
            await Town(here.house, store).over()
        said = await here.says("erase", eve, "--key", await key_name(here), "--yes", code=2)
        assert "draft batches contain this recipient" in said.output
        await done(here.house, "DELETE", f"/batches/{batch}")
        async with here.store() as store:
            await Town(here.house, store).over()
        await here.says("erase", eve, "--key", await key_name(here), "--yes")


async def test_nobody_is_erased_of_whom_a_write_is_unsettled(tmp_path: Path) -> None:
    async with post(tmp_path, inferred=False) as here:
        eve = await make_recipient(here.house, "eve")
        await lose_a_batch(here, eve)
        said = await here.says("erase", eve, "--key", await key_name(here), "--yes", code=2)
        assert "unsettled" in said.output
        assert (await here.says("erase", eve, "--key", "nobody", "--yes", code=2)).output


# By itself


async def test_what_is_over_for_long_is_forgotten_and_the_last_of_it_stays(
    tmp_path: Path,
    state: State,  # noqa: F811
) -> None:
    async with town(tmp_path, state) as here:
        ada = await make_recipient(here.house)
        await make_batch(here.house, ada, "10.00")
        await here.over()
        before = await here.count(journal, writes, journal_subjects)
        assert all(count > 1 for count in before)
        assert (await delete_expired(here.store, DAYS))["journal"] == 0
        await here.age(journal, "began_at")
        gone = await delete_expired(here.store, DAYS)
        assert gone["journal"] == before[0] - 1
        rows, steps = await here.count(journal, journal_steps)
        assert (rows, steps) == (1, 0)
        left = await fetch(here.store, select(writes.c.undertaking).distinct())
        newest = (await fetch(here.store, select(journal.c.id)))[0].id
        assert {row.undertaking for row in left} <= {newest}
        # By its number it is known that the state is the latest one.
        assert not await is_restored(here.store, here.house.settings.state.mark)
        await make_batch(here.house, ada, "20.00")


async def test_what_nobody_knows_the_outcome_of_is_never_forgotten(tmp_path: Path) -> None:
    async with post(tmp_path, inferred=False) as here, here.store() as store:
        there = Town(here.house, store)
        await lose_a_batch(here)
        # Another, later one, so that it is not the last that keeps it.
        await make_recipient(here.house, "eve")
        await there.age(journal, "began_at")
        await delete_expired(store, DAYS)
        listed = await here.told("writes", "unsettled")
        assert len(listed["writes"]) == 1


async def test_names_and_memos_of_old_batches_go_and_the_payments_stay(
    tmp_path: Path,
    state: State,  # noqa: F811
) -> None:
    async with town(tmp_path, state) as here:
        await make_recipient(here.house, "ada")
        old = await paid(here.house, "ada@example.com")
        await here.over()
        await here.age(remembered, "updated_at")
        new = await paid(here.house, "ada@example.com")
        await here.over()
        was = await here.entries(old)
        assert (await delete_expired(here.store, DAYS))["texts"] == 1
        (one,) = await here.entries(old)
        assert set(was[0]) - set(one) == {"memo"}
        assert one["recipient"].keys() == {"id"}
        (other,) = await here.entries(new)
        assert (other["memo"], other["recipient"]["email"]) == (MEMO, "ada@example.com")
        assert (await delete_expired(here.store, DAYS))["texts"] == 0, "once"
        whole = await done(here.house, "GET", f"/batches/{old}")
        assert whole["batch"]["amount"] == "10.00"


async def test_a_payment_of_which_nobody_told_whom_it_pays_keeps_nothing_else_from_being_forgotten(
    tmp_path: Path,
    state: State,  # noqa: F811
) -> None:
    async with town(tmp_path, state) as here:
        entry = {"id": "P-1", "recipient": {}, "sourceAmount": "1.00", "memo": MEMO}
        ledger = Ledger(here.store)
        await ledger.record(OWNER, "payments", "B-1", {"entries": [entry]}, {})
        await here.age(remembered, "updated_at")
        assert (await delete_expired(here.store, DAYS))["texts"] == 1
        assert await here.entries("B-1") == [{"id": "P-1", "recipient": {}, "sourceAmount": "1.00"}]


async def test_usage_and_acts_go_by_their_own_time_and_stay_for_good_where_that_is_said(
    tmp_path: Path,
    state: State,  # noqa: F811
) -> None:
    async with town(tmp_path, state) as here:
        await make_recipient(here.house)

        async def counted() -> bool:
            return bool(await used_since(here.store))

        await eventually(counted)
        await here.age(usage, "day")
        row = {"id": "1", "what": "froze", "by": "x", "merchant": "", "environment": ""}
        await execute(here.store, acts.insert().values(**row, at=here.store.clock() - 3 * AGES))
        await delete_expired(here.store, Retention(usage_days=0, audit_days=0))
        assert await here.count(usage, acts) == [1, 2]
        await delete_expired(here.store, Retention(usage_days=600, audit_days=1600))
        assert await here.count(usage, acts) == [1, 2]
        await delete_expired(here.store, DAYS)
        assert await here.count(usage, acts) == [0, 1], "that a key was imported was just noted"


async def test_a_running_gateway_sweeps_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.operator.retention.EVERY_SECONDS", 0.05)
    async with post(tmp_path) as here, here.store() as store:
        there = Town(here.house, store)
        await make_recipient(here.house)
        await make_recipient(here.house, "eve")
        await there.over()
        await there.age(journal, "began_at")
        async with RetentionTask(store, DAYS):

            async def gone() -> bool:
                return (await there.count(journal)) == [1]

            await eventually(gone)


@pytest.mark.parametrize("days", [1, 29, -1])
def test_too_short_a_time_is_a_mistake(days: int) -> None:
    with pytest.raises(ValidationError):
        Retention(journal_days=days)


async def test_of_changes_that_clients_signed_nothing_is_kept_for_long(state: State) -> None:  # noqa: F811
    async with open_store(state) as store:
        ledger = Ledger(store)
        for number in range(MAX_ROWS_PER_TRANSACTION + 1):
            await ledger.record(OWNER, "signed", f"B-{number}", {"last": "a name"})
        old = update(remembered).where(remembered.c.id != "B-0")
        await execute(store, old.values(updated_at=store.clock() - timedelta(days=2)))
        await ledger.record(OWNER, "batch", "B-1", {"phase": "sent"})
        await delete_expired_signed_changes(store)
        assert list(await ledger.recall_all(OWNER, "signed")) == ["B-0"]
        assert await ledger.recall(OWNER, "batch", "B-1")
