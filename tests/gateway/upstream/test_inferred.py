"""Optional endpoints that the current document does not list: detection and modes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest

from gateway.simulator import Fault, Service, Switches
from gateway.upstream.capability_cache import CapabilityCache
from gateway.upstream.optional_endpoints import (
    MAX_MISSING_SECONDS,
    MISSING_SECONDS,
    OptionalEndpoints,
)
from mappings.effects import Call
from mappings.errors import NOT_FOUND
from mappings.failures import NoSuchOperation, Refused, Unknown, Unreachable
from mappings.outcome_rules import build_edited_batch_rule
from tests.operating import post
from tests.payday import done, make_batch, make_recipient, open_town, payment_ids

BATCH, PAYMENT = "B-1", "P-1"
EDIT = Call(
    "PATCH",
    f"/batches/{BATCH}/payments/{PAYMENT}",
    {},
    probe_ids=(BATCH, PAYMENT),
    reconcile=build_edited_batch_rule(BATCH, (), "USD"),
)
NAME = "inferred PATCH /batches/{id}/payments/{payment}"
THERE = {"batchSummary": {"id": BATCH, "payments": [{"id": PAYMENT}]}}
Mode = Literal["auto", "use", "avoid"]


class Facts(CapabilityCache):
    """Learned capabilities, without a database."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], Any] = {}

    async def put(self, environment: str, name: str, value: Any) -> None:
        self._values[environment, name] = value


LIST = Call("GET", "/batches", query={"page": "1", "pageSize": "100"}, probe_ids=())
LIST_NAME = "inferred GET /batches"


class Asked:
    """A service with scripted answers to edits, lists and reads; the last read repeats."""

    def __init__(self, *edits: Any, reads: Any = THERE, mode: Mode = "auto") -> None:
        self.edits = list(edits)
        self.reads = reads if isinstance(reads, list) else [reads]
        self.calls: list[str] = []
        self.now = 1_000_000.0
        self.facts = Facts()
        self.inferred = OptionalEndpoints(mode, self.facts, lambda: self.now)

    async def make(self, call: Call) -> Any:
        self.calls.append(call.method)
        await asyncio.sleep(0)
        if call.probe_ids is not None:
            said = self.edits.pop(0)
        else:
            said = self.reads.pop(0) if len(self.reads) > 1 else self.reads[0]
        if isinstance(said, Exception):
            raise said
        return said

    async def edit(self, environment: str = "live") -> Any:
        return await self.inferred.send_call(EDIT, environment, self.make)

    async def list(self) -> Any:
        return await self.inferred.send_call(LIST, "live", self.make)

    def present(self, environment: str = "live", name: str = NAME) -> bool | None:
        known: Mapping[str, Any] | None = self.facts.get(environment, name)
        return known["present"] if known else None


async def test_an_operation_that_is_there_is_one_call() -> None:
    asked = Asked({}, {})
    await asked.edit()
    await asked.edit()
    assert (asked.calls, asked.present()) == (["PATCH", "PATCH"], True)


@pytest.mark.parametrize("second", [404, 405, 501])
@pytest.mark.parametrize("first", [404, 405, 501])
async def test_refused_twice_while_its_object_can_be_seen_it_is_absent(
    first: int, second: int
) -> None:
    asked = Asked(Refused(first), Refused(second))
    with pytest.raises(NoSuchOperation):
        await asked.edit()
    assert asked.calls == ["PATCH", "GET", "PATCH", "GET"]
    with pytest.raises(NoSuchOperation):
        await asked.edit()
    assert len(asked.calls) == 4, "remembered"


@pytest.mark.parametrize("status", [400, 401, 403, 406, 409, 429, 500, 502, 503])
async def test_no_other_refusal_says_that_it_is_absent(status: int) -> None:
    asked = Asked(Refused(status))
    with pytest.raises(Refused):
        await asked.edit()
    assert (asked.calls, asked.present()) == (["PATCH"], None)


@pytest.mark.parametrize("failure", [Unknown("lost"), Unreachable("down")])
async def test_no_answer_says_nothing(failure: Exception) -> None:
    asked = Asked(failure)
    with pytest.raises(type(failure)):
        await asked.edit()
    assert (asked.calls, asked.present()) == (["PATCH"], None)


UNSEEN = {
    "no batch": Refused(404, [NOT_FOUND]),
    "another payment": {"batchSummary": {"id": BATCH, "payments": [{"id": "P-2"}]}},
}


@pytest.mark.parametrize("summary", UNSEEN.values(), ids=UNSEEN)
async def test_without_its_object_a_404_is_about_the_object(summary: Any) -> None:
    asked = Asked(Refused(404), reads=summary)
    with pytest.raises(Refused):
        await asked.edit()
    assert (asked.calls, asked.present()) == (["PATCH", "GET"], None)


@pytest.mark.parametrize("summary", UNSEEN.values(), ids=UNSEEN)
async def test_an_object_that_is_gone_after_the_second_refusal_says_nothing_of_the_path(
    summary: Any,
) -> None:
    asked = Asked(Refused(404), Refused(404), reads=[THERE, summary])
    with pytest.raises(Refused):
        await asked.edit()
    assert (asked.calls, asked.present()) == (["PATCH", "GET", "PATCH", "GET"], None)


@pytest.mark.parametrize(
    ("failure", "error_type"),
    [
        (Refused(500), Unreachable),
        (Refused(404), Unreachable),  # not an answer of the service, but of a proxy
        ({"batch": {"id": "B-2"}}, Unreachable),
        (Refused(429), Refused),
        (Refused(401), Refused),
        (Unreachable("down"), Unreachable),
    ],
)
@pytest.mark.parametrize("readings", [0, 1], ids=["after the first", "after the second"])
async def test_where_its_object_cannot_be_read_a_404_says_nothing(
    failure: Any, error_type: type[Exception], readings: int
) -> None:
    asked = Asked(Refused(404), Refused(404), reads=[THERE] * readings + [failure])
    with pytest.raises(error_type) as raised:
        await asked.edit()
    assert error_type is Unreachable or raised.value is failure
    assert asked.calls == ["PATCH", "GET"] * (readings + 1)
    assert asked.present() is None


# A list: 404, a documented read, 404, a documented read


@pytest.mark.parametrize("readings", [0, 1], ids=["after the first", "after the second"])
@pytest.mark.parametrize("failure", [Refused(404), Refused(500), Unreachable("down")])
async def test_a_list_refused_while_nothing_else_is_answered_is_unknown(
    failure: Exception, readings: int
) -> None:
    asked = Asked(Refused(404), Refused(404), reads=[{}] * readings + [failure])
    with pytest.raises(Unreachable):
        await asked.list()
    assert (len(asked.calls), asked.present(name=LIST_NAME)) == (2 + 2 * readings, None)


async def test_a_list_refused_between_reads_that_are_answered_is_absent() -> None:
    asked = Asked(Refused(404), Refused(405), reads={})
    with pytest.raises(NoSuchOperation):
        await asked.list()
    assert (len(asked.calls), asked.present(name=LIST_NAME)) == (4, False)


async def test_a_list_that_was_there_is_not_replaced_until_an_operator_finds_it_gone() -> None:
    asked = Asked({}, *[Refused(404)] * 4, reads={})
    await asked.list()
    with pytest.raises(Unreachable, match="doctor"):
        await asked.list()
    assert asked.present(name=LIST_NAME) is True
    assert await asked.inferred.probe(LIST, "live", asked.make) is False
    with pytest.raises(NoSuchOperation):
        await asked.list()
    asked.edits = [{}]
    assert await asked.inferred.probe(LIST, "live", asked.make) is True
    asked.edits = [{"batches": []}]
    assert await asked.list() == {"batches": []}


async def test_a_client_is_not_told_that_a_payment_is_gone_because_nobody_can_see_it(
    tmp_path: Path,
) -> None:
    service = Service(switches=Switches(inferred=False), seed=1)
    async with open_town(tmp_path, service) as (house, _):
        batch = await make_batch(house, await make_recipient(house), "5.00", "6.00")
        first, second = await payment_ids(house, batch)
        summary = ("GET", "/v1/batch/*/summary")
        service.faults += [Fault(*summary), Fault(*summary, status=503)]
        got = await house.ask("DELETE", f"/v1/batches/{batch}/payments/{first}")
        assert (got.status, got.body["errors"][0]["code"]) == (500, "internal_server_error")
        assert await payment_ids(house, batch) == [first, second]
        await done(house, "DELETE", f"/batches/{batch}/payments/{first}")
        assert await payment_ids(house, batch) == [second]


async def test_a_second_try_that_goes_well_is_the_answer() -> None:
    asked = Asked(Refused(404), {"object": "updated"})
    assert await asked.edit() == {"object": "updated"}
    assert asked.present() is True


async def test_a_second_try_refused_in_another_way_is_that_refusal() -> None:
    asked = Asked(Refused(404), Refused(500))
    with pytest.raises(Refused) as refused:
        await asked.edit()
    assert (refused.value.status, asked.present()) == (500, None)


async def test_it_is_remembered_for_ten_minutes_and_longer_as_it_is_confirmed() -> None:
    asked = Asked(*[Refused(404)] * 20, {}, Refused(404), Refused(404))
    lasted = []
    for _ in range(10):
        with pytest.raises(NoSuchOperation):
            await asked.edit()
        found, calls = asked.now, len(asked.calls)
        while asked.inferred.find_missing(EDIT, "live"):
            asked.now += 300
        lasted.append(asked.now - found)
        assert len(asked.calls) == calls, "not tried in the meantime"
    assert lasted[:4] == [600, 1200, 2400, 4800]
    assert lasted == sorted(lasted)
    assert (lasted[0], lasted[-1]) == (MISSING_SECONDS, MAX_MISSING_SECONDS)
    await asked.edit()
    assert asked.present() is True
    with pytest.raises(NoSuchOperation):
        await asked.edit()
    asked.now += MISSING_SECONDS
    assert not asked.inferred.find_missing(EDIT, "live"), (
        "after a success the interval is ten minutes again"
    )


async def test_requests_that_find_it_out_together_confirm_nothing() -> None:
    asked = Asked(*[Refused(404)] * 4)
    both = await asyncio.gather(asked.edit(), asked.edit(), return_exceptions=True)
    assert [type(one) for one in both] == [NoSuchOperation, NoSuchOperation]
    asked.now += MISSING_SECONDS
    assert not asked.inferred.find_missing(EDIT, "live")


async def test_of_one_environment_nothing_is_learned_of_another() -> None:
    asked = Asked(Refused(404), Refused(404), {})
    with pytest.raises(NoSuchOperation):
        await asked.edit("sandbox")
    await asked.edit("live")
    assert (asked.present("sandbox"), asked.present("live")) == (False, True)


async def test_use_never_takes_it_for_absent() -> None:
    asked = Asked(Refused(404), Refused(404), mode="use")
    for _ in range(2):
        with pytest.raises(Refused):
            await asked.edit()
    assert (asked.calls, asked.present()) == (["PATCH", "PATCH"], None)


async def test_avoid_never_tries_it() -> None:
    asked = Asked(mode="avoid")
    with pytest.raises(NoSuchOperation):
        await asked.edit()
    assert asked.calls == []


# Through the gateway

TROUBLES = {
    "a 404": [Fault("PATCH", "/v1/batches/*/payments/*", status=404)],
    "a 500": [Fault("PATCH", "/v1/batches/*/payments/*", status=500)],
    "all of it 404": [
        Fault("PATCH", "/v1/batches/*/payments/*", status=404, times=2),
        Fault("GET", "/v1/batch/*/summary", status=404, times=9),
    ],
}


@pytest.mark.parametrize("faults", TROUBLES.values(), ids=TROUBLES)
async def test_a_service_in_brief_trouble_keeps_its_batch(
    faults: list[Fault], tmp_path: Path
) -> None:
    async with post(tmp_path) as here:
        house, service = here.house, here.service
        batch = await make_batch(house, await make_recipient(house), "5.00")
        (payment,) = await payment_ids(house, batch)
        path, body = f"/batches/{batch}/payments/{payment}", {"sourceAmount": "9.00"}
        service.faults += [
            Fault(one.method, one.path, one.status, times=one.times) for one in faults
        ]
        got = await house.ask("PATCH", f"/v1{path}", body)
        service.faults.clear()
        is_in_doubt = "Retry-After" in got.headers
        assert is_in_doubt == any(one.status == 500 for one in faults), "a 5xx proves nothing"
        if is_in_doubt:
            await here.lapse()
        await done(house, "PATCH", path, body)
        await done(house, "POST", f"/batches/{batch}/start-processing")
        assert service.created["batch"] == 1, "it was not created a second time"


@pytest.mark.parametrize("mode", ["use", "avoid"])
async def test_the_setting_decides_which_way_is_taken(mode: str, tmp_path: Path) -> None:
    service = Service(seed=1, switches=Switches(inferred=mode == "use"))
    upstream = {"inferred_operations": mode}
    async with open_town(tmp_path, service, upstream=upstream) as (house, _simulator):
        batch = await make_batch(house, await make_recipient(house), "5.00")
        (payment,) = await payment_ids(house, batch)
        await done(house, "PATCH", f"/batches/{batch}/payments/{payment}", {"memo": "changed"})
        assert len(service.calls("PATCH", "/v1/batches/*/payments/*")) == (mode == "use")
        shown = await done(house, "GET", f"/batches/{batch}/payments/{payment}")
        assert shown["payment"]["memo"] == "changed"
