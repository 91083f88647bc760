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

from gateway.compare.har import LINES_HEADER, parse_har_lines
from gateway.compare.inputs import parse_input
from gateway.compare.rules import Rules
from gateway.compare.scrub import Scrubber
from gateway.config.settings import Misconfigured, Recording
from gateway.migration.recorder import MAX_EXCHANGE_BYTES, RecordedExchange, Recorder
from gateway.migration.rotating_file import RotatingFile, list_recordings
from gateway.observability import metrics
from gateway.simulator import Key, Service, start
from tests.canaries import (
    ACCESS_KEY,
    API_KEY,
    EMAIL,
    HEADERS,
    PERSON,
    PERSONAL,
    SECRET_KEY,
    Objects,
    assert_no_canary,
    batch_of,
    operations,
)
from tests.gateway.compare.towns import report
from tests.house import House, import_lines
from tests.operating import says
from tests.payday import open_town, payment_ids
from tests.scrape import more, scraped
from tests.test_leaks import MALFORMED

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
RECORDED = "payout_gateway_recorded_requests_total"
LINE = {
    "merchant": "canary",
    "environment": "sandbox",
    "name": "shop",
    "api_key": API_KEY,
    "access_key": ACCESS_KEY,
    "secret_key": SECRET_KEY,
}


@asynccontextmanager
async def recorded_town(folder: Path, **recording: Any) -> AsyncIterator[House]:
    """A gateway that records into ``tape``, asked by the merchant of the canaries."""
    service = Service(keys=[Key(ACCESS_KEY, SECRET_KEY, "canary", "sandbox")])
    settings = {"recording": {"directory": str(folder / "tape"), **recording}}
    async with open_town(folder, service, **settings) as (house, _):
        await import_lines(house.settings, [LINE])
        house.api_key = API_KEY
        yield house


def written(folder: Path) -> str:
    return "".join(path.read_text("utf-8") for path in list_recordings(folder / "tape"))


async def new_objects(house: House) -> Objects:
    made = (await house.ask("POST", "/v1/recipients", PERSON)).body["recipient"]["id"]
    batch = (await house.ask("POST", "/v1/batches", batch_of(made))).body["batch"]["id"]
    return Objects(made, batch, (await payment_ids(house, batch))[0])


def sent(body: Any) -> dict[str, Any]:
    return {"data": body or None} if isinstance(body, bytes) else {"body": body}


async def test_no_canary_of_any_operation_well_formed_or_malformed_reaches_the_disk(
    tmp_path: Path,
) -> None:
    """Also what is in headers, parameters, paths and answers."""
    headers = dict(one.split(": ", 1) for one in HEADERS if "X-Request" not in one)
    headers |= {"Content-Type": "application/json", "Authorization": f"Bearer {SECRET_KEY}"}
    asked = 0
    async with recorded_town(tmp_path) as house:
        for method, path, body in operations(await new_objects(house)):
            await house.ask(method, f"/v1{path}", **sent(body), headers=headers)
            asked += 1
        objects = await new_objects(house)
        for spoil in MALFORMED.values():
            for method, path, body in operations(objects):
                if isinstance(body, dict):
                    await house.ask(method, f"/v1{path}", data=spoil(body))
                    asked += 1
    text = written(tmp_path)
    assert text.count("\n") > asked
    # An amount that somebody's number was sent as is an amount.
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


async def test_the_service_s_own_words_are_recorded_as_they_are(tmp_path: Path) -> None:
    """As values, as labels in their capitals, as fields, in paths, filters and fields of errors."""
    service = Service(keys=[Key(ACCESS_KEY, SECRET_KEY, "canary", "sandbox")])
    service.set_wallet_balance("canary", "USD", "1234567.89", environment="sandbox")
    recording = {"directory": str(tmp_path / "tape")}
    payout = {
        "primary": {"method": "paypal", "currency": "USD"},
        "accounts": {"paypal": {"address": "ada@example.com"}},
    }
    person = {**PERSON, "payout": payout}
    async with open_town(tmp_path, service, recording=recording, vocabulary=VOCABULARY) as (
        house,
        _,
    ):
        await import_lines(house.settings, [LINE])
        house.api_key = API_KEY
        made = (await house.ask("POST", "/v1/recipients", person)).body["recipient"]["id"]
        batch = (await house.ask("POST", "/v1/batches", batch_of(made))).body["batch"]["id"]
        payout["accounts"]["paypal"]["address"] = "nobody"
        asked = (
            ("GET", f"/recipients/{made}", None),
            ("GET", "/recipients?payoutMethod=paypal", None),
            ("POST", f"/recipients/{made}/payout-methods", payout),
            ("GET", f"/batches/{batch}", None),
            ("GET", f"/batches/{batch}/summary", None),
            ("GET", "/profile/balances/paypal", None),
            ("GET", "/profile/balances/acme", None),
        )
        answers = [await house.ask(method, f"/v1{path}", body) for method, path, body in asked]
    (path,) = list_recordings(tmp_path / "tape")
    entries = parse_har_lines(path.read_text("utf-8"), "tape")["log"]["entries"]
    told = [json.loads(one["response"]["content"]["text"]) for one in entries[-len(asked) :]]
    urls = [one["request"]["url"] for one in entries[-len(asked) :]]
    assert urls[1].endswith("?payoutMethod=paypal")
    assert [one.rpartition("/")[2] for one in urls[-2:]] == ["paypal", "acme"]
    recipient, shown, errors = told[0]["recipient"], told[3]["batch"], told[2]["errors"]
    assert "gravatarUrl" in recipient
    assert recipient["payout"]["methodDisplay"] == "PayPal"
    assert recipient["payout"]["primary"]["method"] == recipient["payoutMethod"] == "paypal"
    assert [one["field"] for one in errors] == ["accounts.paypal.address"]
    assert {one["methodDisplay"] for one in shown["payments"]["payments"]} == {"PayPal"}
    assert told[4]["batchSummary"] == {
        **answers[4].body["batchSummary"],
        "description": told[4]["batchSummary"]["description"],
    }
    for balances, answer in zip(told[-2:], answers[-2:], strict=True):
        assert balances["balances"].keys() == answer.body["balances"].keys()
        for name, entry in answer.body["balances"].items():
            assert balances["balances"][name]["type"] == entry["type"]


@pytest.mark.parametrize("canary", PERSONAL)
def test_what_is_personal_is_made_up_in_whatever_field_it_stands(canary: str) -> None:
    scrubber = Scrubber(b"salt")
    spelled = [canary, canary.lower(), f" {canary}", f"{canary}.", [canary], {canary: canary}]
    text = scrubber.scrub_body(json.dumps([{name: one} for name in FIELDS for one in spelled]))
    assert_no_canary(text, (canary,))
    for name in FIELDS:
        assert_no_canary(
            scrubber.scrub_url(f"/v1/recipients/{canary}/logs?{name}={canary}"), (canary,)
        )


async def test_a_recording_replayed_against_two_equal_services_has_no_difference(
    tmp_path: Path,
) -> None:
    async with recorded_town(tmp_path) as house:
        for method, path, body in operations(await new_objects(house)):
            await house.ask(method, f"/v1{path}", **sent(body))
    (path,) = list_recordings(tmp_path / "tape")
    # Whoever is recorded is somebody else at the service: ids are found again by their answers.
    keys = [Key("A", "S", "demo", api_key="one-api-key")]
    faces = [await start(service=Service(keys=keys, seed=7), legacy_port=0) for _ in range(2)]
    try:
        urls = [one.legacy.url for one in faces if one.legacy]
        told = await report(
            urls, path.read_text("utf-8"), keys=("one-api-key", "one-api-key"), allow_writes=True
        )
    finally:
        for one in faces:
            await one.stop()
    assert (told["exit_code"], told["differences"]) == (0, [])
    assert told["counts"]["compared"] >= 30
    good = [one for one in told["operations"] if "200/200" in one["statuses"]]
    assert len(good) >= 25


async def test_files_are_the_owner_s_alone_and_the_command_shows_them(tmp_path: Path) -> None:
    toml = f'[recording]\ndirectory = "{tmp_path}/tape"\n'
    (tmp_path / "gateway.toml").write_text(toml)
    assert "There are no recordings" in (await says(tmp_path, "recording")).stdout
    async with recorded_town(tmp_path) as house:
        objects = await new_objects(house)
        await house.ask("GET", f"/v1/recipients/{objects.recipient}")
    (path,) = list_recordings(tmp_path / "tape")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    (told,) = json.loads((await says(tmp_path, "recording", "--json")).stdout)["files"]
    assert told["requests"] == 4
    assert told["operations"] == dict.fromkeys(
        ("create_recipient", "create_batch", "read_batch", "read_recipient"), 1
    )
    shown = (await says(tmp_path, "recording")).stdout
    assert f"payout-gateway compare --control URL --candidate URL {path}" in shown
    (tmp_path / "gateway.toml").write_text("")
    assert "recording.directory is not set" in (await says(tmp_path, "recording", code=2)).output


async def test_only_what_is_chosen_is_recorded_and_a_keyless_request_adds_no_series(
    tmp_path: Path,
) -> None:
    chosen = {"keys": ["shop"], "operations": ["list_recipients", "read_country"]}
    async with recorded_town(tmp_path, **chosen) as house:
        await house.ask("GET", "/v1/recipients")
        before = (await scraped(house.session, house.running.admin_url)).series()
        for path in ("/v1/batches", "/v1/geography/countries/US", "/v1/nowhere"):
            await house.ask("GET", path)
        await house.ask("GET", "/v1/recipients", headers={"X-API-Key": "nobody-s-key"})
        after = (await scraped(house.session, house.running.admin_url)).series()
    assert {one for one in after - before if one[0].startswith("payout_gateway_recorded")} == set()
    assert (
        parse_input(written(tmp_path), "tape", Rules()).steps[0].operation.name == "list_recipients"
    )
    assert written(tmp_path).count("\n") == 2


async def test_where_nothing_is_configured_nothing_is_written(tmp_path: Path) -> None:
    async with recorded_town(tmp_path, directory="") as house:
        await house.ask("GET", "/v1/recipients")
    assert not (tmp_path / "tape").exists()


async def test_a_disk_that_takes_nothing_costs_a_line_and_no_answer(tmp_path: Path) -> None:
    (tmp_path / "tape").write_text("in the way of the directory")
    async with recorded_town(tmp_path) as house:
        before = await scraped(house.session, house.running.admin_url)
        for _ in range(3):
            assert (await house.ask("GET", "/v1/recipients")).status == 200
        async with asyncio.timeout(30):
            while True:
                after = await scraped(house.session, house.running.admin_url)
                if more(after, before, RECORDED, outcome="failed") == 3:
                    break
                await asyncio.sleep(0.01)


@asynccontextmanager
async def disk_of(size: int) -> AsyncIterator[None]:
    """No file of this process may grow beyond it: a write gives less, then fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_what_was_written_of_a_line_when_the_disk_was_full_is_taken_back(
    tmp_path: Path,
) -> None:
    tape = RotatingFile(tmp_path, 1 << 20, 3, lambda: NOW)
    tape.write(b'{"a":1}')
    async with disk_of(len(LINES_HEADER) + 20):
        with pytest.raises(OSError):
            tape.write(b'{"b":"' + b"b" * 100 + b'"}')
    tape.write(b'{"c":3}')
    tape.close()
    (path,) = list_recordings(tmp_path)
    assert path.read_text("utf-8").splitlines() == [LINES_HEADER, '{"a":1}', '{"c":3}']


def test_files_are_bounded_in_size_and_number_and_the_oldest_goes(tmp_path: Path) -> None:
    moments = iter(NOW + timedelta(seconds=n) for n in range(100))
    tape = RotatingFile(tmp_path, 1000, 3, lambda: next(moments))
    for number in range(50):
        tape.write(json.dumps({"n": number, "x": "x" * 200}).encode())
    tape.close()
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


def test_a_file_that_another_process_removed_is_followed_by_a_new_one(tmp_path: Path) -> None:
    tape = RotatingFile(tmp_path, 1 << 20, 3, lambda: NOW)
    tape.write(b'{"a":1}')
    list_recordings(tmp_path)[0].unlink()
    tape.write(b'{"b":2}')
    tape.close()
    assert list_recordings(tmp_path)[0].read_text("utf-8") == f'{LINES_HEADER}\n{{"b":2}}\n'


def heard(**changes: Any) -> RecordedExchange:
    return replace(
        RecordedExchange("create_recipient", "shop", NOW, 0.1, "POST", "/v1/recipients", "application/json",
              json.dumps(PERSON).encode(), 200, b'{"ok":true}', (API_KEY,)),
        **changes,
    )  # fmt: skip


def counted(outcome: str) -> float:
    return metrics.REGISTRY.get_sample_value(RECORDED, {"outcome": outcome}) or 0.0


async def test_what_finds_the_queue_full_is_left_out_and_counted(tmp_path: Path) -> None:
    before = {one: counted(one) for one in ("written", "dropped", "too_large")}
    settings = Recording(directory=str(tmp_path), queue=5)
    async with Recorder(settings, lambda: NOW) as recorder:
        for _ in range(8):  # before the writer has its turn
            recorder.offer(heard())
        recorder.offer(heard(answer=b"x" * MAX_EXCHANGE_BYTES))
    after = {one: counted(one) - before[one] for one in before}
    assert after == {"written": 5, "dropped": 3, "too_large": 1}


async def test_the_same_person_has_one_name_in_a_recording_and_another_in_the_next(
    tmp_path: Path,
) -> None:
    emails = []
    for number in range(2):
        folder = tmp_path / str(number)
        async with Recorder(Recording(directory=str(folder)), lambda: NOW) as recorder:
            recorder.offer(heard())
            recorder.offer(heard(method="GET", target=f"/v1/recipients?search={EMAIL}", body=b""))
        text = list_recordings(folder)[0].read_text("utf-8")
        one, other = (each["request"] for each in parse_har_lines(text, "tape")["log"]["entries"])
        emails.append(json.loads(one["postData"]["text"])["email"])
        assert other["queryString"] == [{"name": "search", "value": emails[-1]}]
    assert emails[0] != emails[1]


async def test_a_share_is_one_of_whole_conversations(tmp_path: Path) -> None:
    settings = Recording(directory=str(tmp_path), sample=0.25)
    async with Recorder(settings, lambda: NOW, salt=b"salt") as recorder:
        wanted = [
            [
                recorder.is_selected("read_batch", f"key {n}", NOW + timedelta(minutes=m))
                for m in range(9)
            ]
            for n in range(800)
        ]
    assert all(len(set(one)) == 1 for one in wanted), "within the same ten minutes"
    assert 0.2 < sum(one[0] for one in wanted) / 800 < 0.3


def test_a_recording_whose_last_line_is_half_written_is_read(tmp_path: Path) -> None:
    entry = json.dumps({"request": {"method": "GET", "url": "https://recorded.invalid/v1/batches"}})
    read = parse_input(f"{LINES_HEADER}\n{entry}\n{entry[:20]}", "tape", Rules())
    assert [step.operation.name for step in read.steps] == ["list_batches"]


async def test_settings_that_cannot_work_are_told(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"recording\.operations: pay_everybody"):
        async with recorded_town(tmp_path, operations=["pay_everybody"]):
            pass
    with pytest.raises(Misconfigured, match=r"recording\.files: must be more than server\.workers"):
        async with recorded_town(tmp_path, files=1):
            pass
