"""Every fault of a service's answer, for every kind of write, with a client that retries.

The service's records are checked: no write is executed twice, none is lost, and the journal knows
every write that may have been executed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.journal_check import check_journal
from tests.operator_commands import AdjustableClock, wait_until_async
from tests.payouts import WALLET
from tests.recording_service import (
    BEHAVIOURS,
    NEVER_EXECUTE,
    PlannedFault,
    RecordingService,
    open_recording_service,
)
from tests.running_gateway import GatewayResponse, GatewayUnderTest, open_gateway
from tests.simulator import Service, ServiceOptions
from tests.sockets import wait_until
from tests.state import count_operations_by_state

MAX_CONCURRENT = 16
MAX_TRIES = 60
"""The most rounds of retries: on a busy machine a try may end before its call is sent."""


@dataclass
class GatewayAndService:
    """A gateway in front of a recording service; ``payee`` has a payout method."""

    gateway: GatewayUnderTest
    recorder: RecordingService
    clock: AdjustableClock
    payee: str = ""

    def find_upstream_batch(self, tag: str) -> str:
        """Returns the service's id of the batch whose description is the mark."""
        return str(
            self.recorder.list_executed_writes("POST", "/v1/batches", text=tag)[-1].created_id
        )


@asynccontextmanager
async def open_gateway_and_recorder(
    folder: Path, seconds: float = 1.5, **service_options: Any
) -> AsyncIterator[GatewayAndService]:
    service, clock = Service(options=ServiceOptions(**service_options), seed=1), AdjustableClock()
    async with open_recording_service(service) as recorder:
        upstream = {"timeout_seconds": seconds}
        async with open_gateway(folder, recorder.url, clock, upstream=upstream) as gateway:
            setup = GatewayAndService(gateway, recorder, clock)
            setup.payee = await create_recipient_now(setup, "payee", payout=WALLET)
            yield setup


# Kinds of writes


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A client's request, and the method and path of the upstream call with the fault."""

    method: str
    path: str
    body: Any = None
    faulty_call: tuple[str, str] = ("", "")
    tag: str = ""
    skip_count: int = 0


Prepare = Callable[[GatewayAndService, str], Awaitable[ClientRequest]]
Effect = Callable[[GatewayAndService, str, ClientRequest], bool]


def build_person(tag: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "individual",
        "firstName": "Ada",
        "lastName": tag.title(),
        "email": f"{tag}@example.com",
        **fields,
    }


def build_wallet(tag: str) -> dict[str, Any]:
    return {
        "primary": {"method": "wallet", "currency": "USD"},
        "accounts": {"wallet": {"address": f"{tag}@wallet.example.com"}},
    }


async def request_until_done(
    setup: GatewayAndService, method: str, path: str, body: Any = None
) -> Any:
    """Repeats a request until it succeeds: on a busy machine a call may time out."""
    for _ in range(5):
        response = await setup.gateway.request(method, path, body)
        if response.status == 200:
            return response.body
        await asyncio.sleep(0.2)
    raise AssertionError((method, path, response.text))


async def create_recipient_now(setup: GatewayAndService, tag: str, **fields: Any) -> str:
    address = {"street1": "1 Main Street", "city": "New York", "region": "NY", "country": "US"}
    body = build_person(tag, address=address, **fields)
    return str((await request_until_done(setup, "POST", "/v1/recipients", body))["recipient"]["id"])


async def create_batch_now(
    setup: GatewayAndService, tag: str, *amounts: str
) -> tuple[str, list[str]]:
    """Creates a batch that pays the payee; returns the client's ids of it and its payments."""
    batch = (
        await request_until_done(
            setup, "POST", "/v1/batches", build_batch_body(setup, tag, *amounts)
        )
    )["batch"]
    batch_body = (await request_until_done(setup, "GET", f"/v1/batches/{batch['id']}"))["batch"]
    return str(batch["id"]), [payment["id"] for payment in batch_body["payments"]["payments"]]


def build_batch_body(setup: GatewayAndService, tag: str, *amounts: str) -> dict[str, Any]:
    recipient = {"recipient": {"id": setup.payee}}
    payments = [{**recipient, "sourceAmount": amount} for amount in amounts]
    return {"sourceCurrency": "USD", "description": tag, "payments": payments}


def list_recipients(setup: GatewayAndService, tag: str) -> list[Any]:
    """Lists the service's recipients with the address of a mark that are not deleted."""
    tenant = setup.recorder.service.find_or_create_tenant()
    address = f"{tag}@example.com"
    return [
        recipient
        for recipient in tenant.recipients.values()
        if recipient.fields["email"] == address and not recipient.is_archived
    ]


def list_account_addresses(setup: GatewayAndService, tag: str) -> list[list[str]]:
    return [
        [account.fields["emailAddress"] for account in recipient.accounts]
        for recipient in list_recipients(setup, tag)
    ]


async def create_recipient(_setup: GatewayAndService, tag: str) -> ClientRequest:
    return ClientRequest(
        "POST", "/v1/recipients", build_person(tag), ("POST", "/v1/recipients"), tag
    )


async def create_with_payout(_setup: GatewayAndService, tag: str) -> ClientRequest:
    body = build_person(tag, payout=build_wallet(tag))
    return ClientRequest("POST", "/v1/recipients", body, ("POST", "/v1/recipients/*/accounts"), tag)


async def create_with_language(_setup: GatewayAndService, tag: str) -> ClientRequest:
    number = int("".join(filter(str.isdigit, tag)))
    language = f"en-{chr(65 + number // 26 % 26)}{chr(65 + number % 26)}"
    body = build_person(tag, language=language)
    return ClientRequest("POST", "/v1/recipients", body, ("PATCH", "/v1/recipients/*"), language)


async def change_recipient(setup: GatewayAndService, tag: str) -> ClientRequest:
    id_ = await create_recipient_now(setup, tag)
    path = f"/v1/recipients/{id_}"
    return ClientRequest("PATCH", path, {"firstName": "Augusta"}, ("PATCH", path), id_)


async def delete_recipient(setup: GatewayAndService, tag: str) -> ClientRequest:
    id_ = await create_recipient_now(setup, tag)
    path = f"/v1/recipients/{id_}"
    return ClientRequest("DELETE", path, None, ("DELETE", path), id_)


async def delete_recipients(setup: GatewayAndService, tag: str) -> ClientRequest:
    ids = [await create_recipient_now(setup, tag), await create_recipient_now(setup, f"{tag}x")]
    return ClientRequest(
        "DELETE", "/v1/recipients", {"ids": ids}, ("DELETE", "/v1/recipients"), ids[0]
    )


async def create_payout_method(setup: GatewayAndService, tag: str) -> ClientRequest:
    id_ = await create_recipient_now(setup, tag)
    path, faulted_call = f"/v1/recipients/{id_}/payout-methods", f"/v1/recipients/{id_}/accounts"
    return ClientRequest("POST", path, build_wallet(tag), ("POST", faulted_call), id_)


async def change_payout_method(setup: GatewayAndService, tag: str) -> ClientRequest:
    id_ = await create_recipient_now(setup, tag, payout=build_wallet(tag))
    path, faulted_call = f"/v1/recipients/{id_}/payout-methods", f"/v1/recipients/{id_}/accounts/*"
    return ClientRequest("PATCH", path, build_wallet(f"{tag}x"), ("PATCH", faulted_call), id_)


async def create_batch(setup: GatewayAndService, tag: str) -> ClientRequest:
    body = build_batch_body(setup, tag, "10.00", "10.00")
    return ClientRequest("POST", "/v1/batches", body, ("POST", "/v1/batches"), tag)


async def create_payment(setup: GatewayAndService, tag: str) -> ClientRequest:
    batch, _ = await create_batch_now(setup, tag, "10.00")
    body = {"recipient": {"id": setup.payee}, "sourceAmount": "10.00"}
    upstream = setup.find_upstream_batch(tag)
    faulted_call = ("POST", f"/v1/batches/{upstream}/payments")
    return ClientRequest("POST", f"/v1/batches/{batch}/payments", body, faulted_call, upstream)


async def change_batch(setup: GatewayAndService, tag: str) -> ClientRequest:
    batch, payments = await create_batch_now(setup, tag, "10.00", "20.00")
    body = {
        "payments": [{"recipient": {"id": setup.payee}, "sourceAmount": "30.00"}],
        "update_payments": [{"id": payments[0], "sourceAmount": "11.00"}],
        "remove_payments": [{"id": payments[1]}],
    }
    upstream = setup.find_upstream_batch(tag)
    faulted_call = ("PATCH", f"/v1/batches/{upstream}")
    return ClientRequest("PATCH", f"/v1/batches/{batch}", body, faulted_call, upstream)


async def change_payment(setup: GatewayAndService, tag: str) -> ClientRequest:
    batch, payments = await create_batch_now(setup, tag, "10.00")
    upstream = setup.find_upstream_batch(tag)
    faulted_call = ("PATCH", f"/v1/batches/{upstream}/payments/*")
    path = f"/v1/batches/{batch}/payments/{payments[0]}"
    return ClientRequest("PATCH", path, {"sourceAmount": "11.00"}, faulted_call, upstream)


async def delete_payment(setup: GatewayAndService, tag: str) -> ClientRequest:
    batch, payments = await create_batch_now(setup, tag, "10.00", "20.00")
    upstream = setup.find_upstream_batch(tag)
    faulted_call = ("DELETE", f"/v1/batches/{upstream}/payments/*")
    return ClientRequest(
        "DELETE", f"/v1/batches/{batch}/payments/{payments[0]}", None, faulted_call, upstream
    )


async def _prepare_batch_write(
    setup: GatewayAndService, tag: str, method: str, path_suffix: str = ""
) -> ClientRequest:
    """Prepares a write on a batch."""
    batch, _ = await create_batch_now(setup, tag, "10.00")
    upstream = setup.find_upstream_batch(tag)
    faulted_call = (method, f"/v1/batches/{upstream}{path_suffix}")
    return ClientRequest(method, f"/v1/batches/{batch}{path_suffix}", None, faulted_call, upstream)


async def delete_batch(setup: GatewayAndService, tag: str) -> ClientRequest:
    return await _prepare_batch_write(setup, tag, "DELETE")


async def delete_batches(setup: GatewayAndService, tag: str) -> ClientRequest:
    """The fault is in the deletion of the second batch, after that of the first."""
    ids = [(await create_batch_now(setup, f"{tag}{n}", "10.00"))[0] for n in (1, 2)]
    upstream = setup.find_upstream_batch(f"{tag}2")
    faulted_call = ("DELETE", f"/v1/batches/{upstream}")
    return ClientRequest("DELETE", "/v1/batches", {"ids": ids}, faulted_call, upstream)


async def quote(setup: GatewayAndService, tag: str) -> ClientRequest:
    return await _prepare_batch_write(setup, tag, "POST", "/generate-quote")


async def start(setup: GatewayAndService, tag: str) -> ClientRequest:
    return await _prepare_batch_write(setup, tag, "POST", "/start-processing")


# Expected effects at the service


def has_one_recipient(setup: GatewayAndService, tag: str, _request: ClientRequest) -> bool:
    return len(list_recipients(setup, tag)) == 1


def has_one_recipient_with_account(
    setup: GatewayAndService, tag: str, _request: ClientRequest
) -> bool:
    return list_account_addresses(setup, tag) == [[f"{tag}@wallet.example.com"]]


def has_changed_account(setup: GatewayAndService, tag: str, _request: ClientRequest) -> bool:
    return list_account_addresses(setup, tag) == [[f"{tag}x@wallet.example.com"]]


def has_no_recipient(setup: GatewayAndService, tag: str, _request: ClientRequest) -> bool:
    return not list_recipients(setup, tag)


def has_changed_name(setup: GatewayAndService, tag: str, _request: ClientRequest) -> bool:
    return [recipient.fields["firstName"] for recipient in list_recipients(setup, tag)] == [
        "Augusta"
    ]


def has_one_batch(setup: GatewayAndService, tag: str, _request: ClientRequest) -> bool:
    batches = setup.recorder.service.find_or_create_tenant().batches.values()
    return [len(batch.payments) for batch in batches if batch.description == tag] == [2]


def has_no_batch(setup: GatewayAndService, _tag: str, request: ClientRequest) -> bool:
    return request.tag not in setup.recorder.service.find_or_create_tenant().batches


def build_amounts_check(*amounts: str) -> Effect:
    def has_amounts(setup: GatewayAndService, _tag: str, request: ClientRequest) -> bool:
        batch = setup.recorder.service.require_batch(request.tag)
        return sorted(str(payment.amount) for payment in batch.payments.values()) == sorted(amounts)

    return has_amounts


def is_started_once(setup: GatewayAndService, _tag: str, request: ClientRequest) -> bool:
    return setup.recorder.list_starts[request.tag] == 1


def is_open(setup: GatewayAndService, _tag: str, request: ClientRequest) -> bool:
    return setup.recorder.service.require_batch(request.tag).state == "open"


@dataclass(frozen=True, slots=True)
class WriteKind:
    prepare: Prepare
    effect: Effect
    expected_executions: int | None = 1
    """How often the call with the fault is executed; None if it may be repeated."""
    inferred: bool = False

    @property
    def name(self) -> str:
        return self.prepare.__name__


KINDS = (
    WriteKind(create_recipient, has_one_recipient),
    WriteKind(create_with_payout, has_one_recipient_with_account),
    WriteKind(create_with_language, has_one_recipient),
    WriteKind(change_recipient, has_changed_name),
    WriteKind(delete_recipient, has_no_recipient),
    WriteKind(delete_recipients, has_no_recipient),
    WriteKind(create_payout_method, has_one_recipient_with_account),
    WriteKind(change_payout_method, has_changed_account),
    WriteKind(create_batch, has_one_batch),
    WriteKind(create_payment, build_amounts_check("10.00", "10.00")),
    WriteKind(change_batch, build_amounts_check("11.00", "30.00"), inferred=True),
    WriteKind(change_payment, build_amounts_check("11.00"), inferred=True),
    WriteKind(delete_payment, build_amounts_check("20.00"), inferred=True),
    WriteKind(delete_batch, has_no_batch, inferred=True),
    WriteKind(delete_batches, has_no_batch, inferred=True),
    WriteKind(quote, is_open, expected_executions=None),
    WriteKind(start, is_started_once),
)
KINDS_BY_NAME = {kind.name: kind for kind in KINDS}

# Faults

LATE_SECONDS = 2.5
"""Delay of the execution of a late call: the gateway has timed out by then."""


@dataclass(frozen=True, slots=True)
class ServiceFault:
    behaviour: str
    executes: bool = True

    @property
    def name(self) -> str:
        return (
            self.behaviour
            if self.executes or self.behaviour in NEVER_EXECUTE
            else f"{self.behaviour}, not done"
        )


_WITH_RESPONSE = (
    "html 200",
    "html 502",
    "redirect 307",
    "500 json",
    "500 empty",
    "503 json",
    "503 empty",
)
FAULTS = tuple(ServiceFault(behaviour) for behaviour in BEHAVIOURS if behaviour != "404") + tuple(
    ServiceFault(behaviour, executes=False) for behaviour in _WITH_RESPONSE
)
_MAIN_BEHAVIOURS = (
    "reset before",
    "reset",
    "late",
    "slow",
    "half json",
    "html 502",
    "500 json",
    "429",
)
MAIN_FAULTS = (*map(ServiceFault, _MAIN_BEHAVIOURS), ServiceFault("503 empty", executes=False))


# A client that retries


@dataclass(slots=True)
class FaultCase:
    kind: WriteKind
    fault: ServiceFault
    style: int
    tag: str
    request: ClientRequest = field(default_factory=lambda: ClientRequest("", ""))
    planned_fault: PlannedFault | None = None
    responses: list[GatewayResponse] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.kind.name}: {self.fault.name}, {RETRY_STYLES[self.style]}"

    @property
    def is_final(self) -> bool:
        return bool(self.responses) and self.responses[-1].status == 200

    def is_fault_consumed(self, setup: GatewayAndService) -> bool:
        """Whether the planned fault has occurred."""
        return not any(fault is self.planned_fault for fault in setup.recorder.faults)

    async def send_request(self, setup: GatewayAndService, times: int = 1) -> None:
        headers = {"Idempotency-Key": self.tag} if RETRY_STYLES[self.style] == "with a key" else {}
        request = self.request
        for _ in range(times):
            if not self.is_final:
                response = await setup.gateway.request(
                    request.method, request.path, request.body, headers=headers
                )
                self.responses.append(response)
                assert response.status in (200, 429, 500), (
                    self.name,
                    response.status,
                    response.text,
                )
                assert response.text.startswith(
                    '{"ok":true' if response.status == 200 else '{"ok":false'
                )


RETRY_STYLES = ("at once", "with a key", "after a while")


async def prepare_case(setup: GatewayAndService, case: FaultCase) -> None:
    case.request = request = await case.kind.prepare(setup, case.tag)
    seconds = {"late": LATE_SECONDS, "slow": LATE_SECONDS}.get(case.fault.behaviour, 0)
    case.planned_fault = PlannedFault(
        case.fault.behaviour,
        *request.faulty_call,
        request.tag,
        case.fault.executes,
        seconds,
        skip_count=request.skip_count,
    )
    setup.recorder.faults.append(case.planned_fault)


async def gather_limited(tasks: Sequence[Awaitable[Any]]) -> None:
    slots = asyncio.Semaphore(MAX_CONCURRENT)

    async def run_in_slot(awaitable: Awaitable[Any]) -> None:
        async with slots:
            await awaitable

    await asyncio.gather(*map(run_in_slot, tasks))


async def run_cases(setup: GatewayAndService, cases: list[FaultCase]) -> None:
    """Sends the request of each case, and repeats it after its fault until it succeeds."""
    await gather_limited([prepare_case(setup, case) for case in cases])
    await gather_limited([case.send_request(setup, 3 if case.style == 0 else 1) for case in cases])
    for _ in range(MAX_TRIES):
        if not (
            unmet := [
                case for case in cases if not case.is_fault_consumed(setup) and not case.is_final
            ]
        ):
            break
        await gather_limited([case.send_request(setup) for case in unmet])
    assert not setup.recorder.faults, setup.recorder.faults
    await wait_until(lambda: setup.recorder.is_idle)
    await check_journal(setup.gateway.settings, setup.recorder)
    setup.clock.ahead_seconds += 60  # after this, no sent call can be executed any more
    for _ in range(MAX_TRIES):
        await gather_limited([case.send_request(setup) for case in cases])
        if all(case.is_final for case in cases):
            break
        await asyncio.sleep(0.3)
    await check_journal(setup.gateway.settings, setup.recorder)


def describe_failure(setup: GatewayAndService, case: FaultCase) -> str | None:
    """Returns what is wrong with the result of a case, or None."""
    request, recorder = case.request, setup.recorder
    if not case.is_final:
        return f"{case.name}: no end: {[response.text for response in case.responses]}"
    if not case.kind.effect(setup, case.tag, request):
        return f"{case.name}: not what was asked for"
    times = len(recorder.list_executed_writes(*request.faulty_call, text=request.tag))
    if case.kind.expected_executions is not None and times != case.kind.expected_executions:
        return f"{case.name}: executed {times} times"
    return None


def build_cases(
    kinds: Sequence[WriteKind], faults: Sequence[ServiceFault], tag: str = "one"
) -> list[FaultCase]:
    combinations = [(kind, fault) for kind in kinds for fault in faults]
    return [
        FaultCase(kind, fault, number % len(RETRY_STYLES), f"{tag}-{number:03d}-end")
        for number, (kind, fault) in enumerate(combinations)
    ]


async def is_nothing_in_doubt(setup: GatewayAndService) -> bool:
    """Whether no write is running or in doubt."""
    states = await count_operations_by_state(setup.gateway.settings)
    return not states["running"] and not states["unsettled"]


async def check_all_cases(setup: GatewayAndService, cases: list[FaultCase]) -> None:
    await run_cases(setup, cases)
    failures = [failure for case in cases if (failure := describe_failure(setup, case))]
    assert not failures, "\n".join(failures)
    assert all(times == 1 for times in setup.recorder.list_starts.values())


MAIN_KINDS = ("create_recipient", "create_with_payout", "create_batch", "create_payment", "start")


@pytest.mark.parametrize("name", MAIN_KINDS)
async def test_write_is_executed_once_with_any_fault(name: str, tmp_path: Path) -> None:
    async with open_gateway_and_recorder(tmp_path) as setup:
        await check_all_cases(setup, build_cases([KINDS_BY_NAME[name]], FAULTS))
        await wait_until_async(partial(is_nothing_in_doubt, setup))


async def test_other_writes_are_executed_once_with_main_faults(tmp_path: Path) -> None:
    kinds = [kind for kind in KINDS if kind.name not in MAIN_KINDS]
    async with open_gateway_and_recorder(tmp_path) as setup:
        await check_all_cases(setup, build_cases(kinds, MAIN_FAULTS))
        await wait_until_async(partial(is_nothing_in_doubt, setup))
