"""What operators see while clients are refused: by a service, a limit or a brownout."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.storage import Tenant, open_store
from gateway.storage.mode_rows import COMPARE, FORWARD, Mode, set_mode
from tests.gateway.admission.limits.conftest import REDIS_URL
from tests.legacy_and_current import KEY_NAME, open_gateway_between
from tests.operator_commands import open_operated_gateway, wait_until_async
from tests.payouts import (
    create_batch,
    create_recipient,
    load_payment_ids,
    request_successfully,
)
from tests.processes import find_free_port
from tests.running_gateway import KEY, GatewayUnderTest, open_gateway
from tests.signed_requests import RecordedRequest, build_response, open_raw_service, respond_with
from tests.test_metrics import scrape_gateway

UPSTREAM = {"timeout_seconds": 5, "breaker_failures": 1, "breaker_seconds": 30}
REFUSAL = b'{"ok":false,"errors":[{"code":"not_authorized","message":"no"}]}'


async def load_page(gateway: GatewayUnderTest, path: str) -> Any:
    async with gateway.session.get(gateway.running.admin_url + path) as response:
        is_json = response.content_type == "application/json"
        return response.status, await (response.json() if is_json else response.text())


@pytest.mark.parametrize(
    ("status", "expected"), [(401, "refuses the gateway"), (403, "allow-list")]
)
async def test_refused_credentials_are_reported_everywhere_until_they_are_accepted(
    status: int, expected: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    answers = [build_response(status, REFUSAL)]

    async def respond(
        request: RecordedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await respond_with(answers[-1])(request, reader, writer)

    async with (
        open_raw_service(respond) as service,
        open_gateway(tmp_path, service.url) as gateway,
    ):
        await gateway.request("GET", "/v1/recipients")
        code, body = await load_page(gateway, "/readyz")
        assert (code, body["status"]) == (200, "degraded")
        assert expected in body["faults"]["service.sandbox"]
        assert KEY["merchant"] not in str(body), "it needs no token"
        for page in ("/", "/service"):
            text = (await load_page(gateway, page))[1]
            assert "legacy service sandbox" not in text, "there is none"
            assert expected in text
            assert f"the credentials of {KEY['merchant']}" in text
        scrape = await scrape_gateway(gateway)
        (sample,) = scrape.get_value("payout_gateway_refused_credentials")
        assert sample.value == 1
        output = capfd.readouterr()
        assert "client's API key is valid" in (output.err + output.out)
        (event,) = re.findall(r".*(?:credentials_refused|access_denied).*", output.err + output.out)
        assert re.search(f"merchant.{{1,4}}{KEY['merchant']}", event)
        assert KEY["secret_key"] not in output.err + output.out
        answers.append(build_response(200, b'{"ok":true,"recipients":[],"meta":{}}'))
        await gateway.request("GET", "/v1/recipients")
        assert (await load_page(gateway, "/readyz"))[1]["status"] == "ok"


async def test_refused_credentials_are_forgotten_once_keys_change(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as setup:
        setup.add_fault("GET", "/v1/recipients", times=9, status=403)
        await setup.gateway.request("GET", "/v1/recipients")
        assert (await load_page(setup.gateway, "/readyz"))[1]["status"] == "degraded"
        await setup.run_command("keys", "revoke", KEY["api_key"][:4])

        async def is_ok() -> bool:
            return bool((await load_page(setup.gateway, "/readyz"))[1]["status"] == "ok")

        await wait_until_async(is_ok)


async def test_limit_and_brownout_that_refuse_clients_are_named(
    tmp_path: Path, require_redis: None
) -> None:
    limits = {"url": REDIS_URL}
    async with open_operated_gateway(tmp_path, sections={"limits": limits}) as setup:
        key = await setup.gateway.import_key(api_key="till-key", name="till", requests_per_hour=1)
        headers = {"X-API-Key": key}
        for _ in range(2):
            response = await setup.gateway.request("GET", "/v1/recipients", headers=headers)
        assert response.status == 429
        times = "--from", "2020-01-01T00:00Z", "--until", "2099-12-31T23:59Z"
        await setup.run_command("brownout", "schedule", *times, "--key", "till", "--yes")
        overview = (await load_page(setup.gateway, "/"))[1]
    till = f"till of {KEY['merchant']}"
    assert f"clients are refused (429): {till} {KEY['environment']}" in overview
    assert f"refused until 2099-12-31 23:59 UTC: {KEY['merchant']}, till;" in overview


async def test_open_circuit_breaker_is_reported(tmp_path: Path) -> None:
    async with (
        open_raw_service(respond_with(b"", resets_connection=True)) as service,
        open_gateway(tmp_path, service.url, upstream=UPSTREAM) as gateway,
    ):
        await gateway.request("GET", "/v1/recipients")
        _, body = await load_page(gateway, "/readyz")
        assert list(body["faults"]) == ["environments.sandbox"], "an outage is one fault"
        assert body["circuit_breakers"] == {"sandbox": "open"}
        for page in ("/", "/service"):
            text = (await load_page(gateway, page))[1]
            assert text.count("the service is down") == 1
            assert "circuit breaker is open" not in text
        scrape = await scrape_gateway(gateway)
        labels = {"service": "current", "environment": "sandbox"}
        assert scrape.sum("payout_gateway_circuit_breaker_open", **labels) == 1


@pytest.mark.parametrize(
    ("state", "mode", "reason"),
    [
        ("down", FORWARD, "legacy_base_url does not answer; get 500"),
        ("hangs", COMPARE, "legacy_base_url does not answer; no answers are compared"),
        ("unread", FORWARD, "this process has read no legacy_base_url; get 500"),
    ],
)
async def test_legacy_service_that_is_down_degrades_readiness(
    state: str, mode: Mode, reason: str, tmp_path: Path
) -> None:
    async def hang(*_: object) -> None:
        await asyncio.sleep(60)

    async with open_raw_service() as service, open_raw_service(hang) as hung_service:
        addresses = {"down": f"http://127.0.0.1:{find_free_port()}", "hangs": hung_service.url}
        environment = {"base_url": service.url}
        if state in addresses:
            environment["legacy_base_url"] = addresses[state]
        async with open_gateway(
            tmp_path,
            service.url,
            environments={"sandbox": environment},
            comparing={"answers": "current"},
        ) as gateway:
            assert (await load_page(gateway, "/readyz"))[1]["status"] == "ok", "nobody needs it"
            async with open_store(gateway.settings.state) as store:
                await set_mode(store, Tenant(KEY["merchant"], "sandbox"), "", ["payments"], mode)
            code, body = await load_page(gateway, "/readyz")
            assert (code, body["status"]) == (200, "degraded")
            assert list(body["faults"]) == ["legacy.sandbox"]
            for page in ("/", "/service"):
                text = (await load_page(gateway, page))[1]
                assert reason in text.replace(
                    "the keys that it answers (<code>payout-gateway modes list</code>) ", ""
                )


@pytest.mark.parametrize("fails_reads", [True, False], ids=["everything", "writes only"])
@pytest.mark.parametrize(
    "fault",
    [
        {"status": 500},
        {"status": 200, "body": b"<html>"},
        {"status": 404, "body": b"<html>"},
        {"status": 302, "body": b""},
    ],
    ids=["500", "a page", "a page of another server", "a redirect"],
)
async def test_service_that_answers_with_errors_is_reported_and_writes_say_wait(
    fault: dict[str, Any], fails_reads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_operated_gateway(tmp_path) as setup:
        gateway = setup.gateway
        for number in range(3):
            if fails_reads:
                setup.add_fault("GET", "/v1/recipients", times=2, **fault)
                await gateway.request("GET", "/v1/recipients")
            setup.add_fault("POST", "/v1/recipients", **fault)
            body = {"type": "business", "name": "Acme", "email": f"a{number}@example.com"}
            assert (await gateway.request("POST", "/v1/recipients", body)).status == 500
        code, readiness = await load_page(gateway, "/readyz")
        assert (code, readiness["status"]) == (200, "degraded")
        assert readiness["circuit_breakers"] == {"sandbox": "closed"}
        overview, writes = [(await load_page(gateway, page))[1] for page in ("/", "/writes")]
        for text in (readiness["faults"]["service.sandbox"], overview):
            assert "the service is failing: its last" in text
        monkeypatch.setenv(
            "PAYOUT_GATEWAY_SERVER__ADMIN_PORT", gateway.running.admin_url.rpartition(":")[2]
        )
        command = (await setup.run_command("writes", "unsettled")).stdout
        for text in (writes, command):
            assert "the service is failing: wait; nothing to do yet" in text
            assert "writes settle" not in text
        (in_doubt,) = re.findall(r"<dd><a href=.?/writes.?>(\d+)</a>", overview)
        assert f">{in_doubt} writes in doubt<" in writes
        setup.service.faults.clear()
        await gateway.request("GET", "/v1/recipients")
        await gateway.request("POST", "/v1/recipients", {**body, "email": "b@example.com"})
        assert (await load_page(gateway, "/readyz"))[1]["status"] == "ok"


async def test_write_in_doubt_says_to_mend_refused_credentials(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as setup:
        setup.add_fault("GET", "/v1/recipients", times=99, status=401, body=REFUSAL)
        setup.add_fault("POST", "/v1/recipients", status=500)
        body = {"type": "business", "name": "Acme", "email": "a@example.com"}
        assert (await setup.gateway.request("POST", "/v1/recipients", body)).status == 500
        assert (await setup.gateway.request("GET", "/v1/recipients")).status == 403
        text = (await load_page(setup.gateway, "/writes"))[1]
    assert "keys verify" in text
    assert "mend that first" in text
    assert "writes settle" in text, "the refused credentials may be those of another merchant"
    assert "nothing to do yet" not in text


async def test_pages_for_missing_edit_paths_are_no_failure_of_the_service(tmp_path: Path) -> None:
    async with open_operated_gateway(tmp_path) as setup:
        recipient = await create_recipient(setup.gateway)
        paths = []
        for _ in range(2):
            batch = await create_batch(setup.gateway, recipient, "1.00")
            (payment,) = await load_payment_ids(setup.gateway, batch)
            paths.append(f"/batches/{batch}/payments/{payment}")
        for method in ("PATCH", "DELETE"):
            setup.add_fault(method, "/v1/batches/*/payments/*", status=404, body=b"<html>", times=9)
        change = {"sourceAmount": "3.00"}
        await request_successfully(setup.gateway, "PATCH", paths[0], change)
        await request_successfully(setup.gateway, "DELETE", paths[1])
        assert (await load_page(setup.gateway, "/readyz"))[1]["status"] == "ok"


async def test_lost_forwarded_write_says_wait_while_the_legacy_service_is_down(
    tmp_path: Path,
) -> None:
    async with (
        open_raw_service(respond_with(b"", resets_connection=True)) as legacy_service,
        open_gateway_between(tmp_path, legacy_url=legacy_service.url) as setup,
    ):
        await setup.run_command("modes", "set", "--key", KEY_NAME, "forward", "--yes")
        body = {"type": "business", "name": "Acme", "email": "a@example.com"}

        async def is_lost() -> bool:
            response = await setup.gateway.request("POST", "/v1/recipients", body)
            return response.status == 500

        await wait_until_async(is_lost)
        writes, overview, service, readiness = [
            (await load_page(setup.gateway, page))[1]
            for page in ("/writes", "/", "/service", "/readyz")
        ]
    for text in (overview, service):
        assert f"key {KEY_NAME} of {KEY['merchant']}" in text
    assert KEY_NAME not in str(readiness)
    assert "the legacy service is down: wait; nothing to do yet. When it is back, look in" in writes
