"""What is secret or personal shows up nowhere: not in the log, not in refusals, not on the disk.

Each canary is a value that nothing else would ever write. They are sent in every field, header and
parameter of every operation, well-formed and malformed, with a service that answers and one that
is in trouble. The gateway is the real process; its log is all of its standard error.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio

from gateway.simulator import Fault, Key, Service, Simulator, start
from tests.house import import_lines, settings_for
from tests.processes import Process, configuration, serving
from tests.sockets import Heard, assert_legacy, heard, wire

pytestmark = pytest.mark.asyncio(loop_scope="module")

API_KEY = "canary-api-key-7f3a9c"
ACCESS_KEY = "CANARYACCESSKEY4D1"
SECRET_KEY = "canary-secret-key-b82e61"
SSN = "907154263"
PASSPORT = "CANARYPASSPORT77"
IBAN = "DE89370400440532013000"
ACCOUNT = "7203914486"
EMAIL = "canary.mail@canary-mail.example"
FIRST, LAST, COMPANY = "Canaryfirst", "Canarylast", "Canary Company"
STREET, PHONE, DOB, REFERENCE = "Canary Street 12", "+15550147963", "1971-03-29", "canary-ref-55"

SECRETS = (API_KEY, ACCESS_KEY, SECRET_KEY)
PERSONAL = (
    SSN,
    PASSPORT,
    IBAN,
    ACCOUNT,
    EMAIL,
    FIRST,
    LAST,
    COMPANY,
    STREET,
    PHONE,
    DOB,
    REFERENCE,
)
CANARIES = (*SECRETS, *PERSONAL)

PERSON = {
    "type": "individual",
    "firstName": FIRST,
    "lastName": LAST,
    "name": COMPANY,
    "email": EMAIL,
    "referenceId": REFERENCE,
    "ssn": SSN,
    "passport": PASSPORT,
    "dob": DOB,
    "language": "en",
    "address": {
        "street1": STREET,
        "city": "New York",
        "region": "NY",
        "country": "US",
        "phone": PHONE,
    },
}
BANK = {"country": "US", "accountNum": ACCOUNT, "routing": "021000021", "name": FIRST}
PAYOUT = {"primary": {"method": "bank", "currency": "USD"}, "accounts": {"bank": BANK}}
GERMAN = {
    "primary": {"method": "bank", "currency": "EUR"},
    "accounts": {
        "bank": {"country": "DE", "iban": IBAN, "name": LAST},
        "wallet": {"address": EMAIL},
    },
    "autoswitch": {"limit": 5, "active": True},
}

HEADERS = [
    f"Authorization: Bearer {SECRET_KEY}",
    f"Cookie: session={API_KEY}; email={EMAIL}",
    f"User-Agent: {FIRST}/{SSN}",
    f"Referer: https://shop.example/?email={EMAIL}&iban={IBAN}",
    f"Origin: https://{EMAIL.partition('@')[2]}",
    f"X-Forwarded-For: {LAST}, {ACCOUNT}",
    f"X-Own: {' '.join(CANARIES)}",
    f"{API_KEY}: {SECRET_KEY}",
    f"Content-Type: {PASSPORT}/{IBAN}",
    f"Accept: {COMPANY}",
    f"From: {EMAIL}",
    f"Idempotency-Key: {SSN}",
    f"X-Request-Id: {EMAIL}",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("leaks")


class Place:
    """The process, the service behind it, and the part of the log that a test has caused."""

    def __init__(self, gateway: Process, simulator: Simulator) -> None:
        self.gateway = gateway
        self.simulator = simulator
        self.begun = 0

    def new_log(self) -> str:
        return self.gateway.logged()[self.begun :]

    async def ask(self, method: str, path: str, body: Any = b"", key: str = API_KEY) -> Heard:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"{method} /v1{path} HTTP/1.1", "Host: x", f"X-API-Key: {key}", *HEADERS]
        lines += [f"Content-Length: {len(data)}"] if data else []
        answer = await heard(self.gateway.port, "\r\n".join([*lines, "", ""]).encode() + data)
        assert answer is not None
        assert_legacy(answer)
        assert answer.status in (200, 403, 404, 406, 429, 500)
        return answer

    def new_recipient(self) -> str:
        return self.simulator.service.seed_recipients(1, seed=next(SEEDS), merchant="canary")[0].id


SEEDS: Iterator[int] = iter(range(1_000))


@asynccontextmanager
async def placed(folder: Path) -> AsyncIterator[Place]:
    pair = Key(ACCESS_KEY, SECRET_KEY, "canary", "sandbox")
    simulator = await start(service=Service(keys=[pair], seed=1))
    key = {
        "merchant": "canary",
        "environment": "sandbox",
        "api_key": API_KEY,
        "access_key": ACCESS_KEY,
        "secret_key": SECRET_KEY,
        "name": "first",
    }
    text = configuration(simulator.url, "[upstream]\ntimeout_seconds = 0.5")
    (folder / "gateway.toml").write_text(text)
    wrong = key | {"api_key": "a-key-of-a-wrong-pair", "merchant": "other", "name": "wrong"}
    wrong |= {"access_key": "REFUSEDACCESSKEY", "secret_key": "refused-secret-key"}
    await import_lines(settings_for(folder, simulator.url), [key, wrong])
    async with serving(folder) as gateway:
        yield Place(gateway, simulator)
        assert await gateway.ends() == 0
    await simulator.stop()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def house(folder: Path) -> AsyncIterator[Place]:
    async with placed(folder) as place:
        yield place


@pytest.fixture
def place(house: Place) -> Iterator[Place]:
    house.begun = len(house.gateway.logged())
    yield house
    house.simulator.service.faults.clear()


def assert_no_canary(text: str, canaries: tuple[str, ...] = CANARIES) -> None:
    small = text.lower()
    for canary in canaries:
        for spelled in (canary, quote(canary), quote(canary, safe=""), json.dumps(canary)[1:-1]):
            assert spelled.lower() not in small, canary


def assert_silent(place: Place) -> None:
    """The log of this test: it has lines, and no canary."""
    logged = place.new_log()
    assert logged
    assert_no_canary(logged)


def operations(one: str) -> list[tuple[str, str, Any]]:
    """All eleven, with every canary that has a place in them."""
    query = "&".join(
        f"{name}={quote(value)}"
        for name, value in (
            ("search", EMAIL), ("city", STREET), ("status", LAST), ("orderBy", SSN),
            ("startDate", DOB), ("country", IBAN), ("payoutMethod", ACCOUNT), (API_KEY, SECRET_KEY),
        )
    )  # fmt: skip
    path = f"/recipients/{one}"
    return [
        ("POST", "/recipients", PERSON | {"payout": PAYOUT}),
        ("GET", f"/recipients?{query}", b""),
        ("GET", path, b""),
        ("PATCH", path, PERSON | {"payout": GERMAN}),
        ("GET", f"{path}/logs?page={SSN}", b""),
        ("GET", f"{path}/payments?page={EMAIL}", b""),
        ("POST", f"{path}/payout-methods", PAYOUT),
        ("PATCH", f"{path}/payout-methods", GERMAN),
        ("GET", f"{path}/payout-methods", b""),
        ("DELETE", path, b""),
        ("DELETE", "/recipients", {"ids": [one, EMAIL, f"R-{SSN}"]}),
    ]


async def test_operations_that_succeed_leave_no_canary_in_the_log(place: Place) -> None:
    before = len(place.gateway.lines())
    answers = [await place.ask(*operation) for operation in operations(place.new_recipient())]
    statuses = [answer.status for answer in answers]
    assert statuses.count(200) >= 9, statuses
    assert len(place.gateway.lines()) >= before + 11
    assert_silent(place)


MALFORMED = {
    "the whole thing as text": lambda body: json.dumps(json.dumps(body)).encode(),
    "an array": lambda body: json.dumps([body]).encode(),
    "cut off": lambda body: json.dumps(body).encode()[:-3],
    "a comma too many": lambda body: json.dumps(body).encode()[:-1] + b",}",
    "Latin-1": lambda body: json.dumps(body).encode() + b"\xe4",
    "every value a number": lambda body: json.dumps(_each(body, lambda _: int(SSN))).encode(),
    "every value an object": lambda body: json.dumps(_each(body, lambda one: {one: one})).encode(),
    "every value an array": lambda body: json.dumps(_each(body, lambda one: [one])).encode(),
    "every value true": lambda body: json.dumps(_each(body, lambda one: True)).encode(),
    "every value twice as long": lambda body: json.dumps(_each(body, lambda one: one * 2)).encode(),
    "every value an email": lambda body: json.dumps(_each(body, lambda one: EMAIL)).encode(),
    "every value an IBAN": lambda body: json.dumps(_each(body, lambda one: IBAN)).encode(),
    "every value masked": lambda body: json.dumps(_each(body, lambda one: f"**{one}")).encode(),
    "a key twice": lambda body: json.dumps(body).encode()[:-1] + b',"ssn":"' + SSN.encode() + b'","ssn":1}',
    "unknown fields": lambda body: json.dumps(body | dict.fromkeys(CANARIES, SECRET_KEY)).encode(),
}  # fmt: skip


def _each(value: Any, changed: Any) -> Any:
    if isinstance(value, dict):
        return {name: _each(one, changed) for name, one in value.items()}
    if isinstance(value, list):
        return [_each(one, changed) for one in value]
    return changed(value) if isinstance(value, str) else value


@pytest.mark.parametrize("spoil", MALFORMED.values(), ids=MALFORMED)
async def test_malformed_operations_leave_no_canary_in_the_log_or_in_refusals(
    place: Place, spoil: Any
) -> None:
    refused = 0
    for method, path, body in operations(place.new_recipient()):
        if isinstance(body, dict):
            answer = await place.ask(method, path, spoil(body))
            if answer.status != 200:
                refused += 1
                assert_no_canary(answer.body.decode())
    assert refused
    assert_silent(place)


@pytest.mark.parametrize("canary", CANARIES)
async def test_a_canary_in_a_path_or_as_a_key_is_not_repeated(place: Place, canary: str) -> None:
    for path in (
        f"/{quote(canary)}",
        f"/recipients/{quote(canary)}",
        f"/recipients/R-1/{quote(canary)}",
    ):
        answer = await place.ask("GET", path)
        assert answer.status == 404
        assert_no_canary(answer.body.decode() + json.dumps(answer.headers))
    if canary != API_KEY:
        answer = await place.ask("GET", "/recipients", key=canary)
        assert answer.status == 403
        assert_no_canary(answer.body.decode() + json.dumps(answer.headers))
    assert_silent(place)


async def test_a_canary_in_a_malformed_request_is_not_repeated(place: Place) -> None:
    requests = [f"{canary} / HTTP/1.1\r\n\r\n" for canary in CANARIES]
    requests += [f"GET /{canary} {canary}\r\n\r\n" for canary in CANARIES]
    requests += [f"GET / HTTP/1.1\r\nHost: x\r\n{canary}\r\n\r\n" for canary in CANARIES]
    requests += [
        f"GET / HTTP/1.1\r\nHost: x\r\nX-API-Key: {canary}\0\r\n\r\n" for canary in CANARIES
    ]
    requests += [
        f"POST /v1/recipients HTTP/1.1\r\nHost: x\r\nX-API-Key: {API_KEY}\r\n{length}\r\n\r\n{EMAIL}\r\n"
        for length in (f"Content-Length: {EMAIL}", f"Content-Encoding: {EMAIL}\r\nContent-Length: 9",
                       "Content-Encoding: gzip\r\nContent-Length: 9", "Transfer-Encoding: chunked",
                       f"Transfer-Encoding: {EMAIL}")
    ]  # fmt: skip
    for request in requests:
        answer = await heard(place.gateway.port, request.encode())
        assert answer is not None
        assert_no_canary(answer.body.decode() + json.dumps(answer.headers))
    assert_silent(place)


ECHO = " ".join(CANARIES)


def _errors(code: str, message: str, field: str | None = None) -> bytes:
    return json.dumps(
        {"ok": False, "errors": [{"code": code, "message": message, "field": field}]}
    ).encode()


UNSAID = {
    "a page": Fault("*", "*", status=502, body=f"<html>{ECHO}</html>".encode()),
    "cut JSON": Fault("*", "*", status=200, body=f'{{"ok":true,"recipient":"{ECHO}'.encode()),
    "JSON of another shape": Fault(
        "*", "*", status=200, body=json.dumps({"ok": True, "recipient": ECHO}).encode()
    ),
    "an object of another shape": Fault(
        "*", "*", status=200, body=json.dumps({"ok": True, "recipient": {"id": ECHO}}).encode()
    ),
    "a list of another shape": Fault(
        "*", "*", status=200, body=json.dumps({"ok": True, "recipients": [ECHO], "meta": ECHO}).encode()
    ),
    "a redirect": Fault("*", "*", status=302, headers={"Location": f"http://{EMAIL}/{SSN}"}),
    "headers": Fault("*", "*", status=503, headers={"Retry-After": SSN, "X-Own": ECHO, ECHO[:15]: "x"}),
    "a code": Fault("*", "*", status=400, body=_errors(EMAIL, "no", SSN)),
    "a code of an error of its own": Fault("*", "*", status=500, body=_errors(EMAIL, "no", SSN)),
    "a dropped connection": Fault("*", "*", close="before"),
    "a dropped connection after the work": Fault("*", "*", close="after"),
    "an encoding": Fault("*", "*", status=200, body=b"x", headers={"Content-Encoding": EMAIL}),
    "a type": Fault("*", "*", status=200, body=b"x", headers={"Content-Type": EMAIL}),
}  # fmt: skip


@pytest.mark.parametrize("fault", UNSAID.values(), ids=UNSAID)
async def test_a_service_in_trouble_leaves_no_canary_in_the_log_or_in_errors(
    place: Place, fault: Fault
) -> None:
    one = place.new_recipient()
    for operation in operations(one):
        place.simulator.service.faults[:] = [replace(fault, times=50)]
        answer = await place.ask(*operation)
        if answer.status != 200:
            assert_no_canary(answer.body.decode())
    assert_silent(place)


@pytest.mark.parametrize("status", [400, 403, 404, 406, 429, 500])
@pytest.mark.parametrize("code", ["invalid_field", "not_found", "partner_integration_error"])
async def test_what_the_service_says_of_a_field_is_passed_on_and_not_logged(
    place: Place, status: int, code: str
) -> None:
    one = place.new_recipient()
    for operation in operations(one):
        said = _errors(code, f"Not good: {EMAIL}, {SSN}", "firstName")
        place.simulator.service.faults[:] = [Fault("*", "*", status=status, body=said, times=50)]
        answer = await place.ask(*operation)
        unsaid = tuple(canary for canary in CANARIES if canary not in (EMAIL, SSN))
        if answer.status != 200:
            assert_no_canary(answer.body.decode(), unsaid)
    assert_silent(place)


async def test_a_service_that_takes_too_long_leaves_no_canary(place: Place) -> None:
    one = place.new_recipient()
    for method, path, body in operations(one)[:1]:
        place.simulator.service.faults[:] = [Fault("*", "*", answer_delay=1)]
        answer = await place.ask(method, path, body)
        assert answer.status == 500
        assert_no_canary(answer.body.decode())
    assert_silent(place)


async def test_a_client_that_goes_away_leaves_no_canary(place: Place) -> None:
    body = json.dumps(PERSON).encode()
    head = f"POST /v1/recipients HTTP/1.1\r\nHost: x\r\nX-API-Key: {API_KEY}\r\nContent-Length: 9999\r\n\r\n"
    async with await wire(place.gateway.port) as connection:
        await connection.say(head.encode() + body)
        await asyncio.sleep(0.05)
    await place.ask("GET", "/nowhere")
    assert_silent(place)


async def test_a_refused_pair_is_logged_by_its_access_key_and_never_by_its_secret(
    place: Place,
) -> None:
    answer = await place.ask("GET", "/recipients", key="a-key-of-a-wrong-pair")
    assert (answer.status, answer.code) == (403, "invalid_api_key")
    logged = place.new_log()
    told = [line for line in place.gateway.lines() if line.get("access_key") == "REFUSEDACCESSKEY"]
    assert told
    assert told[0]["level"] == "error"
    assert told[0]["environment"] == "sandbox"
    assert "refused-secret-key" not in logged
    assert "a-key-of-a-wrong-pair" not in logged
    assert "REFUSEDACCESSKEY" not in answer.body.decode()


async def test_every_line_of_the_log_is_json_and_a_request_has_one(place: Place) -> None:
    before = len(place.gateway.lines())
    await place.ask("GET", "/recipients")
    new = place.gateway.lines()[before:]
    assert [line["event"] for line in new] == ["request"]
    assert new[0]["merchant"] == "canary"
    assert new[0]["operation"] == "list_recipients"
    assert "Traceback" not in place.gateway.logged()


async def test_nothing_on_the_disk_holds_a_secret_or_a_person_in_plain_text(
    tmp_path: Path,
) -> None:
    async with placed(tmp_path) as place:
        for operation in operations(place.new_recipient()):
            await place.ask(*operation)
    files = _written(tmp_path)
    assert {"gateway.db", "gateway.key"} <= {path.name for path in files}
    for path in files:
        stored = path.read_bytes().lower()
        for canary in (API_KEY, SECRET_KEY, *PERSONAL):
            for spelled in (
                canary.encode(),
                canary.encode("utf-16-le"),
                canary.encode().hex().encode(),
            ):
                assert spelled.lower() not in stored, (path.name, canary)


def _written(folder: Path) -> list[Path]:
    """What the gateway has written there; the configuration is the operator's."""
    return [path for path in folder.iterdir() if path.name != "gateway.toml"]
