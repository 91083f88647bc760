"""`payout-gateway reconcile`: comparison of recorded object states with the service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gateway.simulator import batches
from gateway.storage import ObjectStateStore
from tests.metrics_scrape import fetch_metrics
from tests.operator_commands import (
    OperatedGateway,
    lose_batch_create,
    open_operated_gateway,
    read_log,
    wait_until_async,
)
from tests.payouts import create_batch, create_recipient, load_payment_ids, request_successfully
from tests.signed_requests import SigningClient, extract_error, send_raw
from tests.simulator import Fault
from tests.state import TENANT, compare_and_set


def start_batch_at_service(operated_gateway: OperatedGateway, batch_id: str) -> None:
    """Start a batch as a person would in the service's dashboard."""
    tenant = operated_gateway.service.find_or_create_tenant()
    batches.start_batch(tenant, tenant.batches[batch_id])


def list_finding_kinds(report: Any) -> list[str]:
    return [finding["kind"] for finding in report["findings"]]


async def load_object_states(operated_gateway: OperatedGateway, kind: str) -> dict[str, Any]:
    async with operated_gateway.open_store() as store:
        return await ObjectStateStore(store).load_facts_by_id(TENANT, kind)


async def test_consistent_objects_are_no_finding(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, processing_seconds=60) as operated_gateway:
        recipient = await create_recipient(operated_gateway.gateway)
        started_batch = await create_batch(operated_gateway.gateway, recipient, "5.00")
        await request_successfully(
            operated_gateway.gateway, "POST", f"/batches/{started_batch}/start-processing"
        )
        await create_batch(operated_gateway.gateway, recipient, "6.00")
        deleted_batch = await create_batch(operated_gateway.gateway, recipient, "7.00")
        await request_successfully(operated_gateway.gateway, "DELETE", f"/batches/{deleted_batch}")
        await request_successfully(operated_gateway.gateway, "DELETE", f"/recipients/{recipient}")
        report = await operated_gateway.run_json_command("reconcile")
        assert report == {
            "ok": True,
            "complete": True,
            "restored": False,
            "cleared": False,
            "frozen": False,
            "compared": {"batches": 3, "recipients": 1, "lists": 1},
            "findings": [],
            "unsettled": [],
            "unknown": [],
            "unreadable": [],
            "not_listed": [],
            "left_out": [],
        }
        output = (await operated_gateway.run_command("reconcile")).stdout
        assert output == "Compared. Batches: 3, deleted recipients: 1.\n"


async def test_missing_object_states_are_reported_as_nothing_to_compare(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        output = (await operated_gateway.run_command("reconcile")).stdout
        assert output.splitlines()[-1] == (
            "There was no batch and no deleted recipient to compare."
        )


async def test_unreadable_list_is_named_and_not_nothing_to_compare(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        operated_gateway.add_fault("GET", "/v1/batches", status=500)
        output = (await operated_gateway.run_command("reconcile", code=2)).stdout
        assert "Unreadable: demo sandbox: batches: it could not be read" in output
        assert "Nothing was compared, because nothing could be read.\n" in output


async def test_only_some_unreadable_batches_of_a_merchant_are_listed(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        recipient = await create_recipient(operated_gateway.gateway)
        for _ in range(5):
            await create_batch(operated_gateway.gateway, recipient, "5.00")
        operated_gateway.add_fault("GET", "/v1/batch/*/summary", status=500, times=100)
        output = (await operated_gateway.run_command("reconcile", code=2)).stdout
        lines = [line for line in output.splitlines() if line.startswith("Unreadable: ")]
        assert len(lines) == 4
        assert lines[3] == "Unreadable: demo sandbox: 2 more of these; --json lists all"
        report = await operated_gateway.run_json_command("reconcile", code=2)
        assert len(report["unreadable"]) == 5


async def test_reconcile_sends_only_reads(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated_gateway:
        recipient = await create_recipient(operated_gateway.gateway)
        batch = await create_batch(operated_gateway.gateway, recipient, "5.00")
        await request_successfully(operated_gateway.gateway, "DELETE", f"/batches/{batch}")
        await create_batch(operated_gateway.gateway, recipient, "5.00")
        operated_gateway.service.requests.clear()
        await operated_gateway.run_command("reconcile")
        assert {request.method for request in operated_gateway.service.requests} == {"GET"}


async def test_superseded_batch_started_elsewhere_is_an_alert(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated_gateway:
        batch = await create_batch(
            operated_gateway.gateway, await create_recipient(operated_gateway.gateway), "5.00"
        )
        (upstream,) = operated_gateway.service.find_or_create_tenant().batches
        await request_successfully(operated_gateway.gateway, "DELETE", f"/batches/{batch}")
        assert (await operated_gateway.run_json_command("reconcile"))["findings"] == []
        start_batch_at_service(operated_gateway, upstream)
        (finding,) = (await operated_gateway.run_json_command("reconcile", code=1))["findings"]
        assert (finding["kind"], finding["alert"]) == ("abandoned_started", True)
        assert (finding["id"], finding["upstream"]) == (batch, upstream)
        assert (await load_object_states(operated_gateway, "alias"))[upstream]["started"]
        (repeated_finding,) = (await operated_gateway.run_json_command("reconcile", code=1))[
            "findings"
        ]
        assert (repeated_finding["alert"], repeated_finding["recorded"]) == (True, False)
        output = (await operated_gateway.run_command("reconcile", code=1)).stdout
        assert output.startswith("ALERT: demo sandbox: ")
        assert "Findings: abandoned started 1" in output


@pytest.mark.parametrize("is_submitted", [False, True])
@pytest.mark.parametrize("is_noticed", [False, True])
async def test_replacement_of_a_batch_started_elsewhere_is_not_started(
    tmp_path: Path, is_noticed: bool, is_submitted: bool
) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated_gateway:
        gateway, tenant = operated_gateway.gateway, operated_gateway.service.find_or_create_tenant()
        batch = await create_batch(gateway, await create_recipient(gateway), "5.00")
        (upstream,) = tenant.batches
        (payment,) = await load_payment_ids(gateway, batch)
        path = f"/batches/{batch}"
        change = {"sourceAmount": "6.00"}
        await request_successfully(gateway, "PATCH", f"{path}/payments/{payment}", change)
        if is_submitted:
            await request_successfully(gateway, "POST", f"{path}/generate-quote")
        replacements = set(tenant.batches) - {upstream}
        start_batch_at_service(operated_gateway, upstream)
        if is_noticed:
            await operated_gateway.run_command("reconcile", code=1)
            (listed,) = (await operated_gateway.run_json_command("batches", "abandoned"))["batches"]
            assert "it was started outside the gateway" in listed["what_to_do"]
        for replacement in replacements:
            start = f"/v1/batches/{replacement}/start-processing"
            request = SigningClient().build_request("POST", start, stamp=int(time.time()))
            assert extract_error(await send_raw(gateway, request)) == (400, "invalid_status")
        response = await gateway.request("POST", f"/v1{path}/start-processing")
        assert (response.status, response.body["errors"][0]["code"]) == (406, "invalid_status")
        assert set(tenant.batches) == {upstream} | replacements, "none was made for the start"
        assert operated_gateway.count_calls("POST", "/v1/batches/*/start-processing") == 0


async def test_replacement_of_a_batch_that_cannot_be_read_is_not_started(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated_gateway:
        gateway, tenant = operated_gateway.gateway, operated_gateway.service.find_or_create_tenant()
        batch = await create_batch(gateway, await create_recipient(gateway), "5.00")
        (upstream,) = tenant.batches
        (payment,) = await load_payment_ids(gateway, batch)
        change = {"sourceAmount": "6.00"}
        path = f"/batches/{batch}"
        await request_successfully(gateway, "PATCH", f"{path}/payments/{payment}", change)
        operated_gateway.add_fault("GET", f"/v1/batch/{upstream}/summary", status=404, body=b"<p>")
        response = await gateway.request("POST", f"/v1{path}/start-processing")
        assert response.status == 500
        assert operated_gateway.count_calls("POST", "/v1/batches/*/start-processing") == 0
        del tenant.batches[upstream]
        await request_successfully(gateway, "POST", f"{path}/start-processing")


async def test_running_gateway_detects_superseded_batch_started_elsewhere(tmp_path: Path) -> None:
    frequent_checks = {"upstream": {"abandoned_check_seconds": 0.2}}
    async with open_operated_gateway(
        tmp_path, inferred=False, sections=frequent_checks
    ) as operated_gateway:
        batch = await create_batch(
            operated_gateway.gateway, await create_recipient(operated_gateway.gateway), "5.00"
        )
        (upstream,) = operated_gateway.service.find_or_create_tenant().batches
        await request_successfully(operated_gateway.gateway, "DELETE", f"/batches/{batch}")
        assert "abandoned_batch_started" not in read_log(tmp_path)
        start_batch_at_service(operated_gateway, upstream)

        async def is_logged() -> bool:
            return "abandoned_batch_started" in read_log(tmp_path)

        await wait_until_async(is_logged)
        gateway = operated_gateway.gateway
        scrape = await fetch_metrics(gateway.session, gateway.running.admin_url)
        async with gateway.session.get(gateway.running.admin_url) as response:
            overview = await response.text()
    assert scrape.sum("payout_gateway_abandoned_batches_started") == 1
    assert "1 superseded batch was started outside the gateway" in overview


async def test_superseded_batch_check_can_be_disabled(tmp_path: Path) -> None:
    disabled_checks = {"upstream": {"abandoned_check_seconds": 0}}
    async with open_operated_gateway(
        tmp_path, inferred=False, sections=disabled_checks
    ) as operated_gateway:
        batch = await create_batch(
            operated_gateway.gateway, await create_recipient(operated_gateway.gateway), "5.00"
        )
        await request_successfully(operated_gateway.gateway, "DELETE", f"/batches/{batch}")
        operated_gateway.service.requests.clear()
        await asyncio.sleep(0.5)
        assert operated_gateway.service.list_requests("GET", "/v1/batch/*/summary") == []


async def test_batch_started_elsewhere_is_reported_once_and_recorded(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path, processing_seconds=60) as operated_gateway:
        batch = await create_batch(
            operated_gateway.gateway, await create_recipient(operated_gateway.gateway), "5.00"
        )
        (upstream,) = operated_gateway.service.find_or_create_tenant().batches
        start_batch_at_service(operated_gateway, upstream)
        (finding,) = (await operated_gateway.run_json_command("reconcile", code=1))["findings"]
        assert (finding["kind"], finding["id"]) == ("started_elsewhere", batch)
        assert (finding["recorded"], finding["alert"]) == (True, False)
        assert (await load_object_states(operated_gateway, "batch"))[upstream]["started"]
        assert (await operated_gateway.run_json_command("reconcile"))["findings"] == []


def delete_batch_at_service(operated_gateway: OperatedGateway, upstream: str) -> None:
    del operated_gateway.service.find_or_create_tenant().batches[upstream]


def change_amount_at_service(operated_gateway: OperatedGateway, upstream: str) -> None:
    (payment,) = (
        operated_gateway.service.find_or_create_tenant().batches[upstream].payments.values()
    )
    payment.terms = replace(payment.terms, source_amount=Decimal("99.00"))


DIFFERENCES: dict[str, tuple[Callable[[OperatedGateway, str], None], str, str]] = {
    "deleted there": (delete_batch_at_service, "missing", "the service does not have it"),
    "changed there": (
        change_amount_at_service,
        "payments",
        "it pays 1 payment of 99.00 USD, but 1 payment of 5.00 USD was requested",
    ),
}


@pytest.mark.parametrize("case", DIFFERENCES.values(), ids=DIFFERENCES)
async def test_difference_at_the_service_is_a_finding(
    case: tuple[Callable[[OperatedGateway, str], None], str, str], tmp_path: Path
) -> None:
    change, kind, expected_text = case
    async with open_operated_gateway(tmp_path) as operated_gateway:
        await create_batch(
            operated_gateway.gateway, await create_recipient(operated_gateway.gateway), "5.00"
        )
        (upstream,) = operated_gateway.service.find_or_create_tenant().batches
        change(operated_gateway, upstream)
        (finding,) = (await operated_gateway.run_json_command("reconcile", code=1))["findings"]
        assert finding["kind"] == kind
        assert expected_text in finding["says"]
        assert finding["what_to_do"]


async def test_finding_names_the_id_that_an_edited_batch_has_at_the_service(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated_gateway:
        gateway = operated_gateway.gateway
        recipient = await create_recipient(gateway)
        batch = await create_batch(gateway, recipient, "5.00")
        change = {"payments": [{"recipient": {"id": recipient}, "sourceAmount": "2.00"}]}
        await request_successfully(gateway, "PATCH", f"/batches/{batch}", change)
        await request_successfully(gateway, "GET", f"/batches/{batch}/summary")
        *_, upstream = operated_gateway.service.find_or_create_tenant().batches
        delete_batch_at_service(operated_gateway, upstream)
        (finding,) = (await operated_gateway.run_json_command("reconcile", code=1))["findings"]
        assert (finding["id"], finding["upstream"]) == (batch, upstream)


async def test_start_unknown_to_the_service_is_a_finding(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        await create_batch(
            operated_gateway.gateway, await create_recipient(operated_gateway.gateway), "5.00"
        )
        (upstream,) = operated_gateway.service.find_or_create_tenant().batches
        async with operated_gateway.open_store() as store:
            await compare_and_set(
                ObjectStateStore(store),
                TENANT,
                "batch",
                upstream,
                {"started": "2026-01-01T00:00:00Z"},
            )
        assert list_finding_kinds(await operated_gateway.run_json_command("reconcile", code=1)) == [
            "not_started"
        ]


async def test_stuck_change_is_a_finding(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        await create_batch(
            operated_gateway.gateway, await create_recipient(operated_gateway.gateway), "5.00"
        )
        (upstream,) = operated_gateway.service.find_or_create_tenant().batches
        async with operated_gateway.open_store() as store:
            await compare_and_set(
                ObjectStateStore(store), TENANT, "batch", upstream, {"phase": "editing"}
            )
        assert list_finding_kinds(await operated_gateway.run_json_command("reconcile", code=1)) == [
            "stuck"
        ]


async def test_running_change_is_no_finding(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, seconds=30) as operated_gateway:
        batch = await create_batch(
            operated_gateway.gateway, await create_recipient(operated_gateway.gateway), "5.00"
        )
        answer, start = asyncio.Event(), "/v1/batches/*/start-processing"
        operated_gateway.add_fault("POST", start, answer_after=answer)
        path = f"/v1/batches/{batch}/start-processing"
        start_task = asyncio.ensure_future(operated_gateway.gateway.request("POST", path))

        async def is_starting() -> bool:
            return [
                batch_state["phase"]
                for batch_state in (await load_object_states(operated_gateway, "batch")).values()
            ] == ["starting"]

        await wait_until_async(is_starting)
        assert (await operated_gateway.run_json_command("reconcile"))["findings"] == []
        assert not start_task.done()
        answer.set()
        assert (await start_task).status == 200


async def test_batches_without_recorded_state_are_information(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        recipient = await create_recipient(operated_gateway.gateway)
        await create_batch(operated_gateway.gateway, recipient, "5.00")
        (upstream,) = operated_gateway.service.find_or_create_tenant().batches
        async with operated_gateway.open_store() as store:
            await compare_and_set(
                ObjectStateStore(store),
                TENANT,
                "batch",
                upstream,
                dict.fromkeys((await load_object_states(operated_gateway, "batch"))[upstream]),
            )
        report = await operated_gateway.run_json_command("reconcile")
        assert [unknown_batch["id"] for unknown_batch in report["unknown"]] == [upstream]
        assert report["findings"] == []
        assert (
            "For information: demo sandbox: B-"
            in (await operated_gateway.run_command("reconcile")).stdout
        )


async def test_service_without_batch_list_is_reported(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated_gateway:
        await create_batch(
            operated_gateway.gateway, await create_recipient(operated_gateway.gateway), "5.00"
        )
        report = await operated_gateway.run_json_command("reconcile")
        assert report["not_listed"] == [{"merchant": "demo", "environment": "sandbox"}]
        output = (await operated_gateway.run_command("reconcile")).stdout
        assert "batches: the service does not list batches" in output
        assert "cannot be found; nothing can be done here\n" in output


async def test_setting_that_avoids_the_list_of_batches_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        await create_batch(
            operated_gateway.gateway, await create_recipient(operated_gateway.gateway), "5.00"
        )
        monkeypatch.setenv("PAYOUT_GATEWAY_UPSTREAM__INFERRED_OPERATIONS", "avoid")
        output = (await operated_gateway.run_command("reconcile")).stdout
        assert "batches: upstream.inferred_operations is avoid" in output
        monkeypatch.setenv("PAYOUT_GATEWAY_UPSTREAM__INFERRED_OPERATIONS", "auto")
        assert "For information" not in (await operated_gateway.run_command("reconcile")).stdout


async def test_deleted_recipient_that_is_active_again_is_a_finding(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        recipient = await create_recipient(operated_gateway.gateway)
        await request_successfully(operated_gateway.gateway, "DELETE", f"/recipients/{recipient}")
        operated_gateway.service.require_recipient(recipient).status = "active"
        (finding,) = (await operated_gateway.run_json_command("reconcile", code=1))["findings"]
        assert (finding["kind"], finding["id"]) == ("active_again", recipient)


async def test_writes_in_doubt_are_findings(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated_gateway:
        await lose_batch_create(operated_gateway)
        report = await operated_gateway.run_json_command("reconcile", code=1)
        assert (report["ok"], len(report["unsettled"])) == (False, 1)
        assert "dashboard" in report["unsettled"][0]["what_to_do"]


async def test_write_in_doubt_of_an_unreachable_service_is_not_to_be_looked_for(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        await lose_batch_create(operated_gateway)
        operated_gateway.add_fault("GET", "/v1/*", close="before", times=1000)
        report = await operated_gateway.run_json_command("reconcile", code=2)
        (write,), (unreadable, *_) = report["unsettled"], report["unreadable"]
        assert "the service cannot be reached: wait" in write["what_to_do"]
        assert "dashboard" not in write["what_to_do"]
        assert "run this again" in unreadable["what_to_do"]


async def test_draft_is_not_compared(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path, inferred=False) as operated_gateway:
        batch = await create_batch(
            operated_gateway.gateway, await create_recipient(operated_gateway.gateway), "5.00"
        )
        (payment,) = await load_payment_ids(operated_gateway.gateway, batch)
        change = {"sourceAmount": "6.00"}
        await request_successfully(
            operated_gateway.gateway, "PATCH", f"/batches/{batch}/payments/{payment}", change
        )
        assert (await operated_gateway.run_json_command("reconcile"))["findings"] == []
        await request_successfully(operated_gateway.gateway, "GET", f"/batches/{batch}/summary")
        assert (await operated_gateway.run_json_command("reconcile"))["findings"] == []


# Objects that could not be read.


@pytest.mark.parametrize("status", [500, 404], ids=["error", "page of a proxy"])
async def test_unreadable_object_is_reported_and_rest_is_compared(
    tmp_path: Path, status: int
) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        recipient = await create_recipient(operated_gateway.gateway)
        for amount in ("5.00", "6.00"):
            await create_batch(operated_gateway.gateway, recipient, amount)
        operated_gateway.add_fault("GET", "/v1/batch/*/summary", status=status)
        report = await operated_gateway.run_json_command("reconcile", code=2)
        assert (report["complete"], len(report["unreadable"])) == (False, 1)
        assert report["compared"]["batches"] == 1
        assert f"(refused, status {status})" in report["unreadable"][0]["says"]


async def test_refused_credentials_are_not_reported_as_unreachable_service(
    tmp_path: Path,
) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        await create_batch(
            operated_gateway.gateway, await create_recipient(operated_gateway.gateway), "5.00"
        )
        operated_gateway.service.faults.append(
            Fault("GET", "/v1/batch/*/summary", status=401, times=9)
        )
        (unreadable_object,) = (await operated_gateway.run_json_command("reconcile", code=2))[
            "unreadable"
        ]
        assert "(refused, status 401)" in unreadable_object["says"]
        assert unreadable_object["what_to_do"].startswith("run `payout-gateway keys verify`")


async def test_rate_limited_read_is_retried(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        await create_batch(
            operated_gateway.gateway, await create_recipient(operated_gateway.gateway), "5.00"
        )
        operated_gateway.service.faults.append(
            Fault("GET", "/v1/batch/*/summary", status=429, headers={"Retry-After": "1"})
        )
        assert (await operated_gateway.run_json_command("reconcile"))["unreadable"] == []


async def test_only_requested_tenant_is_compared(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as operated_gateway:
        await create_batch(
            operated_gateway.gateway, await create_recipient(operated_gateway.gateway), "5.00"
        )
        report = await operated_gateway.run_json_command(
            "reconcile", "--merchant", "demo", "--environment", "sandbox"
        )
        assert report["compared"] == {"batches": 1, "lists": 1}
        result = await operated_gateway.run_command("reconcile", "--merchant", "domo", code=2)
        assert "no key has this merchant" in result.stderr
        assert result.stdout == ""
