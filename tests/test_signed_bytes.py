"""Two thousand varied signed requests reach the service as they were signed.

Both connections are compared byte for byte: the client's requests are written by hand, and the
service is a server that records raw requests.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from structlog.testing import capture_logs

from tests.running_gateway import KEY
from tests.signed_requests import (
    NOW,
    OK_BODY,
    RecordedRequest,
    SigningClient,
    open_raw_service,
    open_signed_gateway,
    respond_with,
)
from tests.sockets import open_connection

REQUEST_COUNT = 2_000
CONNECTION_COUNT = 8

# All characters of a target, except those that change the path: see test_targets.py.
PATH_CHARACTERS = "ABCXYZabcxyz0189-_~!$&'()*+,;=:@\"<>[]^`{|}"
PATH_ESCAPES = [
    "%20",
    "%C3%A9",
    "%c3%bc",
    "%40",
    "%3D",
    "%3f",
    "%23",
    "%25-",
    "%E2%82%AC",
    "%41",
    "%zz",
    "%-",
]
QUERY_PARTS = [
    *PATH_ESCAPES,
    "%2F",
    "%2e%2e",
    "%00",
    "%0A",
    "/",
    "?",
    "\\",
    "..",
    ".",
    "&",
    "=",
    "+",
]
METHODS = ["GET", "POST", "PATCH", "PUT", "DELETE", "GET", "POST"]
CONTENT_TYPES = [
    "application/json",
    "application/json; charset=utf-8",
    "text/plain",
    "APPLICATION/JSON",
]


def draw_word(rng: random.Random, encoded: list[str], max_length: int = 12) -> str:
    parts = [rng.choice(encoded) if rng.random() < 0.2 else rng.choice(PATH_CHARACTERS)]
    parts += [
        rng.choice(encoded) if rng.random() < 0.15 else rng.choice(PATH_CHARACTERS)
        for _ in range(rng.randrange(max_length))
    ]
    return "".join(parts)


def draw_target(rng: random.Random) -> str:
    first_segment = rng.choice(
        ["recipients", "batches", "subscriptions", "profile", draw_word(rng, PATH_ESCAPES)]
    )
    parts = [first_segment, *(draw_word(rng, PATH_ESCAPES) for _ in range(rng.randrange(4)))]
    path = "/v1/" + "/".join(parts) + rng.choice(["", "/", "//", "x.", "x..."])
    query = rng.choice(["", "?", "?" + draw_word(rng, QUERY_PARTS, 60), "?a=1&a=2&&b"])
    return path + query


def draw_body(rng: random.Random, method: str) -> bytes:
    if method == "GET":
        return b""
    kind = rng.randrange(5)
    if kind == 0:
        return b""
    if kind == 1:
        return rng.randbytes(rng.choice([1, 2, 100, 5000, 70_000]))
    if kind == 2:
        return b"\r\n\r\n0\r\n\r\n" * rng.randrange(1, 4)
    text = '{"name": "Zoë 王 😀", "amount": "10.00",  "n": 1.10, "x": null}'
    return (text * rng.randrange(1, 6)).encode()


def draw_headers(rng: random.Random) -> list[str]:
    candidates = {
        "Content-Type": rng.choice(CONTENT_TYPES),
        "Accept": rng.choice(["*/*", "application/json;q=0.9, text/html"]),
        "Accept-Language": "de-CH, fr;q=0.5",
        "Accept-Encoding": rng.choice(["gzip, br", "identity", ""]),
        "User-Agent": "a client/1.0 (Zoë)",
        "X-Request-Id": draw_word(rng, ["-"]),
        "Content-Encoding": rng.choice(["gzip", "x", "identity"]),
        "Idempotency-Key": draw_word(rng, ["-"]),
    }
    lines = [f"{name}: {value}" for name, value in candidates.items() if rng.random() < 0.4]
    passed_lines = [
        "Connection: keep-alive",
        "X-Forwarded-For: 192.0.2.1",
        "Cookie: a=b",
        "TE: trailers",
    ]
    return lines + [entry for entry in passed_lines if rng.random() < 0.2]


DROPPED_HEADERS = {"connection", "x-forwarded-for", "cookie", "te", "host", "x-request-id"}


async def test_signed_requests_reach_the_service_byte_for_byte(
    tmp_path: Path,
) -> None:
    rng = random.Random(8)
    sent_by_id: dict[str, RecordedRequest] = {}

    def build_next_request(number: int) -> bytes:
        method, target = rng.choice(METHODS), draw_target(rng)
        # A bulk deletion of batches is parsed, and refused with such a body.
        while method == "DELETE" and target.startswith("/v1/batches"):
            target = draw_target(rng)
        body, headers = draw_body(rng, method), draw_headers(rng)
        client = SigningClient(
            scheme=rng.choice(["svcsign", "SVCSIGN"]), over_query=rng.random() < 0.5
        )
        stamp = NOW + rng.randrange(-30, 31)
        headers += [f"Traceparent: {number}"]
        lines = [*client.build_headers(method, target, body, stamp), *headers]
        pairs = [
            (name, value.strip()) for name, _, value in (line.partition(":") for line in lines)
        ]
        sent_by_id[str(number)] = RecordedRequest(method, target, pairs, body)
        chunks = rng.randrange(1, 5) if body and rng.random() < 0.4 else 0
        return client.build_request(method, target, body, *headers, stamp=stamp, chunks=chunks)

    async def run_client(numbers: range) -> None:
        connection = None
        for number in numbers:
            connection = connection or await open_connection(gateway.running.port)
            await connection.send(build_next_request(number))
            response = await connection.read_response()
            assert response is not None
            assert response.status == 200, (sent_by_id[str(number)].target, response)
            if response.headers.get("connection") == "close":
                await connection.close()
                connection = None
        if connection is not None:
            await connection.close()

    async with open_raw_service(respond_with(OK_BODY)) as recorder:
        limits = {"requests_per_hour": REQUEST_COUNT}
        async with open_signed_gateway(tmp_path, recorder.url, limits=limits) as gateway:
            requests_by_client = [
                range(item, REQUEST_COUNT, CONNECTION_COUNT) for item in range(CONNECTION_COUNT)
            ]
            with capture_logs() as log:
                await asyncio.gather(*map(run_client, requests_by_client))

    assert len(recorder.requests) == len(log) == REQUEST_COUNT
    assert not any(secret in str(log) for secret in (KEY["access_key"], KEY["secret_key"]))
    for request in recorder.requests:
        expected_request = sent_by_id.pop(request.headers["traceparent"])
        assert (request.method, request.target) == (
            expected_request.method,
            expected_request.target,
        )
        assert request.body == expected_request.body, expected_request.target
        headers = {
            name: value
            for name, value in expected_request.headers.items()
            if name not in DROPPED_HEADERS
        }
        expected_headers = {name: decode_as_recorded(value) for name, value in headers.items()}
        added_headers = {"host": f"127.0.0.1:{recorder.port}"}
        if request.body or request.method != "GET":
            added_headers |= {"content-length": str(len(request.body))}
        assert request.headers | {"x-request-id": ""} == expected_headers | added_headers | {
            "x-request-id": ""
        }
        assert request.headers["x-request-id"] == expected_request.headers.get(
            "x-request-id", request.headers["x-request-id"]
        )
    assert sent_by_id == {}


def decode_as_recorded(value: str) -> str:
    """A header's value as the recorder reads it: one letter for each byte."""
    return value.encode().decode("latin-1")
