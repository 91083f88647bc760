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
    build_batch,
    list_requests,
)
from tests.processes import Process, build_configuration, run_serve
from tests.running_gateway import build_settings, import_api_keys
from tests.signed_requests import SigningClient
from tests.simulator import Fault, Service, ServiceCredentials, Simulator, start_simulator
from tests.sockets import RawResponse, assert_legacy, exchange, open_connection, wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("leaks")


class GatewayProcessUnderTest:
    """The gateway process, its service, and the part of the log that a test has caused."""

    def __init__(self, gateway: Process, simulator: Simulator) -> None:
        self.gateway = gateway
        self.simulator = simulator
        self.log_start = 0

    def read_new_log(self) -> str:
        return self.gateway.read_log()[self.log_start :]

    async def request(
        self, method: str, path: str, body: Any = b"", key: str = API_KEY
    ) -> RawResponse:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"{method} /v1{path} HTTP/1.1", "Host: x", f"X-API-Key: {key}", *HEADERS]
        lines += [f"Idempotency-Key: {SSN}-{next(SEEDS)}"]  # an identical request would be a retry
        lines += [f"Content-Length: {len(data)}"] if data else []
        response = await exchange(self.gateway.port, "\r\n".join([*lines, "", ""]).encode() + data)
        assert response is not None
        assert_legacy(response)
        assert response.status in (200, 403, 404, 406, 429, 500)
        return response

    async def create_objects(self) -> Objects:
        create_response = await self.request("POST", "/recipients", PERSON | {"payout": PAYOUT})
        recipient = create_response.parse_json["recipient"]["id"]
        batch = (await self.request("POST", "/batches", build_batch(recipient))).parse_json[
            "batch"
        ]["id"]
        list_response = await self.request("GET", f"/batches/{batch}/payments")
        return Objects(recipient, batch, list_response.parse_json["payments"][0]["id"])


SEEDS: Iterator[int] = iter(range(100_000))


@asynccontextmanager
async def open_gateway_process(
    folder: Path, *upstream: str
) -> AsyncIterator[GatewayProcessUnderTest]:
    credentials = ServiceCredentials(ACCESS_KEY, SECRET_KEY, "canary", "sandbox")
    simulator = await start_simulator(service=Service(credentials=[credentials], seed=1))
    key = {
        "merchant": "canary",
        "environment": "sandbox",
        "api_key": API_KEY,
        "access_key": ACCESS_KEY,
        "secret_key": SECRET_KEY,
        "name": "first",
    }
    # The circuit breaker is off, so that each request meets its fault.
    text = build_configuration(simulator.url, "[upstream]\nbreaker_failures = 0", *upstream)
    (folder / "gateway.toml").write_text(text)
    invalid_key = key | {"api_key": "a-key-of-a-wrong-pair", "merchant": "other", "name": "wrong"}
    invalid_key |= {"access_key": "REFUSEDACCESSKEY", "secret_key": "refused-secret-key"}
    await import_api_keys(build_settings(folder, simulator.url), [key, invalid_key])
    async with run_serve(folder) as gateway:
        yield GatewayProcessUnderTest(gateway, simulator)
        assert await gateway.stop() == 0
    await simulator.stop()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def module_gateway(folder: Path) -> AsyncIterator[GatewayProcessUnderTest]:
    async with open_gateway_process(folder) as running_process:
        yield running_process


@pytest.fixture
def gateway_process(module_gateway: GatewayProcessUnderTest) -> Iterator[GatewayProcessUnderTest]:
    module_gateway.log_start = len(module_gateway.gateway.read_log())
    yield module_gateway
    module_gateway.simulator.service.faults.clear()


async def assert_log_has_no_canary(gateway_process: GatewayProcessUnderTest) -> None:
    """Checks that the log of this test has lines, and no canary."""
    await wait_until(lambda: bool(gateway_process.read_new_log()))
    assert_no_canary(gateway_process.read_new_log())


async def test_successful_operations_log_no_secrets(
    gateway_process: GatewayProcessUnderTest,
) -> None:
    line_count = len(gateway_process.gateway.parse_log())
    responses = [
        await gateway_process.request(*operation)
        for operation in list_requests(await gateway_process.create_objects())
    ]
    statuses = [response.status for response in responses]
    assert statuses.count(200) >= 25, statuses
    assert len(gateway_process.gateway.parse_log()) >= line_count + len(statuses)
    await assert_log_has_no_canary(gateway_process)


MALFORMED = {
    "the whole thing as text": lambda body: json.dumps(json.dumps(body)).encode(),
    "an array": lambda body: json.dumps([body]).encode(),
    "cut off": lambda body: json.dumps(body).encode()[:-3],
    "a comma too many": lambda body: json.dumps(body).encode()[:-1] + b",}",
    "Latin-1": lambda body: json.dumps(body).encode() + b"\xe4",
    "every value a number": lambda body: json.dumps(_map_strings(body, lambda _: int(SSN))).encode(),
    "every value an object": lambda body: json.dumps(_map_strings(body, lambda ids: {ids: ids})).encode(),
    "every value an array": lambda body: json.dumps(_map_strings(body, lambda ids: [ids])).encode(),
    "every value true": lambda body: json.dumps(_map_strings(body, lambda ids: True)).encode(),
    "every value twice as long": lambda body: json.dumps(_map_strings(body, lambda ids: ids * 2)).encode(),
    "every value an email": lambda body: json.dumps(_map_strings(body, lambda ids: EMAIL)).encode(),
    "every value an IBAN": lambda body: json.dumps(_map_strings(body, lambda ids: IBAN)).encode(),
    "every value masked": lambda body: json.dumps(_map_strings(body, lambda ids: f"**{ids}")).encode(),
    "a key twice": lambda body: json.dumps(body).encode()[:-1] + b',"ssn":"' + SSN.encode() + b'","ssn":1}',
    "unknown fields": lambda body: json.dumps(body | dict.fromkeys(CANARIES, SECRET_KEY)).encode(),
}  # fmt: skip


def _map_strings(value: Any, change_text: Any) -> Any:
    if isinstance(value, dict):
        return {name: _map_strings(item, change_text) for name, item in value.items()}
    if isinstance(value, list):
        return [_map_strings(entry, change_text) for entry in value]
    return change_text(value) if isinstance(value, str) else value


@pytest.mark.parametrize("malform", MALFORMED.values(), ids=MALFORMED)
async def test_malformed_operations_disclose_no_secrets(
    gateway_process: GatewayProcessUnderTest, malform: Any
) -> None:
    refused_count = 0
    for method, path, body in list_requests(await gateway_process.create_objects()):
        if isinstance(body, dict):
            response = await gateway_process.request(method, path, malform(body))
            if response.status != 200:
                refused_count += 1
                assert_no_canary(response.body.decode())
    assert refused_count
    await assert_log_has_no_canary(gateway_process)


@pytest.mark.parametrize("canary", CANARIES)
async def test_secret_in_a_path_or_key_is_not_repeated(
    gateway_process: GatewayProcessUnderTest, canary: str
) -> None:
    for path in (
        f"/{quote(canary)}",
        f"/recipients/{quote(canary)}",
        f"/recipients/R-1/{quote(canary)}",
    ):
        response = await gateway_process.request("GET", path)
        assert response.status == 404
        assert_no_canary(response.body.decode() + json.dumps(response.headers))
    if canary != API_KEY:
        response = await gateway_process.request("GET", "/recipients", key=canary)
        assert response.status == 403
        assert_no_canary(response.body.decode() + json.dumps(response.headers))
    await assert_log_has_no_canary(gateway_process)


@pytest.mark.parametrize("request_id", [API_KEY, f"order-{API_KEY}.1"])
async def test_request_id_containing_the_key_is_not_logged(
    gateway_process: GatewayProcessUnderTest, request_id: str
) -> None:
    lines = [
        "GET /v1/recipients HTTP/1.1",
        "Host: x",
        f"X-API-Key: {API_KEY}",
        f"X-Request-Id: {request_id}",
    ]
    response = await exchange(gateway_process.gateway.port, "\r\n".join([*lines, "", ""]).encode())
    assert response is not None
    assert response.status == 200
    assert_no_canary(json.dumps(response.headers))
    await assert_log_has_no_canary(gateway_process)


async def test_secret_in_a_malformed_request_is_not_repeated(
    gateway_process: GatewayProcessUnderTest,
) -> None:
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
        response = await exchange(gateway_process.gateway.port, request.encode())
        assert response is not None
        assert_no_canary(response.body.decode() + json.dumps(response.headers))
    await assert_log_has_no_canary(gateway_process)


ALL_CANARIES = " ".join(CANARIES)


def _build_errors(code: str, message: str, field: str | None = None) -> bytes:
    return json.dumps(
        {"ok": False, "errors": [{"code": code, "message": message, "field": field}]}
    ).encode()


SERVICE_FAULTS = {
    "a page": Fault("*", "*", status=502, body=f"<html>{ALL_CANARIES}</html>".encode()),
    "cut JSON": Fault("*", "*", status=200, body=f'{{"ok":true,"recipient":"{ALL_CANARIES}'.encode()),
    "JSON of another shape": Fault(
        "*", "*", status=200, body=json.dumps({"ok": True, "recipient": ALL_CANARIES}).encode()
    ),
    "an object of another shape": Fault(
        "*", "*", status=200, body=json.dumps({"ok": True, "recipient": {"id": ALL_CANARIES}}).encode()
    ),
    "a list of another shape": Fault(
        "*", "*", status=200, body=json.dumps({"ok": True, "recipients": [ALL_CANARIES], "meta": ALL_CANARIES}).encode()
    ),
    "a redirect": Fault("*", "*", status=302, headers={"Location": f"http://{EMAIL}/{SSN}"}),
    "headers": Fault("*", "*", status=503, headers={"Retry-After": SSN, "X-Own": ALL_CANARIES, ALL_CANARIES[:15]: "x"}),
    "a code": Fault("*", "*", status=400, body=_build_errors(EMAIL, "no", SSN)),
    "a code of an error of its own": Fault("*", "*", status=500, body=_build_errors(EMAIL, "no", SSN)),
    "a dropped connection": Fault("*", "*", close="before"),
    "a dropped connection after the work": Fault("*", "*", close="after"),
    "an encoding": Fault("*", "*", status=200, body=b"x", headers={"Content-Encoding": EMAIL}),
    "a type": Fault("*", "*", status=200, body=b"x", headers={"Content-Type": EMAIL}),
}  # fmt: skip


@pytest.mark.parametrize("fault", SERVICE_FAULTS.values(), ids=SERVICE_FAULTS)
async def test_service_fault_discloses_no_secrets(
    gateway_process: GatewayProcessUnderTest, fault: Fault
) -> None:
    ids = await gateway_process.create_objects()
    for operation in list_requests(ids):
        gateway_process.simulator.service.faults[:] = [replace(fault, times=50)]
        response = await gateway_process.request(*operation)
        if response.status != 200:
            assert_no_canary(response.body.decode())
    await assert_log_has_no_canary(gateway_process)


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
async def test_field_error_of_the_service_is_passed_on_and_not_logged(
    gateway_process: GatewayProcessUnderTest, status: int, code: str
) -> None:
    ids = await gateway_process.create_objects()
    for operation in list_requests(ids):
        errors = _build_errors(code, f"Not good: {EMAIL}, {SSN}", "firstName")
        gateway_process.simulator.service.faults[:] = [
            Fault("*", "*", status=status, body=errors, times=50)
        ]
        response = await gateway_process.request(*operation)
        hidden_canaries = tuple(canary for canary in CANARIES if canary not in (EMAIL, SSN))
        if response.status != 200:
            assert_no_canary(response.body.decode(), hidden_canaries)
    await assert_log_has_no_canary(gateway_process)


async def test_service_timeout_discloses_no_secrets(tmp_path: Path) -> None:
    # A gateway of its own, because a service that is merely busy exceeds such a timeout too.
    async with open_gateway_process(tmp_path, "timeout_seconds = 0.5") as gateway_process:
        gateway_process.simulator.service.faults[:] = [
            Fault("POST", "*", answer_delay=1),
            Fault("GET", "*", status=503, times=1000),  # prevents an immediate confirmation
        ]
        body = PERSON | {"payout": PAYOUT}
        response = await gateway_process.request("POST", "/recipients", body)
        assert response.status == 500
        assert_no_canary(response.body.decode())
        gateway_process.simulator.service.faults.clear()
        await assert_log_has_no_canary(gateway_process)


async def test_client_disconnect_logs_no_secrets(gateway_process: GatewayProcessUnderTest) -> None:
    body = json.dumps(PERSON).encode()
    head = f"POST /v1/recipients HTTP/1.1\r\nHost: x\r\nX-API-Key: {API_KEY}\r\nContent-Length: 9999\r\n\r\n"
    async with await open_connection(gateway_process.gateway.port) as connection:
        await connection.send(head.encode() + body)
        await asyncio.sleep(0.05)
    await gateway_process.request("GET", "/nowhere")
    await assert_log_has_no_canary(gateway_process)


async def test_refused_credentials_are_logged_by_access_key_prefix(
    gateway_process: GatewayProcessUnderTest,
) -> None:
    response = await gateway_process.request("GET", "/recipients", key="a-key-of-a-wrong-pair")
    assert (response.status, response.code) == (403, "invalid_api_key")
    await wait_until(lambda: bool(gateway_process.read_new_log()))
    log = gateway_process.read_new_log()
    events = [
        line for line in gateway_process.gateway.parse_log() if line.get("access_key") == "REFU…"
    ]
    assert events
    assert events[0]["level"] == "error"
    assert events[0]["environment"] == "sandbox"
    assert "refused-secret-key" not in log
    assert "REFUSEDACCESSKEY" not in log, "it might be the secret, swapped"
    assert "a-key-of-a-wrong-pair" not in log
    assert "REFUSEDACCESSKEY" not in response.body.decode()


# The signed interface.

CANARY_QUERY = "&".join(f"q{number}={quote(canary)}" for number, canary in enumerate(PERSONAL))


def build_signed_request(method: str, target: str, body: bytes = b"", **credentials: str) -> bytes:
    all_credentials = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY, **credentials}
    return SigningClient(**all_credentials).build_request(
        method, target, body, *SIGNED_HEADERS, stamp=int(time.time())
    )


def extract_signature(request_bytes: bytes) -> str:
    """Returns the signature of a request."""
    return request_bytes.partition(b"\r\nX-SVC")[0][-64:].decode()


async def send_signed(
    gateway_process: GatewayProcessUnderTest,
    method: str,
    target: str,
    body: bytes = b"",
    *replacements: tuple[str, str],
    **credentials: str,
) -> tuple[RawResponse, str]:
    """Sends a signed request with all canaries in headers; returns the answer and signature."""
    request_bytes = build_signed_request(method, target, body, **credentials)
    signature = extract_signature(request_bytes)
    for value, replacement in replacements:
        request_bytes = request_bytes.replace(value.encode(), replacement.encode())
    response = await exchange(gateway_process.gateway.port, request_bytes)
    assert response is not None
    return response, signature


SIGNED_HEADERS = [
    *(line for line in HEADERS if not line.startswith(("Authorization", API_KEY))),
    f"X-API-Key: {API_KEY}",
]


Replacements = tuple[tuple[str, str], ...]
SIGNED_CASES: dict[str, tuple[int, str, Replacements, dict[str, str]]] = {
    "a good one": (200, f"/v1/recipients?search=x&{CANARY_QUERY}", (), {}),
    "about a person": (404, f"/v1/{quote(EMAIL)}/{SSN}", (), {}),
    "about a batch": (404, f"/v1/batches/{IBAN}/start-processing?{CANARY_QUERY}", (), {}),
    "to nowhere": (404, f"/v1/%2e%2e/{SSN}", (), {}),
    "an unknown key": (401, f"/v1/x?{CANARY_QUERY}", (), {"access_key": "CANARYUNKNOWNKEY"}),
    "another secret": (401, f"/v1/x?{CANARY_QUERY}", (), {"secret_key": "another"}),
    "no stamp": (401, f"/v1/x?{CANARY_QUERY}", (("Timestamp: ", f"Timestamp: {SSN}"),), {}),
    "no credentials": (401, f"/v1/x?{CANARY_QUERY}", (("svcsign ", f"svcsign {SECRET_KEY} "),), {}),
}


@pytest.mark.parametrize("case", SIGNED_CASES.values(), ids=SIGNED_CASES)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_signed_request_logs_no_secrets_or_signature(
    gateway_process: GatewayProcessUnderTest,
    method: str,
    case: tuple[int, str, Replacements, dict[str, str]],
) -> None:
    status, target, replacements, credentials = case
    body = json.dumps(PERSON).encode() if method == "POST" else b""
    response, signature = await send_signed(
        gateway_process, method, target, body, *replacements, **credentials
    )
    # A service may look at the Content-Type, which is an IBAN here, before anything else.
    assert response.status in ((status, 400) if body and status in (200, 404) else (status,))
    await wait_until(lambda: bool(gateway_process.read_new_log()))
    log = gateway_process.read_new_log()
    assert "CANARYUNKNOWNKEY" not in log
    assert signature not in log
    assert signature not in response.body.decode()
    assert_no_canary(response.body.decode() + json.dumps(response.headers))
    await assert_log_has_no_canary(gateway_process)


@pytest.mark.parametrize("template", ["{}", "order-{}.1"])
async def test_request_id_containing_the_signature_is_not_logged(
    gateway_process: GatewayProcessUnderTest, template: str
) -> None:
    request_bytes = SigningClient(ACCESS_KEY, SECRET_KEY).build_request(stamp=int(time.time()))
    request_id = template.format(extract_signature(request_bytes))
    response = await exchange(
        gateway_process.gateway.port,
        request_bytes[:-2] + f"X-Request-Id: {request_id}\r\n\r\n".encode(),
    )
    assert response is not None
    assert response.status == 200
    await wait_until(lambda: bool(gateway_process.read_new_log()))
    assert request_id not in gateway_process.read_new_log()


@pytest.mark.parametrize("fault", SERVICE_FAULTS.values(), ids=SERVICE_FAULTS)
async def test_service_fault_at_the_signed_interface_logs_no_secrets(
    gateway_process: GatewayProcessUnderTest, fault: Fault
) -> None:
    for method in ("GET", "POST"):
        gateway_process.simulator.service.faults[:] = [replace(fault, times=1)]
        line_count = len(gateway_process.gateway.parse_log())
        data = build_signed_request(method, f"/v1/recipients?{CANARY_QUERY}")
        async with await open_connection(gateway_process.gateway.port) as connection:
            await connection.send(data)
            await wait_until(
                lambda line_count=line_count: len(gateway_process.gateway.parse_log()) > line_count
            )
        assert extract_signature(data) not in gateway_process.read_new_log()
    await assert_log_has_no_canary(gateway_process)


async def test_log_lines_are_json_and_each_request_has_one(
    gateway_process: GatewayProcessUnderTest,
) -> None:
    line_count = len(gateway_process.gateway.parse_log())
    response = await gateway_process.request("GET", "/recipients")

    def list_request_lines() -> list[dict[str, Any]]:
        # Writes in doubt of other tests may be logged at the same time.
        new_lines = gateway_process.gateway.parse_log()[line_count:]
        return [entry for entry in new_lines if entry["event"] == "request"]

    # The line is written a moment after the response.
    await wait_until(lambda: bool(list_request_lines()))
    (line,) = list_request_lines()
    assert line["merchant"] == "canary"
    assert line["operation"] == "list_recipients"
    assert line["http.route"] == "/v1/recipients"
    assert line["client.address"] == "127.0.0.1"
    assert line["http.request.body.size"] == 0
    assert line["http.response.body.size"] == len(response.body)
    assert line["duration_ms"] >= line["upstream_duration_ms"] > 0
    log = gateway_process.gateway.parse_log()
    durations = [entry["duration_ms"] for entry in log if entry["event"] == "request"]
    assert any(duration % 1 for duration in durations), "only ticks of the event loop"
    assert "Traceback" not in gateway_process.gateway.read_log()
