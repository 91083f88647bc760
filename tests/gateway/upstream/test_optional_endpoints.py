"""Optional endpoints that the current document does not list: detection and modes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec import structs

from gateway.storage.capability_cache import CapabilityCache
from gateway.upstream.optional_endpoints import (
    MAX_MISSING_SECONDS,
    MISSING_SECONDS,
    OptionalEndpoints,
)
from mappings.batch_outcomes import build_batch_deletion_call
from mappings.effects import Call
from mappings.errors import NOT_FOUND
from mappings.failures import NoSuchOperation, Refused, Unknown, Unreachable
from tests.operator_commands import open_operated_gateway
from tests.payouts import (
    create_batch,
    create_recipient,
    load_payment_ids,
    open_gateway_and_service,
    request_successfully,
)
from tests.simulator import Fault, Service, ServiceOptions

BATCH, PAYMENT = "B-1", "P-1"
EDIT_CALL = Call(
    "PATCH",
    f"/batches/{BATCH}/payments/{PAYMENT}",
    {},
    probe_ids=(BATCH, PAYMENT),
    reconcile=build_batch_deletion_call(BATCH).reconcile,
)
EDIT_NAME = "inferred PATCH /batches/{id}/payments/{payment}"
SUMMARY_WITH_PAYMENT = {"batchSummary": {"id": BATCH, "payments": [{"id": PAYMENT}]}}
Mode = Literal["auto", "use", "avoid"]


LIST_CALL = Call("GET", "/batches", query={"page": "1", "pageSize": "100"}, probe_ids=())
LIST_NAME = "inferred GET /batches"


class OptionalEndpointHarness:
    """A service with scripted answers to edits, lists and reads; the last read repeats."""

    def __init__(self, *edits: Any, reads: Any = SUMMARY_WITH_PAYMENT, mode: Mode = "auto") -> None:
        self.edits = list(edits)
        self.reads = reads if isinstance(reads, list) else [reads]
        self.calls: list[str] = []
        self.now = 1_000_000.0
        self.facts = CapabilityCache()
        self.inferred = OptionalEndpoints(mode, self.facts, lambda: self.now)

    async def answer_call(self, call: Call) -> Any:
        self.calls.append(call.method)
        await asyncio.sleep(0)
        if call.probe_ids is not None:
            planned = self.edits.pop(0)
        else:
            planned = self.reads.pop(0) if len(self.reads) > 1 else self.reads[0]
        if isinstance(planned, Exception):
            raise planned
        return planned

    async def call_edit(self, environment: str = "live") -> Any:
        return await self.inferred.send_call_unless_missing(
            EDIT_CALL, environment, self.answer_call
        )

    async def call_list(self) -> Any:
        return await self.inferred.send_call_unless_missing(LIST_CALL, "live", self.answer_call)

    def read_presence(self, environment: str = "live", name: str = EDIT_NAME) -> bool | None:
        known: Mapping[str, Any] | None = self.facts.get(environment, name)
        return known["present"] if known else None


@pytest.mark.parametrize("status", [400, 401, 403, 406, 409, 429, 500, 502, 503])
async def test_other_refusal_does_not_prove_absence(status: int) -> None:
    harness = OptionalEndpointHarness(Refused(status))
    with pytest.raises(Refused):
        await harness.call_edit()
    assert (harness.calls, harness.read_presence()) == (["PATCH"], None)


@pytest.mark.parametrize("failure", [Unknown("lost"), Unreachable("down")])
async def test_missing_answer_proves_nothing(failure: Exception) -> None:
    harness = OptionalEndpointHarness(failure)
    with pytest.raises(type(failure)):
        await harness.call_edit()
    assert (harness.calls, harness.read_presence()) == (["PATCH"], None)


SUMMARIES_WITHOUT_PAYMENT = {
    "no batch": Refused(404, [NOT_FOUND]),
    "another payment": {"batchSummary": {"id": BATCH, "payments": [{"id": "P-2"}]}},
}


@pytest.mark.parametrize(
    "summary", SUMMARIES_WITHOUT_PAYMENT.values(), ids=SUMMARIES_WITHOUT_PAYMENT
)
@pytest.mark.parametrize("is_page", [False, True])
async def test_404_without_object_concerns_the_object(summary: Any, *, is_page: bool) -> None:
    """A page may come from a proxy, after the service has executed the edit."""
    refusal = Refused(404, () if is_page else [NOT_FOUND])
    harness = OptionalEndpointHarness(refusal, reads=summary)
    with pytest.raises(Unknown if is_page else Refused):
        await harness.call_edit()
    assert (harness.calls, harness.read_presence()) == (["PATCH", "GET"], None)


@pytest.mark.parametrize(
    "summary", SUMMARIES_WITHOUT_PAYMENT.values(), ids=SUMMARIES_WITHOUT_PAYMENT
)
@pytest.mark.parametrize("pages", [0, 1])
async def test_object_gone_after_second_refusal_proves_nothing(summary: Any, pages: int) -> None:
    refusals = [Refused(404), Refused(404, [NOT_FOUND])][1 - pages :]
    harness = OptionalEndpointHarness(
        *refusals, Refused(404, [NOT_FOUND]), reads=[SUMMARY_WITH_PAYMENT, summary]
    )
    with pytest.raises(Unknown if pages else Refused):
        await harness.call_edit()
    assert (harness.calls, harness.read_presence()) == (["PATCH", "GET", "PATCH", "GET"], None)


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
@pytest.mark.parametrize("is_page", [False, True])
@pytest.mark.parametrize("readings", [0, 1], ids=["after the first", "after the second"])
async def test_404_with_unreadable_object_proves_nothing(
    failure: Any, error_type: type[Exception], readings: int, *, is_page: bool
) -> None:
    refusal = Refused(404, () if is_page else [NOT_FOUND])
    harness = OptionalEndpointHarness(
        refusal, refusal, reads=[SUMMARY_WITH_PAYMENT] * readings + [failure]
    )
    with pytest.raises(Unknown if is_page else error_type) as raised:
        await harness.call_edit()
    assert is_page or error_type is Unreachable or raised.value is failure
    assert harness.calls == ["PATCH", "GET"] * (readings + 1)
    assert harness.read_presence() is None


# A list: 404, a documented read, 404, a documented read


@pytest.mark.parametrize("readings", [0, 1], ids=["after the first", "after the second"])
@pytest.mark.parametrize("failure", [Refused(404), Refused(500), Unreachable("down")])
async def test_refused_list_is_unknown_if_other_reads_fail(
    failure: Exception, readings: int
) -> None:
    harness = OptionalEndpointHarness(Refused(404), Refused(404), reads=[{}] * readings + [failure])
    with pytest.raises(Unreachable):
        await harness.call_list()
    assert (len(harness.calls), harness.read_presence(name=LIST_NAME)) == (2 + 2 * readings, None)


async def test_known_list_is_replaced_only_after_operator_finds_it_absent() -> None:
    harness = OptionalEndpointHarness({}, *[Refused(404)] * 4, reads={})
    await harness.call_list()
    with pytest.raises(Unreachable, match="doctor"):
        await harness.call_list()
    assert harness.read_presence(name=LIST_NAME) is True
    assert await harness.inferred.probe_endpoint(LIST_CALL, "live", harness.answer_call) is False
    with pytest.raises(NoSuchOperation):
        await harness.call_list()
    harness.edits = [{}]
    assert await harness.inferred.probe_endpoint(LIST_CALL, "live", harness.answer_call) is True
    harness.edits = [{"batches": []}]
    assert await harness.call_list() == {"batches": []}


async def test_invisible_payment_is_not_reported_as_deleted(
    tmp_path: Path,
) -> None:
    service = Service(options=ServiceOptions(inferred=False), seed=1)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _):
        batch = await create_batch(gateway, await create_recipient(gateway), "5.00", "6.00")
        first, second = await load_payment_ids(gateway, batch)
        summary = ("GET", "/v1/batch/*/summary")
        service.faults += [Fault(*summary), Fault(*summary, status=503)]
        response = await gateway.request("DELETE", f"/v1/batches/{batch}/payments/{first}")
        assert (response.status, response.body["errors"][0]["code"]) == (
            500,
            "internal_server_error",
        )
        assert await load_payment_ids(gateway, batch) == [first, second]
        await request_successfully(gateway, "DELETE", f"/batches/{batch}/payments/{first}")
        assert await load_payment_ids(gateway, batch) == [second]


async def test_other_refusal_of_second_attempt_is_raised() -> None:
    harness = OptionalEndpointHarness(Refused(404, [NOT_FOUND]), Refused(400, [NOT_FOUND]))
    with pytest.raises(Refused) as refused:
        await harness.call_edit()
    assert (refused.value.status, harness.read_presence()) == (400, None)


@pytest.mark.parametrize("second", [{}, Refused(404), Refused(400, [NOT_FOUND])])
async def test_additions_are_sent_once(second: Any) -> None:
    """Whether the path exists is found out by an edit without a body."""
    harness = OptionalEndpointHarness(Refused(404), second)
    bodies: list[Any] = []

    async def answer_call(call: Call) -> Any:
        if call.probe_ids is not None:
            bodies.append(call.body)
        return await harness.answer_call(call)

    adding = structs.replace(EDIT_CALL, body={"payments": [{}]}, is_idempotent=False)
    is_missing = isinstance(second, Refused) and second.status == 404
    with pytest.raises(NoSuchOperation if is_missing else Unknown):
        await harness.inferred.send_call_unless_missing(adding, "live", answer_call)
    assert bodies == [{"payments": [{}]}, {}]


async def test_absence_is_remembered_for_ten_minutes_and_doubled_when_confirmed() -> None:
    harness = OptionalEndpointHarness(*[Refused(404)] * 20, {}, Refused(404), Refused(404))
    lasted = []
    for _ in range(10):
        with pytest.raises(NoSuchOperation):
            await harness.call_edit()
        found, calls = harness.now, len(harness.calls)
        while harness.inferred.find_missing_operation_name(EDIT_CALL, "live"):
            harness.now += 300
        lasted.append(harness.now - found)
        assert len(harness.calls) == calls, "not tried in the meantime"
    assert lasted[:4] == [600, 1200, 2400, 4800]
    assert lasted == sorted(lasted)
    assert (lasted[0], lasted[-1]) == (MISSING_SECONDS, MAX_MISSING_SECONDS)
    await harness.call_edit()
    assert harness.read_presence() is True
    with pytest.raises(NoSuchOperation):
        await harness.call_edit()
    harness.now += MISSING_SECONDS
    assert not harness.inferred.find_missing_operation_name(EDIT_CALL, "live"), (
        "after a success the interval is ten minutes again"
    )


async def test_concurrent_detections_do_not_confirm_each_other() -> None:
    harness = OptionalEndpointHarness(*[Refused(404)] * 4)
    outcomes = await asyncio.gather(
        harness.call_edit(), harness.call_edit(), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [NoSuchOperation, NoSuchOperation]
    harness.now += MISSING_SECONDS
    assert not harness.inferred.find_missing_operation_name(EDIT_CALL, "live")


async def test_capabilities_are_separate_per_environment() -> None:
    harness = OptionalEndpointHarness(Refused(404), Refused(404), {})
    with pytest.raises(NoSuchOperation):
        await harness.call_edit("sandbox")
    await harness.call_edit("live")
    assert (harness.read_presence("sandbox"), harness.read_presence("live")) == (False, True)


# Through the gateway

BRIEF_FAULTS = {
    "a 404": [Fault("PATCH", "/v1/batches/*/payments/*", status=404)],
    "a 500": [Fault("PATCH", "/v1/batches/*/payments/*", status=500)],
    "all of it 404": [
        Fault("PATCH", "/v1/batches/*/payments/*", status=404, times=2),
        Fault("GET", "/v1/batch/*/summary", status=404, times=9),
    ],
}


@pytest.mark.parametrize("faults", BRIEF_FAULTS.values(), ids=BRIEF_FAULTS)
async def test_brief_service_trouble_does_not_replace_the_batch(
    faults: list[Fault], tmp_path: Path
) -> None:
    async with open_operated_gateway(tmp_path) as operated:
        gateway, service = operated.gateway, operated.service
        batch = await create_batch(gateway, await create_recipient(gateway), "5.00")
        (payment,) = await load_payment_ids(gateway, batch)
        path, body = f"/batches/{batch}/payments/{payment}", {"sourceAmount": "9.00"}
        service.faults += [
            Fault(fault.method, fault.path, fault.status, times=fault.times) for fault in faults
        ]
        response = await gateway.request("PATCH", f"/v1{path}", body)
        service.faults.clear()
        is_in_doubt = "Retry-After" in response.headers
        assert is_in_doubt == any(fault.status == 500 for fault in faults), "a 5xx proves nothing"
        if is_in_doubt:
            await operated.age_sent_writes()
        await request_successfully(gateway, "PATCH", path, body)
        await request_successfully(gateway, "POST", f"/batches/{batch}/start-processing")
        assert service.creation_counts["batch"] == 1, "it was not created a second time"


@pytest.mark.parametrize("mode", ["use", "avoid"])
async def test_setting_selects_the_call(mode: str, tmp_path: Path) -> None:
    service = Service(seed=1, options=ServiceOptions(inferred=mode == "use"))
    upstream = {"inferred_operations": mode}
    async with open_gateway_and_service(tmp_path, service, upstream=upstream) as (
        gateway,
        _simulator,
    ):
        batch = await create_batch(gateway, await create_recipient(gateway), "5.00")
        (payment,) = await load_payment_ids(gateway, batch)
        await request_successfully(
            gateway, "PATCH", f"/batches/{batch}/payments/{payment}", {"memo": "changed"}
        )
        assert len(service.list_requests("PATCH", "/v1/batches/*/payments/*")) == (mode == "use")
        shown = await request_successfully(gateway, "GET", f"/batches/{batch}/payments/{payment}")
        assert shown["payment"]["memo"] == "changed"
