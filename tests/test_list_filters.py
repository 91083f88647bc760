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

from gateway.simulator import Fault, Service, Switches
from gateway.simulator.batches import enter
from gateway.simulator.payment_rules import Order
from gateway.simulator.payments import add
from gateway.simulator.state import Batch, Terms, iso
from gateway.storage import Ledger, open_store
from mappings.effects import CompareAndSet
from tests.house import House
from tests.payday import done, make_recipient, open_town
from tests.scrape import more, scraped
from tests.state import TENANT

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERVICES = {
    "full": Switches(processing_seconds=0.01, recipient_id_length=22),
    "bare": Switches(processing_seconds=0.01, inferred=False, answers="bare"),
}


@dataclass(slots=True)
class Town:
    """A gateway, its service, and the recipient ids by name."""

    house: House
    service: Service
    payees: dict[str, str]

    async def listed(self, path: str, size: int = 1000, **query: str) -> list[dict[str, Any]]:
        """Lists the rows of all pages, and checks the counts in ``meta``."""
        rows: list[dict[str, Any]] = []
        name = path.rpartition("/")[2]
        for page in itertools.count(1):
            asked = urlencode({**query, "page": page, "pageSize": size})
            body = await done(self.house, "GET", f"{path}?{asked}")
            rows += body[name]
            if page >= body["meta"]["pages"]:
                assert body["meta"]["records"] == len(rows)
                assert body["meta"]["page"] == page
                return rows
        raise AssertionError


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=SERVICES)
async def town(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Town]:
    """Batches of every status in two currencies, with target amounts and an edited batch."""
    service = Service(seed=1, switches=SERVICES[request.param])
    folder = tmp_path_factory.mktemp("filters")
    async with open_town(folder, service) as (house, _simulator):
        made = Town(house, service, {})
        for name, country in (("ada", "US"), ("bea", "CA"), ("cid", "DE")):
            made.payees[name] = await make_recipient(house, name)
            world = service.world()
            real = [*world.recipients.values()][-1]
            real.fields["address"] = {**real.address, "country": country}
        batches = [
            await _batch(made, "USD", "100.00", *names)
            for names in (["ada"], ["bea"], ["ada", "cid"], ["cid"], [])
        ]
        batches.append(await _batch(made, "EUR", "25.00", "bea", "ada"))
        to_another = {
            "recipient": {"id": made.payees["ada"]}, "targetAmount": "7.00", "targetCurrency": "EUR",
            "memo": "arrives in euros",
        }  # fmt: skip
        await done(house, "POST", f"/batches/{batches[0]}/payments", to_another)
        await _batch(made, "USD", "99999999.00", "ada")  # the balance does not cover it
        for batch in batches[1:3]:
            await done(house, "POST", f"/batches/{batch}/start-processing")
        first = (await done(house, "GET", f"/batches/{batches[3]}"))["batch"]["payments"]
        path = f"/batches/{batches[3]}/payments/{first['payments'][0]['id']}"
        await done(house, "PATCH", path, {"memo": "edited"})  # a draft if the endpoint is missing
        yield made


async def _batch(made: Town, currency: str, amount: str, *names: str) -> str:
    payments = [
        {"recipient": {"id": made.payees[name]}, "sourceAmount": amount, "memo": f"for {name}"}
        for name in names
    ]
    body = {"sourceCurrency": currency, "payments": payments}
    return str((await done(made.house, "POST", "/batches", body))["batch"]["id"])


# Expected matches, computed from the unfiltered list

Row = dict[str, Any]


def fits(row: Row, query: dict[str, str]) -> bool:
    """Whether the fields of a payment or batch match the query."""
    created = row["createdAt"]
    tests = {
        "status": lambda value: row["status"] == value,
        "startDate": lambda value: created >= value,
        "endDate": lambda value: created[: len(value)] <= value,
        "sourceCurrency": lambda value: row.get("sourceCurrency", row.get("currency")) == value,
    }
    return all(tests[name](value) for name, value in query.items() if name in tests)


def pays(payment: Row, query: dict[str, str]) -> bool:
    recipient = payment["recipient"]
    country = recipient.get("country") or (recipient.get("address") or {}).get("country")
    tests = {
        "recipient": lambda value: value in (recipient["id"], recipient["email"]),
        "country": lambda value: country == value,
        "targetCurrency": lambda value: payment["targetCurrency"] == value,
    }
    return all(tests[name](value) for name, value in query.items() if name in tests)


OF_PAYMENTS = ("recipient", "country", "targetCurrency")


def queries(rows: list[Row], payees: dict[str, str]) -> Iterator[dict[str, str]]:
    """Iterates over each filter, and over pairs and triples of filters."""
    times = sorted(row["createdAt"] for row in rows)
    values = {
        "status": [*sorted({row["status"] for row in rows}), "accepted"],
        "startDate": [times[len(times) // 2], times[0][:10], "2100-01-01"],
        "endDate": [times[len(times) // 2], times[0][:10], "2001-01-01"],
        "sourceCurrency": ["USD", "EUR", "JPY"],
        "recipient": [payees["ada"], payees["cid"], "bea@example.com"],
        "country": ["US", "CA", "FR"],
        "targetCurrency": ["USD", "EUR"],
    }
    for name, those in values.items():
        for value in those:
            yield {name: value}
    for count in (2, 3):
        for names in itertools.combinations(values, count):
            yield {name: values[name][sum(map(len, names)) % 2] for name in names}


async def settled(town: Town, path: str) -> list[Row]:
    """Lists the rows once no batch is processing."""
    for _ in range(100):
        rows = await town.listed(path)
        if not any(row["status"] == "processing" for row in rows):
            return rows
    raise AssertionError


async def test_a_filtered_list_of_batches_is_the_list_less_the_others(town: Town) -> None:
    rows = await settled(town, "/batches")
    assert {row["status"] for row in rows} == {"open", "pending", "complete"}
    whole = {
        row["id"]: (await done(town.house, "GET", f"/batches/{row['id']}"))["batch"] for row in rows
    }

    def is_one(row: Row, query: dict[str, str]) -> bool:
        if not fits(row, query):
            return False
        payments = whole[row["id"]]["payments"]["payments"]
        asks = any(name in query for name in OF_PAYMENTS)
        return not asks or any(pays(one, query) for one in payments)

    await held_against(town, "/batches", rows, is_one)


async def test_a_filtered_list_of_payments_is_the_list_less_the_others(town: Town) -> None:
    await settled(town, "/batches")
    rows = await town.listed("/payments")
    assert len(rows) == 9
    await held_against(town, "/payments", rows, lambda row, q: fits(row, q) and pays(row, q))


async def test_a_filtered_list_of_what_a_recipient_is_paid_is_the_list_less_the_others(
    town: Town,
) -> None:
    await settled(town, "/batches")
    path = f"/recipients/{town.payees['ada']}/payments"
    rows = await town.listed(path)
    assert len(rows) == 5
    await held_against(town, path, rows, lambda row, q: fits(row, q) and pays(row, q))


async def held_against(
    town: Town, path: str, rows: list[Row], is_one: Callable[[Row, dict[str, str]], bool]
) -> None:
    sizes: set[int] = set()
    for query in queries(rows, town.payees):
        expected = [row["id"] for row in rows if is_one(row, query)]
        sizes.add(len(expected))
        size = 2 if len(query) == 1 else 1000
        got = [row["id"] for row in await town.listed(path, size, **query)]
        assert got == expected, query
    assert len(sizes) > 3, "the filters left as much each time"


async def test_search_and_filters_go_together(town: Town) -> None:
    rows = await town.listed("/payments", search="for ADA", sourceCurrency="EUR")
    assert [row["memo"] for row in rows] == ["for ada"]
    path = f"/recipients/{town.payees['ada']}/payments"
    rows = await town.listed(path, search="euros")
    assert [row["memo"] for row in rows] == ["arrives in euros"]
    assert await town.listed(path, search="for bea") == []
    some = (await town.listed("/batches"))[0]
    rows = await town.listed("/batches", search=some["id"][4:].lower(), status=some["status"])
    assert rows == [some]
    assert await town.listed("/batches", search=some["id"], status="accepted") == []


async def test_what_makes_no_sense_finds_nothing_and_a_date_that_is_none_is_ignored(
    town: Town,
) -> None:
    for path in ("/batches", "/payments", f"/recipients/{town.payees['ada']}/payments"):
        everything = await town.listed(path)
        for name in ("status", "recipient", "country", "sourceCurrency", "targetCurrency"):
            assert await town.listed(path, **{name: "nonsense"}) == []
            assert await town.listed(path, **{name: ""}) == everything
        for query in ({"startDate": "soon"}, {"endDate": "never"}, {"unheardOf": "1"}):
            assert await town.listed(path, **query) == everything
        assert await town.listed(path, sourceCurrency="usd", country="usa") == await town.listed(
            path, sourceCurrency="USD", country="US"
        )


async def test_a_whole_day_counts_at_both_ends(town: Town) -> None:
    rows = await town.listed("/payments")
    day = rows[0]["createdAt"][:10]
    assert await town.listed("/payments", startDate=day, endDate=day) == rows


async def test_a_list_of_which_a_part_cannot_be_read_is_a_500(town: Town) -> None:
    await settled(town, "/batches")
    id_ = [*town.service.world().batches][-1]
    for query in ("country=US", "status=pending&recipient=ada@example.com"):
        for path in ("/batches", "/payments"):
            fault = Fault("GET", f"/v1/batch/{id_}/summary", status=503, times=50)
            town.service.faults.append(fault)
            got = await town.house.ask("GET", f"/v1{path}?{query}")
            town.service.faults.remove(fault)
            assert got.status == 500, (path, query, got.text)


async def test_parameters_that_an_operation_does_not_have_are_counted(town: Town) -> None:
    running = town.house.running
    before = await scraped(town.house.session, running.admin_url)
    await town.listed("/batches", unheardOf="1", foo="2", status="open")
    after = await scraped(town.house.session, running.admin_url)
    name = "payout_gateway_ignored_parameters_total"
    assert more(after, before, name, operation="list_batches") == 2


async def test_what_the_service_lists_on_many_pages_stays_in_its_order(tmp_path: Path) -> None:
    service = Service(seed=1)
    async with open_town(tmp_path, service) as (house, _simulator):
        town = Town(house, service, {"ada": await make_recipient(house)})
        real = next(iter(service.world().recipients))
        service.seed_payments(real, 1400, seed=3)
        path = f"/recipients/{town.payees['ada']}/payments"
        rows = await town.listed(path)
        for row in service.world().recipients[real].payments[::3]:
            row["createdAt"] = rows[0]["createdAt"]  # many of one moment
        rows = await town.listed(path)
        middle = sorted(row["createdAt"] for row in rows)[700]
        before = len(service.calls())
        found = await town.listed(path, startDate=middle)
        assert found == [row for row in rows if row["createdAt"] >= middle]
        assert len(found) > 500
        assert len(service.calls()) - before <= -(-1400 // 250) + 3


# What it costs: the bounds that README.md states for 1,000 batches

MANY, PAGE = 1000, 10


async def _thousand(house: House, service: Service) -> None:
    """Seeds batches at the service and in the ledger: nine of ten are complete."""
    world, started = service.world(), datetime(2026, 1, 1, tzinfo=UTC)
    payee = next(iter(world.recipients.values()))
    found: list[CompareAndSet] = []
    for number in range(MANY):
        at = started + timedelta(hours=number)
        batch = Batch("", "USD", "", created_at=at, updated_at=at)
        enter(world, batch, [])
        terms = Terms("wallet", Decimal(5), "USD", Decimal(5), "USD", Decimal(1), Decimal(0))
        add(world, batch, Order(payee, Decimal(5), "USD", "", terms))
        for payment in batch.payments.values():
            payment.created_at = at
        if number % 10:
            batch.state, batch.sent_at, batch.completed_at = "processed", at, at
            next(iter(batch.payments.values())).status = "processed"
        facts = {"phase": "sent", "version": 1, "upstream": batch.id, "currency": "USD",
                 "createdAt": iso(at), "started": iso(at) if number % 10 else None}  # fmt: skip
        found.append(CompareAndSet("batch", batch.id, facts))
    async with open_store(house.settings.state) as store:
        await Ledger(store).record_all(TENANT, found)


@pytest.mark.parametrize("inferred", [True, False], ids=["listed", "bare"])
async def test_a_filtered_list_makes_no_more_calls_than_are_documented(
    tmp_path: Path, *, inferred: bool
) -> None:
    service = Service(seed=1, switches=Switches(inferred=inferred, answers="bare"))
    service.seed_recipients(1, seed=1)
    async with open_town(tmp_path, service) as (house, _simulator):
        await _thousand(house, service)
        await done(house, "GET", "/batches")  # detects if the service lists batches

        async def calls(path: str, **query: str) -> tuple[int, int]:
            """Returns the number of matches and of upstream calls."""
            before = len(service.calls())
            body = await done(house, "GET", f"{path}?{urlencode(query)}")
            return body["meta"]["records"], len(service.calls()) - before

        pages, summaries, balance = MANY // 100, MANY, 1
        if inferred:
            assert await calls("/batches", status="open") == (100, pages)
            assert await calls("/batches", startDate="2026-01-02", endDate="2026-01-02") == (
                24,
                pages,
            )
        else:
            records, made = await calls("/batches", status="open")
            assert (records, made <= summaries + balance + PAGE) == (100, True)
            # Complete batches do not change any more.
            records, made = await calls("/batches", status="complete")
            assert (records, made <= MANY // 10 + balance + PAGE) == (900, True)
            records, made = await calls("/batches", startDate="2026-01-02", endDate="2026-01-02")
            # Two batches were created at midnight: only their summaries give the service's time.
            assert (records, made <= PAGE + balance + 2) == (24, True)
        recipient = next(iter(service.world().recipients))
        records, made = await calls("/batches", recipient=recipient, status="open")
        assert (records, made <= pages + summaries + balance) == (100, True)
        records, made = await calls("/payments", status="processed", country="ZZ")
        assert (records, made <= summaries) == (0, True)
        records, made = await calls("/payments", startDate="2026-02-01")
        assert (records, made <= MANY // 10 + 300) == (MANY - 31 * 24, True)
