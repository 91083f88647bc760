"""The recorder: recordings contain no secrets, do not delay requests, and can be replayed."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.compare.endpoints import USER_AGENT
from gateway.compare.har import LINES_HEADER
from gateway.compare.inputs import parse_input
from gateway.compare.masking import Scrubber
from gateway.compare.rules import Rules
from gateway.config.settings import ConfigurationError, Recording
from gateway.migration.recorder import MAX_EXCHANGE_BYTES, RecordedExchange, Recorder
from gateway.migration.rotating_file import RotatingFile, list_recordings
from gateway.observability import metrics
from gateway.simulator import Service, ServiceCredentials, start_simulator
from tests.canaries import (
    ACCESS_KEY,
    API_KEY,
    HEADERS,
    PERSON,
    PERSONAL,
    SECRET_KEY,
    Objects,
    assert_no_canary,
    build_batch,
    list_requests,
)
from tests.gateway.compare.fake_services import build_comparison_report
from tests.metrics_scrape import fetch_metrics, measure_increase
from tests.operator_commands import run_command
from tests.payouts import load_payment_ids, open_gateway_and_service
from tests.running_gateway import GatewayUnderTest, import_api_keys
from tests.test_secrets_in_logs import MALFORMED

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
RECORDED_METRIC = "payout_gateway_recorded_requests_total"
KEY_LINE = {
    "merchant": "canary",
    "environment": "sandbox",
    "name": "shop",
    "api_key": API_KEY,
    "access_key": ACCESS_KEY,
    "secret_key": SECRET_KEY,
}


@asynccontextmanager
async def open_recording_gateway(folder: Path, **recording: Any) -> AsyncIterator[GatewayUnderTest]:
    """A gateway that records requests of the merchant with the canaries."""
    service = Service(credentials=[ServiceCredentials(ACCESS_KEY, SECRET_KEY, "canary", "sandbox")])
    settings = {"recording": {"directory": str(folder / "tape"), **recording}}
    async with open_gateway_and_service(folder, service, **settings) as (gateway, _):
        await import_api_keys(gateway.settings, [KEY_LINE])
        gateway.api_key = API_KEY
        yield gateway


def read_recordings(folder: Path) -> str:
    return "".join(path.read_text("utf-8") for path in list_recordings(folder / "tape"))


def read_entries(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()[1:]]


async def create_objects(gateway: GatewayUnderTest) -> Objects:
    recipient_id = (await gateway.request("POST", "/v1/recipients", PERSON)).body["recipient"]["id"]
    batch = (await gateway.request("POST", "/v1/batches", build_batch(recipient_id))).body["batch"][
        "id"
    ]
    return Objects(recipient_id, batch, (await load_payment_ids(gateway, batch))[0])


def build_body_arguments(body: Any) -> dict[str, Any]:
    return {"data": body or None} if isinstance(body, bytes) else {"body": body}


async def test_recordings_contain_no_secrets_of_any_operation(
    tmp_path: Path,
) -> None:
    """Also what is in headers, parameters, paths and answers."""
    headers = dict(header.split(": ", 1) for header in HEADERS if "X-Request" not in header)
    headers |= {"Content-Type": "application/json", "Authorization": f"Bearer {SECRET_KEY}"}
    request_count = 0
    async with open_recording_gateway(tmp_path) as gateway:
        for method, path, body in list_requests(await create_objects(gateway)):
            await gateway.request(
                method, f"/v1{path}", **build_body_arguments(body), headers=headers
            )
            request_count += 1
        objects = await create_objects(gateway)
        for malform in MALFORMED.values():
            for method, path, body in list_requests(objects):
                if isinstance(body, dict):
                    await gateway.request(method, f"/v1{path}", data=malform(body))
                    request_count += 1
    text = read_recordings(tmp_path)
    assert text.count("\n") > request_count
    # A personal number that was sent as an amount is recorded as an amount.
    assert_no_canary(re.sub(r'\\"sourceAmount\\":\d+', "", text))


FIELDS = {
    *("id", "referenceId", "email", "name", "firstName", "type", "status", "language", "dob"),
    *("passport", "ssn", "street1", "city", "region", "postalCode", "country", "phone", "method"),
    *("currency", "institution", "branch", "branchNum", "accountNum", "routing", "iban", "code"),
    *("swiftBic", "bankAddress", "bankProvince", "governmentId", "address", "memo", "description"),
    *("processed_by", "object", "orderBy", "field", "message", "url", "request", "response", "ip"),
    *("page", "limit", "createdAt", "startDate", "methodDisplay", "complianceStatus", "search"),
    *("checkedAt", "serverTime", "accountNumber", "payoutMethod", "source", "unknown"),
}


VOCABULARY = {
    "legacy": {
        "wallet": "paypal",
        "service": "acme",
        "service_total": "AcmeTotal",
        "avatar_url": "gravatarUrl",
        "wallet_method_display": "PayPal",
        "bank_method_display": "Local bank",
        "wallet_display_name": "PayPal Inc.",
        "bank_display_name": "Überweisung",
        "wallet_account_type": "PayPaL",
        "service_account_type": "AcMe",
    }
}


async def test_vocabulary_words_are_recorded_unchanged(tmp_path: Path) -> None:
    """As values, as labels in their capitals, as fields, in paths, filters and fields of errors."""
    service = Service(credentials=[ServiceCredentials(ACCESS_KEY, SECRET_KEY, "canary", "sandbox")])
    service.set_wallet_balance("canary", "USD", "1234567.89", environment="sandbox")
    recording = {"directory": str(tmp_path / "tape")}
    payout = {
        "primary": {"method": "paypal", "currency": "USD"},
        "accounts": {"paypal": {"address": "ada@example.com"}},
    }
    recipient_body = {**PERSON, "payout": payout}
    async with open_gateway_and_service(
        tmp_path, service, recording=recording, vocabulary=VOCABULARY
    ) as (
        gateway,
        _,
    ):
        await import_api_keys(gateway.settings, [KEY_LINE])
        gateway.api_key = API_KEY
        recipient_id = (await gateway.request("POST", "/v1/recipients", recipient_body)).body[
            "recipient"
        ]["id"]
        batch = (await gateway.request("POST", "/v1/batches", build_batch(recipient_id))).body[
            "batch"
        ]["id"]
        payout["accounts"]["paypal"]["address"] = "nobody"
        requests = (
            ("GET", f"/recipients/{recipient_id}", None),
            ("GET", "/recipients?payoutMethod=paypal", None),
            ("POST", f"/recipients/{recipient_id}/payout-methods", payout),
            ("GET", f"/batches/{batch}", None),
            ("GET", f"/batches/{batch}/summary", None),
            ("GET", "/profile/balances/paypal", None),
            ("GET", "/profile/balances/acme", None),
        )
        responses = [
            await gateway.request(method, f"/v1{path}", body) for method, path, body in requests
        ]
    (path,) = list_recordings(tmp_path / "tape")
    entries = read_entries(path)
    recorded_bodies = [
        json.loads(item["response"]["content"]["text"]) for item in entries[-len(requests) :]
    ]
    urls = [item["request"]["url"] for item in entries[-len(requests) :]]
    assert urls[1].endswith("?payoutMethod=paypal")
    assert [url.rpartition("/")[2] for url in urls[-2:]] == ["paypal", "acme"]
    recipient, batch_body, errors = (
        recorded_bodies[0]["recipient"],
        recorded_bodies[3]["batch"],
        recorded_bodies[2]["errors"],
    )
    assert "gravatarUrl" in recipient
    assert recipient["payout"]["methodDisplay"] == "PayPal"
    assert recipient["payout"]["primary"]["method"] == recipient["payoutMethod"] == "paypal"
    assert [error["field"] for error in errors] == ["accounts.paypal.address"]
    assert {payment["methodDisplay"] for payment in batch_body["payments"]["payments"]} == {
        "PayPal"
    }
    assert recorded_bodies[4]["batchSummary"] == {
        **responses[4].body["batchSummary"],
        "description": recorded_bodies[4]["batchSummary"]["description"],
    }
    for balances, response in zip(recorded_bodies[-2:], responses[-2:], strict=True):
        assert balances["balances"].keys() == response.body["balances"].keys()
        for name, entry in response.body["balances"].items():
            assert balances["balances"][name]["type"] == entry["type"]


@pytest.mark.parametrize("canary", PERSONAL)
def test_personal_data_is_replaced_in_any_field(canary: str) -> None:
    scrubber = Scrubber()
    canary_forms = [canary, canary.lower(), f" {canary}", f"{canary}.", [canary], {canary: canary}]
    text = scrubber.scrub_body(
        json.dumps([{name: entry} for name in FIELDS for entry in canary_forms])
    )
    assert_no_canary(text, (canary,))
    for name in FIELDS:
        assert_no_canary(
            scrubber.scrub_target(f"/v1/recipients/{canary}/logs?{name}={canary}"), (canary,)
        )


async def test_replayed_recording_shows_no_difference_of_equal_services(
    tmp_path: Path,
) -> None:
    async with open_recording_gateway(tmp_path) as gateway:
        for method, path, body in list_requests(await create_objects(gateway)):
            await gateway.request(method, f"/v1{path}", **build_body_arguments(body))
    (path,) = list_recordings(tmp_path / "tape")
    # Recorded recipients have other ids at the service, which are matched by the responses.
    keys = [ServiceCredentials("A", "S", "demo", api_key="one-api-key")]
    endpoints = [
        await start_simulator(service=Service(credentials=keys, seed=7), legacy_port=0)
        for _ in range(2)
    ]
    try:
        urls = [simulator.legacy.url for simulator in endpoints if simulator.legacy]
        report = await build_comparison_report(
            urls, path.read_text("utf-8"), keys=("one-api-key", "one-api-key"), allow_writes=True
        )
    finally:
        for simulator in endpoints:
            await simulator.stop()
    assert (report["exit_code"], report["differences"]) == (0, [])
    assert report["counts"]["compared"] >= 30
    successful_operations = [
        operation for operation in report["operations"] if "200/200" in operation["statuses"]
    ]
    assert len(successful_operations) >= 25


async def test_recordings_are_private_and_listed_by_the_command(tmp_path: Path) -> None:
    toml = f'[recording]\ndirectory = "{tmp_path}/tape"\n'
    (tmp_path / "gateway.toml").write_text(toml)
    assert "There are no recordings" in (await run_command(tmp_path, "recording")).stdout
    async with open_recording_gateway(tmp_path) as gateway:
        objects = await create_objects(gateway)
        await gateway.request("GET", f"/v1/recipients/{objects.recipient}")
    (path,) = list_recordings(tmp_path / "tape")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    (listed_file,) = json.loads((await run_command(tmp_path, "recording", "--json")).stdout)[
        "files"
    ]
    assert listed_file["requests"] == 4
    assert listed_file["operations"] == dict.fromkeys(
        ("create_recipient", "create_batch", "read_batch", "read_recipient"), 1
    )
    output = (await run_command(tmp_path, "recording")).stdout
    assert f"payout-gateway compare --control URL --candidate URL {path}" in output
    (tmp_path / "gateway.toml").write_text("")
    assert (
        "recording.directory is not set"
        in (await run_command(tmp_path, "recording", code=2)).output
    )


async def test_only_selected_keys_and_operations_are_recorded(
    tmp_path: Path,
) -> None:
    selection = {"keys": ["shop"], "operations": ["list_recipients", "read_country"]}
    async with open_recording_gateway(tmp_path, **selection) as gateway:
        await gateway.request("GET", "/v1/recipients")
        series_before = (await fetch_metrics(gateway.session, gateway.running.admin_url)).series()
        for path in ("/v1/batches", "/v1/geography/countries/US", "/v1/nowhere"):
            await gateway.request("GET", path)
        await gateway.request("GET", "/v1/recipients", headers={"X-API-Key": "nobody-s-key"})
        await gateway.request("GET", "/v1/recipients", headers={"User-Agent": USER_AGENT})
        series_after = (await fetch_metrics(gateway.session, gateway.running.admin_url)).series()
    assert {
        entry
        for entry in series_after - series_before
        if entry[0].startswith("payout_gateway_recorded")
    } == set()
    assert (
        parse_input(read_recordings(tmp_path), "tape", Rules()).steps[0].operation.name
        == "list_recipients"
    )
    assert read_recordings(tmp_path).count("\n") == 2


async def test_recording_is_off_by_default(tmp_path: Path) -> None:
    async with open_recording_gateway(tmp_path, directory="") as gateway:
        await gateway.request("GET", "/v1/recipients")
    assert not (tmp_path / "tape").exists()


async def test_unwritable_disk_does_not_fail_requests(tmp_path: Path) -> None:
    (tmp_path / "tape").write_text("in the way of the directory")
    async with open_recording_gateway(tmp_path) as gateway:
        scrape_before = await fetch_metrics(gateway.session, gateway.running.admin_url)
        for _ in range(3):
            assert (await gateway.request("GET", "/v1/recipients")).status == 200
        async with asyncio.timeout(30):
            while True:
                scrape_after = await fetch_metrics(gateway.session, gateway.running.admin_url)
                if (
                    measure_increase(scrape_after, scrape_before, RECORDED_METRIC, outcome="failed")
                    == 3
                ):
                    break
                await asyncio.sleep(0.01)


@asynccontextmanager
async def limit_file_size(size: int) -> AsyncIterator[None]:
    """No file of this process may grow beyond it: a write gives less, then fails."""
    original_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, original_limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, original_limit)


async def test_partly_written_line_is_removed(
    tmp_path: Path,
) -> None:
    rotating_file = RotatingFile(tmp_path, 1 << 20, 3, lambda: NOW)
    rotating_file.write(b'{"a":1}')
    async with limit_file_size(len(LINES_HEADER) + 20):
        with pytest.raises(OSError):
            rotating_file.write(b'{"b":"' + b"b" * 100 + b'"}')
    rotating_file.write(b'{"c":3}')
    rotating_file.close()
    (path,) = list_recordings(tmp_path)
    assert path.read_text("utf-8").splitlines() == [LINES_HEADER, '{"a":1}', '{"c":3}']


def test_recordings_are_rotated_by_size_and_number(tmp_path: Path) -> None:
    times = iter(NOW + timedelta(seconds=n) for n in range(100))
    rotating_file = RotatingFile(tmp_path, 1000, 3, lambda: next(times))
    for number in range(50):
        rotating_file.write(json.dumps({"n": number, "x": "x" * 200}).encode())
    rotating_file.close()
    paths = list_recordings(tmp_path)
    assert len(paths) == 3
    assert all(path.stat().st_size <= 1000 for path in paths)
    numbers = [
        json.loads(line)["n"]
        for path in paths
        for line in path.read_text().splitlines()
        if '"n"' in line
    ]
    assert numbers == [*range(numbers[0], 50)]


def test_removed_file_is_replaced_by_a_new_one(tmp_path: Path) -> None:
    rotating_file = RotatingFile(tmp_path, 1 << 20, 3, lambda: NOW)
    rotating_file.write(b'{"a":1}')
    list_recordings(tmp_path)[0].unlink()
    rotating_file.write(b'{"b":2}')
    rotating_file.close()
    assert list_recordings(tmp_path)[0].read_text("utf-8") == f'{LINES_HEADER}\n{{"b":2}}\n'


def build_exchange(**changes: Any) -> RecordedExchange:
    return replace(
        RecordedExchange("create_recipient", "shop", NOW, 0.1, "POST", "/v1/recipients", "application/json",
              json.dumps(PERSON).encode(), 200, b'{"ok":true}', (API_KEY,)),
        **changes,
    )  # fmt: skip


def read_counter(outcome: str) -> float:
    return metrics.REGISTRY.get_sample_value(RECORDED_METRIC, {"outcome": outcome}) or 0.0


async def test_exchange_over_the_queue_limit_is_dropped_and_counted(tmp_path: Path) -> None:
    counts_before = {entry: read_counter(entry) for entry in ("written", "dropped", "too_large")}
    settings = Recording(directory=str(tmp_path), queue=5)
    async with Recorder(settings, lambda: NOW) as recorder:
        for _ in range(8):  # before the writer has its turn
            recorder.enqueue_exchange(build_exchange())
        recorder.enqueue_exchange(build_exchange(answer=b"x" * MAX_EXCHANGE_BYTES))
    increases = {entry: read_counter(entry) - counts_before[entry] for entry in counts_before}
    assert increases == {"written": 5, "dropped": 3, "too_large": 1}


async def test_sampling_keeps_whole_conversations(tmp_path: Path) -> None:
    settings = Recording(directory=str(tmp_path), sample=0.25)
    async with Recorder(settings, lambda: NOW, salt=b"salt") as recorder:
        sampled = [
            [
                recorder.is_selected("read_batch", f"key {n}", NOW + timedelta(minutes=m))
                for m in range(9)
            ]
            for n in range(800)
        ]
    assert all(len(set(entry)) == 1 for entry in sampled), "within the same ten minutes"
    assert 0.2 < sum(entry[0] for entry in sampled) / 800 < 0.3


def test_recording_with_a_partial_last_line_is_read(tmp_path: Path) -> None:
    entry = json.dumps({"request": {"method": "GET", "url": "https://recorded.invalid/v1/batches"}})
    read = parse_input(f"{LINES_HEADER}\n{entry}\n{entry[:20]}", "tape", Rules())
    assert [step.operation.name for step in read.steps] == ["list_batches"]


async def test_invalid_recording_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"recording\.operations: pay_everybody"):
        async with open_recording_gateway(tmp_path, operations=["pay_everybody"]):
            pass
    with pytest.raises(
        ConfigurationError, match=r"recording\.files: must be more than server\.workers"
    ):
        async with open_recording_gateway(tmp_path, files=1):
            pass
