"""Shadow traffic: reads are compared at both services while clients are served."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.config.settings import Comparing
from gateway.migration import shadow_traffic
from tests.gateway.compare.fake_services import (
    PlannedResponse,
    ReceivedRequest,
    build_comparison_report,
)
from tests.gateway.compare.fake_services import open_fake_service as open_service
from tests.legacy_and_current import API_KEY, KEY_NAME, GatewayBetween
from tests.legacy_and_current import open_gateway_between as open_any
from tests.operator_commands import wait_until_async
from tests.payouts import create_batch, create_recipient, load_payment_ids, request_successfully
from tests.test_cutover import build_payment, run_import


def open_comparing_gateway(folder: Path, **options: Any) -> Any:
    """Opens a gateway whose answers come from the current service by default."""
    sections = options.pop("sections", {})
    comparing_section = {"answers": "current", **sections.get("comparing", {})}
    return open_any(folder, sections={**sections, "comparing": comparing_section}, **options)


async def start_comparing(setup: GatewayBetween, path: str = "/v1/profile/balances") -> None:
    """Switches the key, and waits until both services are called."""
    await setup.run_command("modes", "set", "--key", KEY_NAME, "compare", "--yes")

    async def are_both_called() -> bool:
        legacy, current = setup.count_legacy_calls(), setup.count_current_calls()
        await setup.gateway.request("GET", path)
        await asyncio.sleep(0.05)
        return setup.count_legacy_calls() > legacy and setup.count_current_calls() > current

    await wait_until_async(are_both_called)


async def load_report(setup: GatewayBetween, *arguments: str) -> Any:
    process = await asyncio.to_thread(_run_json_report, setup, *arguments)
    (key,) = json.loads(process.stdout)["keys"]
    assert process.exit_code == (0 if key["ready"] else 1)
    return key


def _run_json_report(setup: GatewayBetween, *arguments: str) -> Any:
    return _run_report(setup, "--json", *arguments)


def _run_report(setup: GatewayBetween, *arguments: str) -> Any:
    from click.testing import CliRunner

    from gateway.cli import gateway

    command_line = ["compare", "report", *arguments, "--config", f"{setup.folder}/gateway.toml"]
    return CliRunner().invoke(gateway, command_line)


async def wait_for_count(
    setup: GatewayBetween, operation: str, expected_count: int, count_name: str = "compared"
) -> Any:
    """Returns the report once it counts at least ``expected_count`` of an operation."""
    entries: list[Any] = []

    async def has_count() -> bool:
        if not json.loads((await asyncio.to_thread(_run_json_report, setup)).stdout)["keys"]:
            return False
        entries[:] = [await load_report(setup)]
        counts = {item["operation"]: item[count_name] for item in entries[0]["operations"]}
        return counts.get(operation, 0) >= expected_count

    await wait_until_async(has_count)
    return entries[0]


async def test_current_service_answers_and_legacy_service_is_compared(
    tmp_path: Path,
) -> None:
    async with open_comparing_gateway(tmp_path) as setup:
        recipient = await create_recipient(setup.gateway)
        await start_comparing(setup)
        for _ in range(3):
            await request_successfully(setup.gateway, "GET", f"/recipients/{recipient}")
        report = await wait_for_count(setup, "read_recipient", 3)
        assert [
            difference
            for difference in report["differences"]
            if difference["operation"] == "read_recipient"
        ] == []
        assert "list_batches" in report["never_seen"]
        assert "read_recipient" not in report["never_seen"]


async def test_legacy_service_answers_if_configured(tmp_path: Path) -> None:
    sections = {"comparing": {"answers": "legacy"}}
    async with open_comparing_gateway(tmp_path, has_two_services=True, sections=sections) as setup:
        assert Comparing().answers == "legacy"
        await start_comparing(setup)
        recipient_id = await create_recipient(setup.gateway)
        assert recipient_id in setup.legacy.find_or_create_tenant().recipients
        assert recipient_id not in setup.current.find_or_create_tenant().recipients
        assert (await setup.gateway.request("GET", f"/v1/recipients/{recipient_id}")).status == 200
        report = await wait_for_count(setup, "read_recipient", 1)
        assert report["ready"] is False
        assert [
            (difference["kind"], difference["place"], difference["answers"])
            for difference in report["differences"]
            if difference["operation"] == "read_recipient"
        ] == [("status", "@status", 1)]
        output = (await asyncio.to_thread(_run_report, setup)).stdout
        assert "read_recipient: status at @status, in 1 response\n" in output
        assert "`payout-gateway cutover import`" in output
        assert "Never compared: " in output


async def test_differences_are_counted_by_field_with_a_masked_example(tmp_path: Path) -> None:
    async with open_comparing_gateway(tmp_path) as setup:
        recipient = await create_recipient(setup.gateway)
        await setup.request_legacy("PATCH", f"/v1/recipients/{recipient}", {"status": "disabled"})
        await start_comparing(setup)
        await request_successfully(setup.gateway, "GET", f"/recipients/{recipient}")
        entry = await wait_for_count(setup, "read_recipient", 1)
        (difference,) = [
            difference
            for difference in entry["differences"]
            if difference["operation"] == "read_recipient"
        ]
        assert (difference["kind"], difference["place"]) == ("value", "recipient.status")
        example = difference["example"]
        assert (example["control"], example["candidate"]) == ("disabled", "suspended")
        assert re.fullmatch("[0-9a-f]{24}", example["request_id"])
        assert entry["unexplained"] >= 1
        assert "ada" not in json.dumps(entry).lower()
        (tmp_path / "rules.toml").write_text(
            '[[ignore]]\npath = "recipient.status"\noperation = "read_recipient"\n'
            'reason = "to be imported"\n'
        )
        explained_report = await load_report(setup, "--rules", str(tmp_path / "rules.toml"))
        assert explained_report["unexplained"] == entry["unexplained"] - 1
        (tmp_path / "rules.toml").write_text(
            '[[present]]\npath = "recipient.status"\nreason = "each has one of its own"\n'
        )
        present_report = await load_report(setup, "--rules", str(tmp_path / "rules.toml"))
        assert present_report["unexplained"] == explained_report["unexplained"]
        (tmp_path / "rules.toml").write_text(
            '[[ignore]]\npath = "recipient"\nreason = "and all that is below it"\n'
        )
        filtered_report = await load_report(setup, "--rules", str(tmp_path / "rules.toml"))
        assert filtered_report["unexplained"] == explained_report["unexplained"]
        output = await setup.run_command(
            "compare", "report", "--forget", "--key", KEY_NAME, "--yes"
        )
        assert output.startswith(f"Reset the comparison statistics of key {KEY_NAME};")
        assert json.loads((await asyncio.to_thread(_run_json_report, setup)).stdout) == {"keys": []}
        repeated_output = await setup.run_command(
            "compare", "report", "--forget", "--key", KEY_NAME, "--yes", code=2
        )
        assert "nothing was compared for a key of this name" in repeated_output


async def test_transient_difference_is_not_counted(tmp_path: Path) -> None:
    """A value changes between the two reads, and is equal on the next comparison."""
    has_changed = False

    def respond(_request: ReceivedRequest) -> Any:
        nonlocal has_changed
        body = {"ok": True, "balances": {}} if has_changed else {"ok": True, "balances": {"old": 1}}
        has_changed = True
        return PlannedResponse(body)

    async with open_service(lambda _: {"ok": True, "balances": []}) as current:
        async with open_service(respond) as legacy:
            environments = {"sandbox": {"base_url": current.url, "legacy_base_url": legacy.url}}
            async with open_comparing_gateway(
                tmp_path, sections={"environments": environments}
            ) as setup:
                await setup.run_command("modes", "set", "--key", KEY_NAME, "compare", "--yes")

                async def is_compared() -> bool:
                    await setup.gateway.request("GET", "/v1/profile/balances")
                    return len(legacy.requests) > 1

                await wait_until_async(is_compared)
                report = await wait_for_count(setup, "read_balances", 1)
                assert report["differences"] == []


async def test_transient_differences_of_two_objects_are_not_counted_as_one(tmp_path: Path) -> None:
    """Each comparison of a list sees another of its items change."""
    names = [f"R-{number:016}" for number in range(4)]

    def build_page(changed_name: str = "") -> dict[str, Any]:
        recipients = [
            {"id": each, "firstName": "old" if each == changed_name else "new", "lastName": each}
            for each in names
        ]
        return {"ok": True, "recipients": recipients, "meta": {"records": 4}}

    def respond(_request: ReceivedRequest) -> Any:
        return PlannedResponse(build_page(names[len(legacy.requests) % 4]))

    async with open_service(lambda _: build_page()) as current, open_service(respond) as legacy:
        environments = {"sandbox": {"base_url": current.url, "legacy_base_url": legacy.url}}
        async with open_comparing_gateway(
            tmp_path, sections={"environments": environments}
        ) as setup:
            await setup.run_command("modes", "set", "--key", KEY_NAME, "compare", "--yes")

            async def is_compared() -> bool:
                await setup.gateway.request("GET", "/v1/recipients")
                return len(legacy.requests) > 1

            await wait_until_async(is_compared)
            report = await wait_for_count(setup, "list_recipients", 1)
            places = {difference["place"] for difference in report["differences"]}
            assert "recipients[].status" in places, "the fake of the legacy service has none"
            assert "recipients[].firstName" not in places


async def test_client_does_not_wait_for_the_compared_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow_traffic, "MAX_QUEUED_READS", 2)
    release = asyncio.Event()
    waiting: list[ReceivedRequest] = []

    async def respond_when_released(request: ReceivedRequest) -> Any:
        waiting.append(request)
        await release.wait()
        return {"ok": True}

    async with open_service(respond_when_released) as legacy:
        async with open_comparing_gateway(tmp_path, legacy_url=legacy.url) as setup:
            await setup.run_command("modes", "set", "--key", KEY_NAME, "compare", "--yes")

            async def has_waiting() -> bool:
                assert (await setup.gateway.request("GET", "/v1/profile/balances")).status == 200
                return bool(waiting)

            await wait_until_async(has_waiting)
            statuses = [
                (await setup.gateway.request("GET", "/v1/profile/balances")).status
                for _ in range(20)
            ]
            assert statuses == [200] * 20
            assert not release.is_set()
            assert len(waiting) <= 4, "so many side by side, and no more"
            report = await wait_for_count(setup, "read_balances", 10, "dropped")
            assert report["compared"] == 0
            release.set()


async def test_failure_of_the_compared_service_is_no_difference(tmp_path: Path) -> None:
    async with open_comparing_gateway(tmp_path) as setup:
        await start_comparing(setup)
        setup.add_legacy_fault("GET", "/v1/recipients", status=503, body=b"{}", times=3)
        setup.add_legacy_fault("GET", "/v1/recipients", close="before", times=3)
        for _ in range(6):
            assert (await setup.gateway.request("GET", "/v1/recipients")).status == 200
        report = await wait_for_count(setup, "list_recipients", 6, "failed")
        assert [
            difference
            for difference in report["differences"]
            if difference["operation"] == "list_recipients"
        ] == []
        await setup.gateway.request("GET", "/v1/recipients")
        report = await wait_for_count(setup, "list_recipients", 1)
        assert (report["ready"], report["mostly_not_comparable"]) == (False, ["list_recipients"])
        url = f"{setup.gateway.running.admin_url}/compare"
        async with setup.gateway.session.get(url) as page:
            text = await page.text()
        assert "Not ready for cutover" in text
        assert "Mostly not comparable: list_recipients (1 of 7 compared)" in text
        for _ in range(5):
            await setup.gateway.request("GET", "/v1/recipients")
        assert (await wait_for_count(setup, "list_recipients", 6))["ready"]


async def test_writes_and_batches_of_one_service_are_not_compared(tmp_path: Path) -> None:
    async with open_comparing_gateway(tmp_path, has_two_services=True) as setup:
        await start_comparing(setup)
        recipient = await create_recipient(setup.gateway)
        batch = await create_batch(setup.gateway, recipient, "10.00")
        await request_successfully(setup.gateway, "GET", f"/batches/{batch}")
        await request_successfully(setup.gateway, "GET", f"/batches/{batch}/summary")
        await request_successfully(setup.gateway, "GET", "/batches")
        await wait_for_count(setup, "list_batches", 1)
        assert setup.count_legacy_calls("POST", "*") == 0
        assert setup.count_legacy_calls("GET", f"/v1/batches/{batch}*") == 0
        assert setup.count_legacy_calls("GET", "/v1/batches") >= 1


async def test_sample_setting_limits_compared_requests(tmp_path: Path) -> None:
    async with open_comparing_gateway(
        tmp_path, sections={"comparing": {"sample": 0.000001}}
    ) as setup:
        await setup.run_command("modes", "set", "--key", KEY_NAME, "compare", "--yes")
        await asyncio.sleep(1)
        for _ in range(20):
            assert (await setup.gateway.request("GET", "/v1/profile/balances")).status == 200
        assert setup.count_legacy_calls() == 0


async def test_key_that_writes_becomes_ready_for_cutover(tmp_path: Path) -> None:
    """The current service has the batch by another id, which no import has shown yet."""
    sections = {"comparing": {"answers": "legacy"}}
    bank = {
        "primary": {"method": "bank", "currency": "USD"},
        "accounts": {"bank": {"country": "US", "accountNum": "1234567", "routing": "021000021"}},
    }
    # Each read is compared once, and a comparison that times out counts as failed.
    async with open_comparing_gateway(tmp_path, sections=sections, seconds=20) as setup:
        await start_comparing(setup)
        recipient = await create_recipient(setup.gateway)
        await request_successfully(
            setup.gateway, "POST", f"/recipients/{recipient}/payout-methods", bank
        )
        batch = await create_batch(setup.gateway, recipient, "10.00")
        assert batch not in setup.current.find_or_create_tenant().batches
        (payment,) = await load_payment_ids(setup.gateway, batch)
        for path in ("", "/summary", "/payments", f"/payments/{payment}"):
            await request_successfully(setup.gateway, "GET", f"/batches/{batch}{path}")
        await request_successfully(setup.gateway, "GET", f"/payments/{payment}")
        await request_successfully(setup.gateway, "GET", f"/recipients/{recipient}/logs")
        await request_successfully(setup.gateway, "GET", "/batches")
        await request_successfully(setup.gateway, "GET", "/payments")
        report = await wait_for_count(setup, "list_payments", 1, "failed")
        await wait_for_count(setup, "list_batches", 1)
        await wait_for_count(setup, "read_any_payment", 1)
        report = await wait_for_count(setup, "read_batch_summary", 1)
        assert report["differences"] == []

        async def is_only_the_list_uncompared() -> bool:
            # Usage and the other comparisons are stored later.
            missing_reads = (await load_report(setup))["used_and_never_compared"]
            return bool(missing_reads == ["list_payments"])

        await wait_until_async(is_only_the_list_uncompared)

        switch = ("modes", "set", "--key", KEY_NAME, "translate")
        assert "Nothing is imported of demo" in await setup.run_command(*switch, code=2)
        await run_import(setup)
        assert "import" not in await setup.run_command(*switch, code=2)
        await request_successfully(setup.gateway, "GET", "/payments")
        report = await wait_for_count(setup, "list_payments", 1)
        assert (report["ready"], report["differences"]) == (True, [])

        # The import is older than this batch.
        await create_batch(setup.gateway, recipient, "11.00")
        output = await setup.run_command(*switch, code=2)
        assert "no import has read: 1. `GET /v1/payments` leaves out their payments" in output
        # Nor does the list show one that was created without the gateway.
        await run_import(setup)
        body = {"sourceCurrency": "USD", "payments": [build_payment(recipient, "12.00")]}
        assert (await setup.request_legacy("POST", "/v1/batches", body)).status == 200
        await request_successfully(setup.gateway, "GET", "/payments")
        report = await wait_for_count(setup, "list_payments", 2, "failed")
        assert report["differences"] == []
        await run_import(setup)
        assert "import" not in await setup.run_command(*switch, code=2)


async def test_list_of_payments_without_their_batches_is_compared(tmp_path: Path) -> None:
    async with open_comparing_gateway(tmp_path) as setup:
        body = b'{"ok": true, "payments": [{"id": "P-1"}], "meta": {"page": 1}}'
        setup.add_legacy_fault("GET", "/v1/payments", status=200, body=body, times=9)
        await start_comparing(setup)
        await request_successfully(setup.gateway, "GET", "/payments")
        report = await wait_for_count(setup, "list_payments", 1)
        assert "payments[]" in {difference["place"] for difference in report["differences"]}


async def test_comparison_with_a_forwarding_gateway_is_reported(tmp_path: Path) -> None:
    """The offline comparison would compare the legacy service with itself."""
    async with open_any(tmp_path) as setup:
        await setup.run_command("modes", "set", "--key", KEY_NAME, "forward", "--yes")

        async def is_forwarded() -> bool:
            legacy = setup.count_legacy_calls()
            response = await setup.gateway.request("GET", "/v1/recipients")
            assert "X-Answered-By" not in response.headers, "only for the comparison"
            return setup.count_legacy_calls() > legacy

        await wait_until_async(is_forwarded)
        urls = [setup.legacy_url, setup.gateway.running.url]
        report = await build_comparison_report(
            urls, "GET /v1/recipients\n", keys=(API_KEY, API_KEY)
        )
        assert (report["result"], report["counts"]["compared"]) == ("could not run", 0)
        assert "passed it on to the legacy service" in report["failed"][0]["why"]
