"""Ten thousand varied signed requests reach the service as they were signed.

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

REQUEST_COUNT = 10_000
CONNECTION_COUNT = 8

# Whatever a target may hold, but for what makes a path another one: see test_targets.py.
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


def draw_word(chance: random.Random, coded: list[str], most: int = 12) -> str:
    some = [chance.choice(coded) if chance.random() < 0.2 else chance.choice(PATH_CHARACTERS)]
    some += [
        chance.choice(coded) if chance.random() < 0.15 else chance.choice(PATH_CHARACTERS)
        for _ in range(chance.randrange(most))
    ]
    return "".join(some)


def draw_target(chance: random.Random) -> str:
    first = chance.choice(
        ["recipients", "batches", "subscriptions", "profile", draw_word(chance, PATH_ESCAPES)]
    )
    parts = [first, *(draw_word(chance, PATH_ESCAPES) for _ in range(chance.randrange(4)))]
    path = "/v1/" + "/".join(parts) + chance.choice(["", "/", "//", "x.", "x..."])
    query = chance.choice(["", "?", "?" + draw_word(chance, QUERY_PARTS, 60), "?a=1&a=2&&b"])
    return path + query


def draw_body(chance: random.Random, method: str) -> bytes:
    if method == "GET":
        return b""
    kind = chance.randrange(5)
    if kind == 0:
        return b""
    if kind == 1:
        return chance.randbytes(chance.choice([1, 2, 100, 5000, 70_000]))
    if kind == 2:
        return b"\r\n\r\n0\r\n\r\n" * chance.randrange(1, 4)
    text = '{"name": "Zoë 王 😀", "amount": "10.00",  "n": 1.10, "x": null}'
    return (text * chance.randrange(1, 6)).encode()


def draw_headers(chance: random.Random) -> list[str]:
    some = {
        "Content-Type": chance.choice(CONTENT_TYPES),
        "Accept": chance.choice(["*/*", "application/json;q=0.9, text/html"]),
        "Accept-Language": "de-CH, fr;q=0.5",
        "Accept-Encoding": chance.choice(["gzip, br", "identity", ""]),
        "User-Agent": "a client/1.0 (Zoë)",
        "X-Request-Id": draw_word(chance, ["-"]),
        "Content-Encoding": chance.choice(["gzip", "x", "identity"]),
        "Idempotency-Key": draw_word(chance, ["-"]),
    }
    kept = [f"{name}: {value}" for name, value in some.items() if chance.random() < 0.4]
    others = ["Connection: keep-alive", "X-Forwarded-For: 192.0.2.1", "Cookie: a=b", "TE: trailers"]
    return kept + [entry for entry in others if chance.random() < 0.2]


DROPPED_HEADERS = {"connection", "x-forwarded-for", "cookie", "te", "host", "x-request-id"}


async def test_signed_requests_reach_the_service_byte_for_byte(
    tmp_path: Path,
) -> None:
    chance = random.Random(8)
    sent: dict[str, RecordedRequest] = {}

    def build_next_request(number: int) -> bytes:
        method, target = chance.choice(METHODS), draw_target(chance)
        body, headers = draw_body(chance, method), draw_headers(chance)
        client = SigningClient(
            scheme=chance.choice(["svcsign", "SVCSIGN"]), over_query=chance.random() < 0.5
        )
        stamp = NOW + chance.randrange(-30, 31)
        headers += [f"Traceparent: {number}"]
        lines = [*client.build_headers(method, target, body, stamp), *headers]
        pairs = [
            (name, value.strip()) for name, _, value in (line.partition(":") for line in lines)
        ]
        sent[str(number)] = RecordedRequest(method, target, pairs, body)
        chunks = chance.randrange(1, 5) if body and chance.random() < 0.4 else 0
        return client.build_request(method, target, body, *headers, stamp=stamp, chunks=chunks)

    async def run_client(numbers: range) -> None:
        connection = None
        for number in numbers:
            connection = connection or await open_connection(gateway.running.port)
            await connection.send(build_next_request(number))
            answer = await connection.read_response()
            assert answer is not None
            assert answer.status == 200, (sent[str(number)].target, answer)
            if answer.headers.get("connection") == "close":
                await connection.close()
                connection = None
        if connection is not None:
            await connection.close()

    async with open_raw_service(respond_with(OK_BODY)) as recorder:
        limits = {"requests_per_hour": REQUEST_COUNT}
        async with open_signed_gateway(tmp_path, recorder.url, limits=limits) as gateway:
            shares = [
                range(item, REQUEST_COUNT, CONNECTION_COUNT) for item in range(CONNECTION_COUNT)
            ]
            with capture_logs() as logged:
                await asyncio.gather(*map(run_client, shares))

    assert len(recorder.requests) == len(logged) == REQUEST_COUNT
    assert not any(secret in str(logged) for secret in (KEY["access_key"], KEY["secret_key"]))
    for received in recorder.requests:
        expected_request = sent.pop(received.headers["traceparent"])
        assert (received.method, received.target) == (
            expected_request.method,
            expected_request.target,
        )
        assert received.body == expected_request.body, expected_request.target
        headers = {
            name: value
            for name, value in expected_request.headers.items()
            if name not in DROPPED_HEADERS
        }
        expected = {name: decode_as_recorded(value) for name, value in headers.items()}
        added = {"host": f"127.0.0.1:{recorder.port}"}
        if received.body or received.method != "GET":
            added |= {"content-length": str(len(received.body))}
        assert received.headers | {"x-request-id": ""} == expected | added | {"x-request-id": ""}
        assert received.headers["x-request-id"] == expected_request.headers.get(
            "x-request-id", received.headers["x-request-id"]
        )
    assert sent == {}


def decode_as_recorded(value: str) -> str:
    """A header's value as the recorder reads it: one letter for each byte."""
    return value.encode().decode("latin-1")
