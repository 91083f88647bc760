"""Ten thousand varied signed requests reach the service as they were signed.

Both connections are compared byte for byte: the client's requests are written by hand, and the
service is a server that records raw requests.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from structlog.testing import capture_logs

from tests.house import KEY
from tests.signed import NOW, OK, Client, Written, open_signed, recording, says
from tests.sockets import wire

REQUESTS = 10_000
CONNECTIONS = 8

# Whatever a target may hold, but for what makes a path another one: see test_targets.py.
LETTERS = "ABCXYZabcxyz0189-_~!$&'()*+,;=:@\"<>[]^`{|}"
CODED = [
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
IN_QUERIES = [*CODED, "%2F", "%2e%2e", "%00", "%0A", "/", "?", "\\", "..", ".", "&", "=", "+"]
METHODS = ["GET", "POST", "PATCH", "PUT", "DELETE", "GET", "POST"]
TYPES = ["application/json", "application/json; charset=utf-8", "text/plain", "APPLICATION/JSON"]


def word(chance: random.Random, coded: list[str], most: int = 12) -> str:
    some = [chance.choice(coded) if chance.random() < 0.2 else chance.choice(LETTERS)]
    some += [
        chance.choice(coded) if chance.random() < 0.15 else chance.choice(LETTERS)
        for _ in range(chance.randrange(most))
    ]
    return "".join(some)


def target_of(chance: random.Random) -> str:
    first = chance.choice(
        ["recipients", "batches", "subscriptions", "profile", word(chance, CODED)]
    )
    parts = [first, *(word(chance, CODED) for _ in range(chance.randrange(4)))]
    path = "/v1/" + "/".join(parts) + chance.choice(["", "/", "//", "x.", "x..."])
    query = chance.choice(["", "?", "?" + word(chance, IN_QUERIES, 60), "?a=1&a=2&&b"])
    return path + query


def body_of(chance: random.Random, method: str) -> bytes:
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


def headers_of(chance: random.Random) -> list[str]:
    some = {
        "Content-Type": chance.choice(TYPES),
        "Accept": chance.choice(["*/*", "application/json;q=0.9, text/html"]),
        "Accept-Language": "de-CH, fr;q=0.5",
        "Accept-Encoding": chance.choice(["gzip, br", "identity", ""]),
        "User-Agent": "a client/1.0 (Zoë)",
        "X-Request-Id": word(chance, ["-"]),
        "Content-Encoding": chance.choice(["gzip", "x", "identity"]),
        "Idempotency-Key": word(chance, ["-"]),
    }
    kept = [f"{name}: {value}" for name, value in some.items() if chance.random() < 0.4]
    others = ["Connection: keep-alive", "X-Forwarded-For: 192.0.2.1", "Cookie: a=b", "TE: trailers"]
    return kept + [one for one in others if chance.random() < 0.2]


LEFT_OUT = {"connection", "x-forwarded-for", "cookie", "te", "host", "x-request-id"}


async def test_what_the_service_is_sent_is_byte_for_byte_what_the_client_signed(
    tmp_path: Path,
) -> None:
    chance = random.Random(8)
    sent: dict[str, Written] = {}

    def made(number: int) -> bytes:
        method, target = chance.choice(METHODS), target_of(chance)
        body, headers = body_of(chance, method), headers_of(chance)
        client = Client(
            scheme=chance.choice(["svcsign", "SVCSIGN"]), over_query=chance.random() < 0.5
        )
        stamp = NOW + chance.randrange(-30, 31)
        headers += [f"Traceparent: {number}"]
        lines = [*client.headers(method, target, body, stamp), *headers]
        pairs = [(name, value.strip()) for name, _, value in (one.partition(":") for one in lines)]
        sent[str(number)] = Written(method, target, pairs, body)
        chunks = chance.randrange(1, 5) if body and chance.random() < 0.4 else 0
        return client.request(method, target, body, *headers, stamp=stamp, chunks=chunks)

    async def client(numbers: range) -> None:
        connection = None
        for number in numbers:
            connection = connection or await wire(house.running.port)
            await connection.say(made(number))
            answer = await connection.answer()
            assert answer is not None
            assert answer.status == 200, (sent[str(number)].target, answer)
            if answer.headers.get("connection") == "close":
                await connection.close()
                connection = None
        if connection is not None:
            await connection.close()

    async with recording(says(OK)) as recorder:
        limits = {"requests_per_hour": REQUESTS}
        async with open_signed(tmp_path, recorder.url, limits=limits) as house:
            shares = [range(one, REQUESTS, CONNECTIONS) for one in range(CONNECTIONS)]
            with capture_logs() as logged:
                await asyncio.gather(*map(client, shares))

    assert len(recorder.requests) == len(logged) == REQUESTS
    assert not any(secret in str(logged) for secret in (KEY["access_key"], KEY["secret_key"]))
    for came in recorder.requests:
        one = sent.pop(came.headers["traceparent"])
        assert (came.method, came.target) == (one.method, one.target)
        assert came.body == one.body, one.target
        headers = {name: value for name, value in one.headers.items() if name not in LEFT_OUT}
        kept = {name: as_sent(value) for name, value in headers.items()}
        added = {"host": f"127.0.0.1:{recorder.port}"}
        if came.body or came.method != "GET":
            added |= {"content-length": str(len(came.body))}
        assert came.headers | {"x-request-id": ""} == kept | added | {"x-request-id": ""}
        assert came.headers["x-request-id"] == one.headers.get(
            "x-request-id", came.headers["x-request-id"]
        )
    assert sent == {}


def as_sent(value: str) -> str:
    """A header's value as the recorder reads it: one letter for each byte."""
    return value.encode().decode("latin-1")
