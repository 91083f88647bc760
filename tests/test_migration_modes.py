"""Migration modes by operation group and key: routing of requests, and no duplicate writes."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from gateway.storage import ObjectStateStore, open_store
from gateway.storage.operations import OperationRepository
from gateway.writes import reconciler
from tests.console import open_console_client
from tests.gateway.compare.fake_services import PlannedResponse, ReceivedRequest
from tests.gateway.compare.fake_services import open_fake_service as open_service
from tests.legacy_and_current import API_KEY, KEY_NAME, GatewayBetween, open_gateway_between
from tests.metrics_scrape import fetch_metrics, measure_increase
from tests.operator_commands import (
    OperatedGateway,
    disable_immediate_read,
    read_log,
    wait_until_async,
)
from tests.payouts import create_batch, create_recipient, request_successfully
from tests.running_gateway import KEY, GatewayResponse
from tests.signed_requests import send_signed
from tests.simulator import Fault
from tests.sockets import wait_until
from tests.state import count_operations_by_state

RECIPIENT_BODY = {
    "type": "individual",
    "firstName": "Ada",
    "lastName": "Byron",
    "email": "byron@example.com",
}


def build_batch_body(recipient: str, amount: str) -> dict[str, Any]:
    """A batch of one payment."""
    payments = [{"recipient": {"id": recipient}, "sourceAmount": amount}]
    return {"sourceCurrency": "USD", "payments": payments}


def read_log_lines(folder: Path, operation: str) -> list[str]:
    """Returns the log lines of an operation, without terminal colours."""
    uncoloured = re.sub(r"\x1b\[[0-9;]*m", "", read_log(folder))
    return [line for line in uncoloured.splitlines() if f"operation={operation} " in line]


# Switching


async def test_requests_are_translated_by_default(tmp_path: Path) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await create_recipient(setup.gateway)
        assert setup.count_legacy_calls() == 0
        report = await setup.run_json_command("modes", "list")
        assert report == {"modes": [], "begun_at_legacy": [], "acts": []}


async def test_key_is_switched_and_back_while_the_gateway_runs(tmp_path: Path) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        translated_id = await create_recipient(setup.gateway)
        await setup.set_mode("forward")
        assert (await setup.gateway.request("GET", f"/v1/recipients/{translated_id}")).status == 404
        forwarded_id = await create_recipient(setup.gateway, "eve")
        assert forwarded_id in setup.legacy.find_or_create_tenant().recipients
        await setup.set_mode("translate")
        assert (await setup.gateway.request("GET", f"/v1/recipients/{translated_id}")).status == 200
        assert (await setup.gateway.request("GET", f"/v1/recipients/{forwarded_id}")).status == 404


async def test_ignored_parameter_is_counted_once_if_the_request_is_translated(
    tmp_path: Path,
) -> None:
    async with open_gateway_between(tmp_path) as setup:
        gateway = setup.gateway
        admin_url = gateway.running.admin_url
        for mode, expected_count in (("forward", 0), ("translate", 1)):
            await setup.set_mode(mode)
            scrape_before = await fetch_metrics(gateway.session, admin_url)
            assert (await gateway.request("GET", "/v1/batches?unheardOf=1")).status == 200
            scrape_after = await fetch_metrics(gateway.session, admin_url)
            name = "payout_gateway_ignored_parameters_total"
            count = measure_increase(scrape_after, scrape_before, name, operation="list_batches")
            assert count == expected_count, mode


async def test_switching_a_group_leaves_the_others(tmp_path: Path) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward", "balances")
        legacy_count, current_count = setup.count_legacy_calls(), setup.count_current_calls()
        await request_successfully(setup.gateway, "GET", "/recipients")
        await request_successfully(setup.gateway, "GET", "/batches")
        assert setup.count_legacy_calls() == legacy_count
        assert setup.count_current_calls() > current_count
        await request_successfully(setup.gateway, "GET", "/profile/balances/service")
        assert setup.count_legacy_calls() == legacy_count + 1


async def test_switching_a_key_leaves_the_others(tmp_path: Path) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        legacy_count = setup.count_legacy_calls()
        await request_successfully(
            setup.gateway, "GET", "/recipients", headers={"X-API-Key": KEY["api_key"]}
        )
        assert setup.count_legacy_calls() == legacy_count


async def test_renamed_key_keeps_its_mode(tmp_path: Path) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        await setup.gateway.import_key(api_key=API_KEY, name="store")
        last = setup.count_legacy_calls()

        async def is_renamed() -> bool:
            nonlocal last
            await request_successfully(setup.gateway, "GET", "/recipients")
            last, previous = setup.count_legacy_calls(), last
            assert last == previous + 1
            return "key=store" in read_log(setup.folder)

        await wait_until_async(is_renamed)
        modes = (await setup.run_json_command("modes", "list"))["modes"]
        assert {mode["mode"] for mode in modes if mode["key"] == "store"} == {"forward"}


async def test_switching_a_merchant_switches_all_its_keys(tmp_path: Path) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward", "balances")
        output = await setup.run_command("modes", "set", "--merchant", "demo", "translate", "--yes")
        assert f"replaces the mode of these keys: {KEY_NAME}" in output
        assert {
            mode["key"] for mode in (await setup.run_json_command("modes", "list"))["modes"]
        } == {None}
        await setup.run_command("modes", "set", "--merchant", "demo", "forward", "--yes")

        async def has_switched() -> bool:
            legacy_count = setup.count_legacy_calls()
            await setup.gateway.request("GET", "/v1/profile/balances")
            return setup.count_legacy_calls() > legacy_count

        await wait_until_async(has_switched)


async def test_geography_is_forwarded_with_a_switched_key_only(
    tmp_path: Path,
) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward", "balances")
        await setup.run_command(
            "modes", "set", "--key", KEY_NAME, "--group", "geography", "forward", "--yes"
        )

        async def has_switched() -> bool:
            assert (await setup.gateway.request("GET", "/v1/geography/countries/DE")).status == 200
            return setup.count_legacy_calls("GET", "/v1/geography/countries/DE") > 0

        await wait_until_async(has_switched)
        legacy_count = setup.count_legacy_calls()
        for key in ("", "nobodys-key"):
            response = await setup.gateway.request(
                "GET", "/v1/geography/countries/DE", headers={"X-API-Key": key}
            )
            assert response.status == 200
        assert setup.count_legacy_calls() == legacy_count


async def test_switching_does_not_drop_requests(tmp_path: Path) -> None:
    async with open_gateway_between(tmp_path) as setup:
        is_done = asyncio.Event()
        statuses: list[int] = []

        async def send_requests() -> None:
            while not is_done.is_set():
                statuses.append((await setup.gateway.request("GET", "/v1/profile/balances")).status)

        clients = [asyncio.create_task(send_requests()) for _ in range(4)]
        for mode in ("forward", "translate", "forward", "translate"):
            legacy_count, current_count = setup.count_legacy_calls(), setup.count_current_calls()
            await setup.run_command("modes", "set", "--key", KEY_NAME, mode, "--yes")

            async def has_switched() -> bool:
                legacy = setup.count_legacy_calls() > legacy_count  # noqa: B023
                return legacy if mode == "forward" else setup.count_current_calls() > current_count  # noqa: B023

            await wait_until_async(has_switched)
        is_done.set()
        await asyncio.gather(*clients)
        assert set(statuses) == {200}


# Forwarded requests and their answers


async def test_forwarded_request_and_answer_are_unchanged(
    tmp_path: Path,
) -> None:
    requests: list[ReceivedRequest] = []

    def respond(request: ReceivedRequest) -> Any:
        requests.append(request)
        if request.method == "GET":
            return PlannedResponse(
                {"ok": True, "odd": [1.50, None], "recipients": []}, 200, {"X-Odd": "yes"}
            )
        return PlannedResponse(
            {"ok": False, "errors": [{"code": "odd_code", "message": "no"}]}, 418
        )

    async with open_service(respond) as legacy:
        async with open_gateway_between(tmp_path, legacy_url=legacy.url) as setup:
            await setup.run_command("modes", "set", "--key", KEY_NAME, "forward", "--yes")

            async def has_switched() -> bool:
                await setup.gateway.request("GET", "/v1/recipients")
                return bool(requests)

            await wait_until_async(has_switched)
            requests.clear()
            response = await setup.gateway.request(
                "GET", "/v1/recipients/?&search=a%40b&page=1&x=%C3%A9"
            )
            assert (response.status, response.headers["X-Odd"]) == (200, "yes")
            assert response.text == '{"ok": true, "odd": [1.5, null], "recipients": []}'
            body = b'{ "type" : "individual", "odd": [1.50, null], "email":"\xc3\xa9@example.com" }'
            response = await setup.gateway.request(
                "POST",
                "/v1/recipients/",
                data=body,
                headers={"X-Forwarded-For": "10.1.1.1", "Authorization": "Basic eA==", "A-B": "c"},
            )
            assert (response.status, response.body["errors"][0]["code"]) == (418, "odd_code")
    first_request, second_request = requests
    assert first_request.target == "/v1/recipients/?&search=a%40b&page=1&x=%C3%A9"
    assert first_request.headers["x-api-key"] == API_KEY
    assert (second_request.method, second_request.target, second_request.body.encode()) == (
        "POST",
        "/v1/recipients/",
        body,
    )
    assert not {"x-forwarded-for", "authorization"} & second_request.headers.keys()


async def test_unexpectedly_compressed_answer_is_read(tmp_path: Path) -> None:
    def respond(request: ReceivedRequest) -> PlannedResponse:
        assert "accept-encoding" not in request.headers
        body = {"ok": True, "batch": {"id": "B-LEGACY0000000001"}, "batches": []}
        return PlannedResponse(
            gzip.compress(json.dumps(body).encode()), 200, {"Content-Encoding": "gzip"}
        )

    async with open_service(respond) as legacy:
        async with open_gateway_between(tmp_path, legacy_url=legacy.url) as setup:
            await setup.run_command("modes", "set", "--key", KEY_NAME, "forward", "--yes")

            async def has_switched() -> bool:
                await setup.gateway.request("GET", "/v1/batches")
                return bool(legacy.requests)

            await wait_until_async(has_switched)
            response = await setup.gateway.request("POST", "/v1/batches", {"sourceCurrency": "USD"})
            assert response.body["batch"]["id"] == "B-LEGACY0000000001"
            report = await setup.run_json_command("modes", "list")
            assert [entry["batches"] for entry in report["begun_at_legacy"]] == [1]


async def test_refusal_of_the_legacy_service_is_shown_with_its_code_and_field(
    tmp_path: Path,
) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        response = await setup.gateway.request("POST", "/v1/batches", {"sourceCurrency": "nope"})
        (error,) = response.body["errors"]
        assert (response.status, error["field"]) == (406, "sourceCurrency")
        async with open_console_client(setup.gateway.running.admin_url) as console:
            query = urlencode({name: error[name] for name in ("code", "field")})
            page = (await console.get(f"/requests?status=406&{query}")).text
        assert f"/trace?id={response.headers['X-Request-Id']}" in page
        assert error["message"] not in page + read_log(tmp_path)


async def test_forwarded_request_is_counted_and_logged(tmp_path: Path) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        await create_recipient(setup.gateway)
        (line,) = read_log_lines(tmp_path, "create_recipient")
        assert {"mode=forward", "upstream_calls=1", f"key={KEY_NAME}"} <= set(line.split())

        async def is_counted() -> bool:
            keys = (await setup.run_json_command("report", "usage"))["keys"]
            usage = {
                operation["operation"]: operation["requests"]
                for key in keys
                if key["key"] == KEY_NAME
                for operation in key["operations"]
            }
            return usage.get("create_recipient") == 1

        await wait_until_async(is_counted)


async def test_rate_limit_applies_to_forwarded_requests(tmp_path: Path) -> None:
    sections = {"limits": {"requests_per_hour": 5}}
    async with open_gateway_between(tmp_path, has_two_services=True, sections=sections) as setup:
        await setup.run_command("modes", "set", "--key", KEY_NAME, "forward", "--yes")
        statuses = [(await setup.gateway.request("GET", "/v1/recipients")).status for _ in range(7)]
        assert statuses == [200] * 5 + [429] * 2


async def test_redirect_of_a_read_is_not_followed_or_passed_on(tmp_path: Path) -> None:
    redirected_requests: list[ReceivedRequest] = []
    async with open_service(
        lambda request: redirected_requests.append(request) or {"ok": True}
    ) as other_url:
        redirect = PlannedResponse({}, 307, {"Location": f"{other_url.url}/v1/recipients"})
        async with open_service(lambda _request: redirect) as legacy:
            async with open_gateway_between(tmp_path, legacy_url=legacy.url) as setup:
                await setup.run_command("modes", "set", "--key", KEY_NAME, "forward", "--yes")

                async def is_refused() -> bool:
                    return (await setup.gateway.request("GET", "/v1/recipients")).status == 500

                await wait_until_async(is_refused)
                response = await setup.gateway.request("GET", "/v1/recipients")
                assert (response.status, "Location" in response.headers) == (500, False)
    assert redirected_requests == []


async def test_forward_mode_requires_a_legacy_address(tmp_path: Path) -> None:
    async with open_gateway_between(tmp_path) as setup:
        (tmp_path / "gateway.toml").write_text(
            (tmp_path / "gateway.toml").read_text().replace("legacy_base_url", "# ")
        )
        output = await setup.run_command(
            "modes", "set", "--key", KEY_NAME, "forward", "--yes", code=2
        )
        assert "legacy_base_url is not set" in output


async def test_switching_asks_for_confirmation(tmp_path: Path) -> None:
    async with open_gateway_between(tmp_path) as setup:
        output = await setup.run_command("modes", "set", "--key", KEY_NAME, "forward", code=2)
        assert "are passed unchanged to the legacy service" in output
        other_environment = await setup.run_command(
            *("modes", "set", "--key", KEY_NAME, "--environment", "live", "forward"), code=2
        )
        assert "is a key of the sandbox environment" in other_environment
        assert (await setup.run_json_command("modes", "list"))["modes"] == []
        for arguments in (["--key", "nobody"], ["--merchant", "nobody"], []):
            await setup.run_command("modes", "set", *arguments, "forward", "--yes", code=2)


# A batch stays at the service of its first write


async def create_legacy_batch(setup: GatewayBetween) -> str:
    recipient = await create_recipient(setup.gateway, "eve")
    return await create_batch(setup.gateway, recipient, "10.00")


async def test_forwarded_batch_stays_at_the_legacy_service(tmp_path: Path) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        batch = await create_legacy_batch(setup)
        await setup.set_mode("translate")
        batch_call_count = setup.count_current_calls("*", "/v1/batch*")
        batch_body = await request_successfully(setup.gateway, "GET", f"/batches/{batch}")
        (payment,) = batch_body["batch"]["payments"]["payments"]
        path = f"/batches/{batch}/payments/{payment['id']}"
        await request_successfully(setup.gateway, "PATCH", path, {"sourceAmount": "12.00"})
        await request_successfully(setup.gateway, "GET", f"/batches/{batch}/payments")
        await request_successfully(setup.gateway, "POST", f"/batches/{batch}/generate-quote")
        await request_successfully(setup.gateway, "GET", f"/batches/{batch}/summary")
        await request_successfully(setup.gateway, "POST", f"/batches/{batch}/start-processing")
        assert len(setup.legacy.batch_starts) == 1
        assert setup.current.batch_starts == []
        assert setup.count_current_calls("*", "/v1/batch*") == batch_call_count
        report = await setup.run_json_command("modes", "list")
        assert [entry["batches"] for entry in report["begun_at_legacy"]] == [1]


async def test_recipient_write_does_not_bind_a_batch(tmp_path: Path) -> None:
    """The legacy service can be shut down only when no batch is bound to it."""
    async with open_gateway_between(tmp_path) as setup:
        await setup.set_mode("forward")
        recipient = await create_recipient(setup.gateway)
        await request_successfully(
            setup.gateway, "PATCH", f"/recipients/{recipient}", {"status": "disabled"}
        )
        await request_successfully(setup.gateway, "DELETE", f"/recipients/{recipient}")
        assert (await setup.run_json_command("modes", "list"))["begun_at_legacy"] == []


async def test_translated_batch_stays_at_the_current_service(tmp_path: Path) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        recipient = await create_recipient(setup.gateway)
        batch = await create_batch(setup.gateway, recipient, "10.00")
        await setup.set_mode("forward")
        assert (await request_successfully(setup.gateway, "GET", f"/batches/{batch}"))["batch"][
            "id"
        ] == batch
        await request_successfully(setup.gateway, "POST", f"/batches/{batch}/start-processing")
        assert len(setup.current.batch_starts) == 1
        assert setup.legacy.batch_starts == []
        assert setup.count_legacy_calls("*", f"/v1/batches/{batch}*") == 0
        legacy_batch = await create_legacy_batch(setup)
        assert await setup.gateway.request("GET", f"/v1/batches/{legacy_batch}")
        assert setup.count_legacy_calls("GET", f"/v1/batches/{legacy_batch}") == 1


async def test_unknown_batch_follows_its_key_until_its_first_write(tmp_path: Path) -> None:
    """From its first write on, the batch stays at that service."""
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        recipient = await create_at_legacy(setup, "/v1/recipients", {**RECIPIENT_BODY})
        body = build_batch_body(recipient, "1.00")
        legacy_batch = (await setup.request_legacy("POST", "/v1/batches", body)).body["batch"]["id"]
        await setup.set_mode("forward")
        await request_successfully(setup.gateway, "GET", f"/batches/{legacy_batch}")
        await setup.set_mode("translate")
        assert (await setup.gateway.request("GET", f"/v1/batches/{legacy_batch}")).status == 404
        await setup.set_mode("forward")
        await request_successfully(
            setup.gateway, "PATCH", f"/batches/{legacy_batch}", {"payments": []}
        )
        await setup.set_mode("translate")
        await request_successfully(setup.gateway, "GET", f"/batches/{legacy_batch}")


async def create_at_legacy(setup: GatewayBetween, path: str, body: Any) -> str:
    response = await setup.request_legacy("POST", path, body)
    assert response.status == 200, response.text
    return str(
        next(
            created_object
            for created_object in response.body.values()
            if isinstance(created_object, dict)
        )["id"]
    )


async def test_batches_of_both_services_are_not_deleted_together(tmp_path: Path) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        recipient = await create_recipient(setup.gateway)
        current_batch = await create_batch(setup.gateway, recipient, "10.00")
        await setup.set_mode("forward")
        legacy_batch = await create_legacy_batch(setup)
        response = await setup.gateway.request(
            "DELETE", "/v1/batches", {"ids": [current_batch, legacy_batch]}
        )
        assert (response.status, response.body["errors"][0]["field"]) == (406, "ids")
        for batch in (current_batch, legacy_batch):
            await request_successfully(setup.gateway, "DELETE", "/batches", {"ids": [batch]})
            assert (await setup.gateway.request("GET", f"/v1/batches/{batch}")).status == 404


async def test_payment_is_found_at_either_service(tmp_path: Path) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        payments = []
        for mode in ("translate", "forward"):
            await setup.set_mode(mode)
            batch = await create_batch(
                setup.gateway, await create_recipient(setup.gateway, mode[:3]), "10.00"
            )
            batch_body = await request_successfully(setup.gateway, "GET", f"/batches/{batch}")
            payments += [entry["id"] for entry in batch_body["batch"]["payments"]["payments"]]
        for mode in ("forward", "translate"):
            await setup.set_mode(mode)
            for payment in payments:
                response = await request_successfully(setup.gateway, "GET", f"/payments/{payment}")
                assert response["payment"]["id"] == payment
        assert (await setup.gateway.request("GET", "/v1/payments/P-NOBODYS000000000")).status == 404


# Writes that were not answered


async def test_forwarded_write_in_doubt_is_never_sent_again(tmp_path: Path) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        recipient = await create_recipient(setup.gateway)
        body = build_batch_body(recipient, "10.00")
        setup.add_legacy_fault("POST", "/v1/batches", close="after")
        response = await setup.gateway.request("POST", "/v1/batches", body)
        assert (response.status, int(response.headers["Retry-After"]) > 0) == (500, True)
        assert "outcome of this request is unknown" in response.body["errors"][0]["message"]
        assert (await setup.gateway.request("POST", "/v1/batches", body)).status == 500
        await setup.set_mode("translate")
        assert (await setup.gateway.request("POST", "/v1/batches", body)).status == 500
        assert setup.count_legacy_calls("POST", "/v1/batches") == 1
        assert setup.count_current_calls("POST", "/v1/batches") == 0
        other_body = {**body, "description": "another"}
        assert (await setup.gateway.request("POST", "/v1/batches", other_body)).status != 500


@pytest.mark.parametrize("created", [b'"R-1"', b"[1]", b"true"])
async def test_response_without_the_created_object_ends_a_forwarded_write(
    tmp_path: Path, created: bytes
) -> None:
    """Any response of the legacy service is passed on, and ends the write (contract, section 7)."""
    body = b'{"ok":true,"recipient":%b}' % created
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        setup.add_legacy_fault("POST", "/v1/recipients", status=200, body=body)
        response = await setup.gateway.request("POST", "/v1/recipients", {"type": "individual"})
        assert (response.status, response.text) == (200, body.decode())
        assert await setup.list_writes_in_doubt() == []


async def test_forwarded_write_after_one_in_doubt_is_refused(
    tmp_path: Path,
) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        batch = await create_batch(setup.gateway, await create_recipient(setup.gateway), "10.00")
        setup.add_legacy_fault("POST", "/v1/batches/*/start-processing", close="after")
        lost_response = await setup.gateway.request("POST", f"/v1/batches/{batch}/start-processing")
        assert "outcome of this request is unknown" in lost_response.body["errors"][0]["message"]
        response = await setup.gateway.request("DELETE", f"/v1/batches/{batch}")
        assert (response.status, int(response.headers["Retry-After"]) > 0) == (500, True)
        assert "nothing of this request was done" in response.body["errors"][0]["message"]
        assert setup.count_legacy_calls("DELETE", "/v1/batches/*") == 0


async def test_forwarded_adds_proceed_while_another_is_in_doubt(tmp_path: Path) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        recipient = await create_recipient(setup.gateway)
        path = f"/v1/batches/{await create_batch(setup.gateway, recipient, '10.00')}"

        async def add_payment(amount: str, **fields: Any) -> GatewayResponse:
            body = {"recipient": {"id": recipient}, "sourceAmount": amount, **fields}
            return await setup.gateway.request("POST", f"{path}/payments", body)

        setup.add_legacy_fault("POST", "/v1/batches/*/payments", close="after")
        assert (await add_payment("11.00")).status == 500
        assert (await add_payment("12.00")).status == 200
        assert (
            await add_payment("11.00", invoice=1)
        ).status == 200  # a field that is not documented
        assert (await add_payment("11.00")).status == 500
        for method, suffix in (("POST", "/generate-quote"), ("POST", "/start-processing")):
            assert (await setup.gateway.request(method, path + suffix)).status == 500
        assert setup.count_legacy_calls("POST", "/v1/batches/*/payments") == 3


@pytest.mark.parametrize("mode_of_retry", ["forward", "translate"])
async def test_operator_settles_a_forwarded_write(tmp_path: Path, mode_of_retry: str) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        recipient = await create_recipient(setup.gateway)
        body = build_batch_body(recipient, "10.00")
        setup.add_legacy_fault("POST", "/v1/batches", close="after")
        assert (await setup.gateway.request("POST", "/v1/batches", body)).status == 500
        lost_write = await setup.find_write_in_doubt()
        assert lost_write["operation"] == "forwarded create_batch"
        assert "legacy service" in lost_write["what_to_do"]
        (legacy_batch,) = (await setup.request_legacy("GET", "/v1/batches")).body["batches"]
        await setup.run_command(
            "writes", "settle", lost_write["write"], "--made", legacy_batch["id"], "--yes"
        )

        await setup.wait_until_nothing_in_doubt()
        path = f"/v1/batches/{legacy_batch['id']}"
        setup.add_legacy_fault("GET", path, status=503)
        assert (await setup.gateway.request("POST", "/v1/batches", body)).status == 500
        await setup.set_mode(mode_of_retry)
        retry_response = await setup.gateway.request("POST", "/v1/batches", body)
        assert retry_response.body == (await setup.request_legacy("GET", path)).body
        assert retry_response.headers["Idempotent-Replayed"] == "true"
        assert setup.count_legacy_calls("POST", "/v1/batches") == 1
        await setup.set_mode("translate")
        assert (await request_successfully(setup.gateway, "GET", f"/batches/{legacy_batch['id']}"))[
            "batch"
        ]["payments"]
        assert setup.count_current_calls("POST", "/v1/batches") == 0


async def lose_forwarded_batch(setup: Any, body: Any) -> str:
    """Loses the response to a forwarded ``POST /batches``; returns the write's id."""
    setup.add_legacy_fault("POST", "/v1/batches", close="after")
    assert (await setup.gateway.request("POST", "/v1/batches", body)).status == 500
    return str((await setup.list_writes_in_doubt())[0]["write"])


async def settle_and_wait(setup: Any, write: str, *verdict: str) -> None:
    await setup.run_command("writes", "settle", write, *verdict, "--yes")

    await setup.wait_until_nothing_in_doubt()


@pytest.mark.parametrize("is_retried_before", [True, False])
@pytest.mark.parametrize("has_happened", [True, False])
async def test_wrong_verdict_on_a_forwarded_write_can_be_corrected(
    tmp_path: Path, is_retried_before: bool, has_happened: bool
) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        body = build_batch_body(await create_recipient(setup.gateway), "10.00")
        write = await lose_forwarded_batch(setup, body)
        (legacy_batch,) = (await setup.request_legacy("GET", "/v1/batches")).body["batches"]
        await settle_and_wait(setup, write, "--made", "B-MISTYPED00000000")
        if is_retried_before:
            assert (await setup.gateway.request("POST", "/v1/batches", body)).status == 500
            listed = await setup.find_write_in_doubt()
            assert listed["write"] == write
            assert "no B-MISTYPED00000000" in listed["why"]
            assert f"writes settle {write} --made B-…" in listed["what_to_do"]
        if has_happened:
            await settle_and_wait(setup, write, "--made", legacy_batch["id"])
        else:
            await age_sent_writes(setup)
            await settle_and_wait(setup, write, "--did-not-happen")
        response = await setup.gateway.request("POST", "/v1/batches", body)
        assert response.status == 200
        assert (response.body["batch"]["id"] == legacy_batch["id"]) == has_happened
        assert setup.count_legacy_calls("POST", "/v1/batches") == (1 if has_happened else 2)


@pytest.mark.parametrize("kind", ["recipient", "batch", "payment"])
async def test_another_object_is_no_answer_to_a_forwarded_create(kind: str, tmp_path: Path) -> None:
    """A mistyped id would pay another person."""
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        recipient = await create_recipient(setup.gateway)
        batch = await create_batch(setup.gateway, recipient, "5.00")
        path, body = {
            "recipient": ("/recipients", RECIPIENT_BODY),
            "batch": ("/batches", build_batch_body(recipient, "10.00")),
            "payment": (
                f"/batches/{batch}/payments",
                {"recipient": {"id": recipient}, "sourceAmount": "7.00"},
            ),
        }[kind]
        other_body = {**body, "email": "eve@example.com", "payments": [], "sourceAmount": "8.00"}
        other = await setup.request_legacy("POST", f"/v1{path}", other_body)
        setup.add_legacy_fault("POST", f"/v1{path}", close="after")
        assert (await setup.gateway.request("POST", f"/v1{path}", body)).status == 500
        lost_write = await setup.find_write_in_doubt()
        write, other_id = lost_write["write"], other.body[kind]["id"]
        await settle_and_wait(setup, write, "--made", other_id)
        assert (await setup.gateway.request("POST", f"/v1{path}", body)).status == 500
        listed = await setup.find_write_in_doubt()
        assert f"{other_id}, which was recorded as made, is another {kind}" in listed["why"]
        await age_sent_writes(setup)
        await settle_and_wait(setup, write, "--did-not-happen")
        assert (await setup.gateway.request("POST", f"/v1{path}", body)).status == 200


async def test_closed_add_that_was_forwarded_is_not_sent_again_by_a_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if no gateway ran, which would apply the verdict before the command closes the request.
    monkeypatch.setattr(reconciler, "SWEEP_SECONDS", 3600.0)
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        recipient = await create_recipient(setup.gateway)
        path = f"/v1/batches/{await create_batch(setup.gateway, recipient, '5.00')}/payments"
        setup.add_legacy_fault("POST", path, close="after")
        add = ("POST", path, {"recipient": {"id": recipient}, "sourceAmount": "7.00"})
        assert (await setup.gateway.request(*add)).status == 500
        payments = (await setup.request_legacy("GET", path)).body["payments"]
        made = next(each["id"] for each in payments if each["sourceAmount"] == "7.00")
        lost_write = await setup.find_write_in_doubt()
        await setup.run_command("writes", "settle", lost_write["write"], "--made", made, "--yes")
        await setup.run_command("writes", "close", lost_write["write"], "--yes")
        assert (await setup.gateway.request(*add)).status == 500
        assert setup.count_legacy_calls("POST", path) == 1


async def test_verdict_is_final_once_its_client_has_the_response(tmp_path: Path) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        body = build_batch_body(await create_recipient(setup.gateway), "10.00")
        write = await lose_forwarded_batch(setup, body)
        (legacy_batch,) = (await setup.request_legacy("GET", "/v1/batches")).body["batches"]
        await settle_and_wait(setup, write, "--made", legacy_batch["id"])
        assert (await setup.gateway.request("POST", "/v1/batches", body)).status == 200
        await age_sent_writes(setup)

        async def is_answered() -> bool:
            return "done" not in await count_operations_by_state(setup.gateway.settings)

        await wait_until_async(is_answered)
        output = await setup.run_command(
            "writes", "settle", write, "--did-not-happen", "--yes", code=2
        )
        assert "is already known" in output
        assert setup.count_legacy_calls("POST", "/v1/batches") == 1


@pytest.mark.parametrize(
    ("method", "suffix", "body", "read_suffix"),
    [
        ("POST", "/payments", {"sourceAmount": "7.00"}, "/payments/{made}"),
        ("POST", "/generate-quote", None, ""),
        ("POST", "/start-processing", None, ""),
        ("PATCH", "", {"description": "new"}, None),
        ("DELETE", "", None, None),
    ],
)
async def test_retry_of_a_confirmed_forwarded_write_gets_what_the_legacy_service_shows(
    tmp_path: Path, method: str, suffix: str, body: Any, read_suffix: str | None
) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        recipient = await create_recipient(setup.gateway)
        if suffix == "/payments":
            body |= {"recipient": {"id": recipient}}
        batch = await create_batch(setup.gateway, recipient, "5.00")
        path = f"/v1/batches/{batch}"
        setup.add_legacy_fault(method, path + suffix, close="after")
        assert (await setup.gateway.request(method, path + suffix, body)).status == 500
        lost_write = await setup.find_write_in_doubt()
        verdict, made = ["--happened"], ""
        if suffix == "/payments":
            payments = (await setup.request_legacy("GET", f"{path}/payments")).body["payments"]
            made = next(each["id"] for each in payments if each["sourceAmount"] == "7.00")
            verdict = ["--made", made]
        await setup.run_command("writes", "settle", lost_write["write"], *verdict, "--yes")

        async def is_replayed() -> bool:
            nonlocal retry_response
            retry_response = await setup.gateway.request(method, path + suffix, body)
            return retry_response.status == 200

        retry_response: Any = None
        await wait_until_async(is_replayed)
        if read_suffix is None:
            word = {"PATCH": "updated", "DELETE": "deleted"}[method]
            assert retry_response.body == {"ok": True, "object": word}
        else:
            read_path = path + read_suffix.format(made=made)
            assert retry_response.body == (await setup.request_legacy("GET", read_path)).body
        assert retry_response.headers["Idempotent-Replayed"] == "true"
        assert setup.count_legacy_calls(method, path + suffix) == 1


async def test_write_settled_as_not_happened_may_be_sent_again(tmp_path: Path) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        recipient = await create_recipient(setup.gateway)
        path = f"/v1/recipients/{recipient}/payout-methods"
        body = {
            "primary": {"method": "wallet", "currency": "USD"},
            "accounts": {"wallet": {"address": "b@example.com"}},
        }
        setup.add_legacy_fault("PATCH", path, close="before")
        assert (await setup.gateway.request("PATCH", path, body)).status == 500
        change = {"language": "de"}
        response = await setup.gateway.request("PATCH", f"/v1/recipients/{recipient}", change)
        assert response.status == 500, (
            "the next write on it would be before the lost one, or after it"
        )
        await age_sent_writes(setup)
        lost_write = await setup.find_write_in_doubt()
        assert f"PATCH /recipients/{recipient}/payout-methods" in lost_write["what_to_do"]
        await setup.run_command(
            "writes", "settle", lost_write["write"], "--did-not-happen", "--yes"
        )

        await setup.wait_until_nothing_in_doubt()
        assert (await setup.gateway.request("PATCH", path, body)).status == 200
        assert (
            await setup.gateway.request("PATCH", f"/v1/recipients/{recipient}", change)
        ).status == 200


async def test_write_settled_as_not_happened_does_not_bind_the_batch(tmp_path: Path) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        path = "/v1/batches/B-1234567890123456/start-processing"
        setup.add_legacy_fault("POST", path, close="before")
        assert (await setup.gateway.request("POST", path)).status == 500
        (bound_count,) = (await setup.run_json_command("modes", "list"))["begun_at_legacy"]
        assert bound_count["batches"] == 1
        await age_sent_writes(setup)
        lost_write = await setup.find_write_in_doubt()
        await setup.run_command(
            "writes", "settle", lost_write["write"], "--did-not-happen", "--yes"
        )

        async def is_unbound() -> bool:
            return (await setup.run_json_command("modes", "list"))["begun_at_legacy"] == []

        await wait_until_async(is_unbound)


async def test_created_batch_stays_bound_although_its_quote_did_not_happen(tmp_path: Path) -> None:
    """The quote was the first to use the batch, and the create was settled before it."""
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        body = build_batch_body(await create_recipient(setup.gateway), "10.00")
        create = await lose_forwarded_batch(setup, body)
        (batch,) = (await setup.request_legacy("GET", "/v1/batches")).body["batches"]
        path = f"/v1/batches/{batch['id']}/generate-quote"
        setup.add_legacy_fault("POST", path, close="before")
        assert (await setup.gateway.request("POST", path)).status == 500
        await age_sent_writes(setup)

        async def list_in_doubt() -> list[str]:
            writes = await setup.list_writes_in_doubt()
            return [write["write"] for write in writes]

        async def is_create_settled() -> bool:
            return create not in await list_in_doubt()

        await setup.run_command("writes", "settle", create, "--made", batch["id"], "--yes")
        await wait_until_async(is_create_settled)
        (quote,) = await list_in_doubt()
        await settle_and_wait(setup, quote, "--did-not-happen")
        await setup.set_mode("translate")
        await request_successfully(setup.gateway, "POST", f"/batches/{batch['id']}/generate-quote")
        assert setup.count_legacy_calls("POST", path) == 2


async def test_verdict_on_a_forwarded_write_waits_for_no_clock_offset(tmp_path: Path) -> None:
    """The clock of the current service is far ahead, which says nothing of the legacy one."""
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        setup.current.clock = lambda: time.time() + 600
        assert (await setup.gateway.request("GET", "/v1/profile/balances")).status == 200
        await setup.set_mode("forward")
        path = "/v1/batches/B-1234567890123456/start-processing"
        setup.add_legacy_fault("POST", path, close="before")
        assert (await setup.gateway.request("POST", path)).status == 500
        lost_write = await setup.find_write_in_doubt()
        output = await setup.run_command(
            "writes", "settle", lost_write["write"], "--did-not-happen", "--yes", code=2
        )
        assert (seconds := re.search(r"check again in (\d+) s", output)), output
        assert 30 < int(seconds[1]) <= 36


async def age_sent_writes(setup: GatewayBetween) -> None:
    await OperatedGateway(setup.gateway, setup.current, setup.clock, setup.folder).age_sent_writes()


async def test_retry_of_a_translated_write_is_not_forwarded(tmp_path: Path) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        recipient = await create_recipient(setup.gateway)
        body = build_batch_body(recipient, "10.00")
        setup.current.faults.append(Fault("POST", "/v1/batches", close="after"))
        with disable_immediate_read():
            assert (await setup.gateway.request("POST", "/v1/batches", body)).status == 500
        await setup.set_mode("forward")

        async def is_answered() -> bool:
            return (await setup.gateway.request("POST", "/v1/batches", body)).status == 200

        await wait_until_async(is_answered)
        assert setup.count_legacy_calls("POST", "/v1/batches") == 0
        assert setup.count_current_calls("POST", "/v1/batches") == 1


async def test_retry_of_a_running_forwarded_write_waits_after_a_switch(tmp_path: Path) -> None:
    sections = {"upstream": {"timeout_seconds": 10}}
    async with open_gateway_between(tmp_path, has_two_services=True, sections=sections) as setup:
        await setup.set_mode("forward")
        setup.add_legacy_fault("POST", "/v1/recipients", answer_delay=4)
        first = asyncio.create_task(setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY))
        await wait_until(lambda: setup.legacy.creation_counts["recipient"] == 1)
        await setup.run_command("modes", "set", "--key", KEY_NAME, "translate", "--yes")
        await asyncio.sleep(1.5)  # gateways follow within a second
        assert not first.done()
        retried = await setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY)
        assert ((await first).status, retried.status) == (200, 200), retried.text
        assert retried.headers["Idempotent-Replayed"] == "true"
        assert setup.count_current_calls("POST", "/v1/recipients") == 0


async def test_unsent_forwarded_write_may_be_sent_again(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    async with open_gateway_between(tmp_path, legacy_url=url) as setup:
        await setup.run_command("modes", "set", "--key", KEY_NAME, "forward", "--yes")

        async def is_unreachable() -> bool:
            return (await setup.gateway.request("GET", "/v1/recipients")).status == 500

        await wait_until_async(is_unreachable)
        response = await setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY)
        assert (response.status, "nothing was changed" in response.text) == (500, True)
        path = "/v1/batches/B-1234567890123456/start-processing"
        assert (await setup.gateway.request("POST", path)).status == 500
        assert await setup.list_writes_in_doubt() == []
        # An unreachable service must not bind a batch that it never received.
        assert (await setup.run_json_command("modes", "list"))["begun_at_legacy"] == []


async def test_freeze_applies_to_forwarded_writes(tmp_path: Path) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        await setup.run_command("freeze", "--all")
        response = await setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY)
        assert (response.status, response.body["errors"][0]["code"]) == (
            500,
            "internal_server_error",
        )
        assert setup.count_legacy_calls("POST", "/v1/recipients") == 0
        assert (await setup.gateway.request("GET", "/v1/recipients")).status == 200
        # Nothing was sent, so the batch is bound to neither service.
        path = "/v1/batches/B-1234567890123456/start-processing"
        assert (await setup.gateway.request("POST", path)).status == 500
        assert (await setup.run_json_command("modes", "list"))["begun_at_legacy"] == []


@pytest.mark.parametrize("status", [502, 524])
async def test_proxy_error_leaves_a_write_in_doubt(status: int, tmp_path: Path) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        setup.add_legacy_fault("POST", "/v1/recipients", status=status, body=b"<html>")
        response = await setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY)
        assert (response.status, response.body["errors"][0]["code"]) == (
            500,
            "internal_server_error",
        )
        assert len(await setup.list_writes_in_doubt()) == 1


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>hello</html>"),
        (200, b'{"ok":true,"batch":{"id":"B-'),
        (200, b""),
        (303, b"<html>there</html>"),
        (307, b""),
        (418, b"<html>tea</html>"),
        (500, b'{"ok":false}'),
        (503, b"<html>later</html>"),
    ],
)
async def test_legacy_response_to_a_write_is_passed_on(
    status: int, body: bytes, tmp_path: Path
) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        setup.add_legacy_fault("POST", "/v1/batches", status=status, body=body)
        async with setup.gateway.session.post(
            f"{setup.gateway.running.url}/v1/batches",
            json=build_batch_body("R-1", "10.00"),
            headers={"X-API-Key": API_KEY},
            allow_redirects=False,
        ) as response:
            assert (response.status, await response.read()) == (status, body)
        assert await setup.list_writes_in_doubt() == []
        assert setup.count_legacy_calls("POST", "/v1/batches") == 1


async def test_missing_page_of_a_proxy_does_not_unbind_a_batch(tmp_path: Path) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        batch = await create_batch(setup.gateway, await create_recipient(setup.gateway), "10.00")
        await setup.set_mode("translate")
        path = f"/v1/batches/{batch}/start-processing"
        headers = {"Content-Type": "text/html"}
        setup.add_legacy_fault("POST", path, status=404, body=b"<html>", headers=headers)
        url = setup.gateway.running.url + path
        async with setup.gateway.session.post(url, headers={"X-API-Key": API_KEY}) as response:
            assert response.status == 404
        assert (await setup.gateway.request("POST", path)).status == 200
        assert setup.count_legacy_calls("POST", path) == 2


@pytest.mark.parametrize(("status", "body"), [(204, b""), (200, b"")])
async def test_delete_may_be_answered_without_content(
    status: int, body: bytes, tmp_path: Path
) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        path = f"/v1/recipients/{await create_recipient(setup.gateway)}"
        setup.add_legacy_fault("DELETE", path, status=status, body=body, executes=True)
        async with setup.gateway.session.delete(
            f"{setup.gateway.running.url}{path}", headers={"X-API-Key": API_KEY}
        ) as response:
            assert (response.status, await response.read()) == (status, body)
        assert await setup.list_writes_in_doubt() == []


async def test_disconnected_client_gets_the_first_answer_on_retry(tmp_path: Path) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        recipient = await create_recipient(setup.gateway)
        body = build_batch_body(recipient, "10.00")
        setup.add_legacy_fault("POST", "/v1/batches", answer_delay=0.6)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await setup.gateway.request("POST", "/v1/batches", body)
        responses: list[Any] = []

        async def is_answered() -> bool:
            responses.append(await setup.gateway.request("POST", "/v1/batches", body))
            return bool(responses[-1].status == 200)

        await wait_until_async(is_answered)
        assert {response.status for response in responses} <= {200, 500}
        (batch,) = setup.legacy.find_or_create_tenant().batches.values()
        assert responses[-1].body["batch"]["amount"] == "10.00"
        assert setup.count_legacy_calls("POST", "/v1/batches") == 1
        assert batch.state == "open"
        # The first request is answered now: an identical one is a new request.
        assert (await setup.gateway.request("POST", "/v1/batches", body)).status == 200
        assert setup.count_legacy_calls("POST", "/v1/batches") == 2


async def test_idempotency_key_holds_at_both_services(tmp_path: Path) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        key_header = {"Idempotency-Key": "payday"}
        first_response = await setup.gateway.request(
            "POST", "/v1/recipients", RECIPIENT_BODY, headers=key_header
        )
        assert first_response.status == 200
        for mode in ("forward", "translate"):
            await setup.set_mode(mode)
            retry_response = await setup.gateway.request(
                "POST", "/v1/recipients", RECIPIENT_BODY, headers=key_header
            )
            assert (retry_response.status, retry_response.body) == (200, first_response.body)
            other_body = {**RECIPIENT_BODY, "lastName": "King"}
            response = await setup.gateway.request(
                "POST", "/v1/recipients", other_body, headers=key_header
            )
            assert (response.status, response.body["errors"][0]["field"]) == (
                406,
                "Idempotency-Key",
            )
        assert setup.count_legacy_calls("POST", "/v1/recipients") == 1
        assert setup.count_current_calls("POST", "/v1/recipients") == 0


@pytest.mark.parametrize("status", [403, 429, 500])
async def test_idempotency_key_is_released_after_a_retryable_refusal(
    status: int, tmp_path: Path
) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        refusal = b'{"ok":false,"errors":[{"code":"rate_limit_exceeded","message":"Slow down."}]}'
        setup.add_legacy_fault("POST", "/v1/recipients", status=status, body=refusal)
        key_header = {"Idempotency-Key": "payday"}
        first_response = await setup.gateway.request(
            "POST", "/v1/recipients", RECIPIENT_BODY, headers=key_header
        )
        assert (first_response.status, first_response.text.encode()) == (status, refusal)
        retry_response = await setup.gateway.request(
            "POST", "/v1/recipients", RECIPIENT_BODY, headers=key_header
        )
        assert retry_response.status == 200, retry_response.text
        assert (
            await setup.gateway.request(
                "POST", "/v1/recipients", RECIPIENT_BODY, headers=key_header
            )
        ).text == retry_response.text
        assert len(setup.legacy.find_or_create_tenant().recipients) == 1


async def test_forwarded_content_is_not_logged_or_stored_in_plain_text(tmp_path: Path) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        assert (await setup.gateway.request("POST", "/v1/recipients", RECIPIENT_BODY)).status == 200
        setup.add_legacy_fault("POST", "/v1/recipients", close="after")
        lost_body = {**RECIPIENT_BODY, "lastName": "Lovelace", "email": "lovelace@example.com"}
        assert (await setup.gateway.request("POST", "/v1/recipients", lost_body)).status == 500
        output = read_log(tmp_path) + await setup.run_command("writes", "unsettled")
        output += await setup.run_command("modes", "list")
        state = (tmp_path / "gateway.db").read_bytes()
        for secret in (API_KEY, "Byron", "byron", "Lovelace", "lovelace"):
            assert secret not in output
            assert secret.encode() not in state


async def test_legacy_service_has_its_own_circuit_breaker(
    tmp_path: Path,
) -> None:
    sections = {"upstream": {"timeout_seconds": 10, "breaker_failures": 1}}
    async with open_gateway_between(tmp_path, has_two_services=True, sections=sections) as setup:
        await setup.set_mode("forward")
        setup.add_legacy_fault("GET", "/v1/profile/balances", close="after")
        for _ in range(2):
            assert (await setup.gateway.request("GET", "/v1/profile/balances")).status == 500
        async with setup.gateway.session.get(
            f"{setup.gateway.running.admin_url}/readyz"
        ) as response:
            body = await response.json()
    assert body["circuit_breakers"] == {"sandbox": "closed", "legacy sandbox": "open"}
    refused_line = read_log(tmp_path).splitlines()[-1]
    assert "the legacy service did not respond" in refused_line
    assert re.search("upstream_calls=\\S*0", refused_line)
    (line,) = [
        entry for entry in read_log(tmp_path).splitlines() if "circuit_breaker_opened" in entry
    ]
    assert re.search("service=\\S*legacy", line)


async def test_write_abandoned_while_waiting_for_a_connection_is_not_sent(
    tmp_path: Path,
) -> None:
    """After a long pause of its process, an operator may have settled the write as not sent."""
    sections = {"upstream": {"connections": 1, "timeout_seconds": 5}, "lease_seconds": 0.4}
    async with open_gateway_between(tmp_path, has_two_services=True, sections=sections) as setup:
        await setup.set_mode("forward")
        recipient = await create_recipient(setup.gateway)
        setup.add_legacy_fault("POST", "/v1/batches", answer_delay=2)
        holding_request = asyncio.ensure_future(create_batch(setup.gateway, recipient, "1.00"))
        await wait_until(lambda: len(setup.legacy.find_or_create_tenant().batches) == 1)
        waiting_request = asyncio.ensure_future(
            setup.gateway.request("POST", "/v1/batches", build_batch_body(recipient, "2.00"))
        )
        async with open_store(setup.gateway.settings.state) as store:
            rows = OperationRepository(store, ObjectStateStore(store))

            async def are_both_waiting() -> bool:
                return len(await rows.list_unfinished()) == 2

            await wait_until_async(are_both_waiting)
            await asyncio.sleep(0.3)
            _, waiting = await rows.list_unfinished()
            assert await rows.take_over(waiting, "another")
        response = await waiting_request
        assert response.status == 500
        assert "unknown" in response.body["errors"][0]["message"]
        assert await holding_request
        assert len(setup.legacy.find_or_create_tenant().batches) == 1


async def test_batch_of_an_unrecorded_response_is_asked_for_at_the_legacy_service(
    tmp_path: Path,
) -> None:
    """The client may have the response of a create that the gateway has lost, or not yet saved."""
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        setup.add_legacy_fault("POST", "/v1/batches", close="after")
        create = await setup.gateway.request("POST", "/v1/batches", {"sourceCurrency": "USD"})
        assert create.status == 500
        (batch,) = setup.legacy.find_or_create_tenant().batches
        await setup.set_mode("translate")
        for unknown in ("B-1", "../recipients"):
            response = await setup.gateway.request("DELETE", "/v1/batches", {"ids": [unknown]})
            assert response.status == 404, unknown
        setup.add_legacy_fault("GET", f"/v1/batches/{batch}", status=503, body=b"<html>")
        assert (await setup.gateway.request("DELETE", f"/v1/batches/{batch}")).status == 500
        assert (await setup.gateway.request("DELETE", f"/v1/batches/{batch}")).status == 200
        assert not setup.legacy.find_or_create_tenant().batches


@pytest.mark.parametrize("route", ["forwarded", "switched", "signed"])
async def test_batch_of_a_forwarded_create_in_doubt_is_not_started(
    route: str, tmp_path: Path
) -> None:
    """Should its operator or client let the create be sent again, two batches would be paid."""
    async with open_gateway_between(tmp_path, seconds=1) as setup:
        await setup.set_mode("forward")
        body = build_batch_body(await create_recipient(setup.gateway), "10.00")
        create = await lose_forwarded_batch(setup, body)
        (batch,) = (await setup.request_legacy("GET", "/v1/batches")).body["batches"]
        (current_id,) = setup.current.find_or_create_tenant().batches
        batch_id = current_id if route == "signed" else batch["id"]
        if route == "switched":
            await setup.set_mode("translate")

        async def start_batch() -> tuple[int, bool]:
            path = f"/batches/{batch_id}/start-processing"
            if route == "signed":
                raw = await send_signed(setup.gateway, "POST", path)
                return raw.status, "retry-after" in raw.headers
            response = await setup.gateway.request("POST", f"/v1{path}")
            return response.status, "Retry-After" in response.headers

        assert await start_batch() == (500, True)
        assert setup.legacy.batch_starts == []
        await settle_and_wait(setup, create, "--made", batch["id"])
        assert (await start_batch())[0] == 200
        assert [start.batch_id for start in setup.legacy.batch_starts] == [current_id]


async def test_forwarded_create_in_doubt_does_not_delay_starts_of_other_batches(
    tmp_path: Path,
) -> None:
    async with open_gateway_between(tmp_path, has_two_services=True) as setup:
        await setup.set_mode("forward")
        body = build_batch_body(await create_recipient(setup.gateway), "10.00")
        older_id = (await setup.request_legacy("POST", "/v1/batches", body)).body["batch"]["id"]
        (older_batch,) = setup.legacy.find_or_create_tenant().batches.values()
        older_batch.created_at -= timedelta(minutes=11)
        await lose_forwarded_batch(setup, body)
        path = f"/batches/{older_id}/start-processing"
        await request_successfully(setup.gateway, "POST", path)
        path = "/v1/batches/B-1234567890123456/start-processing"
        assert (await setup.gateway.request("POST", path)).status == 404
