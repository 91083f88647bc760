"""Filters of lists of batches and payments, checked against the unfiltered list.

A filtered list is the unfiltered list without the rows that do not match: in the same order,
counted, page by page, in front of a service that lists batches and of one that does not.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import pytest_asyncio

from gateway.simulator.batches import insert_batch, insert_payment
from gateway.simulator.state import Batch, Payment, PaymentTerms, format_timestamp
from gateway.storage import ObjectStateStore, open_store
from mappings.effects import CompareAndSet
from tests.metrics_scrape import fetch_metrics, measure_increase
from tests.payouts import create_recipient, open_gateway_and_service, request_successfully
from tests.running_gateway import GatewayUnderTest
from tests.simulator import Fault, Service, ServiceOptions
from tests.state import TENANT

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERVICES = {
    "full": ServiceOptions(processing_seconds=0.01, recipient_id_length=22),
    "bare": ServiceOptions(processing_seconds=0.01, inferred=False, answers="bare"),
}


@dataclass(slots=True)
class GatewayAndService:
    """A gateway, its service, and the recipient ids by name."""

    gateway: GatewayUnderTest
    service: Service
    recipient_ids: dict[str, str]

    async def list_all(self, path: str, size: int = 1000, **query: str) -> list[dict[str, Any]]:
        """Lists the rows of all pages, and checks the counts in ``meta``."""
        rows: list[dict[str, Any]] = []
        name = path.rpartition("/")[2]
        for page in itertools.count(1):
            parameters = urlencode({**query, "page": page, "pageSize": size})
            body = await request_successfully(self.gateway, "GET", f"{path}?{parameters}")
            rows += body[name]
            if page >= body["meta"]["pages"]:
                assert body["meta"]["records"] == len(rows)
                assert body["meta"]["page"] == page
                return rows
        raise AssertionError


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=SERVICES)
async def gateway_and_service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[GatewayAndService]:
    """Batches of every status in two currencies, with target amounts and an edited batch."""
    service = Service(seed=1, options=SERVICES[request.param])
    folder = tmp_path_factory.mktemp("filters")
    async with open_gateway_and_service(folder, service) as (gateway, _simulator):
        setup = GatewayAndService(gateway, service, {})
        for name, country in (("ada", "US"), ("bea", "CA"), ("cid", "DE")):
            setup.recipient_ids[name] = await create_recipient(gateway, name)
            tenant = service.find_or_create_tenant()
            last_recipient = [*tenant.recipients.values()][-1]
            last_recipient.fields["address"] = {**last_recipient.address, "country": country}
        batches = [
            await _create_batch(setup, "USD", "100.00", *names)
            for names in (["ada"], ["bea"], ["ada", "cid"], ["cid"], [])
        ]
        batches.append(await _create_batch(setup, "EUR", "25.00", "bea", "ada"))
        to_another = {
            "recipient": {"id": setup.recipient_ids["ada"]}, "targetAmount": "7.00", "targetCurrency": "EUR",
            "memo": "arrives in euros",
        }  # fmt: skip
        await request_successfully(gateway, "POST", f"/batches/{batches[0]}/payments", to_another)
        await _create_batch(setup, "USD", "99999999.00", "ada")  # the balance does not cover it
        for batch in batches[1:3]:
            await request_successfully(gateway, "POST", f"/batches/{batch}/start-processing")
        first_payment = (await request_successfully(gateway, "GET", f"/batches/{batches[3]}"))[
            "batch"
        ]["payments"]
        path = f"/batches/{batches[3]}/payments/{first_payment['payments'][0]['id']}"
        await request_successfully(
            gateway, "PATCH", path, {"memo": "edited"}
        )  # a draft if the endpoint is missing
        yield setup


async def _create_batch(setup: GatewayAndService, currency: str, amount: str, *names: str) -> str:
    payments = [
        {
            "recipient": {"id": setup.recipient_ids[name]},
            "sourceAmount": amount,
            "memo": f"for {name}",
        }
        for name in names
    ]
    body = {"sourceCurrency": currency, "payments": payments}
    return str((await request_successfully(setup.gateway, "POST", "/batches", body))["batch"]["id"])


# Expected matches, computed from the unfiltered list

Row = dict[str, Any]


def matches_row(row: Row, query: dict[str, str]) -> bool:
    """Whether the fields of a payment or batch match the query."""
    created_at = row["createdAt"]
    checks = {
        "status": lambda value: row["status"] == value,
        "startDate": lambda value: created_at >= value,
        "endDate": lambda value: created_at[: len(value)] <= value,
        "sourceCurrency": lambda value: row.get("sourceCurrency", row.get("currency")) == value,
    }
    return all(checks[name](value) for name, value in query.items() if name in checks)


def matches_payment(payment: Row, query: dict[str, str]) -> bool:
    recipient = payment["recipient"]
    country = recipient.get("country") or (recipient.get("address") or {}).get("country")
    checks = {
        "recipient": lambda value: value in (recipient["id"], recipient["email"]),
        "country": lambda value: country == value,
        "targetCurrency": lambda value: payment["targetCurrency"] == value,
    }
    return all(checks[name](value) for name, value in query.items() if name in checks)


PAYMENT_FILTERS = ("recipient", "country", "targetCurrency")


def iterate_queries(rows: list[Row], recipient_ids: dict[str, str]) -> Iterator[dict[str, str]]:
    """Iterates over each filter, and over pairs and triples of filters."""
    times = sorted(row["createdAt"] for row in rows)
    values = {
        "status": [*sorted({row["status"] for row in rows}), "accepted"],
        "startDate": [times[len(times) // 2], times[0][:10], "2100-01-01"],
        "endDate": [times[len(times) // 2], times[0][:10], "2001-01-01"],
        "sourceCurrency": ["USD", "EUR", "JPY"],
        "recipient": [recipient_ids["ada"], recipient_ids["cid"], "bea@example.com"],
        "country": ["US", "CA", "FR"],
        "targetCurrency": ["USD", "EUR"],
    }
    for name, filter_values in values.items():
        for value in filter_values:
            yield {name: value}
    for count in (2, 3):
        for names in itertools.combinations(values, count):
            yield {name: values[name][sum(map(len, names)) % 2] for name in names}


async def list_when_complete(gateway_and_service: GatewayAndService, path: str) -> list[Row]:
    """Lists the rows once no batch is processing."""
    for _ in range(100):
        rows = await gateway_and_service.list_all(path)
        if not any(row["status"] == "processing" for row in rows):
            return rows
    raise AssertionError


async def test_filtered_batches_are_the_matching_batches(
    gateway_and_service: GatewayAndService,
) -> None:
    rows = await list_when_complete(gateway_and_service, "/batches")
    assert {row["status"] for row in rows} == {"open", "pending", "complete"}
    batch_body = {
        row["id"]: (
            await request_successfully(gateway_and_service.gateway, "GET", f"/batches/{row['id']}")
        )["batch"]
        for row in rows
    }

    def matches(row: Row, query: dict[str, str]) -> bool:
        if not matches_row(row, query):
            return False
        payments = batch_body[row["id"]]["payments"]["payments"]
        has_payment_filter = any(name in query for name in PAYMENT_FILTERS)
        return not has_payment_filter or any(
            matches_payment(payment, query) for payment in payments
        )

    await check_filtered_lists(gateway_and_service, "/batches", rows, matches)


async def test_filtered_payments_are_the_matching_payments(
    gateway_and_service: GatewayAndService,
) -> None:
    await list_when_complete(gateway_and_service, "/batches")
    rows = await gateway_and_service.list_all("/payments")
    assert len(rows) == 9
    await check_filtered_lists(
        gateway_and_service,
        "/payments",
        rows,
        lambda row, q: matches_row(row, q) and matches_payment(row, q),
    )


async def test_filtered_payments_of_a_recipient_are_the_matching_payments(
    gateway_and_service: GatewayAndService,
) -> None:
    await list_when_complete(gateway_and_service, "/batches")
    path = f"/recipients/{gateway_and_service.recipient_ids['ada']}/payments"
    rows = await gateway_and_service.list_all(path)
    assert len(rows) == 5
    await check_filtered_lists(
        gateway_and_service,
        path,
        rows,
        lambda row, q: matches_row(row, q) and matches_payment(row, q),
    )


async def check_filtered_lists(
    gateway_and_service: GatewayAndService,
    path: str,
    rows: list[Row],
    matches: Callable[[Row, dict[str, str]], bool],
) -> None:
    sizes: set[int] = set()
    for query in iterate_queries(rows, gateway_and_service.recipient_ids):
        expected_ids = [row["id"] for row in rows if matches(row, query)]
        sizes.add(len(expected_ids))
        size = 2 if len(query) == 1 else 1000
        response = [row["id"] for row in await gateway_and_service.list_all(path, size, **query)]
        assert response == expected_ids, query
    assert len(sizes) > 3, "the filters left as much each time"


async def test_search_is_combined_with_filters(gateway_and_service: GatewayAndService) -> None:
    rows = await gateway_and_service.list_all("/payments", search="for ADA", sourceCurrency="EUR")
    assert [row["memo"] for row in rows] == ["for ada"]
    path = f"/recipients/{gateway_and_service.recipient_ids['ada']}/payments"
    rows = await gateway_and_service.list_all(path, search="euros")
    assert [row["memo"] for row in rows] == ["arrives in euros"]
    assert await gateway_and_service.list_all(path, search="for bea") == []
    listed_batches = (await gateway_and_service.list_all("/batches"))[0]
    rows = await gateway_and_service.list_all(
        "/batches", search=listed_batches["id"][4:].lower(), status=listed_batches["status"]
    )
    assert rows == [listed_batches]
    assert (
        await gateway_and_service.list_all(
            "/batches", search=listed_batches["id"], status="accepted"
        )
        == []
    )


async def test_unknown_value_matches_nothing_and_invalid_date_is_ignored(
    gateway_and_service: GatewayAndService,
) -> None:
    for path in (
        "/batches",
        "/payments",
        f"/recipients/{gateway_and_service.recipient_ids['ada']}/payments",
    ):
        all_rows = await gateway_and_service.list_all(path)
        for name in ("status", "recipient", "country", "sourceCurrency", "targetCurrency"):
            assert await gateway_and_service.list_all(path, **{name: "nonsense"}) == []
            assert await gateway_and_service.list_all(path, **{name: ""}) == all_rows
        for query in ({"startDate": "soon"}, {"endDate": "never"}, {"unheardOf": "1"}):
            assert await gateway_and_service.list_all(path, **query) == all_rows
        assert await gateway_and_service.list_all(
            path, sourceCurrency="usd", country="usa"
        ) == await gateway_and_service.list_all(path, sourceCurrency="USD", country="US")


async def test_date_filters_include_whole_days(gateway_and_service: GatewayAndService) -> None:
    rows = await gateway_and_service.list_all("/payments")
    day = rows[0]["createdAt"][:10]
    assert await gateway_and_service.list_all("/payments", startDate=day, endDate=day) == rows


@pytest.mark.parametrize("status", [503, 404], ids=["error", "page of a proxy"])
async def test_partly_unreadable_list_is_an_internal_error(
    gateway_and_service: GatewayAndService, status: int
) -> None:
    await list_when_complete(gateway_and_service, "/batches")
    id_ = [*gateway_and_service.service.find_or_create_tenant().batches][-1]
    for query in ("country=US", "status=pending&recipient=ada@example.com"):
        for path in ("/batches", "/payments"):
            fault = Fault("GET", f"/v1/batch/{id_}/summary", status=status, times=50)
            gateway_and_service.service.faults.append(fault)
            response = await gateway_and_service.gateway.request("GET", f"/v1{path}?{query}")
            gateway_and_service.service.faults.remove(fault)
            assert response.status == 500, (path, query, response.text)


async def test_search_in_unreadable_memos_is_an_internal_error(tmp_path: Path) -> None:
    """A service without memos: only its summary says which of two payments has which memo."""
    options = ServiceOptions(deviations=frozenset({"memo/ignored"}))
    service = Service(seed=1, options=options)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        payments = [
            {"recipient": {"id": recipient}, "sourceAmount": amount, "memo": memo}
            for amount, memo in (("1.00", "rent"), ("2.00", "tools"))
        ]
        body = {"sourceCurrency": "USD", "payments": payments}
        await request_successfully(gateway, "POST", "/batches", body)
        path = f"/recipients/{recipient}/payments"
        (row,) = (await request_successfully(gateway, "GET", f"{path}?search=rent"))["payments"]
        assert (row["memo"], row["sourceAmount"]) == ("rent", "1.00")
        service.faults.append(Fault("GET", "/v1/batch/*/summary", status=503, times=50))
        assert (await gateway.request("GET", f"/v1{path}?search=rent")).status == 500
        assert (await gateway.request("GET", f"/v1{path}")).status == 200


async def test_ignored_parameters_are_counted(gateway_and_service: GatewayAndService) -> None:
    running = gateway_and_service.gateway.running
    scrape_before = await fetch_metrics(gateway_and_service.gateway.session, running.admin_url)
    await gateway_and_service.list_all("/batches", unheardOf="1", foo="2", status="open")
    scrape_after = await fetch_metrics(gateway_and_service.gateway.session, running.admin_url)
    name = "payout_gateway_ignored_parameters_total"
    assert measure_increase(scrape_after, scrape_before, name, operation="list_batches") == 2


def _add_old_payments(service: Service, recipient_id: str, count: int) -> None:
    """Adds processed payments in an order that is not that of their dates."""
    tenant, payee = service.find_or_create_tenant(), service.require_recipient(recipient_id)
    terms = PaymentTerms("wallet", Decimal(5), "USD", Decimal(5), "USD", Decimal(1), Decimal(0))
    for number in range(count):
        created_at = datetime(2025, 1, 1, tzinfo=UTC) + timedelta(hours=number * 611 % 8760)
        batch = Batch(f"B-OLD{number}", "USD", "", created_at, created_at, state="processed")
        payment = Payment(
            f"P-OLD{number}", batch, payee, Decimal(5), "USD", "", terms, created_at, created_at
        )
        tenant.payments[payment.id] = payment


async def test_filtered_list_of_many_pages_keeps_its_order(tmp_path: Path) -> None:
    service = Service(seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        setup = GatewayAndService(gateway, service, {"ada": await create_recipient(gateway)})
        recipient_id = next(iter(service.find_or_create_tenant().recipients))
        _add_old_payments(service, recipient_id, 1400)
        path = f"/recipients/{setup.recipient_ids['ada']}/payments"
        rows = await setup.list_all(path)
        for payment in [*service.find_or_create_tenant().payments.values()][::3]:
            payment.created_at = datetime.fromisoformat(rows[0]["createdAt"])  # many of one moment
        rows = await setup.list_all(path)
        middle_time = sorted(row["createdAt"] for row in rows)[700]
        request_count = len(service.list_requests())
        listed_rows = await setup.list_all(path, startDate=middle_time)
        assert listed_rows == [row for row in rows if row["createdAt"] >= middle_time]
        assert len(listed_rows) > 500
        assert len(service.list_requests()) - request_count <= -(-1400 // 250) + 3


# What it costs: the bounds that deploy/clients.md states for 1,000 batches

BATCH_COUNT, PAGE_SIZE = 1000, 10


async def _seed_batches(gateway: GatewayUnderTest, service: Service) -> None:
    """Seeds batches at the service and in the ledger: nine of ten are complete."""
    tenant, start_time = service.find_or_create_tenant(), datetime(2026, 1, 1, tzinfo=UTC)
    payee = next(iter(tenant.recipients.values()))
    states: list[CompareAndSet] = []
    for number in range(BATCH_COUNT):
        created_at = start_time + timedelta(hours=number)
        batch = Batch("", "USD", "", created_at=created_at, updated_at=created_at)
        insert_batch(tenant, batch, [])
        terms = PaymentTerms("wallet", Decimal(5), "USD", Decimal(5), "USD", Decimal(1), Decimal(0))
        dates = (created_at, created_at)
        insert_payment(
            tenant, batch, Payment("", batch, payee, Decimal(5), "USD", "", terms, *dates)
        )
        for payment in batch.payments.values():
            payment.created_at = created_at
        if number % 10:
            batch.state, batch.sent_at, batch.completed_at = "processed", created_at, created_at
            next(iter(batch.payments.values())).status = "processed"
        batch_state = {"phase": "sent", "version": 1, "upstream": batch.id, "currency": "USD",
                 "createdAt": format_timestamp(created_at), "started": format_timestamp(created_at) if number % 10 else None}  # fmt: skip
        states.append(CompareAndSet("batch", batch.id, batch_state))
    async with open_store(gateway.settings.state) as store:
        await ObjectStateStore(store).compare_and_set_all(TENANT, states)


@pytest.mark.parametrize("inferred", [True, False], ids=["listed", "bare"])
async def test_filtered_list_makes_at_most_the_documented_calls(
    tmp_path: Path, *, inferred: bool
) -> None:
    service = Service(seed=1, options=ServiceOptions(inferred=inferred, answers="bare"))
    service.seed_recipients(1, seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        await _seed_batches(gateway, service)
        await request_successfully(
            gateway, "GET", "/batches"
        )  # detects if the service lists batches

        async def count_matches_and_calls(path: str, **query: str) -> tuple[int, int]:
            """Returns the number of matches and of upstream calls."""
            request_count = len(service.list_requests())
            body = await request_successfully(gateway, "GET", f"{path}?{urlencode(query)}")
            return body["meta"]["records"], len(service.list_requests()) - request_count

        pages, summaries, balance = BATCH_COUNT // 100, BATCH_COUNT, 1
        if inferred:
            assert await count_matches_and_calls("/batches", status="open") == (100, pages)
            assert await count_matches_and_calls(
                "/batches", startDate="2026-01-02", endDate="2026-01-02"
            ) == (
                24,
                pages,
            )
        else:
            records, call_count = await count_matches_and_calls("/batches", status="open")
            assert (records, call_count <= summaries + balance + PAGE_SIZE) == (100, True)
            # Complete batches do not change any more.
            records, call_count = await count_matches_and_calls("/batches", status="complete")
            assert (records, call_count <= BATCH_COUNT // 10 + balance + PAGE_SIZE) == (900, True)
            records, call_count = await count_matches_and_calls(
                "/batches", startDate="2026-01-02", endDate="2026-01-02"
            )
            # Two batches were created at midnight: only their summaries give the service's time.
            assert (records, call_count <= PAGE_SIZE + balance + 2) == (24, True)
        recipient = next(iter(service.find_or_create_tenant().recipients))
        records, call_count = await count_matches_and_calls(
            "/batches", recipient=recipient, status="open"
        )
        assert (records, call_count <= pages + summaries + balance) == (100, True)
        records, call_count = await count_matches_and_calls(
            "/payments", status="processed", country="ZZ"
        )
        assert (records, call_count <= pages + summaries) == (0, True)
        records, call_count = await count_matches_and_calls("/payments", startDate="2026-02-01")
        assert (records, call_count <= pages + BATCH_COUNT // 10 + 300) == (
            BATCH_COUNT - 31 * 24,
            True,
        )
