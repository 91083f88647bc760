"""Payments that are added to a batch while another add to it is in doubt."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.simulator.state import Payment
from tests.operator_commands import OperatedGateway, open_operated_gateway, wait_until_async
from tests.payouts import create_batch, create_recipient, load_payment_ids, request_successfully
from tests.running_gateway import GatewayResponse
from tests.service_summaries import hide_path
from tests.test_lost_batch_creates import create_batch_elsewhere

ADD_PATH = "/v1/batches/*/payments"

WITH_OPTIONAL_ENDPOINTS = pytest.mark.parametrize(
    ("mode", "has_paths"), [("auto", True), ("auto", False), ("use", True), ("avoid", False)]
)


def build_upstream_section(mode: str) -> dict[str, Any]:
    return {"upstream": {"inferred_operations": mode}}


class BatchInDoubt:
    """A batch of one payment, to which a second was added without an answer."""

    def __init__(self, setup: OperatedGateway, recipient: str, batch: str) -> None:
        self.setup = setup
        self.recipient = recipient
        self.path = f"/v1/batches/{batch}"
        self.batch = batch

    @classmethod
    async def create(cls, setup: OperatedGateway) -> BatchInDoubt:
        recipient = await create_recipient(setup.gateway)
        return cls(setup, recipient, await create_batch(setup.gateway, recipient, "10.00"))

    def build_payment(self, amount: str, **options: Any) -> dict[str, Any]:
        return {"recipient": {"id": self.recipient}, "sourceAmount": amount, **options}

    async def add_payment(self, amount: str, **options: Any) -> GatewayResponse:
        headers = options.pop("headers", {})
        body = self.build_payment(amount, **options)
        return await self.setup.gateway.request(
            "POST", f"{self.path}/payments", body, headers=headers
        )

    async def lose_add(self, amount: str, close: str, **options: Any) -> None:
        self.setup.add_fault("POST", ADD_PATH, close=close)
        lost_response = await self.add_payment(amount, **options)
        assert lost_response.status == 500
        assert "is unknown" in lost_response.body["errors"][0]["message"]

    async def load_amounts(self) -> list[str]:
        batch_body = await request_successfully(self.setup.gateway, "GET", f"/batches/{self.batch}")
        payments = batch_body["batch"]["payments"]["payments"]
        return sorted(entry["sourceAmount"] for entry in payments)

    async def is_settled(self) -> bool:
        return not (await self.setup.run_json_command("writes", "unsettled"))["writes"]

    async def wait_until_settled(self) -> None:
        await self.setup.age_sent_writes()
        await wait_until_async(self.is_settled, 40)

    async def start_batch(self) -> None:
        response = await self.setup.gateway.request("POST", f"{self.path}/start-processing")
        assert response.status == 200, response.text

    def list_paid_amounts(self) -> list[str]:
        """Returns the amounts that the service paid for the only started batch."""
        (batch_start,) = self.setup.service.batch_starts
        payments = self.setup.service.require_batch(batch_start.batch_id).payments.values()
        return sorted(str(payment.terms.source_amount) for payment in payments)


@WITH_OPTIONAL_ENDPOINTS
@pytest.mark.parametrize("close", ["before", "after"])
async def test_other_adds_proceed_while_one_is_in_doubt(
    mode: str, has_paths: bool, close: str, tmp_path: Path
) -> None:
    async with open_operated_gateway(
        tmp_path, sections=build_upstream_section(mode), inferred=has_paths
    ) as setup:
        day = await BatchInDoubt.create(setup)
        await day.lose_add("11.00", close)
        for amount in ("12.00", "13.00"):
            response = await day.add_payment(amount)
            assert (response.status, response.body["payment"]["sourceAmount"]) == (200, amount), (
                response.text
            )
        executed_amounts = ["11.00"] if close == "after" else []
        assert await day.load_amounts() == ["10.00", *executed_amounts, "12.00", "13.00"]
        await day.wait_until_settled()
        assert await day.load_amounts() == ["10.00", *executed_amounts, "12.00", "13.00"]
        # The retry of the add in doubt.
        retry_response = await day.add_payment("11.00")
        assert (retry_response.status, retry_response.body["payment"]["sourceAmount"]) == (
            200,
            "11.00",
        ), retry_response.text
        assert await day.load_amounts() == ["10.00", "11.00", "12.00", "13.00"]
        assert (await setup.run_json_command("reconcile"))["findings"] == []
        await day.start_batch()
        assert day.list_paid_amounts() == ["10.00", "11.00", "12.00", "13.00"]


@WITH_OPTIONAL_ENDPOINTS
async def test_other_writes_to_the_batch_are_refused_while_an_add_is_in_doubt(
    mode: str, has_paths: bool, tmp_path: Path
) -> None:
    async with open_operated_gateway(
        tmp_path, sections=build_upstream_section(mode), inferred=has_paths
    ) as setup:
        day = await BatchInDoubt.create(setup)
        same_key, other_key = ({"Idempotency-Key": name} for name in ("one", "another"))
        await day.lose_add("11.00", "after", headers=same_key)
        assert (await day.add_payment("12.00")).status == 200
        payment_ids = await load_payment_ids(setup.gateway, day.batch)
        writes = setup.service.list_requests("POST", "/v1/batches/*/*")
        setup.add_fault(
            "GET", "/v1/batch/*/summary", status=503, times=10_000
        )  # no write is reconciled
        blocked_writes: list[tuple[str, str, Any]] = [
            ("POST", "/generate-quote", None),
            ("POST", "/start-processing", None),
            ("DELETE", "", None),
            ("PATCH", "", {"payments": [day.build_payment("11.00")]}),
            *(("PATCH", f"/payments/{id_}", {"sourceAmount": "1.00"}) for id_ in payment_ids),
            *(("DELETE", f"/payments/{id_}", None) for id_ in payment_ids),
        ]
        for method, path, body in blocked_writes:
            response = await setup.gateway.request(method, f"{day.path}{path}", body)
            assert response.status == 500, (method, path, response.text)
            assert int(response.headers["Retry-After"]) > 0
            assert "nothing of this request was done" in response.body["errors"][0]["message"]
        for headers, message in (
            (same_key, "is unknown"),
            (other_key, "nothing of this request was done"),
        ):
            response = await day.add_payment("11.00", headers=headers)
            assert (response.status, int(response.headers["Retry-After"]) > 0) == (500, True)
            assert message in response.body["errors"][0]["message"]
        assert setup.service.list_requests("POST", "/v1/batches/*/*") == writes
        assert setup.service.list_requests("PATCH", "/v1/batches/*") == []
        assert setup.service.list_requests("DELETE", "/v1/batches/*") == []


async def test_add_in_doubt_blocks_an_equal_one_whose_amount_is_written_in_another_way(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path) as setup:
        day = await BatchInDoubt.create(setup)
        await day.lose_add("11.00", "before")
        for amount in ("11", 11):
            body = {**day.build_payment("11.00"), "sourceAmount": amount}
            response = await setup.gateway.request("POST", f"{day.path}/payments", body)
            assert response.status == 500
            assert "nothing of this request was done" in response.body["errors"][0]["message"]
        assert await day.load_amounts() == ["10.00"]
        await day.wait_until_settled()
        assert (await day.add_payment("11")).status == 200
        assert await day.load_amounts() == ["10.00", "11.00"]


@pytest.mark.parametrize("answers", ["full", "bare"])
@pytest.mark.parametrize("close", ["before", "after"])
async def test_add_in_doubt_is_not_confused_with_one_of_the_same_amount(
    close: str, answers: str, tmp_path: Path
) -> None:
    """Payments of one amount to one recipient differ by their memo."""
    async with open_operated_gateway(tmp_path, answers=answers) as setup:
        day = await BatchInDoubt.create(setup)
        await day.lose_add("11.00", close, memo="first")
        other_response = await day.add_payment("11.00", memo="second")
        assert (other_response.status, other_response.body["payment"]["memo"]) == (200, "second"), (
            other_response.text
        )
        await day.wait_until_settled()
        retry_response = await day.add_payment("11.00", memo="first")
        assert (retry_response.status, retry_response.body["payment"]["memo"]) == (200, "first"), (
            retry_response.text
        )
        assert retry_response.body["payment"]["id"] != other_response.body["payment"]["id"]
        assert await day.load_amounts() == ["10.00", "11.00", "11.00"]
        await day.start_batch()
        assert day.list_paid_amounts() == ["10.00", "11.00", "11.00"]


@pytest.mark.parametrize("close", ["before", "after"])
async def test_several_adds_in_doubt_are_reconciled_separately(close: str, tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as setup:
        day = await BatchInDoubt.create(setup)
        await day.lose_add("11.00", close)
        await day.lose_add("12.00", "after")
        await day.lose_add("13.00", "before")
        assert (await day.add_payment("14.00")).status == 200
        await day.wait_until_settled()
        for amount in ("11.00", "12.00", "13.00"):
            assert (await day.add_payment(amount)).status == 200
        amounts = ["10.00", "11.00", "12.00", "13.00", "14.00"]
        assert await day.load_amounts() == amounts
        await day.start_batch()
        assert day.list_paid_amounts() == amounts


async def test_add_without_id_in_its_response_is_distinguished(tmp_path: Path) -> None:
    """The response is only ``ok``: the payment is recognized by its amount."""
    async with open_operated_gateway(tmp_path) as setup:
        day = await BatchInDoubt.create(setup)
        await day.lose_add("11.00", "before", memo="first")
        setup.add_fault("POST", ADD_PATH, status=200, body=b'{"ok":true}', executes=True)
        other_response = await day.add_payment("11.00", memo="second")
        assert (other_response.status, other_response.body["payment"]["memo"]) == (200, "second"), (
            other_response.text
        )
        await day.wait_until_settled()
        retry_response = await day.add_payment("11.00", memo="first")
        assert (retry_response.status, "Idempotent-Replayed" in retry_response.headers) == (
            200,
            False,
        ), retry_response.text
        assert setup.service.creation_counts["payment"] == 3
        await day.start_batch()
        assert day.list_paid_amounts() == ["10.00", "11.00", "11.00"]


async def test_add_waits_for_others_no_longer_than_for_one_call(tmp_path: Path) -> None:
    seconds = 1.5
    async with open_operated_gateway(tmp_path, seconds=seconds) as setup:
        day = await BatchInDoubt.create(setup)
        setup.add_fault("POST", ADD_PATH, answer_delay=0.5, times=20)

        async def add_payment(number: int) -> tuple[int, bool, float]:
            loop = asyncio.get_running_loop()
            started_at = loop.time()
            response = await day.add_payment(f"{number + 11}.00")
            return response.status, "Retry-After" in response.headers, loop.time() - started_at

        responses = await asyncio.gather(*map(add_payment, range(12)))
        added_count = sum(status == 200 for status, *_ in responses)
        assert 0 < added_count < 12
        assert {(status, retries) for status, retries, _ in responses} == {
            (200, False),
            (500, True),
        }
        assert max(elapsed for *_, elapsed in responses) < 3 * seconds
        assert len(await day.load_amounts()) == 1 + added_count


@pytest.mark.parametrize("answers", ["full", "bare"])
@pytest.mark.parametrize("close", ["before", "after"])
@pytest.mark.parametrize("first", ["POST", "PATCH"])
@pytest.mark.parametrize("second", ["POST", "PATCH"])
async def test_payment_that_was_not_shown_yet_is_not_taken_for_one_in_doubt(
    answers: str, close: str, first: str, second: str, tmp_path: Path
) -> None:
    """Two requests add the same payment; the service shows the first only after the second."""
    async with open_operated_gateway(tmp_path, answers=answers) as setup:
        day = await BatchInDoubt.create(setup)
        (batch,) = setup.service.find_or_create_tenant().batches.values()
        summary = build_summary(*batch.payments.values())
        setup.add_fault("GET", "/v1/batch/*/summary", status=200, body=summary, times=100)

        async def add_payment(method: str) -> GatewayResponse:
            if method == "POST":
                return await day.add_payment("11.00")
            body = {"payments": [day.build_payment("11.00")]}
            return await setup.gateway.request("PATCH", day.path, body)

        assert (await add_payment(first)).status == 200
        path = ADD_PATH if second == "POST" else "/v1/batches/*"
        setup.add_fault(second, path, close=close)
        assert (await add_payment(second)).status == 500
        setup.service.faults.clear()
        await day.wait_until_settled()
        retry_response = await add_payment(second)
        assert retry_response.status == 200, retry_response.text
        assert ("Idempotent-Replayed" in retry_response.headers) == (close == "after")
        assert await day.load_amounts() == ["10.00", "11.00", "11.00"]
        await day.start_batch()
        assert day.list_paid_amounts() == ["10.00", "11.00", "11.00"]


def build_summary(
    payment: Payment, *rows: dict[str, Any], meta: Any = None, **fields: Any
) -> bytes:
    """Builds a summary that shows a payment completely, further rows and fields of the batch."""
    recipient = {"id": payment.recipient.id}
    shown = {"id": payment.id, "recipient": recipient, "amount": str(payment.amount)}
    payments = {"payments": [shown, *rows], "meta": meta}
    batch = {"id": payment.batch.id, "status": "open", "payments": payments, **fields}
    return json.dumps({"ok": True, "batchSummary": batch}).encode()


@pytest.mark.parametrize(
    ("fields", "batch_fields"),
    [
        (None, {"meta": {"page": 1, "pages": 2}}),
        (None, {"meta": {"records": "2"}}),
        (None, {"totalPayments": 2}),
        ({"recipient": {"email": "ada@example.com"}, "amount": "11.00"}, {}),
        ({"recipientId": "", "amount": "11.00"}, {}),
        ({"amount": "being computed"}, {}),
    ],
)
async def test_add_that_the_summary_does_not_show_completely_is_not_sent_again(
    fields: dict[str, Any] | None, batch_fields: dict[str, Any], tmp_path: Path
) -> None:
    async with open_operated_gateway(tmp_path) as setup:
        day = await BatchInDoubt.create(setup)
        await day.lose_add("11.00", "after")
        (batch,) = setup.service.find_or_create_tenant().batches.values()
        first, added = batch.payments.values()
        default_fields = {"id": added.id, "recipient": {"id": added.recipient.id}}
        if fields and "recipientId" in fields:
            del default_fields["recipient"]
        rows = [] if fields is None else [{**default_fields, **fields}]
        summary = build_summary(first, *rows, **batch_fields)
        setup.add_fault("GET", "/v1/batch/*/summary", status=200, body=summary, times=100)
        await setup.age_sent_writes()
        assert (await day.add_payment("11.00")).status == 500
        assert len(batch.payments) == 2
        setup.service.faults.clear()
        assert (await day.add_payment("11.00")).status == 200
        assert len(batch.payments) == 2


async def test_payment_of_an_edit_that_the_summary_does_not_show_is_not_added_again(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path) as setup:
        day = await BatchInDoubt.create(setup)
        body = {"payments": [day.build_payment("11.00")]}
        setup.add_fault("PATCH", "/v1/batches/*", close="after")
        assert (await setup.gateway.request("PATCH", day.path, body)).status == 500
        (batch,) = setup.service.find_or_create_tenant().batches.values()
        summary = build_summary(next(iter(batch.payments.values())), totalPayments=2)
        setup.add_fault("GET", "/v1/batch/*/summary", status=200, body=summary, times=100)
        await setup.age_sent_writes()
        assert (await setup.gateway.request("PATCH", day.path, body)).status == 500
        setup.service.faults.clear()
        assert (await setup.gateway.request("PATCH", day.path, body)).status == 200
        assert len(batch.payments) == 2


def show_no_payments(setup: OperatedGateway, *, times: int) -> None:
    """Lets the service show its batches without a list of their payments."""
    body = b'{"ok": true, "batchSummary": {"status": "open", "currency": "USD"}}'
    setup.add_fault("GET", "/v1/batch/*/summary", status=200, body=body, times=times)


async def add_payment_by(method: str, day: BatchInDoubt, amount: str) -> GatewayResponse:
    if method == "POST":
        return await day.add_payment(amount)
    body = {"payments": [day.build_payment(amount)]}
    return await day.setup.gateway.request("PATCH", day.path, body)


async def retry_and_start(method: str, day: BatchInDoubt, close: str) -> None:
    """Sends the add in doubt again, which is replayed only if it was executed; both are paid."""
    await day.wait_until_settled()
    retry_response = await add_payment_by(method, day, "10.00")
    assert retry_response.status == 200, retry_response.text
    assert ("Idempotent-Replayed" in retry_response.headers) == (close == "after")
    await day.start_batch()
    assert day.list_paid_amounts() == ["10.00", "10.00"]


@pytest.mark.parametrize("close", ["before", "after"])
@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_payment_that_no_summary_showed_is_not_taken_for_an_equal_one_in_doubt(
    close: str, method: str, tmp_path: Path
) -> None:
    """The second of two equal payments would be confirmed, and never be made."""
    async with open_operated_gateway(tmp_path) as setup:
        day = await BatchInDoubt.create(setup)
        show_no_payments(setup, times=1)
        setup.add_fault(method, ADD_PATH if method == "POST" else "/v1/batches/*", close=close)
        assert (await add_payment_by(method, day, "10.00")).status == 500
        await retry_and_start(method, day, close)


@pytest.mark.parametrize("close", ["before", "after"])
@pytest.mark.parametrize("summary", ["without payments", "with an empty list"])
async def test_payment_of_a_submitted_draft_is_not_taken_for_an_equal_one_in_doubt(
    close: str, summary: str, tmp_path: Path
) -> None:
    """The ids that are stored are those of the payments of the superseded batch."""
    async with open_operated_gateway(tmp_path, inferred=False) as setup:
        day = await BatchInDoubt.create(setup)
        assert (await day.add_payment("11.00")).status == 200
        _, removed = await load_payment_ids(setup.gateway, day.batch)
        await request_successfully(
            setup.gateway, "DELETE", f"/batches/{day.batch}/payments/{removed}"
        )
        if summary == "without payments":
            show_no_payments(setup, times=100)
        else:
            body = b'{"ok": true, "batchSummary": {"status": "open", "payments": []}}'
            setup.add_fault("GET", "/v1/batch/*/summary", status=200, body=body, times=100)
        await request_successfully(setup.gateway, "GET", f"/batches/{day.batch}/summary")
        await day.lose_add("10.00", close)
        setup.service.faults.clear()
        await retry_and_start("POST", day, close)


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_unknown_payment_of_a_batch_created_elsewhere_proves_no_add(
    method: str, tmp_path: Path
) -> None:
    async with open_operated_gateway(tmp_path) as setup:
        recipient = await create_recipient(setup.gateway)
        batch = await create_batch_elsewhere(setup, recipient)
        day = BatchInDoubt(setup, recipient, batch)
        show_no_payments(setup, times=1)
        setup.add_fault(method, ADD_PATH if method == "POST" else "/v1/batches/*", close="before")
        assert (await add_payment_by(method, day, "5.00")).status == 500
        await setup.age_sent_writes()
        assert (await add_payment_by(method, day, "5.00")).status == 500
        write = await setup.find_write_in_doubt()
        assert write["why"] == "another add may have created the payment"
        command = ("writes", "settle", write["write"], "--did-not-happen", "--yes")
        await setup.run_command(*command)
        await wait_until_async(day.is_settled)
        assert (await add_payment_by(method, day, "5.00")).status == 200
        assert len(setup.service.require_batch(batch).payments) == 2


@pytest.mark.parametrize("is_edit", [False, True], ids=["add", "edit"])
async def test_batch_that_is_not_shown_for_a_while_does_not_prove_that_nothing_was_added(
    is_edit: bool, tmp_path: Path
) -> None:
    """Another replica of the service may lack it; the retry would pay the recipient twice."""
    async with open_operated_gateway(tmp_path) as setup:
        day = await BatchInDoubt.create(setup)
        request: tuple[str, str, Any] = ("POST", f"{day.path}/payments", day.build_payment("11.00"))
        if is_edit:
            request = ("PATCH", day.path, {"payments": [day.build_payment("11.00")]})
        setup.add_fault(request[0], "/v1/batches/*" if is_edit else ADD_PATH, close="after")
        assert (await setup.gateway.request(*request)).status == 500
        hide_path(setup.service, "/v1/batch/*/summary")
        setup.clock.ahead_seconds += 45
        response = await setup.gateway.request(*request)
        assert (response.status, "Retry-After" in response.headers) == (500, True), response.text
        setup.service.faults.clear()
        response = await setup.gateway.request(*request)
        assert response.status == 200, response.text
        assert await day.load_amounts() == ["10.00", "11.00"]
