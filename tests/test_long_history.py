"""Long-standing merchants: the cost of a request does not grow with their history."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gateway.operator.ledger_reconciliation import open_reconciler
from gateway.operator.state_gauges import load_state_gauges
from gateway.storage import ObjectStateStore, Store, Tenant, object_state, open_store
from gateway.storage.id_rows import save_legacy_ids
from gateway.storage.operation_statements import SELECT_UNSEEN_BATCHES
from gateway.storage.state_tables import SELECT_SUPERSEDED
from gateway.storage.superseded_batches import list_superseded_batches
from gateway.writes.executor import MANY_OBJECTS
from mappings import recipient_queries
from mappings.effects import CompareAndSet
from tests.payouts import (
    create_batch,
    create_recipient,
    load_payment_ids,
    open_gateway_and_service,
    request_successfully,
)
from tests.running_gateway import KEY, GatewayUnderTest, build_settings
from tests.simulator import Service, ServiceOptions
from tests.state import compare_and_set, record_statements

TENANT = Tenant(KEY["merchant"], KEY["environment"])
OLD_OBJECT_COUNT = MANY_OBJECTS + 500
"""The number of old objects of each kind."""


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[GatewayUnderTest]:
    async with open_gateway_and_service(tmp_path, Service(seed=1)) as (http_gateway, _simulator):
        async with open_store(http_gateway.settings.state) as store:
            numbers = range(OLD_OBJECT_COUNT)
            aliases = [
                CompareAndSet(
                    "alias", f"P-OLD{number:013}", {"id": f"P-{number:016}", "batch": "B-OLD"}
                )
                for number in numbers
            ]
            deleted = [
                CompareAndSet("recipient", f"R-OLD{number}", {"deleted": True})
                for number in numbers
            ]
            batches = [
                CompareAndSet("batch", f"B-OLD{number}", {"phase": "deleted"}) for number in numbers
            ]
            await ObjectStateStore(store).compare_and_set_all(
                TENANT, [*aliases, *deleted, *batches]
            )
            await save_legacy_ids(
                store, TENANT, {f"P-NAME{number}": f"P-LONG{number}" for number in numbers}
            )
        yield http_gateway


@pytest.fixture
def read_counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows that each read of the database returned."""
    counts: list[int] = []
    real_read, real_legacy_ids = Store.read, object_state.load_legacy_ids

    async def count_read(store: Store, body: Any, **options: Any) -> Any:
        rows = await real_read(store, body, **options)
        counts.append(len(rows) if isinstance(rows, list | tuple) else 1)
        return rows

    async def count_legacy_ids(*arguments: Any) -> dict[str, str]:
        names = await real_legacy_ids(*arguments)
        counts.append(len(names))
        return names

    monkeypatch.setattr(Store, "read", count_read)
    monkeypatch.setattr(object_state, "load_legacy_ids", count_legacy_ids)
    return counts


async def test_payments_of_a_recipient_are_listed_without_reading_all_aliases(
    gateway: GatewayUnderTest, read_counts: list[int]
) -> None:
    recipient = await create_recipient(gateway)
    await create_batch(gateway, recipient, "1.00")
    read_counts.clear()
    payment_list = await request_successfully(gateway, "GET", f"/recipients/{recipient}/payments")
    assert len(payment_list["payments"]) == 1
    assert read_counts
    assert sum(read_counts) < 10, read_counts


async def test_payment_search_reads_only_aliases_of_the_batch(
    gateway: GatewayUnderTest, read_counts: list[int]
) -> None:
    recipient = await create_recipient(gateway)
    batch = await create_batch(gateway, recipient, "1.00")
    (payment,) = await load_payment_ids(gateway, batch)
    read_counts.clear()
    path = f"/batches/{batch}/payments?search={payment[-6:].lower()}"
    (found_payment,) = (await request_successfully(gateway, "GET", path))["payments"]
    assert found_payment["id"] == payment
    assert read_counts
    assert sum(read_counts) < 20, read_counts


async def test_payments_of_complete_batches_are_counted_once(tmp_path: Path) -> None:
    service = Service(seed=1, options=ServiceOptions(processing_seconds=0))
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        batches = [await create_batch(gateway, recipient, "1.00", "2.00") for _ in range(6)]
        for batch in batches[:5]:
            await request_successfully(gateway, "POST", f"/batches/{batch}/start-processing")
        first_page = await request_successfully(gateway, "GET", "/payments?pageSize=3")
        service.requests.clear()
        repeated_page = await request_successfully(gateway, "GET", "/payments?pageSize=3")
        assert repeated_page == first_page
        assert first_page["meta"] == {"page": 1, "pages": 4, "records": 12}
        # The open batch, and the newest complete one.
        assert (
            len([request for request in service.requests if request.target.endswith("/summary")])
            == 2
        )
        pages = [
            (await request_successfully(gateway, "GET", f"/payments?pageSize=3&page={page}"))[
                "payments"
            ]
            for page in (1, 2, 3, 4)
        ]
        shown_ids = [entry["id"] for page in pages for entry in page]
        assert len(set(shown_ids)) == len(shown_ids) == 12


async def test_batches_without_memos_are_not_read_for_a_recipient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_batches: list[str] = []
    real_recall = ObjectStateStore.load

    async def count_recall(
        object_states: ObjectStateStore, tenant: Tenant, kind: str, id_: str
    ) -> dict[str, Any]:
        if kind == "payments":
            read_batches.append(id_)
        return await real_recall(object_states, tenant, kind, id_)

    service, legacy = Service(seed=1), {"send_memo": False}
    async with open_gateway_and_service(tmp_path, service, legacy=legacy) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        batches = [await create_batch(gateway, recipient, "1.00", "2.00") for _ in range(3)]
        path = f"/recipients/{recipient}/payments"
        monkeypatch.setattr(ObjectStateStore, "load", count_recall)
        payments = (await request_successfully(gateway, "GET", path))["payments"]
        assert len(payments) == 6
        assert not any(entry["memo"] for entry in payments)
        assert read_batches == []

        # A batch has memos after an update or an added payment with a memo.
        (first, _second) = await load_payment_ids(gateway, batches[0])
        change = {"sourceAmount": "3.00", "memo": "March"}
        await request_successfully(
            gateway, "PATCH", f"/batches/{batches[0]}/payments/{first}", change
        )
        added_payment = {"recipient": {"id": recipient}, "sourceAmount": "4.00", "memo": "April"}
        await request_successfully(
            gateway, "POST", f"/batches/{batches[1]}/payments", added_payment
        )
        read_batches.clear()
        payments = (await request_successfully(gateway, "GET", path))["payments"]
        assert sorted(entry["memo"] for entry in payments if entry["memo"]) == ["April", "March"]
        assert len(set(read_batches)) == 2


async def test_memo_of_an_only_payment_is_shown_without_reading_its_batch(
    tmp_path: Path,
) -> None:
    service, legacy = Service(seed=1), {"send_memo": False}
    async with open_gateway_and_service(tmp_path, service, legacy=legacy) as (gateway, _simulator):
        recipient, other_recipient = (
            await create_recipient(gateway),
            await create_recipient(gateway, "bob"),
        )
        for month in ("March", "April"):
            payment_bodies = [
                {"recipient": {"id": entry}, "sourceAmount": "7.00", "memo": f"{month} {entry}"}
                for entry in (recipient, other_recipient)
            ]
            await request_successfully(
                gateway, "POST", "/batches", {"sourceCurrency": "USD", "payments": payment_bodies}
            )
        # Two payments of one recipient can be told apart only by reading the batch.
        payment_bodies = [
            {"recipient": {"id": other_recipient}, "sourceAmount": "7.00", "memo": memo}
            for memo in ("a", "b")
        ]
        await request_successfully(
            gateway, "POST", "/batches", {"sourceCurrency": "USD", "payments": payment_bodies}
        )
        service.requests.clear()
        payments = (
            await request_successfully(gateway, "GET", f"/recipients/{recipient}/payments")
        )["payments"]
        assert sorted(entry["memo"] for entry in payments) == [
            f"April {recipient}",
            f"March {recipient}",
        ]
        assert not [request for request in service.requests if request.target.endswith("/summary")]
        payments = (
            await request_successfully(gateway, "GET", f"/recipients/{other_recipient}/payments")
        )["payments"]
        memos = [f"April {other_recipient}", f"March {other_recipient}", "a", "b"]
        assert sorted(entry["memo"] for entry in payments) == memos
        assert (
            len([request for request in service.requests if request.target.endswith("/summary")])
            == 1
        )
        (newest,) = (
            await request_successfully(
                gateway, "GET", f"/recipients/{other_recipient}/payments?pageSize=1"
            )
        )["payments"]
        assert newest["memo"] == payments[0]["memo"]


async def test_large_object_state_is_searched_in_a_thread(
    gateway: GatewayUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    real_decrypt, real_find = (
        ObjectStateStore._decode_unchunked_facts_by_id,
        recipient_queries.build_list_query,
    )

    def record_thread_of_decryption(
        object_states: ObjectStateStore, tenant: Tenant, kind: str, rows: Any
    ) -> Any:
        if len(rows) >= OLD_OBJECT_COUNT:
            threads.append(threading.current_thread().name)
        return real_decrypt(object_states, tenant, kind, rows)

    def record_thread_of_find(query: Any, states: Any) -> Any:
        threads.append(threading.current_thread().name)
        return real_find(query, states)

    monkeypatch.setattr(
        ObjectStateStore, "_decode_unchunked_facts_by_id", record_thread_of_decryption
    )
    monkeypatch.setattr(recipient_queries, "build_list_query", record_thread_of_find)
    recipient = await create_recipient(gateway)
    recipient_list = await request_successfully(gateway, "GET", "/recipients")
    assert [row["id"] for row in recipient_list["recipients"]] == [recipient]
    await request_successfully(gateway, "GET", "/batches")
    assert len(threads) == 3
    assert all(name.startswith("worker") for name in threads), threads


async def test_started_superseded_batches_are_searched_among_superseded_only(
    gateway: GatewayUnderTest, read_counts: list[int]
) -> None:
    async with open_store(gateway.settings.state) as store:
        await compare_and_set(
            ObjectStateStore(store), TENANT, "alias", "B-LEFT", {"abandoned": True}
        )
        read_counts.clear()
        async with open_reconciler(gateway.settings, store) as reconciler:
            assert await reconciler.check_superseded_batches() == []
    assert read_counts
    assert sum(read_counts) < 10, read_counts


async def test_metrics_queries_do_not_scan_finished_rows(tmp_path: Path) -> None:
    async with open_store(build_settings(tmp_path, "http://127.0.0.1:1").state) as store:
        with record_statements() as queries:
            await load_state_gauges(store)
        assert len(queries) == 6
        with closing(sqlite3.connect(tmp_path / "gateway.db")) as connection:
            for query, values in queries:
                explain = f"EXPLAIN QUERY PLAN {query}"
                plan = [row[3] for row in connection.execute(explain, values)]
                for entry in plan:
                    is_scan = entry.startswith(("SCAN operations", "SCAN upstream_writes"))
                    is_small = entry.endswith(
                        (
                            " ix_operations_open",
                            " ix_upstream_writes_may_exist",
                        )
                    )
                    assert is_small or not is_scan, (query, plan)


async def test_batches_that_may_exist_are_found_by_indexes(tmp_path: Path) -> None:
    async with open_store(build_settings(tmp_path, "http://127.0.0.1:1").state):
        query = SELECT_UNSEEN_BATCHES.compile_for_dialect("sqlite").text
        with closing(sqlite3.connect(tmp_path / "gateway.db")) as connection:
            values = ("",) * query.count("?")
            plan = str(connection.execute(f"EXPLAIN QUERY PLAN {query}", values).fetchall())
    assert "ix_upstream_writes_may_exist" in plan, plan
    assert "ix_operations_open" in plan, plan
    assert "ix_upstream_writes_merchant" not in plan, plan
    assert "SCAN operations" not in plan, plan


async def test_superseded_batches_are_found_by_an_index(tmp_path: Path) -> None:
    settings = build_settings(tmp_path, "http://127.0.0.1:1")
    async with open_store(settings.state) as store:
        await compare_and_set(ObjectStateStore(store), TENANT, "alias", "B-1", {"abandoned": True})
        with record_statements() as recorded:
            assert (await load_state_gauges(store)).superseded_batches == 1
            assert [batch.upstream_id for batch in await list_superseded_batches(store)] == ["B-1"]
        queries = [
            *(statement for statement, _values in recorded if "is_superseded" in statement),
            SELECT_SUPERSEDED.compile_for_dialect("sqlite").text,
        ]
        assert len(queries) == 3
        with closing(sqlite3.connect(tmp_path / "gateway.db")) as connection:
            for query in queries:
                explain = f"EXPLAIN QUERY PLAN {query}"
                count = query.count("?")
                plan = connection.execute(explain, ("",) * count).fetchall()
                assert "ix_id_redirects_superseded" in str(plan), (query, plan)
