"""Recipient look-ups by email: one per address, cached until the next write."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from cachetools import TTLCache

from gateway.reads.recent_reads import SECONDS, Kept
from gateway.simulator import Service
from gateway.storage.tenants import Tenant
from mappings.effects import Call
from tests.house import House, open_house
from tests.judge import judging
from tests.operating import eventually
from tests.payday import done, make_recipient, open_town

OWNER, OTHER = Tenant("acme", "live"), Tenant("bolt", "live")
CALL = Call("GET", "/recipients", query={"email": "ada@example.com"}, cache_seconds=SECONDS)
ANSWER: dict[str, Any] = {"recipients": [{"id": "R-1"}]}


def test_an_answer_is_given_again_to_its_own_merchant_and_question_only() -> None:
    kept = Kept()
    kept.put(OWNER, CALL, ANSWER, kept.count(OWNER))
    assert kept.get(OWNER, CALL) is ANSWER
    assert kept.get(OTHER, CALL) is None
    assert kept.get(Tenant("acme", "sandbox"), CALL) is None
    assert kept.get(OWNER, Call("GET", "/recipients", query={"email": "bob@example.com"})) is None


def test_a_change_drops_what_its_merchant_has_and_nobody_else_s() -> None:
    kept = Kept()
    for owner in (OWNER, OTHER):
        kept.put(owner, CALL, ANSWER, kept.count(owner))
    kept.forget(OWNER)
    assert kept.get(OWNER, CALL) is None
    assert kept.get(OTHER, CALL) is ANSWER


def test_an_answer_that_was_asked_for_before_a_change_is_not_kept_after_it() -> None:
    kept = Kept()
    asked_at = kept.count(OWNER)
    kept.forget(OWNER)
    kept.put(OWNER, CALL, ANSWER, asked_at)
    assert kept.get(OWNER, CALL) is None


def test_an_answer_is_kept_for_sixty_seconds() -> None:
    kept, now = Kept(), [1000.0]
    kept._answers = TTLCache(10, SECONDS, timer=lambda: now[0])
    kept.put(OWNER, CALL, ANSWER, kept.count(OWNER))
    now[0] += 59.9
    assert kept.get(OWNER, CALL) is ANSWER
    now[0] += 0.2
    assert kept.get(OWNER, CALL) is None


@pytest.mark.parametrize("recipients", [[], [{"id": "R-1"}, {"id": "R-2"}]])
def test_that_nobody_or_several_have_an_address_is_not_kept(recipients: list[Any]) -> None:
    kept = Kept()
    kept.put(OWNER, CALL, {"recipients": recipients}, kept.count(OWNER))
    assert kept.get(OWNER, CALL) is None


def test_nothing_is_kept_where_others_may_change_what_was_asked_for() -> None:
    kept = Kept(is_alone=False)
    kept.put(OWNER, CALL, ANSWER, kept.count(OWNER))
    assert kept.get(OWNER, CALL) is None


# Through the gateway


def lookups(service: Service) -> int:
    calls = service.calls("GET", "/v1/recipients")
    return sum("email=" in call.target for call in calls)


def payday(addresses: int, payments: int, amount: str = "10.00") -> dict[str, Any]:
    emails = [f"p{number % addresses}@example.com" for number in range(payments)]
    return {
        "sourceCurrency": "USD",
        "payments": [{"recipient": {"email": one}, "sourceAmount": amount} for one in emails],
    }


async def people(house: House, count: int) -> None:
    for number in range(count):
        await make_recipient(house, f"p{number}")


async def test_a_thousand_payments_to_two_hundred_addresses_are_two_hundred_look_ups(
    tmp_path: Path,
) -> None:
    service = Service(seed=1)
    async with open_town(tmp_path, service) as (house, _simulator):
        await people(house, 200)
        made = await done(house, "POST", "/batches", payday(200, 1000))
        assert made["batch"]["totalPayments"] == 1000
        assert made["batch"]["amount"] == "10000.00"
        assert lookups(service) == 200


async def test_what_was_looked_up_is_not_looked_up_again_until_something_is_written(
    tmp_path: Path,
) -> None:
    service = Service(seed=1)
    async with open_town(tmp_path, service) as (house, _simulator):
        await people(house, 3)
        body = payday(3, 6)
        body["payments"].append({"recipient": {"email": "n@example.com"}, "sourceAmount": "10.00"})
        for _ in range(3):
            assert (await house.ask("POST", "/v1/batches", body)).status == 406
        assert lookups(service) == 3 + 3, "a missing recipient is looked up each time: see below"


async def test_who_comes_to_have_an_address_elsewhere_can_be_paid_at_once(tmp_path: Path) -> None:
    """For example by the Widget, after a batch was refused because the recipient was missing."""
    service = Service(seed=1)
    async with open_town(tmp_path, service) as (house, _simulator):
        await make_recipient(house, "p0")
        (one,) = service.world().recipients.values()
        had = one.fields["email"]
        one.fields["email"] = "other@example.com"
        assert (await house.ask("POST", "/v1/batches", payday(1, 1))).status == 406
        one.fields["email"] = had
        await done(house, "POST", "/batches", payday(1, 1))


async def test_a_change_of_a_recipient_is_seen_by_the_next_batch(tmp_path: Path) -> None:
    service = Service(seed=1)
    async with open_town(tmp_path, service) as (house, _simulator):
        recipient = await make_recipient(house, "p0")
        await done(house, "POST", "/batches", payday(1, 1))
        await done(house, "PATCH", f"/recipients/{recipient}", {"email": "new@example.com"})
        got = await house.ask("POST", "/v1/batches", payday(1, 1))
        assert got.status == 406
        assert got.body["errors"][0]["field"] == "payments[0].recipient.email"
        await make_recipient(house, "p0")
        await done(house, "POST", "/batches", payday(1, 1))


async def test_a_change_that_was_carried_out_late_is_seen_by_the_next_batch(tmp_path: Path) -> None:
    """The change was not answered, and a batch looked the recipient up before it was executed."""
    due = asyncio.Event()
    async with (
        judging(Service(seed=1)) as judge,
        open_house(tmp_path, judge.url, upstream={"timeout_seconds": 1}) as house,
    ):
        change = f"/v1/recipients/{await make_recipient(house, 'p0')}", {"email": "n@example.com"}
        judge.does("late", "PATCH", due=due)
        assert (await house.ask("PATCH", *change)).status == 500
        await done(house, "POST", "/batches", payday(1, 1))
        due.set()

        async def is_settled() -> bool:
            return (await house.ask("PATCH", *change)).status == 200

        await eventually(is_settled)
        assert len(judge.writes("PATCH")) == 1, "its outcome was determined"
        got = await house.ask("POST", "/v1/batches", payday(1, 1))
        assert got.status == 406, got.text


async def test_the_next_batch_to_the_same_addresses_looks_nobody_up(tmp_path: Path) -> None:
    service = Service(seed=1)
    async with open_town(tmp_path, service) as (house, _simulator):
        await people(house, 3)
        for _ in range(2):
            await done(house, "POST", "/batches", payday(3, 6))
        assert lookups(service) == 3
