"""A merchant who has been here for long: what a request costs does not grow with what was, or keeps
nobody else waiting.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gateway.operator.ledger_reconciliation import open_reconciler
from gateway.operator.metrics_page import load_gauges
from gateway.simulator import Service, Switches
from gateway.storage import Ledger, Store, Tenant, ledger, open_store
from gateway.storage.abandoned import abandoned_batches
from gateway.storage.id_rows import keep
from gateway.writes.player import MANY
from mappings import recipient_queries
from mappings.effects import CompareAndSet
from tests.house import KEY, House, settings_for
from tests.payday import done, make_batch, make_recipient, open_town, payment_ids
from tests.states import recorded_statements

OWNER = Tenant(KEY["merchant"], KEY["environment"])
LONG_AGO = MANY + 500
"""How many there are of everything."""


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with open_town(tmp_path, Service(seed=1)) as (house, _simulator):
        async with open_store(house.settings.state) as store:
            numbers = range(LONG_AGO)
            of_payments = [
                CompareAndSet(
                    "alias", f"P-OLD{number:013}", {"id": f"P-{number:016}", "batch": "B-OLD"}
                )
                for number in numbers
            ]
            gone = [
                CompareAndSet("recipient", f"R-OLD{number}", {"deleted": True})
                for number in numbers
            ]
            batches = [
                CompareAndSet("batch", f"B-OLD{number}", {"phase": "deleted"}) for number in numbers
            ]
            await Ledger(store).record_all(OWNER, [*of_payments, *gone, *batches])
            await keep(store, OWNER, {f"P-NAME{number}": f"P-LONG{number}" for number in numbers})
        yield house


@pytest.fixture
def rows_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How much each look into the state found."""
    found: list[int] = []
    plain, plain_names = Store.read, Ledger.legacy_ids

    async def read(store: Store, body: Any, **options: Any) -> Any:
        came = await plain(store, body, **options)
        found.append(len(came) if isinstance(came, list | tuple) else 1)
        return came

    async def legacy_ids(its: Ledger, *those: Any) -> dict[str, str]:
        names = await plain_names(its, *those)
        found.append(len(names))
        return names

    monkeypatch.setattr(Store, "read", read)
    monkeypatch.setattr(Ledger, "legacy_ids", legacy_ids)
    return found


async def test_a_recipients_payments_are_named_without_all_that_was_ever_renamed(
    house: House, rows_read: list[int]
) -> None:
    recipient = await make_recipient(house)
    await make_batch(house, recipient, "1.00")
    rows_read.clear()
    shown = await done(house, "GET", f"/recipients/{recipient}/payments")
    assert len(shown["payments"]) == 1
    assert rows_read
    assert sum(rows_read) < 10, rows_read


async def test_to_search_for_a_payment_asks_for_the_names_of_those_that_there_are(
    house: House, rows_read: list[int]
) -> None:
    recipient = await make_recipient(house)
    batch = await make_batch(house, recipient, "1.00")
    (payment,) = await payment_ids(house, batch)
    rows_read.clear()
    path = f"/batches/{batch}/payments?search={payment[-6:].lower()}"
    (found,) = (await done(house, "GET", path))["payments"]
    assert found["id"] == payment
    assert rows_read
    assert sum(rows_read) < 20, rows_read


async def test_payments_of_batches_that_are_complete_are_counted_once(tmp_path: Path) -> None:
    service = Service(seed=1, switches=Switches(processing_seconds=0))
    async with open_town(tmp_path, service) as (house, _simulator):
        recipient = await make_recipient(house)
        batches = [await make_batch(house, recipient, "1.00", "2.00") for _ in range(6)]
        for batch in batches[:5]:
            await done(house, "POST", f"/batches/{batch}/start-processing")
        first = await done(house, "GET", "/payments?pageSize=3")
        service.requests.clear()
        again = await done(house, "GET", "/payments?pageSize=3")
        assert again == first
        assert first["meta"] == {"page": 1, "pages": 4, "records": 12}
        # The one that is open, and the newest of the others.
        assert len([one for one in service.requests if one.target.endswith("/summary")]) == 2
        pages = [
            (await done(house, "GET", f"/payments?pageSize=3&page={page}"))["payments"]
            for page in (1, 2, 3, 4)
        ]
        shown = [one["id"] for page in pages for one in page]
        assert len(set(shown)) == len(shown) == 12


async def test_of_a_recipients_payments_no_batch_without_memos_is_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_into: list[str] = []
    plain = Ledger.recall

    async def recall(its: Ledger, owner: Tenant, kind: str, id_: str) -> dict[str, Any]:
        if kind == "payments":
            looked_into.append(id_)
        return await plain(its, owner, kind, id_)

    service, legacy = Service(seed=1), {"send_memo": False}
    async with open_town(tmp_path, service, legacy=legacy) as (house, _simulator):
        recipient = await make_recipient(house)
        batches = [await make_batch(house, recipient, "1.00", "2.00") for _ in range(3)]
        path = f"/recipients/{recipient}/payments"
        monkeypatch.setattr(Ledger, "recall", recall)
        shown = (await done(house, "GET", path))["payments"]
        assert len(shown) == 6
        assert not any(one["memo"] for one in shown)
        assert looked_into == []

        # It has one once a payment gets one, by a change or with a payment that is added.
        (first, _second) = await payment_ids(house, batches[0])
        change = {"sourceAmount": "3.00", "memo": "March"}
        await done(house, "PATCH", f"/batches/{batches[0]}/payments/{first}", change)
        more = {"recipient": {"id": recipient}, "sourceAmount": "4.00", "memo": "April"}
        await done(house, "POST", f"/batches/{batches[1]}/payments", more)
        looked_into.clear()
        shown = (await done(house, "GET", path))["payments"]
        assert sorted(one["memo"] for one in shown if one["memo"]) == ["April", "March"]
        assert len(set(looked_into)) == 2


async def test_the_memo_of_a_recipients_only_payment_in_a_batch_is_shown_without_reading_the_batch(
    tmp_path: Path,
) -> None:
    service, legacy = Service(seed=1), {"send_memo": False}
    async with open_town(tmp_path, service, legacy=legacy) as (house, _simulator):
        ada, bob = await make_recipient(house), await make_recipient(house, "bob")
        for month in ("March", "April"):
            payments = [
                {"recipient": {"id": one}, "sourceAmount": "7.00", "memo": f"{month} {one}"}
                for one in (ada, bob)
            ]
            await done(house, "POST", "/batches", {"sourceCurrency": "USD", "payments": payments})
        # Of two in a batch it is only seen there which is which.
        twice = [
            {"recipient": {"id": bob}, "sourceAmount": "7.00", "memo": memo} for memo in ("a", "b")
        ]
        await done(house, "POST", "/batches", {"sourceCurrency": "USD", "payments": twice})
        service.requests.clear()
        shown = (await done(house, "GET", f"/recipients/{ada}/payments"))["payments"]
        assert sorted(one["memo"] for one in shown) == [f"April {ada}", f"March {ada}"]
        assert not [one for one in service.requests if one.target.endswith("/summary")]
        shown = (await done(house, "GET", f"/recipients/{bob}/payments"))["payments"]
        memos = [f"April {bob}", f"March {bob}", "a", "b"]
        assert sorted(one["memo"] for one in shown) == memos
        assert len([one for one in service.requests if one.target.endswith("/summary")]) == 1
        (newest,) = (await done(house, "GET", f"/recipients/{bob}/payments?pageSize=1"))["payments"]
        assert newest["memo"] == shown[0]["memo"]


async def test_nobody_waits_while_very_much_that_is_remembered_is_gone_through(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    plain_opened, plain_find = Ledger._opened, recipient_queries.build_list_query

    def opened(its: Ledger, owner: Tenant, kind: str, rows: Any) -> Any:
        if len(rows) >= LONG_AGO:
            threads.append(threading.current_thread().name)
        return plain_opened(its, owner, kind, rows)

    def find(query: Any, remembered: Any) -> Any:
        threads.append(threading.current_thread().name)
        return plain_find(query, remembered)

    monkeypatch.setattr(Ledger, "_opened", opened)
    monkeypatch.setattr(recipient_queries, "build_list_query", find)
    recipient = await make_recipient(house)
    listed = await done(house, "GET", "/recipients")
    assert [one["id"] for one in listed["recipients"]] == [recipient]
    await done(house, "GET", "/batches")
    assert len(threads) == 3
    assert all(name.startswith("aside") for name in threads), threads


async def test_whether_abandoned_batches_were_started_is_looked_for_among_those_alone(
    house: House, rows_read: list[int]
) -> None:
    async with open_store(house.settings.state) as store:
        await Ledger(store).record(OWNER, "alias", "B-LEFT", {"abandoned": True})
        rows_read.clear()
        async with open_reconciler(house.settings, store) as reconciler:
            assert await reconciler.check_superseded_batches() == []
    assert rows_read
    assert sum(rows_read) < 10, rows_read


async def test_for_the_figures_nothing_is_gone_through_that_is_over(tmp_path: Path) -> None:
    async with open_store(settings_for(tmp_path, "http://127.0.0.1:1").state) as store:
        with recorded_statements() as looks:
            await load_gauges(store)
        assert len(looks) == 8
        with closing(sqlite3.connect(tmp_path / "gateway.db")) as connection:
            for look, values in looks:
                its = f"EXPLAIN QUERY PLAN {look}"
                plan = [row[3] for row in connection.execute(its, values)]
                for one in plan:
                    goes_through = one.startswith(("SCAN journal", "SCAN writes"))
                    is_small = one.endswith(
                        (" ix_journal_open", " ix_writes_sent", " ix_writes_may_exist")
                    )
                    assert is_small or not goes_through, (look, plan)


async def test_abandoned_batches_are_found_by_an_index(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, "http://127.0.0.1:1")
    async with open_store(settings.state) as store:
        await Ledger(store).record(OWNER, "alias", "B-1", {"abandoned": True})
        with recorded_statements() as recorded:
            assert (await load_gauges(store)).abandoned == 1
            assert [one.upstream for one in await abandoned_batches(store)] == ["B-1"]
        looks = [
            *(statement for statement, _values in recorded if "abandoned" in statement),
            ledger._ABANDONED.compiled("sqlite").text,
        ]
        assert len(looks) == 3
        with closing(sqlite3.connect(tmp_path / "gateway.db")) as connection:
            for look in looks:
                its = f"EXPLAIN QUERY PLAN {look}"
                count = look.count("?")
                plan = connection.execute(its, ("",) * count).fetchall()
                assert "ix_remembered_abandoned" in str(plan), (look, plan)
