"""Secrets and personal data appear in no log line, no refusal and no file.

Each canary is a value that nothing else would write. Canaries are sent in every field, header and
parameter of every operation, well-formed and malformed, with a healthy and a faulty service. The
gateway is a real process; its log is its whole standard error.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio

from gateway.simulator import Fault, Key, Service, Simulator, start
from tests.canaries import (
    ACCESS_KEY,
    API_KEY,
    CANARIES,
    EMAIL,
    HEADERS,
    IBAN,
    PAYOUT,
    PERSON,
    PERSONAL,
    SECRET_KEY,
    SSN,
    Objects,
    assert_no_canary,
    batch_of,
    operations,
)
from tests.house import import_lines, settings_for
from tests.processes import Process, configuration, serving
from tests.signed import Client
from tests.sockets import Heard, assert_legacy, heard, until, wire

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("leaks")


class Place:
    """The gateway process, its service, and the part of the log that a test has caused."""

    def __init__(self, gateway: Process, simulator: Simulator) -> None:
        self.gateway = gateway
        self.simulator = simulator
        self.begun = 0

    def new_log(self) -> str:
        return self.gateway.logged()[self.begun :]

    async def ask(self, method: str, path: str, body: Any = b"", key: str = API_KEY) -> Heard:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"{method} /v1{path} HTTP/1.1", "Host: x", f"X-API-Key: {key}", *HEADERS]
        lines += [f"Idempotency-Key: {SSN}-{next(SEEDS)}"]  # an identical request would be a retry
        lines += [f"Content-Length: {len(data)}"] if data else []
        answer = await heard(self.gateway.port, "\r\n".join([*lines, "", ""]).encode() + data)
        assert answer is not None
        assert_legacy(answer)
        assert answer.status in (200, 403, 404, 406, 429, 500)
        return answer

    async def new_objects(self) -> Objects:
        made = await self.ask("POST", "/recipients", PERSON | {"payout": PAYOUT})
        recipient = made.json["recipient"]["id"]
        batch = (await self.ask("POST", "/batches", batch_of(recipient))).json["batch"]["id"]
        listed = await self.ask("GET", f"/batches/{batch}/payments")
        return Objects(recipient, batch, listed.json["payments"][0]["id"])


SEEDS: Iterator[int] = iter(range(100_000))


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
    # The circuit breaker is off, so that each request meets its fault.
    upstream = "[upstream]\ntimeout_seconds = 0.5\nbreaker_failures = 0"
    text = configuration(simulator.url, upstream)
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


def assert_silent(place: Place) -> None:
    """Checks that the log of this test has lines, and no canary."""
    logged = place.new_log()
    assert logged
    assert_no_canary(logged)


async def test_operations_that_succeed_leave_no_canary_in_the_log(place: Place) -> None:
    before = len(place.gateway.lines())
    answers = [await place.ask(*operation) for operation in operations(await place.new_objects())]
    statuses = [answer.status for answer in answers]
    assert statuses.count(200) >= 25, statuses
    assert len(place.gateway.lines()) >= before + len(statuses)
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
    for method, path, body in operations(await place.new_objects()):
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


@pytest.mark.parametrize("given", [API_KEY, f"order-{API_KEY}.1"])
async def test_a_request_id_that_holds_the_key_is_neither_logged_nor_repeated(
    place: Place, given: str
) -> None:
    lines = [
        "GET /v1/recipients HTTP/1.1",
        "Host: x",
        f"X-API-Key: {API_KEY}",
        f"X-Request-Id: {given}",
    ]
    answer = await heard(place.gateway.port, "\r\n".join([*lines, "", ""]).encode())
    assert answer is not None
    assert answer.status == 200
    assert_no_canary(json.dumps(answer.headers))
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
    one = await place.new_objects()
    for operation in operations(one):
        place.simulator.service.faults[:] = [replace(fault, times=50)]
        answer = await place.ask(*operation)
        if answer.status != 200:
            assert_no_canary(answer.body.decode())
    assert_silent(place)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "invalid_field"),
        (400, "not_found"),
        (400, "partner_integration_error"),
        (403, "not_authorized"),
        (404, "not_found"),
        (406, "empty_field"),
        (429, "invalid_field"),
        (500, "partner_integration_error"),
    ],
)
async def test_what_the_service_says_of_a_field_is_passed_on_and_not_logged(
    place: Place, status: int, code: str
) -> None:
    one = await place.new_objects()
    for operation in operations(one):
        said = _errors(code, f"Not good: {EMAIL}, {SSN}", "firstName")
        place.simulator.service.faults[:] = [Fault("*", "*", status=status, body=said, times=50)]
        answer = await place.ask(*operation)
        unsaid = tuple(canary for canary in CANARIES if canary not in (EMAIL, SSN))
        if answer.status != 200:
            assert_no_canary(answer.body.decode(), unsaid)
    assert_silent(place)


async def test_a_service_that_takes_too_long_leaves_no_canary(place: Place) -> None:
    one = await place.new_objects()
    for method, path, body in operations(one)[:1]:
        unread = Fault(
            "GET", "*", status=503, times=1000
        )  # prevents an immediate confirmation of the write
        place.simulator.service.faults[:] = [Fault(method, "*", answer_delay=1), unread]
        answer = await place.ask(method, path, body)
        assert answer.status == 500
        assert_no_canary(answer.body.decode())
    place.simulator.service.faults.clear()
    assert_silent(place)


async def test_a_client_that_goes_away_leaves_no_canary(place: Place) -> None:
    body = json.dumps(PERSON).encode()
    head = f"POST /v1/recipients HTTP/1.1\r\nHost: x\r\nX-API-Key: {API_KEY}\r\nContent-Length: 9999\r\n\r\n"
    async with await wire(place.gateway.port) as connection:
        await connection.say(head.encode() + body)
        await asyncio.sleep(0.05)
    await place.ask("GET", "/nowhere")
    assert_silent(place)


async def test_refused_pair_is_logged_by_the_prefix_of_its_access_key(
    place: Place,
) -> None:
    answer = await place.ask("GET", "/recipients", key="a-key-of-a-wrong-pair")
    assert (answer.status, answer.code) == (403, "invalid_api_key")
    logged = place.new_log()
    told = [line for line in place.gateway.lines() if line.get("access_key") == "REFU…"]
    assert told
    assert told[0]["level"] == "error"
    assert told[0]["environment"] == "sandbox"
    assert "refused-secret-key" not in logged
    assert "REFUSEDACCESSKEY" not in logged, "it might be the secret, swapped"
    assert "a-key-of-a-wrong-pair" not in logged
    assert "REFUSEDACCESSKEY" not in answer.body.decode()


# The signed face.

QUERY = "&".join(f"q{number}={quote(one)}" for number, one in enumerate(PERSONAL))


def signed_request(method: str, target: str, body: bytes = b"", **who: str) -> bytes:
    pair = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY, **who}
    return Client(**pair).request(method, target, body, *SIGNED_HEADERS, stamp=int(time.time()))


def made_of(sent: bytes) -> str:
    """Returns the signature of a request."""
    return sent.partition(b"\r\nX-SVC")[0][-64:].decode()


async def signs(
    place: Place, method: str, target: str, body: bytes = b"", *spoil: tuple[str, str], **who: str
) -> tuple[Heard, str]:
    """Sends a signed request with all canaries in headers; returns the answer and signature."""
    sent = signed_request(method, target, body, **who)
    made = made_of(sent)
    for one, other in spoil:
        sent = sent.replace(one.encode(), other.encode())
    answer = await heard(place.gateway.port, sent)
    assert answer is not None
    return answer, made


SIGNED_HEADERS = [
    *(line for line in HEADERS if not line.startswith(("Authorization", API_KEY))),
    f"X-API-Key: {API_KEY}",
]


Spoil = tuple[tuple[str, str], ...]
SIGNED: dict[str, tuple[int, str, Spoil, dict[str, str]]] = {
    "a good one": (200, f"/v1/recipients?search=x&{QUERY}", (), {}),
    "about a person": (404, f"/v1/{quote(EMAIL)}/{SSN}", (), {}),
    "about a batch": (404, f"/v1/batches/{IBAN}/start-processing?{QUERY}", (), {}),
    "to nowhere": (404, f"/v1/%2e%2e/{SSN}", (), {}),
    "an unknown key": (401, f"/v1/x?{QUERY}", (), {"access_key": "CANARYUNKNOWNKEY"}),
    "another secret": (401, f"/v1/x?{QUERY}", (), {"secret_key": "another"}),
    "no stamp": (401, f"/v1/x?{QUERY}", (("Timestamp: ", f"Timestamp: {SSN}"),), {}),
    "no credentials": (401, f"/v1/x?{QUERY}", (("svcsign ", f"svcsign {SECRET_KEY} "),), {}),
}


@pytest.mark.parametrize("case", SIGNED.values(), ids=SIGNED)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_signed_request_leaves_no_canary_and_no_signature(
    place: Place, method: str, case: tuple[int, str, Spoil, dict[str, str]]
) -> None:
    status, target, spoil, who = case
    body = json.dumps(PERSON).encode() if method == "POST" else b""
    answer, made = await signs(place, method, target, body, *spoil, **who)
    # A service may look at the Content-Type, which is an IBAN here, before anything else.
    assert answer.status in ((status, 400) if body and status in (200, 404) else (status,))
    await until(lambda: bool(place.new_log()))
    logged = place.new_log()
    assert "CANARYUNKNOWNKEY" not in logged
    assert made not in logged
    assert made not in answer.body.decode()
    assert_no_canary(answer.body.decode() + json.dumps(answer.headers))
    assert_silent(place)


@pytest.mark.parametrize("spelled", ["{}", "order-{}.1"])
async def test_a_request_id_that_holds_the_signature_is_not_logged(
    place: Place, spelled: str
) -> None:
    sent = Client(ACCESS_KEY, SECRET_KEY).request(stamp=int(time.time()))
    given = spelled.format(made_of(sent))
    answer = await heard(place.gateway.port, sent[:-2] + f"X-Request-Id: {given}\r\n\r\n".encode())
    assert answer is not None
    assert answer.status == 200
    await until(lambda: bool(place.new_log()))
    assert given not in place.new_log()


@pytest.mark.parametrize("fault", UNSAID.values(), ids=UNSAID)
async def test_a_service_in_trouble_behind_the_signed_face_leaves_no_canary_in_the_log(
    place: Place, fault: Fault
) -> None:
    for method in ("GET", "POST"):
        place.simulator.service.faults[:] = [replace(fault, times=1)]
        begun = len(place.gateway.lines())
        data = signed_request(method, f"/v1/recipients?{QUERY}")
        async with await wire(place.gateway.port) as connection:
            await connection.say(data)
            await until(lambda begun=begun: len(place.gateway.lines()) > begun)
        assert made_of(data) not in place.new_log()
    assert_silent(place)


async def test_every_line_of_the_log_is_json_and_a_request_has_one(place: Place) -> None:
    before = len(place.gateway.lines())
    await place.ask("GET", "/recipients")
    # Writes in doubt of other tests may be logged at the same time.
    (line,) = [one for one in place.gateway.lines()[before:] if one["event"] == "request"]
    assert line["merchant"] == "canary"
    assert line["operation"] == "list_recipients"
    assert line["http.route"] == "/v1/recipients"
    assert line["client.address"] == "127.0.0.1"
    assert line["duration_ms"] >= line["upstream_duration_ms"] > 0
    assert "Traceback" not in place.gateway.logged()


async def test_nothing_on_the_disk_holds_a_secret_or_a_person_in_plain_text(
    tmp_path: Path,
) -> None:
    async with placed(tmp_path) as place:
        for operation in operations(await place.new_objects()):
            await place.ask(*operation)
    files = _written(tmp_path)
    assert {"gateway.db", "gateway.key"} <= {path.name for path in files}
    for path in files:
        stored = path.read_bytes().lower()
        for kind in "br":  # a number that was sent as an id is stored as an id
            stored = stored.replace(f"{kind}-{SSN}".encode(), b"")
        for canary in (API_KEY, SECRET_KEY, *PERSONAL):
            for spelled in (
                canary.encode(),
                canary.encode("utf-16-le"),
                canary.encode().hex().encode(),
            ):
                assert spelled.lower() not in stored, (path.name, canary)


def _written(folder: Path) -> list[Path]:
    """Lists files of the gateway, without the operator's configuration."""
    return [path for path in folder.iterdir() if path.name != "gateway.toml"]
