"""`payout-gateway writes`: writes in doubt, and outcomes entered by operators."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner
from sqlalchemy import update

from gateway.cli import gateway
from gateway.operator.in_doubt_writes import EFFECTS
from gateway.payloads import stored_json
from gateway.simulator.batches import renew_payment_terms
from gateway.simulator.state import Batch
from gateway.storage import ObjectStateStore
from gateway.storage.audit_log import find_operator_name
from gateway.storage.operation_texts import build_text_encryption_context
from gateway.storage.operations import OperationRepository
from gateway.storage.tables import operations
from gateway.writes import reconciler
from mappings.current import ENDPOINTS
from tests.operator_commands import (
    RESPONSE_LOST,
    OperatedGateway,
    lose_batch_create,
    open_operated_gateway,
    wait_until_async,
)
from tests.payouts import WALLET, create_batch, create_recipient, request_successfully
from tests.processes import build_configuration, run_installed_command, run_serve
from tests.running_gateway import KEY, build_settings, import_api_keys
from tests.service_summaries import load_service_summary, show_summary
from tests.signed_requests import send_signed
from tests.simulator import Fault, Service, ServiceOptions, start_simulator
from tests.sockets import wait_until
from tests.state import execute, open_state

ROOT = Path(__file__).parents[2]
SETTLE_COMMAND = ("writes", "settle")
RECIPIENT_BODY = {
    "type": "individual",
    "firstName": "Ada",
    "lastName": "Byron",
    "email": "byron@example.com",
}


@pytest.fixture(autouse=True)
def close_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here closes an operation that the gateway could still end itself."""
    monkeypatch.setattr("gateway.operator.operation_closing.RETRY_SECONDS", 0.1)


async def has_no_write_in_doubt(operated_gateway: OperatedGateway) -> bool:
    return not await operated_gateway.list_writes_in_doubt()


async def has_reason(operated_gateway: OperatedGateway, expected_text: str) -> bool:
    return any(
        expected_text in write["why"] for write in await operated_gateway.list_writes_in_doubt()
    )


async def has_sent_write(operated_gateway: OperatedGateway) -> bool:
    async with operated_gateway.open_store() as store:
        operation_repository = OperationRepository(store, ObjectStateStore(store))
        writes_by_operation = await operation_repository.load_writes(
            *(operation.id for operation in await operation_repository.list_unfinished())
        )
    return any(
        write.state == "sent"
        for operation_writes in writes_by_operation.values()
        for write in operation_writes
    )


# Listing.


async def test_no_write_is_in_doubt_at_first(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        assert await operated_gateway.run_json_command("writes", "unsettled") == {"writes": []}
        assert (
            await operated_gateway.run_command("writes", "unsettled")
        ).stdout == "No write is in doubt.\n"


async def test_lost_create_is_listed_with_details_and_advice(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated_gateway:
        await lose_batch_create(operated_gateway)
        await wait_until_async(lambda: has_reason(operated_gateway, "the service lists no batches"))
        write = await operated_gateway.find_write_in_doubt()
        assert re.fullmatch(r"[0-9a-f]{12}\.\d+", write["write"])
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", write["since"])
        assert (write["merchant"], write["environment"]) == ("demo", "sandbox")
        assert (write["operation"], write["key"]) == ("create_batch", "demo-sandbox")
        assert (write["method"], write["path"], write["object"]) == ("POST", "/batches", None)
        assert (write["state"], write["told"]) == ("sent", None)
        assert f"writes settle {write['write']} --made B-…" in write["what_to_do"]
        assert "a batch of 1 payment that was created at about" in write["what_to_do"]
        output = (await operated_gateway.run_command("writes", "unsettled")).stdout
        for expected_text in (write["write"], "POST /batches", "demo sandbox", "dashboard"):
            assert expected_text in output


async def test_example_of_the_runbook_stays_in_doubt(tmp_path: Path) -> None:
    """An example that is resolved by itself would be gone before an operator has looked."""
    async with open_operated_gateway(tmp_path) as operated_gateway:
        await lose_batch_create(operated_gateway)
        tenant = operated_gateway.service.find_or_create_tenant()
        (batch,) = tenant.batches.values()
        twin_id = f"B-{'t' * 22}"
        tenant.batches[twin_id] = replace(batch, id=twin_id)
        await operated_gateway.age_sent_writes()
        await wait_until_async(lambda: has_reason(operated_gateway, "several objects match"))
        output = (await operated_gateway.run_command("writes", "unsettled")).stdout
    runbook = (ROOT / "deploy" / "runbook.md").read_text("utf-8")
    (example,) = re.findall(r"```\n([0-9a-f]{12}\.1 .*?)```", runbook, re.DOTALL)
    assert _remove_details(example) == _remove_details(output)


def _remove_details(text: str) -> str:
    text = re.sub(r"[0-9a-f]{12}\.1|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d", "…", text)
    return " ".join(re.sub("request: .*", "", text).split())


async def test_write_is_listed_by_client_id_of_its_object(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        batch = await create_batch(
            operated_gateway.gateway, await create_recipient(operated_gateway.gateway), "10.00"
        )
        operated_gateway.add_fault("POST", "/v1/batches/*/start-processing", close="before")
        await operated_gateway.gateway.request("POST", f"/v1/batches/{batch}/start-processing")
        write = await operated_gateway.find_write_in_doubt()
        assert write["object"] == batch
        assert write["path"] != f"/batches/{batch}/start-processing", "the service's id is longer"
        assert "--happened`" in write["what_to_do"]


async def test_running_write_is_not_listed(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, seconds=30) as operated_gateway:
        batch = await create_batch(
            operated_gateway.gateway, await create_recipient(operated_gateway.gateway), "10.00"
        )
        answer, start = asyncio.Event(), "/v1/batches/*/start-processing"
        operated_gateway.add_fault("POST", start, answer_after=answer)
        path = f"/v1/batches/{batch}/start-processing"
        start_task = asyncio.ensure_future(operated_gateway.gateway.request("POST", path))
        await wait_until_async(lambda: has_sent_write(operated_gateway))
        assert await operated_gateway.list_writes_in_doubt() == []
        answer.set()
        assert (await start_task).status == 200


def test_every_write_of_current_interface_has_advice() -> None:
    assert EFFECTS.keys() == {
        f"{endpoint.method} {endpoint.path}" for endpoint in ENDPOINTS if endpoint.method != "GET"
    }


# Outcomes entered by an operator.


async def test_confirmed_create_is_adopted_and_retry_gets_first_answer(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated_gateway:
        body = await lose_batch_create(operated_gateway)
        write = (await operated_gateway.find_write_in_doubt())["write"]
        (upstream_id,) = operated_gateway.service.find_or_create_tenant().batches
        await operated_gateway.run_command(*SETTLE_COMMAND, write, "--made", upstream_id, "--yes")
        await wait_until_async(lambda: has_no_write_in_doubt(operated_gateway))
        retry_response = await operated_gateway.gateway.request("POST", "/v1/batches", body)
        assert retry_response.status == 200, retry_response.text
        assert (
            retry_response.body["batch"]["amount"],
            retry_response.body["batch"]["totalPayments"],
        ) == (
            "10.00",
            1,
        )
        assert (
            operated_gateway.service.creation_counts["batch"]
            == operated_gateway.count_calls("POST", "/v1/batches")
            == 1
        )
        result = await operated_gateway.run_command(
            *SETTLE_COMMAND, write, "--made", upstream_id, "--yes", code=2
        )
        assert "is already known: happened" in result.stderr


async def test_operator_outcome_takes_effect_despite_long_backoff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_backoff = SimpleNamespace(uniform=lambda _least, _most: 300)
    monkeypatch.setattr(reconciler, "random", long_backoff)
    async with open_operated_gateway(tmp_path, inferred=False) as operated_gateway:
        await lose_batch_create(operated_gateway)
        await wait_until_async(lambda: has_reason(operated_gateway, "the service lists no batches"))
        write = (await operated_gateway.find_write_in_doubt())["write"]
        (upstream_id,) = operated_gateway.service.find_or_create_tenant().batches
        await operated_gateway.run_command(*SETTLE_COMMAND, write, "--made", upstream_id, "--yes")
        await wait_until_async(lambda: has_no_write_in_doubt(operated_gateway), 15)


async def test_absent_write_is_sent_again_on_retry(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        payment = {
            "recipient": {"id": await create_recipient(operated_gateway.gateway)},
            "sourceAmount": "10.00",
        }
        body = {"sourceCurrency": "USD", "payments": [payment]}
        operated_gateway.add_fault("POST", "/v1/batches", close="before")
        # The gateway cannot find out by itself.
        operated_gateway.add_fault("GET", "/v1/batches", status=503, times=1000)
        assert (await operated_gateway.gateway.request("POST", "/v1/batches", body)).status == 500
        write = (await operated_gateway.find_write_in_doubt())["write"]
        early_result = await operated_gateway.run_command(
            *SETTLE_COMMAND, write, "--did-not-happen", "--yes", code=2
        )
        assert "may still be carried out; check again in" in early_result.stderr
        await operated_gateway.age_sent_writes()
        await operated_gateway.run_command(*SETTLE_COMMAND, write, "--did-not-happen", "--yes")
        operated_gateway.service.faults.clear()
        await wait_until_async(lambda: has_no_write_in_doubt(operated_gateway))
        trace_output = (await operated_gateway.run_command("trace", write)).stdout
        assert f"POST /batches  did not happen (recorded by {find_operator_name()})" in trace_output
        assert ", did not happen\n" in trace_output, "of the request"
        assert (
            f"{find_operator_name()} recorded the outcome of {write}: did not happen: "
            in trace_output
        )
        assert (await operated_gateway.gateway.request("POST", "/v1/batches", body)).status == 200
        assert operated_gateway.service.creation_counts["batch"] == 1


async def test_visible_outcome_overrides_operator_outcome(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, processing_seconds=600) as operated_gateway:
        batch = await create_batch(
            operated_gateway.gateway, await create_recipient(operated_gateway.gateway), "10.00"
        )
        path = f"/v1/batches/{batch}/start-processing"
        operated_gateway.add_fault("POST", "/v1/batches/*/start-processing", **RESPONSE_LOST)
        operated_gateway.add_fault("GET", "/v1/batch/*/summary")  # the start's own read is answered
        operated_gateway.add_fault("GET", "/v1/batch/*/summary", status=503, times=1000)
        assert (await operated_gateway.gateway.request("POST", path)).status == 500
        await wait_until_async(
            lambda: has_reason(operated_gateway, "could not be read (status 503)")
        )
        write = (await operated_gateway.find_write_in_doubt())["write"]
        await operated_gateway.age_sent_writes()
        await operated_gateway.run_command(*SETTLE_COMMAND, write, "--did-not-happen", "--yes")
        operated_gateway.service.faults.clear()
        await wait_until_async(lambda: has_no_write_in_doubt(operated_gateway))
        retry_response = await operated_gateway.gateway.request("POST", path)
        assert retry_response.body["batch"]["status"] == "processing", retry_response.text
        assert len(operated_gateway.service.batch_starts) == 1


@pytest.mark.parametrize(
    ("status", "code"),
    [(503, "internal_server_error"), (401, "invalid_api_key"), (403, "not_authorized")],
)
async def test_outcome_that_cannot_be_checked_yet_is_not_applied(
    status: int, code: str, tmp_path: Path
) -> None:
    """A retry created another recipient, because of a wrong outcome or of `close` after it."""
    async with open_operated_gateway(tmp_path) as operated_gateway:
        operated_gateway.add_fault("POST", "/v1/recipients", **RESPONSE_LOST)
        refusal = json.dumps({"ok": False, "errors": [{"code": code, "message": ""}]}).encode()
        operated_gateway.add_fault("GET", "/v1/recipients", status=status, body=refusal, times=1000)
        create = ("POST", "/v1/recipients", RECIPIENT_BODY)
        assert (await operated_gateway.gateway.request(*create)).status == 500
        await wait_until_async(lambda: has_reason(operated_gateway, "could not be read"))
        await operated_gateway.age_sent_writes()
        write = (await operated_gateway.find_write_in_doubt())["write"]
        await operated_gateway.run_command(*SETTLE_COMMAND, write, "--did-not-happen", "--yes")
        result = await operated_gateway.run_command("writes", "close", write, "--yes", code=2)
        assert "wait until the outcome can be checked" in result.stderr
        assert (await operated_gateway.find_write_in_doubt())["write"] == write
        operated_gateway.service.faults.clear()
        retry_response = await operated_gateway.gateway.request(*create)
        assert retry_response.status == 200, retry_response.text
        assert operated_gateway.service.creation_counts["recipient"] == 1


@pytest.mark.parametrize("is_closed", [False, True])
async def test_outcome_that_the_service_refutes_is_not_applied(
    tmp_path: Path, *, is_closed: bool
) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        recipient = await create_recipient(operated_gateway.gateway)
        operated_gateway.add_fault("DELETE", "/v1/recipients/*", close="before")
        path = f"/v1/recipients/{recipient}"
        assert (await operated_gateway.gateway.request("DELETE", path)).status == 500
        write = (await operated_gateway.find_write_in_doubt())["write"]
        await operated_gateway.run_command(*SETTLE_COMMAND, write, "--happened", "--yes")
        await wait_until_async(lambda: has_reason(operated_gateway, "happened is recorded"))
        if is_closed:
            result = await operated_gateway.run_command("writes", "close", write, "--yes", code=2)
            assert "cannot be right" in result.stderr
        assert (await operated_gateway.gateway.request("GET", path)).status == 200
        await operated_gateway.age_sent_writes()
        await operated_gateway.run_command(*SETTLE_COMMAND, write, "--did-not-happen", "--yes")
        await wait_until_async(lambda: has_no_write_in_doubt(operated_gateway))
        assert (await operated_gateway.gateway.request("DELETE", path)).status == 200


async def test_edit_of_which_a_payment_is_shown_cannot_be_recorded_as_not_made(
    tmp_path: Path,
) -> None:
    """Its retry would add the payment again: somebody has set the other one's amount since."""
    async with open_operated_gateway(tmp_path) as operated_gateway:
        recipient = await create_recipient(operated_gateway.gateway)
        batch = await create_batch(operated_gateway.gateway, recipient, "5.00")
        path = f"/v1/batches/{batch}"
        shown = (await operated_gateway.gateway.request("GET", path)).body["batch"]
        (payment,) = shown["payments"]["payments"]
        edit = {
            "payments": [{"recipient": {"id": recipient}, "sourceAmount": "7.00"}],
            "update_payments": [{"id": payment["id"], "sourceAmount": "9.00"}],
        }
        operated_gateway.add_fault("PATCH", "/v1/batches/*", **RESPONSE_LOST)
        assert (await operated_gateway.gateway.request("PATCH", path, edit)).status == 500
        (service_batch,) = operated_gateway.service.find_or_create_tenant().batches.values()
        first, _added = service_batch.payments.values()
        first.amount = Decimal("8.00")
        renew_payment_terms(first)
        await operated_gateway.age_sent_writes()
        write = (await operated_gateway.find_write_in_doubt())["write"]
        await operated_gateway.run_command(*SETTLE_COMMAND, write, "--did-not-happen", "--yes")
        await wait_until_async(lambda: has_reason(operated_gateway, "did not is recorded"))
        advice = (await operated_gateway.find_write_in_doubt())["what_to_do"]
        assert advice.startswith("the recorded outcome cannot be right: check in")
        result = await operated_gateway.run_command("writes", "close", write, "--yes", code=2)
        assert "cannot be right" in result.stderr
        assert (await operated_gateway.gateway.request("PATCH", path, edit)).status == 500
        await operated_gateway.run_command(*SETTLE_COMMAND, write, "--happened", "--yes")
        await wait_until_async(lambda: has_no_write_in_doubt(operated_gateway))
        assert (await operated_gateway.gateway.request("PATCH", path, edit)).status == 200
        assert len(service_batch.payments) == 2


async def test_confirmed_change_lets_its_flow_continue(tmp_path: Path) -> None:
    """The flow needs the recipient that the lost answer contained."""
    async with open_operated_gateway(tmp_path) as operated_gateway:
        operated_gateway.add_fault("PATCH", "/v1/recipients/*", **RESPONSE_LOST)
        operated_gateway.add_fault("GET", "/v1/recipients/*", status=503, times=1000)
        body = {**RECIPIENT_BODY, "language": "en", "payout": WALLET}
        assert (
            await operated_gateway.gateway.request("POST", "/v1/recipients", body)
        ).status == 500
        await wait_until_async(lambda: has_reason(operated_gateway, "could not be read"))
        write = (await operated_gateway.find_write_in_doubt())["write"]
        await operated_gateway.run_command(*SETTLE_COMMAND, write, "--happened", "--yes")
        await asyncio.sleep(2)
        assert not await has_no_write_in_doubt(operated_gateway), (
            "without the recipient it cannot continue"
        )
        output = (await operated_gateway.run_command("writes", "unsettled")).stdout
        assert "recorded:    happened" in output
        assert "what to do:  no action needed; a running gateway continues" in output
        operated_gateway.service.faults.clear()
        await wait_until_async(lambda: has_no_write_in_doubt(operated_gateway))
        retry_response = await operated_gateway.gateway.request("POST", "/v1/recipients", body)
        assert retry_response.status == 200, retry_response.text
        assert retry_response.body["recipient"]["payout"]["accounts"]["wallet"]["address"]
        assert (
            operated_gateway.service.creation_counts["recipient"]
            == operated_gateway.service.creation_counts["account"]
            == 1
        )


LOST_WRITES = {
    "a recipient": ("POST", "/v1/recipients", RECIPIENT_BODY, "recipients"),
    "an account": (
        "POST",
        "/v1/recipients/*/accounts",
        {**RECIPIENT_BODY, "payout": WALLET},
        "accounts",
    ),
}


@pytest.mark.parametrize("lost_write", LOST_WRITES.values(), ids=LOST_WRITES)
async def test_object_of_lost_recipient_write_can_be_named(
    lost_write: tuple[str, str, dict[str, Any], str], tmp_path: Path
) -> None:
    method, path, body, object_type = lost_write
    async with open_operated_gateway(tmp_path) as operated_gateway:
        operated_gateway.add_fault(method, path, **RESPONSE_LOST)
        operated_gateway.add_fault("GET", "/v1/recipients", status=503, times=1000)
        operated_gateway.add_fault("GET", "/v1/recipients/*", status=503, times=1000)
        assert (
            await operated_gateway.gateway.request("POST", "/v1/recipients", body)
        ).status == 500
        await wait_until_async(lambda: has_reason(operated_gateway, "could not be read"))
        write = (await operated_gateway.find_write_in_doubt())["write"]
        (recipient,) = operated_gateway.service.find_or_create_tenant().recipients.values()
        object_id = recipient.id if object_type == "recipients" else recipient.accounts[0].id
        await operated_gateway.run_command(*SETTLE_COMMAND, write, "--made", object_id, "--yes")
        operated_gateway.service.faults.clear()
        await wait_until_async(lambda: has_no_write_in_doubt(operated_gateway))
        retry_response = await operated_gateway.gateway.request("POST", "/v1/recipients", body)
        assert retry_response.body["recipient"]["id"], retry_response.text
        assert operated_gateway.service.creation_counts["recipient"] == 1
        assert operated_gateway.service.creation_counts["account"] == (object_type == "accounts")


async def test_payment_named_by_operator_is_shown(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        recipient = await create_recipient(operated_gateway.gateway)
        batch = await create_batch(operated_gateway.gateway, recipient, "10.00")
        operated_gateway.add_fault("POST", "/v1/batches/*/payments", **RESPONSE_LOST)
        operated_gateway.add_fault("GET", "/v1/batch/*/summary")
        operated_gateway.add_fault("GET", "/v1/batch/*/summary", status=503, times=1000)
        body = {"recipient": {"id": recipient}, "sourceAmount": "7.00"}
        assert (
            await operated_gateway.gateway.request("POST", f"/v1/batches/{batch}/payments", body)
        ).status == 500
        await wait_until_async(lambda: has_reason(operated_gateway, "could not be read"))
        write = (await operated_gateway.find_write_in_doubt())["write"]
        (upstream_batch,) = operated_gateway.service.find_or_create_tenant().batches.values()
        first, new_payment_id = upstream_batch.payments
        operated_gateway.service.faults.clear()
        await operated_gateway.run_command(
            *SETTLE_COMMAND, write, "--made", new_payment_id, "--yes"
        )
        await wait_until_async(lambda: has_no_write_in_doubt(operated_gateway))
        retry_response = await operated_gateway.gateway.request(
            "POST", f"/v1/batches/{batch}/payments", body
        )
        assert (retry_response.status, retry_response.body["payment"]["sourceAmount"]) == (
            200,
            "7.00",
        )
        assert first != new_payment_id
        assert operated_gateway.service.creation_counts["payment"] == 2


PARTIAL_SUMMARIES = {
    "a page": lambda rows: {"payments": rows[:1], "meta": {"page": 1, "pages": 2, "records": 2}},
    "no payments": lambda _rows: None,
    "no ids": lambda rows: {"payments": [{**row, "id": None} for row in rows]},
}
BY_PARTIAL_SUMMARY = pytest.mark.parametrize(
    "select", PARTIAL_SUMMARIES.values(), ids=PARTIAL_SUMMARIES
)


def show_partially(service: Service, batch: Batch, select: Callable[[list[Any]], Any]) -> None:
    rows = [
        {"id": each.id, "recipient": {"id": each.recipient.id}, "sourceAmount": str(each.amount)}
        for each in batch.payments.values()
    ]
    fields = {"id": batch.id, "status": "open", "payments": select(rows)}
    show_summary(service, {"ok": True, "batchSummary": fields})


@BY_PARTIAL_SUMMARY
async def test_payment_that_the_summary_does_not_show_can_be_named(
    select: Callable[[list[Any]], Any], tmp_path: Path
) -> None:
    """It is read by its id; of another batch it is refused."""
    async with open_operated_gateway(tmp_path) as operated_gateway:
        gateway, service = operated_gateway.gateway, operated_gateway.service
        recipient = await create_recipient(gateway)
        path = f"/v1/batches/{await create_batch(gateway, recipient, '10.00')}/payments"
        await create_batch(gateway, recipient, "7.00")
        batch, other_batch = service.find_or_create_tenant().batches.values()
        operated_gateway.add_fault("POST", "/v1/batches/*/payments", **RESPONSE_LOST)
        body = {"recipient": {"id": recipient}, "sourceAmount": "7.00"}
        assert (await gateway.request("POST", path, body)).status == 500
        _, new_payment_id = batch.payments
        show_partially(service, batch, select)
        write = (await operated_gateway.find_write_in_doubt())["write"]
        (other_id,) = other_batch.payments
        await operated_gateway.run_command(*SETTLE_COMMAND, write, "--made", other_id, "--yes")
        reason = f"{other_id}, named by the operator, is no new payment"
        await wait_until_async(lambda: has_reason(operated_gateway, reason))
        await operated_gateway.run_command(
            *SETTLE_COMMAND, write, "--made", new_payment_id, "--yes"
        )
        await wait_until_async(lambda: has_no_write_in_doubt(operated_gateway))
        assert (await gateway.request("POST", path, body)).status == 200
        assert len(batch.payments) == 2


@BY_PARTIAL_SUMMARY
async def test_batch_that_the_summary_shows_in_part_can_be_named(
    select: Callable[[list[Any]], Any], tmp_path: Path
) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        gateway, service = operated_gateway.gateway, operated_gateway.service
        recipient = await create_recipient(gateway)
        payments = [
            {"recipient": {"id": recipient}, "sourceAmount": amount} for amount in ("7.00", "8.00")
        ]
        create = ("POST", "/v1/batches", {"sourceCurrency": "USD", "payments": payments})
        operated_gateway.add_fault("POST", "/v1/batches", **RESPONSE_LOST)
        operated_gateway.add_fault("GET", "/v1/batches", status=503, times=1000)
        assert (await gateway.request(*create)).status == 500
        (batch,) = service.find_or_create_tenant().batches.values()
        show_partially(service, batch, select)
        write = (await operated_gateway.find_write_in_doubt())["write"]
        await operated_gateway.run_command(*SETTLE_COMMAND, write, "--made", batch.id, "--yes")
        await wait_until_async(lambda: has_no_write_in_doubt(operated_gateway))
        assert (await gateway.request(*create)).status == 200
        assert len(service.find_or_create_tenant().batches) == 1


async def test_batch_that_counts_more_payments_than_were_sent_is_refused(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        gateway, service = operated_gateway.gateway, operated_gateway.service
        await lose_batch_create(operated_gateway, await create_recipient(gateway))
        (batch,) = service.find_or_create_tenant().batches.values()
        show_partially(service, batch, lambda rows: {"payments": rows, "meta": {"records": 2}})
        write = (await operated_gateway.find_write_in_doubt())["write"]
        await operated_gateway.run_command(*SETTLE_COMMAND, write, "--made", batch.id, "--yes")
        await wait_until_async(lambda: has_reason(operated_gateway, "pays something else"))


# Rejected outcomes.


async def test_wrong_object_id_is_refused(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated_gateway:
        recipient = await create_recipient(operated_gateway.gateway)
        other_batch = await create_batch(operated_gateway.gateway, recipient, "99.00")
        (known_id,) = operated_gateway.service.find_or_create_tenant().batches
        body = await lose_batch_create(operated_gateway, recipient)
        write = (await operated_gateway.find_write_in_doubt())["write"]
        known_id_result = await operated_gateway.run_command(
            *SETTLE_COMMAND, write, "--made", other_batch, "--yes", code=2
        )
        assert "was created by another write" in known_id_result.stderr
        unknown_id = "B-0000000000000000000000"
        await operated_gateway.run_command(*SETTLE_COMMAND, write, "--made", unknown_id, "--yes")
        await wait_until_async(
            lambda: has_reason(operated_gateway, f"no batch {unknown_id}, named by the operator")
        )
        advice = (await operated_gateway.find_write_in_doubt())["what_to_do"]
        assert advice.startswith(
            "the recorded outcome cannot be right: look in the service's dashboard"
        )
        assert f"writes settle {write} --made B-…" in advice
        batches = operated_gateway.service.find_or_create_tenant().batches
        batch_without_payments = next(
            upstream_batch for id_, upstream_batch in batches.items() if id_ != known_id
        )
        payments = dict(batch_without_payments.payments)
        batch_without_payments.payments.clear()
        await operated_gateway.run_command(
            *SETTLE_COMMAND, write, "--made", batch_without_payments.id, "--yes"
        )
        await wait_until_async(lambda: has_reason(operated_gateway, "pays something else"))
        batch_without_payments.payments.update(payments)
        await operated_gateway.run_command(
            *SETTLE_COMMAND, write, "--made", batch_without_payments.id, "--yes"
        )
        assert (await operated_gateway.gateway.request("POST", "/v1/batches", body)).status == 200


async def test_older_batch_and_one_in_another_currency_are_refused(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated_gateway:
        operated_gateway.add_fault("POST", "/v1/batches", **RESPONSE_LOST)
        body = {"sourceCurrency": "USD", "payments": []}
        assert (await operated_gateway.gateway.request("POST", "/v1/batches", body)).status == 500
        batches = operated_gateway.service.find_or_create_tenant().batches
        (batch,) = batches.values()
        older = replace(batch, id="B-OLDER", created_at=batch.created_at - timedelta(hours=1))
        other = replace(batch, id="B-OTHER", currency="EUR")
        batches |= {each.id: each for each in (older, other)}
        write = (await operated_gateway.find_write_in_doubt())["write"]
        for id_, reason in (
            (older.id, "is older than the write"),
            (other.id, "pays something else"),
        ):
            await operated_gateway.run_command(*SETTLE_COMMAND, write, "--made", id_, "--yes")
            await wait_until_async(
                lambda id_=id_, reason=reason: has_reason(
                    operated_gateway, f"{id_}, named by the operator, {reason}"
                )
            )
        await operated_gateway.run_command(*SETTLE_COMMAND, write, "--made", batch.id, "--yes")
        await wait_until_async(lambda: has_no_write_in_doubt(operated_gateway))


async def test_account_is_not_added_to_an_older_recipient(tmp_path: Path) -> None:
    """Its payments would go to the account of the new one."""
    async with open_operated_gateway(tmp_path) as operated_gateway:
        older_body = json.dumps(RECIPIENT_BODY).encode()
        await send_signed(operated_gateway.gateway, "POST", "/recipients", older_body)
        recipients = operated_gateway.service.find_or_create_tenant().recipients
        (older,) = recipients.values()
        older.created_at -= timedelta(hours=1)
        operated_gateway.add_fault("POST", "/v1/recipients", **RESPONSE_LOST)
        body = {**RECIPIENT_BODY, "payout": WALLET}
        create = ("POST", "/v1/recipients", body)
        assert (await operated_gateway.gateway.request(*create)).status == 500
        write = (await operated_gateway.find_write_in_doubt())["write"]
        await operated_gateway.run_command(*SETTLE_COMMAND, write, "--made", older.id, "--yes")
        reason = f"{older.id}, named by the operator, is older than the write"
        await wait_until_async(lambda: has_reason(operated_gateway, reason))
        assert older.accounts == []


async def test_payment_of_an_earlier_add_cannot_be_named_for_a_later_one(tmp_path: Path) -> None:
    """The second of two equal payments would never be made."""
    async with open_operated_gateway(tmp_path, answers="bare") as operated_gateway:
        gateway, service = operated_gateway.gateway, operated_gateway.service
        recipient = await create_recipient(gateway)
        path = f"/v1/batches/{await create_batch(gateway, recipient, '10.00')}/payments"
        # The service shows the first one late, and does not say its id.
        show_summary(service, await load_service_summary(gateway, service))
        operated_gateway.add_fault(
            "POST", "/v1/batches/*/payments", status=200, body=b'{"ok":true}', executes=True
        )
        body = {"recipient": {"id": recipient}, "sourceAmount": "7.00"}
        assert (await gateway.request("POST", path, body)).status == 200
        operated_gateway.add_fault("POST", "/v1/batches/*/payments", close="before")
        assert (await gateway.request("POST", path, body)).status == 500
        service.faults.clear()
        (batch,) = service.find_or_create_tenant().batches.values()
        first = [*batch.payments][-1]
        write = (await operated_gateway.find_write_in_doubt())["write"]
        await operated_gateway.run_command(*SETTLE_COMMAND, write, "--made", first, "--yes")
        reason = f"{first}, named by the operator, is no new payment"
        await wait_until_async(lambda: has_reason(operated_gateway, reason))


async def test_recent_write_cannot_be_given_up_if_the_clock_of_the_service_is_behind(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        operated_gateway.service.clock = lambda: time.time() - 120
        recipient = await create_recipient(operated_gateway.gateway)
        operated_gateway.add_fault("POST", "/v1/batches", close="before")
        payment = {"recipient": {"id": recipient}, "sourceAmount": "10.00"}
        create = ("POST", "/v1/batches", {"sourceCurrency": "USD", "payments": [payment]})
        assert (await operated_gateway.gateway.request(*create)).status == 500
        write = (await operated_gateway.find_write_in_doubt())["write"]
        absent = (*SETTLE_COMMAND, write, "--did-not-happen", "--yes")
        result = await operated_gateway.run_command(*absent, code=2)
        assert "may still be carried out" in result.stderr
        # The verdict is accepted, as by a command whose clock is ahead; the gateway knows better.
        async with open_state(operated_gateway.gateway.settings) as state:
            await state.age_writes(60)
        await operated_gateway.run_command(*absent)
        await wait_until_async(lambda: has_reason(operated_gateway, "it may still be carried out"))
        result = await operated_gateway.run_command("writes", "close", write, "--yes", code=2)
        assert "wait until the outcome can be checked: it may still" in result.stderr


async def test_impossible_outcome_is_refused_in_one_line(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated_gateway:
        await lose_batch_create(operated_gateway)
        write = (await operated_gateway.find_write_in_doubt())["write"]
        refusals = {
            "give its id with --made B-…": (write, "--happened"),
            "must be B-": (write, "--made", "R-0123456789"),
            "followed by letters and digits": (write, "--made", "B-…"),
            "there is no write 000000000000.1": ("000000000000.1", "--happened"),
            "there is no write nonsense": ("nonsense", "--happened"),
            "give exactly one of": (write,),
            "one of --happened": (write, "--happened", "--did-not-happen"),
        }
        for expected_text, options in refusals.items():
            result = await operated_gateway.run_command(*SETTLE_COMMAND, *options, "--yes", code=2)
            assert expected_text in result.stderr
            assert result.stdout == ""
        unconfirmed_result = await operated_gateway.run_command(
            *SETTLE_COMMAND, write, "--made", "B-1", code=2
        )
        assert "not confirmed: no answer was given" in unconfirmed_result.stderr
        assert (await operated_gateway.find_write_in_doubt())["told"] is None


async def test_operator_outcomes_are_audited(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated_gateway:
        await lose_batch_create(operated_gateway)
        write = (await operated_gateway.find_write_in_doubt())["write"]
        (upstream_id,) = operated_gateway.service.find_or_create_tenant().batches
        await operated_gateway.run_command(*SETTLE_COMMAND, write, "--made", upstream_id, "--yes")
        await wait_until_async(lambda: has_no_write_in_doubt(operated_gateway))
        events = (await operated_gateway.run_json_command("trace", upstream_id))["acts"]
        expected_text = f"happened (recorded by {find_operator_name()}), created {upstream_id}"
        assert expected_text in (await operated_gateway.run_command("trace", upstream_id)).stdout
        assert [(event["what"], event["by"]) for event in events] == [
            (f"recorded the outcome of {write}: {upstream_id}", find_operator_name())
        ]
        assert events[0]["undertaking"].startswith(write.partition(".")[0])


# Writes of a killed process.


async def test_next_process_lists_and_settles_write_of_killed_process(
    tmp_path: Path,
) -> None:
    service = Service(seed=1, options=ServiceOptions(processing_seconds=60))
    simulator = await start_simulator(service=service)
    (tmp_path / "gateway.toml").write_text(build_configuration(simulator.url))
    await import_api_keys(build_settings(tmp_path, simulator.url), [KEY])

    async def list_writes() -> list[dict[str, Any]]:
        result = await asyncio.to_thread(
            run_installed_command, "writes", "unsettled", "--json", folder=tmp_path
        )
        writes: list[dict[str, Any]] = json.loads(result.stdout)["writes"]
        # The command cannot find the gateway, whose admin port is not in the configuration.
        assert ("no gateway answers" in result.stderr) == bool(writes)
        return writes

    async def has_no_listed_write() -> bool:
        return not await list_writes()

    try:
        headers = {"X-API-Key": KEY["api_key"]}
        async with aiohttp.ClientSession(headers=headers) as session:
            async with run_serve(tmp_path) as serve_process:
                body = {**RECIPIENT_BODY, "payout": WALLET}
                service.faults.append(Fault("POST", "/v1/recipients", answer_delay=30))
                request_task = asyncio.ensure_future(
                    session.post(f"{serve_process.url}/v1/recipients", json=body)
                )
                await wait_until(lambda: service.creation_counts["recipient"] == 1)
                serve_process.process.kill()
                await asyncio.gather(request_task, return_exceptions=True)
            (write,) = await list_writes()
            assert (write["state"], write["path"]) == ("sent", "/recipients")
            assert write["why"] == "the process that sent it ended before the answer came"
            async with run_serve(tmp_path) as serve_process:
                await wait_until_async(has_no_listed_write, 20)
                # The write of the next step is listed only if its outcome is in doubt.
                await wait_until(lambda: service.creation_counts["account"] == 1)
                assert service.creation_counts["recipient"] == 1
                assert await serve_process.stop() == 0
    finally:
        await simulator.stop()


# Operations that cannot be continued.


async def change_recorded_steps(operated_gateway: OperatedGateway) -> None:
    """Change the recorded steps, as if another version with another flow had written them."""
    async with operated_gateway.open_store() as store:
        operation_repository = OperationRepository(store, ObjectStateStore(store))
        (operation,) = await operation_repository.list_unfinished()
        request = json.loads(stored_json.decompress_text(operation.request))
        request["steps"] = [["0" * 16, outcome] for _fingerprint, outcome in request["steps"]]
        ciphertext = store.encryption.encrypt(
            json.dumps(request), build_text_encryption_context(operation, "request")
        )
        await execute(
            store,
            update(operations).where(operations.c.id == operation.id).values(request=ciphertext),
        )


async def test_operation_of_another_version_can_be_closed_once_its_writes_are_settled(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        batch = await create_batch(
            operated_gateway.gateway, await create_recipient(operated_gateway.gateway), "10.00"
        )
        operated_gateway.add_fault("POST", "/v1/batches/*/start-processing", close="before")
        path = f"/v1/batches/{batch}/start-processing"
        assert (await operated_gateway.gateway.request("POST", path)).status == 500
        await change_recorded_steps(operated_gateway)
        await operated_gateway.age_sent_writes()
        await wait_until_async(
            lambda: has_reason(operated_gateway, "the program has changed since")
        )
        retry_response = await operated_gateway.gateway.request("POST", path)
        assert (retry_response.status, retry_response.headers["Retry-After"]) == (500, "60")
        write = (await operated_gateway.find_write_in_doubt())["write"]
        result = await operated_gateway.run_command("writes", "close", write, "--yes", code=2)
        assert "it is not known whether" in result.stderr
        await operated_gateway.run_command(*SETTLE_COMMAND, write, "--did-not-happen", "--yes")
        await asyncio.sleep(2)
        assert not await has_no_write_in_doubt(operated_gateway), "it cannot be continued"
        assert (
            await operated_gateway.gateway.request("DELETE", f"/v1/batches/{batch}")
        ).status == 500
        await operated_gateway.run_command("writes", "close", write, "--yes")
        assert await has_no_write_in_doubt(operated_gateway)
        assert (await operated_gateway.run_json_command("reconcile"))["findings"] == []
        assert (await operated_gateway.gateway.request("POST", path)).status == 200
        assert len(operated_gateway.service.batch_starts) == 1
        second_result = await operated_gateway.run_command(
            "writes", "close", write, "--yes", code=2
        )
        assert "it does not need to be closed" in second_result.stderr


async def test_closed_add_leaves_another_one_in_doubt(tmp_path: Path) -> None:
    """An add of the same amount could still pay a second time."""
    async with open_operated_gateway(tmp_path) as operated_gateway:
        gateway = operated_gateway.gateway
        recipient = await create_recipient(gateway)
        path = f"/v1/batches/{await create_batch(gateway, recipient, '10.00')}/payments"

        async def add_payment(amount: str) -> int:
            body = {"recipient": {"id": recipient}, "sourceAmount": amount}
            return (await gateway.request("POST", path, body)).status

        operated_gateway.add_fault("POST", "/v1/batches/*/payments", close="before")
        assert await add_payment("11.00") == 500
        await change_recorded_steps(operated_gateway)
        await operated_gateway.age_sent_writes()
        write = (await operated_gateway.find_write_in_doubt())["write"]
        await operated_gateway.run_command(*SETTLE_COMMAND, write, "--did-not-happen", "--yes")
        operated_gateway.add_fault("POST", "/v1/batches/*/payments", close="before")
        assert await add_payment("12.00") == 500
        await operated_gateway.run_command("writes", "close", write, "--yes")
        assert await add_payment("12") == 500
        await operated_gateway.age_sent_writes()
        await wait_until_async(lambda: has_no_write_in_doubt(operated_gateway), 40)
        assert await add_payment("12") == 200


async def test_add_closed_while_another_one_ends_does_not_block_the_batch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The command may run while the service answers.
    async with open_operated_gateway(tmp_path, seconds=30) as operated_gateway:
        gateway = operated_gateway.gateway
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "10.00")
        path, body = f"/v1/batches/{batch}/payments", {"recipient": {"id": recipient}}
        operated_gateway.add_fault("POST", "/v1/batches/*/payments", close="before")
        lost_body = {**body, "sourceAmount": "11.00"}
        assert (await gateway.request("POST", path, lost_body)).status == 500
        await change_recorded_steps(operated_gateway)
        await operated_gateway.age_sent_writes()
        write = (await operated_gateway.find_write_in_doubt())["write"]
        await operated_gateway.run_command(*SETTLE_COMMAND, write, "--did-not-happen", "--yes")
        load_facts = ObjectStateStore.load

        async def load_facts_and_close(self: ObjectStateStore, *key: Any) -> Any:
            facts = await load_facts(self, *key)
            if key[1] == "batch" and operated_gateway.service.creation_counts["payment"] == 2:
                monkeypatch.undo()
                await operated_gateway.run_command("writes", "close", write, "--yes")
            return facts

        monkeypatch.setattr(ObjectStateStore, "load", load_facts_and_close)
        other_body = {**body, "sourceAmount": "12.00"}
        assert (await gateway.request("POST", path, other_body)).status == 200
        assert ObjectStateStore.load is load_facts
        assert await has_no_write_in_doubt(operated_gateway)
        await request_successfully(gateway, "POST", f"/batches/{batch}/start-processing")


async def test_closed_add_that_happened_is_not_sent_again_by_a_retry(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, seconds=2) as operated_gateway:
        gateway, service = operated_gateway.gateway, operated_gateway.service
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "10.00")
        path = f"/v1/batches/{batch}/payments"
        body = {"recipient": {"id": recipient}, "sourceAmount": "4.00"}
        operated_gateway.add_fault("POST", "/v1/batches/*/payments", **RESPONSE_LOST)
        # Read before the add, and not again before its steps are changed.
        operated_gateway.add_fault("GET", "/v1/batch/*/summary")
        operated_gateway.add_fault("GET", "/v1/batch/*/summary", status=503, times=1000)
        assert (await gateway.request("POST", path, body)).status == 500
        await change_recorded_steps(operated_gateway)
        await wait_until_async(
            lambda: has_reason(operated_gateway, "the program has changed since")
        )
        service.faults.clear()
        write = (await operated_gateway.find_write_in_doubt())["write"]
        (upstream,) = service.find_or_create_tenant().batches.values()
        payment_id = [*upstream.payments][-1]
        await operated_gateway.run_command(*SETTLE_COMMAND, write, "--made", payment_id, "--yes")
        advice = (await operated_gateway.find_write_in_doubt())["what_to_do"]
        assert f"payout-gateway writes close {write}" in advice
        await wait_until_async(lambda: close_operation(operated_gateway, write), 60)
        # Also while the summary does not show it.
        bare = b'{"ok":true,"batchSummary":{"status":"open"}}'
        operated_gateway.add_fault("GET", "/v1/batch/*/summary", status=200, body=bare, times=100)
        payment = (await gateway.request("GET", f"{path}/{payment_id}")).body["payment"]
        assert (payment["sourceAmount"], payment["recipient"]["id"]) == ("4.00", recipient)
        service.faults.clear()
        response = await gateway.request("POST", path, body)
        assert (response.status, "Retry-After" in response.headers) == (500, True), response.text
        other_body = {**body, "sourceAmount": "5.00"}
        assert (await gateway.request("POST", path, other_body)).status == 200
        start_path = f"/v1/batches/{batch}/start-processing"
        assert (await gateway.request("POST", start_path)).status == 200
        amounts = [str(payment.terms.source_amount) for payment in upstream.payments.values()]
        assert amounts == ["10.00", "4.00", "5.00"]


async def test_closed_start_that_happened_is_recorded(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path, processing_seconds=60) as operated_gateway:
        batch = await create_batch(
            operated_gateway.gateway, await create_recipient(operated_gateway.gateway), "10.00"
        )
        operated_gateway.add_fault("POST", "/v1/batches/*/start-processing", **RESPONSE_LOST)
        operated_gateway.add_fault("GET", "/v1/batch/*/summary")
        operated_gateway.add_fault("GET", "/v1/batch/*/summary", status=503, times=1000)
        path = f"/v1/batches/{batch}/start-processing"
        assert (await operated_gateway.gateway.request("POST", path)).status == 500
        await change_recorded_steps(operated_gateway)
        await wait_until_async(
            lambda: has_reason(operated_gateway, "the program has changed since")
        )
        operated_gateway.service.faults.clear()
        write = (await operated_gateway.find_write_in_doubt())["write"]
        await operated_gateway.run_command(*SETTLE_COMMAND, write, "--happened", "--yes")
        await wait_until_async(lambda: close_operation(operated_gateway, write), 60)
        assert (await operated_gateway.run_json_command("reconcile"))["findings"] == []
        object_facts = (await operated_gateway.run_json_command("trace", batch))["facts"]
        assert [
            batch_facts["phase"]
            for name, batch_facts in object_facts.items()
            if "started" in batch_facts
        ] == ["sent"]


async def close_operation(operated_gateway: OperatedGateway, write: str) -> bool:
    """Close the operation; False if the gateway is probing it at this moment."""
    result = await operated_gateway.run_command("writes", "close", write, "--yes", code=None)
    return result.exit_code == 0


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 2)])
async def test_settle_asks_for_confirmation(answer: str, code: int, tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated_gateway:
        await lose_batch_create(operated_gateway)
        write = (await operated_gateway.find_write_in_doubt())["write"]
        (upstream_id,) = operated_gateway.service.find_or_create_tenant().batches
        arguments = [
            *SETTLE_COMMAND,
            write,
            "--made",
            upstream_id,
            "--config",
            str(tmp_path / "gateway.toml"),
        ]
        result = await asyncio.to_thread(CliRunner().invoke, gateway, arguments, input=answer)
        assert result.exit_code == code
        assert "POST /batches of demo sandbox" in result.stderr
        assert f"made {upstream_id}?" in result.stderr
        await asyncio.sleep(2)
        assert await has_no_write_in_doubt(operated_gateway) is (code == 0)
