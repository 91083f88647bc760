"""Concurrent requests on one batch: one wins, and the amounts that are paid are those that were
answered.

The tests run many rounds over real sockets, and force the worst order by delayed answers.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.simulator import batches
from gateway.storage import ObjectStateStore, open_store
from tests.payouts import (
    create_batch,
    create_recipient,
    load_payment_ids,
    open_gateway_and_service,
    request_successfully,
)
from tests.running_gateway import GatewayResponse, GatewayUnderTest
from tests.signed_requests import extract_error, send_signed
from tests.simulator import Fault, Service, ServiceOptions
from tests.state import TENANT

ROUNDS = 25
REFUSAL = b'{"ok":false,"errors":[{"code":"rate_limit_exceeded","message":"Slow down."}]}'
WITH_AND_WITHOUT_OPTIONAL_ENDPOINTS = pytest.mark.parametrize(
    "inferred", [True, False], ids=["inferred", "documented"]
)


def build_service(*, inferred: bool) -> Service:
    return Service(seed=1, options=ServiceOptions(inferred=inferred, processing_seconds=60))


def list_paid_amounts(service: Service) -> list[str]:
    """Returns the amounts of the only batch in the service's list of starts."""
    (batch_start,) = service.batch_starts
    batch = service.require_batch(batch_start.batch_id)
    return [str(payment.terms.source_amount) for payment in batch.payments.values()]


def is_refused(response: GatewayResponse) -> bool:
    return response.status == 406 and [error["code"] for error in response.body["errors"]] == [
        "invalid_status"
    ]


async def edit_payment(
    gateway: GatewayUnderTest, batch: str, payment: str, amount: str = "9.00"
) -> GatewayResponse:
    body = {"sourceAmount": amount}
    return await gateway.request("PATCH", f"/v1/batches/{batch}/payments/{payment}", body)


async def start_batch(gateway: GatewayUnderTest, batch: str) -> GatewayResponse:
    return await gateway.request("POST", f"/v1/batches/{batch}/start-processing")


@WITH_AND_WITHOUT_OPTIONAL_ENDPOINTS
async def test_concurrent_edit_and_start_have_one_winner(*, inferred: bool, tmp_path: Path) -> None:
    service = build_service(inferred=inferred)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        for number in range(ROUNDS):
            batch = await create_batch(gateway, recipient, "5.00")
            (payment,) = await load_payment_ids(gateway, batch)
            if number % 3 == 2:  # an edited batch may be a draft
                assert (await edit_payment(gateway, batch, payment, "5.00")).status == 200
            service.batch_starts.clear()
            both = (edit_payment(gateway, batch, payment), start_batch(gateway, batch))
            edit_response, start_response = await asyncio.gather(*both)
            assert edit_response.status == 200 or is_refused(edit_response), edit_response.text
            assert start_response.status == 200 or is_refused(start_response), start_response.text
            assert 200 in (edit_response.status, start_response.status)
            assert len(service.batch_starts) == (start_response.status == 200)
            if start_response.status == 200:
                assert list_paid_amounts(service) == [
                    "9.00" if edit_response.status == 200 else "5.00"
                ]
            elif not service.batch_starts:
                assert (await start_batch(gateway, batch)).status == 200
                assert list_paid_amounts(service) == ["9.00"]


@WITH_AND_WITHOUT_OPTIONAL_ENDPOINTS
async def test_concurrent_deletion_and_start_have_one_winner(
    *, inferred: bool, tmp_path: Path
) -> None:
    service = build_service(inferred=inferred)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        for _ in range(ROUNDS):
            batch = await create_batch(gateway, recipient, "5.00")
            service.batch_starts.clear()
            deletion = gateway.request("DELETE", f"/v1/batches/{batch}")
            deleted, start_response = await asyncio.gather(deletion, start_batch(gateway, batch))
            assert len(service.batch_starts) == (start_response.status == 200)
            assert (deleted.status == 200) == (start_response.status != 200)
            assert deleted.status == 200 or is_refused(deleted), deleted.text


@WITH_AND_WITHOUT_OPTIONAL_ENDPOINTS
async def test_concurrent_starts_start_the_batch_once(*, inferred: bool, tmp_path: Path) -> None:
    service = build_service(inferred=inferred)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        for number in range(ROUNDS):
            batch = await create_batch(gateway, recipient, "5.00")
            if number % 2:
                (payment,) = await load_payment_ids(gateway, batch)
                assert (await edit_payment(gateway, batch, payment)).status == 200
            service.batch_starts.clear()
            responses = await asyncio.gather(*(start_batch(gateway, batch) for _ in range(4)))
            # Identical requests in flight join the first; later ones find a started batch.
            assert {200} <= {response.status for response in responses} <= {200, 406}
            assert len(service.batch_starts) == 1


async def create_draft(gateway: GatewayUnderTest, recipient: str, amount: str = "9.00") -> str:
    """Creates a draft: without optional endpoints, an edit supersedes the service's batch."""
    batch = await create_batch(gateway, recipient, "5.00")
    (payment,) = await load_payment_ids(gateway, batch)
    assert (await edit_payment(gateway, batch, payment, amount)).status == 200
    return batch


async def wait_until_draft_is_being_created(gateway: GatewayUnderTest) -> None:
    """Waits until the ledger has the phase ``making`` for the only batch."""
    async with open_store(gateway.settings.state) as store, asyncio.timeout(10):
        phase = None
        while phase != "making":
            await asyncio.sleep(0.01)
            (batch_state,) = (
                await ObjectStateStore(store).load_facts_by_id(TENANT, "batch")
            ).values()
            phase = batch_state.get("phase")


async def load_summary(gateway: GatewayUnderTest, batch: str) -> GatewayResponse:
    return await gateway.request("GET", f"/v1/batches/{batch}/summary")


async def generate_quote(gateway: GatewayUnderTest, batch: str) -> GatewayResponse:
    return await gateway.request("POST", f"/v1/batches/{batch}/generate-quote")


async def test_concurrent_requests_create_the_draft_once(tmp_path: Path) -> None:
    service = build_service(inferred=False)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        for _ in range(ROUNDS):
            batch = await create_draft(gateway, recipient)
            draft_count = service.creation_counts["batch"]
            requests = (
                load_summary(gateway, batch),
                generate_quote(gateway, batch),
                start_batch(gateway, batch),
            )
            summary_response, quote_response, start_response = await asyncio.gather(*requests)
            assert summary_response.status == 200, summary_response.text
            assert quote_response.status == 200 or is_refused(quote_response), (
                "a batch that was started has no quote"
            )
            assert start_response.status == 200 or is_refused(start_response), start_response.text
            assert service.creation_counts["batch"] == draft_count + 1


async def test_concurrent_reads_share_one_created_draft(
    tmp_path: Path,
) -> None:
    service = build_service(inferred=False)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        for _ in range(ROUNDS):
            batch = await create_draft(gateway, recipient)
            draft_count = service.creation_counts["batch"]
            requests = [
                send_request(gateway, batch)
                for send_request in (load_summary, generate_quote)
                for _ in range(3)
            ]
            responses = await asyncio.gather(*requests)
            assert {response.status for response in responses} == {200}, [
                response.text for response in responses
            ]
            assert service.creation_counts["batch"] == draft_count + 1
            (payment,) = await load_payment_ids(gateway, batch)
            for quote_response in responses[3:]:
                (shown_payment,) = quote_response.body["batch"]["payments"]["payments"]
                assert (shown_payment["id"], shown_payment["sourceAmount"]) == (payment, "9.00")


async def test_summary_waits_for_draft_creation(tmp_path: Path) -> None:
    service = build_service(inferred=False)
    async with open_gateway_and_service(tmp_path, service) as (gateway, simulator):
        recipient = await create_recipient(gateway)
        batch = await create_draft(gateway, recipient)
        draft_count = service.creation_counts["batch"]
        simulator.service.faults.append(Fault("POST", "/v1/batches", delay=0.4))
        quote_task = asyncio.create_task(generate_quote(gateway, batch))
        await wait_until_draft_is_being_created(gateway)
        start_response, summary_response = await asyncio.gather(
            start_batch(gateway, batch), load_summary(gateway, batch)
        )
        assert (start_response.status, summary_response.status) == (200, 200), summary_response.text
        assert summary_response.body["batchSummary"]["total"]["value"] == 9
        assert (await quote_task).status == 200
        assert service.creation_counts["batch"] == draft_count + 1


async def test_waiter_creates_the_draft_if_the_first_creation_was_refused(
    tmp_path: Path,
) -> None:
    service = build_service(inferred=False)
    async with open_gateway_and_service(tmp_path, service) as (gateway, simulator):
        recipient = await create_recipient(gateway)
        batch = await create_draft(gateway, recipient)
        draft_count = service.creation_counts["batch"]
        simulator.service.faults.append(
            Fault("POST", "/v1/batches", status=429, body=REFUSAL, delay=0.4)
        )
        summary_task = asyncio.create_task(load_summary(gateway, batch))
        await wait_until_draft_is_being_created(gateway)
        assert (await load_summary(gateway, batch)).status == 200
        assert (await summary_task).status == 429
        assert service.creation_counts["batch"] == draft_count + 1


async def test_summary_after_concurrent_deletion_finds_nothing(tmp_path: Path) -> None:
    service = build_service(inferred=False)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        for _ in range(ROUNDS):
            batch = await create_draft(gateway, recipient)
            deletion = gateway.request("DELETE", f"/v1/batches/{batch}")
            deleted, summary_response = await asyncio.gather(deletion, load_summary(gateway, batch))
            assert deleted.status == 200 or is_refused(deleted)
            assert summary_response.status in ({200, 404} if deleted.status == 200 else {200}), (
                summary_response.text
            )


async def test_summary_does_not_create_a_draft_again_while_its_creation_is_in_doubt(
    tmp_path: Path,
) -> None:
    service = build_service(inferred=False)
    upstream = {"timeout_seconds": 2}
    async with open_gateway_and_service(tmp_path, service, upstream=upstream) as (
        gateway,
        simulator,
    ):
        recipient = await create_recipient(gateway)
        batch = await create_draft(gateway, recipient)
        simulator.service.faults.append(Fault("POST", "/v1/batches", close="after"))
        assert (await load_summary(gateway, batch)).status == 500, "the outcome is unknown"
        draft_count = service.creation_counts["batch"]
        assert (await load_summary(gateway, batch)).status == 500, "it still is"
        assert service.creation_counts["batch"] == draft_count, (
            "nothing was sent while it is unknown"
        )


@WITH_AND_WITHOUT_OPTIONAL_ENDPOINTS
async def test_concurrent_edits_are_all_applied_in_turn(*, inferred: bool, tmp_path: Path) -> None:
    """The batch stays open: the legacy document gives no reason to refuse any of them."""
    service = build_service(inferred=inferred)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        for _ in range(ROUNDS // 5):
            batch = await create_batch(gateway, recipient, "1.00", "1.00", "1.00")
            payment_ids = await load_payment_ids(gateway, batch)
            edits = [edit_payment(gateway, batch, payment, "9.00") for payment in payment_ids[1:]]
            removal = gateway.request("DELETE", f"/v1/batches/{batch}/payments/{payment_ids[0]}")
            amounts = [f"{number}.00" for number in range(2, 8)]
            adds = [add_payment(gateway, batch, recipient, amount) for amount in amounts]
            responses = await asyncio.gather(*edits, removal, *adds)
            assert {response.status for response in responses} == {200}, [
                response.text for response in responses
            ]
            added_payments = [response.body["payment"] for response in responses[-len(adds) :]]
            assert [entry["sourceAmount"] for entry in added_payments] == amounts
            assert len({entry["id"] for entry in added_payments}) == len(added_payments)
            service.batch_starts.clear()
            assert (await start_batch(gateway, batch)).status == 200
            assert sorted(list_paid_amounts(service)) == sorted(["9.00", "9.00", *amounts])


async def add_payment(
    gateway: GatewayUnderTest, batch: str, recipient: str, amount: str
) -> GatewayResponse:
    body = {"recipient": {"id": recipient}, "sourceAmount": amount}
    return await gateway.request("POST", f"/v1/batches/{batch}/payments", body)


@WITH_AND_WITHOUT_OPTIONAL_ENDPOINTS
async def test_concurrent_removals_of_a_payment_remove_it_once(
    *, inferred: bool, tmp_path: Path
) -> None:
    service = build_service(inferred=inferred)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00", "6.00")
        payment, _other = await load_payment_ids(gateway, batch)
        requests = (
            gateway.request("DELETE", f"/v1/batches/{batch}/payments/{payment}") for _ in range(4)
        )
        responses = await asyncio.gather(*requests)
        assert {200} <= {response.status for response in responses} <= {200, 404}
        assert (await start_batch(gateway, batch)).status == 200, (
            "those that found nothing let it go"
        )
        assert list_paid_amounts(service) == ["6.00"]


async def test_refused_edit_releases_the_batch(tmp_path: Path) -> None:
    service = build_service(inferred=True)
    async with open_gateway_and_service(tmp_path, service) as (gateway, simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00")
        simulator.service.faults.append(Fault("POST", "/v1/batches/*/payments", delay=0.4))
        simulator.service.faults.append(
            Fault("POST", "/v1/batches/*/payments", status=429, body=REFUSAL)
        )
        add_task = asyncio.create_task(add_payment(gateway, batch, recipient, "6.00"))
        await asyncio.sleep(0.1)
        assert (await add_payment(gateway, batch, recipient, "7.00")).status == 429
        assert (await add_task).status == 200
        assert (await start_batch(gateway, batch)).status == 200
        assert list_paid_amounts(service) == ["5.00", "6.00"]


async def test_edit_during_start_is_refused_without_waiting(tmp_path: Path) -> None:
    service = build_service(inferred=True)
    async with open_gateway_and_service(tmp_path, service) as (gateway, simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00")
        simulator.service.faults.append(
            Fault("POST", "/v1/batches/*/start-processing", answer_delay=0.5)
        )
        start_task = asyncio.create_task(start_batch(gateway, batch))
        await asyncio.sleep(0.1)
        assert is_refused(await add_payment(gateway, batch, recipient, "6.00"))
        assert (await start_task).status == 200
        assert list_paid_amounts(service) == ["5.00"]


# The worst order: the first request to read the batch is the last to change it


@WITH_AND_WITHOUT_OPTIONAL_ENDPOINTS
@pytest.mark.parametrize("late_request", ["edit", "delete", "remove", "start"])
async def test_change_based_on_a_read_before_start_is_refused(
    *, inferred: bool, late_request: str, tmp_path: Path
) -> None:
    service = build_service(inferred=inferred)
    async with open_gateway_and_service(tmp_path, service) as (gateway, simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00", "6.00")
        payment, _other = await load_payment_ids(gateway, batch)
        simulator.service.faults.append(Fault("GET", "/v1/batch/*/summary", answer_delay=0.5))
        request = {
            "edit": lambda: edit_payment(gateway, batch, payment),
            "delete": lambda: gateway.request("DELETE", f"/v1/batches/{batch}"),
            "remove": lambda: gateway.request("DELETE", f"/v1/batches/{batch}/payments/{payment}"),
            "start": lambda: start_batch(gateway, batch),
        }[late_request]
        slow = asyncio.create_task(request())
        await asyncio.sleep(0.1)
        assert (await start_batch(gateway, batch)).status == 200
        if late_request == "start":
            assert (await slow).status == 200, "an identical request joins the open one"
        else:
            assert is_refused(await slow), "the batch was started meanwhile"
        assert (await request_successfully(gateway, "GET", f"/batches/{batch}"))["batch"][
            "status"
        ] == "processing"
        assert is_refused(await start_batch(gateway, batch))
        assert len(service.batch_starts) == 1
        assert list_paid_amounts(service) == ["5.00", "6.00"]


@WITH_AND_WITHOUT_OPTIONAL_ENDPOINTS
async def test_start_that_read_the_batch_before_an_edit_pays_the_edited_amount(
    *, inferred: bool, tmp_path: Path
) -> None:
    service = build_service(inferred=inferred)
    async with open_gateway_and_service(tmp_path, service) as (gateway, simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00")
        (payment,) = await load_payment_ids(gateway, batch)
        simulator.service.faults.append(Fault("GET", "/v1/batch/*/summary", answer_delay=0.5))
        slow = asyncio.create_task(start_batch(gateway, batch))
        await asyncio.sleep(0.1)
        assert (await edit_payment(gateway, batch, payment)).status == 200
        assert (await slow).status == 200
        assert len(service.batch_starts) == 1
        assert list_paid_amounts(service) == ["9.00"]


@pytest.mark.parametrize("slow_write", ["edit", "submission"])
async def test_start_is_refused_if_others_start_the_superseded_batch_while_it_waits(
    *, slow_write: str, tmp_path: Path
) -> None:
    service = build_service(inferred=False)
    async with open_gateway_and_service(tmp_path, service) as (gateway, simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00")
        (payment,) = await load_payment_ids(gateway, batch)
        tenant = service.find_or_create_tenant()
        (superseded,) = tenant.batches.values()
        path = "/v1/batches/*/payments/*" if slow_write == "edit" else "/v1/batches"
        method = "PATCH" if slow_write == "edit" else "POST"
        simulator.service.faults.append(Fault(method, path, answer_delay=0.5))
        edit_task = asyncio.create_task(edit_payment(gateway, batch, payment))
        await asyncio.sleep(0.1)
        start_task = asyncio.create_task(start_batch(gateway, batch))
        await asyncio.sleep(0.2)
        assert edit_task.done() == (slow_write == "submission")
        batches.start_batch(tenant, superseded)  # in the service's dashboard
        assert (await edit_task).status == 200
        assert is_refused(await start_task)
        assert not service.batch_starts


async def test_signed_start_is_refused_if_others_start_the_superseded_batch_while_it_waits(
    tmp_path: Path,
) -> None:
    service = build_service(inferred=False)
    async with open_gateway_and_service(tmp_path, service) as (gateway, simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00")
        (payment,) = await load_payment_ids(gateway, batch)
        assert (await edit_payment(gateway, batch, payment)).status == 200
        quote_path = f"/batches/{batch}/generate-quote"
        await request_successfully(gateway, "POST", quote_path)
        tenant = service.find_or_create_tenant()
        superseded, submitted = tenant.batches.values()
        quote_fault = Fault("POST", "/v1/batches/*/generate-quote", answer_delay=0.5)
        simulator.service.faults.append(quote_fault)
        quote_task = asyncio.create_task(gateway.request("POST", f"/v1{quote_path}"))
        await asyncio.sleep(0.1)
        start_path = f"/batches/{submitted.id}/start-processing"
        start_task = asyncio.create_task(send_signed(gateway, "POST", start_path))
        await asyncio.sleep(0.2)
        assert not quote_task.done()
        batches.start_batch(tenant, superseded)  # in the service's dashboard
        assert (await quote_task).status == 200
        assert extract_error(await start_task) == (400, "invalid_status")
        assert not service.batch_starts
        # It has released the batch.
        assert is_refused(await start_batch(gateway, batch))


async def test_superseded_batch_is_not_started_by_any_id(tmp_path: Path) -> None:
    service = build_service(inferred=False)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00")
        (payment,) = await load_payment_ids(gateway, batch)
        for amount in ("6.00", "7.00"):  # each edit supersedes the service's batch
            assert (await edit_payment(gateway, batch, payment, amount)).status == 200
            await request_successfully(gateway, "POST", f"/batches/{batch}/generate-quote")
        first, second, third = service.find_or_create_tenant().batches
        assert (await start_batch(gateway, second)).status in (404, 406)
        assert not service.batch_starts
        assert (await start_batch(gateway, third)).status == 200
        assert is_refused(await start_batch(gateway, batch))
        assert is_refused(await start_batch(gateway, first))
        assert len(service.batch_starts) == 1


async def test_edit_and_start_by_two_ids_of_a_batch_do_not_conflict(tmp_path: Path) -> None:
    """After an edit, the service's id of the batch differs from the client's id."""
    service = build_service(inferred=False)
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00")
        (payment,) = await load_payment_ids(gateway, batch)
        assert (await edit_payment(gateway, batch, payment, "6.00")).status == 200
        await request_successfully(gateway, "POST", f"/batches/{batch}/generate-quote")
        current = list(service.find_or_create_tenant().batches)[-1]
        (its_payment,) = service.require_batch(current).payments
        edit_response = await edit_payment(gateway, current, its_payment, "9.00")
        assert edit_response.status in (200, 404)
        assert (await start_batch(gateway, batch)).status == 200
        assert list_paid_amounts(service) == ["9.00" if edit_response.status == 200 else "6.00"]
        assert (await start_batch(gateway, current)).status in (404, 406)
        assert len(service.batch_starts) == 1


async def test_adds_with_the_same_request_id_create_two_payments(tmp_path: Path) -> None:
    """Clients choose X-Request-Id, and some send the same value with every request."""
    service = Service(seed=1, options=ServiceOptions(inferred=False))
    async with open_gateway_and_service(tmp_path, service) as (gateway, _simulator):
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "1.00", "2.00")
        (first, _second) = await load_payment_ids(gateway, batch)
        await request_successfully(
            gateway, "DELETE", f"/batches/{batch}/payments/{first}"
        )  # a draft from here on
        options = {"headers": {"X-Request-Id": "the-same-every-time"}}
        added_ids = [
            (
                await request_successfully(
                    gateway,
                    "POST",
                    f"/batches/{batch}/payments",
                    {"recipient": {"id": recipient}, "sourceAmount": amount},
                    **options,
                )
            )["payment"]["id"]
            for amount in ("3.00", "4.00")
        ]
        assert len({*added_ids, *await load_payment_ids(gateway, batch)}) == 3
        await request_successfully(gateway, "DELETE", f"/batches/{batch}/payments/{added_ids[0]}")
        assert len(await load_payment_ids(gateway, batch)) == 2
