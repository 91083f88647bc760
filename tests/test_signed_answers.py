"""Passthrough of the signed interface: bodies, headers, answers and broken connections."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.upstream.spool import MAX_MEMORY_BYTES
from tests import operating
from tests.house import House
from tests.operating import configure
from tests.signed import (
    CLIENT,
    INTERNAL,
    INVALID_KEY,
    OK,
    Client,
    Play,
    Recorder,
    Written,
    asked,
    chunked,
    http,
    open_signed,
    recording,
    refused,
    reset,
    says,
)
from tests.sockets import until, wire

RECIPIENTS = "/v1/recipients"
JSON = "Content-Type: application/json"
MEGABYTE = 1024 * 1024
WRITES = ["POST", "PUT", "PATCH", "DELETE"]


@asynccontextmanager
async def between(
    folder: Path, play: Play | None = None, **sections: Any
) -> AsyncIterator[tuple[Recorder, House]]:
    async with recording(play) as recorder:
        async with open_signed(folder, recorder.url, **sections) as house:
            yield recorder, house


# Bodies on their way there.


@pytest.mark.parametrize("chunks", [0, 1, 300])
@pytest.mark.parametrize("size", [1, 70_000, MAX_MEMORY_BYTES, MAX_MEMORY_BYTES + 1, 9 * MEGABYTE])
async def test_a_body_arrives_as_it_was_sent_whatever_its_size_and_framing(
    tmp_path: Path, size: int, chunks: int
) -> None:
    body = os.urandom(size)
    async with between(tmp_path) as (recorder, house):
        sent = CLIENT.request("POST", RECIPIENTS, body, JSON, chunks=chunks)
        assert (await asked(house, sent)).status == 200
    assert recorder.only.body == body


async def test_nothing_is_sent_on_before_the_last_byte_was_there_and_proven(
    tmp_path: Path,
) -> None:
    body = os.urandom(3 * MEGABYTE)
    async with between(tmp_path) as (recorder, house):
        for client in (CLIENT, Client(secret_key="wrong")):
            sent = client.request("POST", RECIPIENTS, body, JSON)
            async with await wire(house.running.port) as connection:
                await connection.say(sent[:-1])
                assert await connection.silent()
                assert recorder.connections == 0
                if client is CLIENT:
                    continue  # and goes away
                await connection.say(sent[-1:])
                answer = await connection.answer()
                assert answer is not None
                assert refused(answer) == INVALID_KEY
    assert recorder.connections == 0


async def test_a_spooled_body_leaves_nothing_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spools = tmp_path / "spools"
    spools.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(spools))
    body = b"a name" * MEGABYTE
    named: list[str] = []

    async def play(_: Written, _reader: Any, writer: asyncio.StreamWriter) -> None:
        named.extend(one.name for one in spools.iterdir())
        writer.write(OK)

    async with between(tmp_path, play) as (recorder, house):
        assert (await asked(house, CLIENT.request("POST", RECIPIENTS, body, JSON))).status == 200
    assert len(recorder.only.body) == len(body)
    assert named == list(spools.iterdir()) == []


@pytest.mark.parametrize("chunks", [0, 3])
async def test_a_body_over_the_limit_is_refused_and_not_sent(tmp_path: Path, chunks: int) -> None:
    async with between(tmp_path, limits={"body_bytes": 10_000}) as (recorder, house):
        sent = CLIENT.request("POST", RECIPIENTS, b"x" * 10_001, JSON, chunks=chunks)
        assert refused(await asked(house, sent)) == (413, "invalid_field")
        assert recorder.requests == []
        whole = CLIENT.request("POST", RECIPIENTS, b"x" * 10_000, JSON, chunks=chunks)
        assert (await asked(house, whole)).status == 200


async def test_a_body_that_is_not_whole_is_refused_and_not_sent(tmp_path: Path) -> None:
    async with between(tmp_path) as (recorder, house):
        sent = CLIENT.request("POST", RECIPIENTS, b'{"a":1}', JSON, chunks=2)
        whole, _, rest = sent.partition(b"\r\n3\r\n")
        async with await wire(house.running.port) as connection:
            await connection.say(whole)
            await asyncio.sleep(0.05)
            await connection.say(b"\r\nZ\r\n" + rest)
            answer = await connection.answer()
        assert answer is not None
        # As what came of it: it is no body, or not the one that was signed.
        assert refused(answer) in ((400, "invalid_field"), (401, "invalid_api_key"))
    assert recorder.requests == []


async def test_a_body_is_asked_for_only_where_it_would_be_looked_at(tmp_path: Path) -> None:
    body = b'{"a":1}'
    expects = "Expect: 100-continue"
    async with between(tmp_path) as (recorder, house):
        for client, statuses in ((CLIENT, [100, 200]), (Client(access_key="NOBODY"), [401])):
            sent = client.request("POST", RECIPIENTS, body, JSON, expects)
            async with await wire(house.running.port) as connection:
                await connection.say(sent.removesuffix(body))
                for status in statuses:
                    answer = await connection.answer()
                    assert answer is not None
                    assert answer.status == status
                    if status == 100:
                        await connection.say(body)
    assert recorder.only.body == body
    assert "expect" not in recorder.only.headers


async def test_a_compressed_body_goes_on_as_it_came(tmp_path: Path) -> None:
    body = gzip.compress(b'{"a":1}')
    async with between(tmp_path) as (recorder, house):
        sent = CLIENT.request("POST", RECIPIENTS, body, JSON, "Content-Encoding: gzip")
        assert (await asked(house, sent)).status == 200
    assert recorder.only.body == body
    assert recorder.only.headers["content-encoding"] == "gzip"


@pytest.mark.parametrize(("method", "length"), [("GET", None), ("DELETE", "0"), ("POST", "0")])
async def test_no_body_is_no_body(tmp_path: Path, method: str, length: str | None) -> None:
    async with between(tmp_path) as (recorder, house):
        assert (await asked(house, CLIENT.request(method, RECIPIENTS))).status == 200
    assert recorder.only.headers.get("content-length") == length
    assert "content-type" not in recorder.only.headers


@pytest.mark.parametrize("chunks", [0, 1])
async def test_read_with_a_body_is_refused(tmp_path: Path, chunks: int) -> None:
    async with between(tmp_path) as (recorder, house):
        data = CLIENT.request("GET", RECIPIENTS, b"{}", JSON, chunks=chunks)
        answer = await asked(house, data)
    assert (answer.status, answer.code) == (400, "invalid_field")
    assert answer.headers["connection"] == "close"
    assert not recorder.requests


# Headers, there.


async def test_end_to_end_headers_of_a_signed_request_are_passed_on(tmp_path: Path) -> None:
    goes = {
        "Content-Digest": "sha-256=:x:",
        "If-Unmodified-Since": "Sun, 22 Nov 2026 00:00:00 GMT",
        "Referer": "https://shop.example/?email=ada@example.com",
        "X-Vendor-Version": "1.2",
        "Accept": "application/json, */*;q=0.1",
        "Accept-Encoding": "gzip, br",
        "Accept-Language": "fr",
        "Content-Type": "application/json; x=y",
        "Idempotency-Key": "one",
        "If-None-Match": 'W/"x"',
        "Traceparent": "00-1-2-03",
        "User-Agent": "a client/1.0",
        "X-Request-Id": "one two",
    }
    stays = {
        "Connection": "close, X-Own, Accept-Charset",
        "Accept-Charset": "utf-8",
        "Cookie": "a=b",
        "Forwarded": "for=192.0.2.1",
        "Keep-Alive": "timeout=5",
        "Proxy-Authorization": "Basic eA==",
        "Proxy-Connection": "keep-alive",
        "TE": "trailers",
        "Trailer": "X-Own",
        "Upgrade": "h2c",
        "Via": "1.1 x",
        "X-API-Key": "an-api-key-for-tests",
        "X-Forwarded-For": "192.0.2.1",
        "X-Forwarded-Host": "other.example",
        "X-HTTP-Method-Override": "DELETE",
        "X-Original-URL": "/v1/profile/sandbox",
        "X-Own": "x",
        "X-Rewrite-URL": "/v1/x",
    }
    lines = [f"{name}: {value}" for name, value in {**goes, **stays}.items()]
    async with between(tmp_path) as (recorder, house):
        answer = await asked(house, CLIENT.request("POST", RECIPIENTS, b"{}", *lines))
        assert answer.status == 200
    came = recorder.only.headers
    signed = {"authorization", "x-svc-timestamp", "host", "content-length"}
    assert {name: came[name] for name in came.keys() - signed} == {
        name.lower(): value for name, value in goes.items()
    }
    assert came["host"] == f"127.0.0.1:{recorder.port}"


REGISTERED = """
    A-IM Accept-Charset Accept-Datetime Accept-Signature Access-Control-Request-Method Authentication-Info
    Baggage Cache-Control Content-Digest Content-Disposition Content-Encoding Content-Language
    Content-Location Content-MD5 Content-Range Date Digest DNT DPoP ETag From If-Match If-Modified-Since
    If-None-Match If-Range If-Unmodified-Since Last-Modified Link Max-Forwards Origin Pragma Prefer
    Priority Range Referer Repr-Digest Sec-Fetch-Mode Signature Signature-Input Slug Tracestate
    Unencoded-Digest Want-Content-Digest Want-Repr-Digest Warning X-B3-TraceId X-Correlation-ID
    X-Requested-With
"""
"""End-to-end request headers, from the IANA registry and from clients."""


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_every_end_to_end_header_is_passed_on(tmp_path: Path, method: str) -> None:
    names = REGISTERED.split()
    lines = [f"{name}: a value of {name}" for name in names]
    async with between(tmp_path) as (recorder, house):
        assert (await asked(house, CLIENT.request(method, RECIPIENTS, b"", *lines))).status == 200
    came = recorder.only.headers
    assert {name: came.get(name.lower()) for name in names} == {
        name: f"a value of {name}" for name in names
    }


async def test_nothing_is_added_but_an_id_to_find_the_request_by(tmp_path: Path) -> None:
    async with between(tmp_path) as (recorder, house):
        answer = await asked(house, CLIENT.request())
    assert set(recorder.only.headers) == {
        "host", "authorization", "x-svc-timestamp", "x-request-id",
    }  # fmt: skip
    assert answer.headers["x-request-id"] == recorder.only.headers["x-request-id"]


async def test_a_header_that_cannot_be_written_again_is_left_out(tmp_path: Path) -> None:
    sent = CLIENT.request("GET", RECIPIENTS, b"", "User-Agent: caf@").replace(b"caf@", b"caf\xe9")
    async with between(tmp_path) as (recorder, house):
        assert (await asked(house, sent)).status == 200
    assert "user-agent" not in recorder.only.headers


async def test_a_prefix_of_base_url_is_sent_and_not_signed(tmp_path: Path) -> None:
    async with recording() as recorder:
        async with open_signed(tmp_path, recorder.url + "/pre%20fix/x") as house:
            assert (await asked(house, CLIENT.request("GET", "/v1/a?b=c"))).status == 200
    assert recorder.only.target == "/pre%20fix/x/v1/a?b=c"


# Answers on their way back.


@pytest.mark.parametrize("status", [200, 201, 202, 400, 401, 403, 404, 406, 429, 500, 503])
async def test_status_body_and_the_headers_that_matter_come_back(
    tmp_path: Path, status: int
) -> None:
    body = b'{ "ok" : false,\n "amount": 1.10 }'
    answer = http(
        status,
        body,
        "Content-Type: Application/JSON",
        "Retry-After: 7",
        "X-Request-Id: the service's own",
        "Date: Thu, 01 Jan 1970 00:00:00 GMT",
        "RateLimit-Limit: 5",
        "RateLimit-Remaining: 0",
        'ETag: "x"',
        "Vary: a",
        "Vary: b",
        "X-Own: Zoë",
    )
    async with between(tmp_path, says(answer)) as (_, house):
        async with await wire(house.running.port) as connection:
            await connection.say(CLIENT.request("POST", RECIPIENTS, b"{}", JSON))
            head = (await connection.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            came = await connection.reader.readexactly(len(body))
    assert head[0].split()[1] == str(status)
    assert came == body
    lines = set(head[1:-2])
    assert {
        "Content-Type: Application/JSON", "Retry-After: 7", "Vary: a", "Vary: b", 'Etag: "x"',
        "Date: Thu, 01 Jan 1970 00:00:00 GMT", "X-Own: Zoë", f"Content-Length: {len(body)}",
    } <= {line.replace("ETag", "Etag") for line in lines}  # fmt: skip
    small = {line.lower() for line in lines}
    assert {
        "ratelimit-limit: 5",
        "ratelimit-remaining: 0",
        "x-request-id: the service's own",
    } <= small
    assert not any(line.startswith("ratelimit-reset") for line in small)


async def test_what_speaks_of_the_connection_or_the_host_does_not_come_back(tmp_path: Path) -> None:
    answer = http(
        200,
        b"{}",
        "Connection: keep-alive, X-Own",
        "Keep-Alive: timeout=5",
        "X-Own: x",
        "Proxy-Authenticate: Basic",
        "Set-Cookie: a=b",
        "Alt-Svc: h3=x",
        "Strict-Transport-Security: max-age=1",
        "Server: secret/1.0",
        "Trailer: X-Own",
        "Upgrade: h2c",
        "Via: 1.1 x",
        "X-Accel-Redirect: /v1/profile/sandbox",
        "X-Accel-Expires: 60",
        "X-Sendfile: /etc/passwd",
        "X-LIGHTTPD-send-file: /etc/passwd",
        "X-LiteSpeed-Location: /etc/passwd",
        "X-Reproxy-URL: http://127.0.0.1:8081/",
        "Access-Control-Allow-Credentials: true",
        'Clear-Site-Data: "*"',
    )
    async with between(tmp_path, says(answer)) as (recorder, house):
        first, second = [await asked(house, CLIENT.request()) for _ in range(2)]
    assert set(first.headers) == {
        "content-length", "content-type", "date", "server", "x-request-id",
        "access-control-allow-origin", "ratelimit-limit", "ratelimit-remaining", "ratelimit-reset",
    } - {"content-type"}  # fmt: skip
    assert second.status == 200
    assert first.headers["server"] == "payout-gateway"
    assert all("cookie" not in one.headers for one in recorder.requests)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_comes_back_and_is_never_followed(tmp_path: Path, status: int) -> None:
    answer = http(status, b"", "Location: /v1/profile/sandbox")
    async with between(tmp_path, says(answer)) as (recorder, house):
        for method in ("GET", "POST"):
            got = await asked(house, CLIENT.request(method, RECIPIENTS))
            assert (got.status, got.headers["location"]) == (status, "/v1/profile/sandbox")
    assert len(recorder.requests) == 2


async def test_an_encoded_answer_comes_back_as_it_is(tmp_path: Path) -> None:
    body = gzip.compress(b'{"ok":true}')
    for encoding in ("gzip", "br", "x-own"):
        answer = http(200, body, f"Content-Encoding: {encoding}")
        async with between(tmp_path, says(answer)) as (_, house):
            got = await asked(house, CLIENT.request())
        assert got.body == body
        assert got.headers["content-encoding"] == encoding


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"),
        ("DELETE", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b'HTTP/1.1 304 Not Modified\r\nETag: "x"\r\n\r\n'),
    ],
)
async def test_an_answer_without_a_body_comes_back_and_the_connection_goes_on(
    tmp_path: Path, method: str, answer: bytes
) -> None:
    async with between(tmp_path, says(answer)) as (_, house):
        async with await wire(house.running.port) as connection:
            for _ in range(2):
                await connection.say(CLIENT.request(method, RECIPIENTS))
                got = await connection.answer(bodiless=True)
                assert got is not None
                assert str(got.status).encode() in answer
                if method == "HEAD":
                    assert got.headers["content-length"] == "500"


async def test_early_hints_are_not_the_answer(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + OK
    async with between(tmp_path, says(answer)) as (_, house):
        assert (await asked(house, CLIENT.request())).json == {"ok": True}


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\n\r\n"


async def everything(house: House, data: bytes) -> tuple[bytes, bytes, bool]:
    """Reads an answer until the connection ends; returns its head, the rest, and if it was clean."""
    async with await wire(house.running.port) as connection:
        await connection.say(data)
        head = await connection.reader.readuntil(b"\r\n\r\n")
        rest, clean = b"", True
        async with asyncio.timeout(20):
            try:
                while part := await connection.reader.read(1 << 16):
                    rest += part
            except ConnectionError:
                clean = False
        return head.lower(), rest, clean


async def test_chunks_come_back_as_chunks(tmp_path: Path) -> None:
    body = os.urandom(300_000)
    async with between(tmp_path, says(CHUNKED + chunked(body, 7))) as (_, house):
        closes = CLIENT.request("GET", RECIPIENTS, b"", "Connection: close")
        head, rest, clean = await everything(house, closes)
    assert b"transfer-encoding: chunked" in head
    assert rest.endswith(b"\r\n0\r\n\r\n")
    assert clean
    assert joined(rest) == body


def joined(rest: bytes) -> bytes:
    """Joins the chunks of a body that were received."""
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body


async def test_an_answer_that_ends_with_its_connection_comes_back_so(tmp_path: Path) -> None:
    body = b"x" * 100_000
    async with between(tmp_path, says(UNTIL_CLOSED + body, closes=True)) as (_, house):
        head, rest, clean = await everything(house, CLIENT.request())
    assert b"transfer-encoding" not in head
    assert b"content-length" not in head
    assert b"connection: close" in head
    assert rest == body
    assert clean


LONG = b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n"
HALF = os.urandom(200_000)

CUT = {
    "a length that is not reached": says(LONG + HALF, closes=True),
    "a length that is not reached, reset": says(LONG + HALF, resets=True),
    "chunks without an end": says(CHUNKED + chunked(HALF, 3)[:-5], closes=True),
    "chunks that are no chunks": says(CHUNKED + chunked(HALF, 3)[:-5] + b"what\r\n"),
    "an answer that stops": says(LONG + HALF),
    "chunks that stop": says(CHUNKED + chunked(HALF, 3)[:-5]),
}


@pytest.mark.parametrize("play", CUT.values(), ids=CUT)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_what_is_cut_off_there_is_cut_off_here_and_never_looks_whole(
    tmp_path: Path, method: str, play: Play
) -> None:
    async with between(tmp_path, play, upstream={"timeout_seconds": 0.5}) as (recorder, house):
        with capture_logs() as logged:
            head, rest, _clean = await everything(house, CLIENT.request(method, RECIPIENTS))
            await until(lambda: bool(logged))
    assert b" 200 " in head
    if b"content-length" in head:
        assert b"content-length: 300000" in head
        assert len(rest) <= len(HALF)
    else:
        assert b"transfer-encoding: chunked" in head
        assert not rest.endswith(b"0\r\n\r\n")
    assert len(recorder.requests) == 1
    (line,) = logged
    assert line["reason"]


async def test_an_answer_without_an_end_that_is_reset_is_reset(tmp_path: Path) -> None:
    async with between(tmp_path, says(UNTIL_CLOSED + HALF, resets=True)) as (_, house):
        with capture_logs() as logged:
            _head, _rest, clean = await everything(house, CLIENT.request())
            await until(lambda: bool(logged))
    assert not clean
    assert logged[0]["reason"]


async def test_an_old_client_gets_its_answer_until_the_connection_closes(tmp_path: Path) -> None:
    body = os.urandom(100_000)
    old = CLIENT.request().replace(b"HTTP/1.1", b"HTTP/1.0")
    async with between(tmp_path, says(CHUNKED + chunked(body, 3))) as (_, house):
        _head, rest, clean = await everything(house, old)
        assert (rest, clean) == (body, True)
    async with between(tmp_path, says(CHUNKED + chunked(body, 3)[:-5], closes=True)) as (_, house):
        _head, _rest, clean = await everything(house, old)
        assert not clean


# Sent once.


async def closes(_: Written, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def resets(_: Written, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    reset(writer)


async def hangs(_: Written, reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.read(1)


LOST = {
    "closes": closes,
    "resets": resets,
    "hangs": hangs,
    "half a head": says(b"HTTP/1.1 200 OK\r\nContent-", closes=True),
    "no HTTP": says(b"what?\r\n\r\n"),
    "an upgrade": says(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"
    ),
}


@pytest.mark.parametrize("method", ["GET", "HEAD", *WRITES])
@pytest.mark.parametrize("play", LOST.values(), ids=LOST)
async def test_a_request_without_an_answer_was_sent_once_and_is_an_internal_error(
    tmp_path: Path, method: str, play: Play
) -> None:
    async with between(tmp_path, play, upstream={"timeout_seconds": 0.3}) as (recorder, house):
        async with await wire(house.running.port) as connection:
            await connection.say(
                CLIENT.request(method, RECIPIENTS, b"" if method in ("GET", "HEAD") else b"{}")
            )
            answer = await connection.answer(bodiless=method == "HEAD")
    assert answer is not None
    assert answer.status == 500
    if method != "HEAD":
        assert refused(answer) == INTERNAL
        message = answer.json["errors"][0]["message"]
        assert ("may have been carried out" in message) == (method in WRITES)
    assert len(recorder.requests) == 1


@pytest.mark.parametrize("method", ["GET", *WRITES])
@pytest.mark.parametrize("value", [b"a\x01b", b"\x7f", b"\x1b[31m", b"a\x08"])
async def test_response_with_a_header_that_cannot_be_sent_leaves_a_write_unknown(
    tmp_path: Path, method: str, value: bytes
) -> None:
    answer = OK.replace(b"\r\n\r\n", b"\r\nX-Note: " + value + b"\r\n\r\n")
    async with between(tmp_path, says(answer)) as (recorder, house):
        said = await asked(
            house, CLIENT.request(method, RECIPIENTS, b"" if method == "GET" else b"{}")
        )
        assert refused(said) == INTERNAL
        message = said.json["errors"][0]["message"]
        assert ("may have been carried out" in message) == (method in WRITES)
        recorder.play = says(OK.replace(b"\r\n\r\n", b"\r\nVia: a\x01b\r\n\r\n"))
        dropped = await asked(house, CLIENT.request(method, RECIPIENTS, b"", JSON))
        assert dropped.status == 200, "what is not passed on does not matter"
    assert len(recorder.requests) == 2


async def test_start_whose_response_cannot_be_sent_is_in_doubt(tmp_path: Path) -> None:
    async def play(written: Written, _reader: Any, writer: asyncio.StreamWriter) -> None:
        if written.method == "POST":
            writer.write(OK.replace(b"\r\n\r\n", b"\r\nX-Note: a\x01b\r\n\r\n"))
        else:
            writer.write(http(503, b"<html>"))

    async with between(tmp_path, play) as (recorder, house):
        configure(tmp_path, recorder.url)
        start = CLIENT.request("POST", f"/v1/batches/B-{'a' * 22}/start-processing")
        answer = await asked(house, start)
        assert refused(answer) == INTERNAL
        assert "may have been carried out" in answer.json["errors"][0]["message"]
        listed = json.loads(
            (await operating.says(tmp_path, "writes", "unsettled", "--json")).stdout
        )
        assert [one["operation"] for one in listed["writes"]] == ["start_signed_batch"]
        assert refused(await asked(house, start)) == INTERNAL
        assert len([one for one in recorder.requests if one.method == "POST"]) == 1


@pytest.mark.parametrize("method", ["GET", *WRITES])
async def test_on_a_connection_that_has_gone_stale_it_is_sent_once(
    tmp_path: Path, method: str
) -> None:
    """The server closes a kept connection instead of answering the second request."""

    async def play(_: Written, _reader: Any, writer: asyncio.StreamWriter) -> None:
        if len(recorder.requests) == 2:
            writer.close()
        else:
            writer.write(OK)

    async with between(tmp_path, play) as (recorder, house):
        statuses = [
            (await asked(house, CLIENT.request(method, RECIPIENTS))).status for _ in range(3)
        ]
    assert statuses == [200, 500, 200]
    assert (len(recorder.requests), recorder.connections) == (3, 2)


async def test_a_connection_that_was_closed_while_idle_is_not_used(tmp_path: Path) -> None:
    async with between(tmp_path, says(OK, closes=True)) as (recorder, house):
        for number in range(1, 4):
            sent = CLIENT.request("POST", RECIPIENTS, b"{}", JSON)
            assert (await asked(house, sent)).status == 200
            await until(lambda number=number: recorder.ended == number)
            await asyncio.sleep(0.01)
    assert len(recorder.requests) == 3


# Large answers.


async def test_a_large_answer_is_not_held_here(tmp_path: Path) -> None:
    """If the client does not read, the service can send only as much as the sockets buffer."""
    size, part = 120 * MEGABYTE, os.urandom(MEGABYTE)
    said = 0

    async def play(_: Written, _reader: Any, writer: asyncio.StreamWriter) -> None:
        nonlocal said
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode())
        while said < size:
            writer.write(part)
            await writer.drain()
            said += len(part)

    async with between(tmp_path, play, upstream={"timeout_seconds": 30}) as (_, house):
        async with await wire(house.running.port) as connection:
            await connection.say(CLIENT.request())
            await connection.reader.readuntil(b"\r\n\r\n")
            before = -1
            while said > before:
                before = said
                await asyncio.sleep(0.3)
            assert said < size / 3
            left = size
            async with asyncio.timeout(30):
                while left:
                    came = await connection.reader.read(min(left, MEGABYTE))
                    assert came
                    left -= len(came)
    assert said == size


async def test_a_client_that_does_not_take_its_answer_is_cut_off(tmp_path: Path) -> None:
    endless = LONG.replace(b"300000", b"300000000") + b"x" * 40 * MEGABYTE
    async with between(tmp_path, says(endless), upstream={"timeout_seconds": 2}) as (_, house):
        with capture_logs() as logged:
            async with await wire(house.running.port) as connection:
                await connection.say(CLIENT.request())
                await until(lambda: bool(logged), seconds=60)
    assert logged[0]["reason"] == "the client does not read its response"


# Clients that go away.


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_client_that_goes_away_takes_its_read_with_it(tmp_path: Path, method: str) -> None:
    async with between(tmp_path, hangs, upstream={"timeout_seconds": 60}) as (recorder, house):
        with capture_logs() as logged:
            async with await wire(house.running.port) as connection:
                await connection.say(CLIENT.request(method, RECIPIENTS))
                await until(lambda: len(recorder.requests) == 1)
                assert recorder.ended == 0
            await until(lambda: recorder.ended == 1)
            await until(lambda: bool(logged))
    assert [(line["http.response.status_code"], line["api"]) for line in logged] == [
        (499, "signed")
    ]


@pytest.mark.parametrize("method", WRITES)
async def test_a_client_that_goes_away_does_not_take_its_write_with_it(
    tmp_path: Path, method: str
) -> None:
    go_on, gone = asyncio.Event(), asyncio.Event()

    async def play(_: Written, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = asyncio.ensure_future(reader.read(1))
        await go_on.wait()
        if ends.done():
            gone.set()
        writer.write(OK)

    async with between(tmp_path, play) as (recorder, house):
        with capture_logs() as logged:
            async with await wire(house.running.port) as connection:
                await connection.say(CLIENT.request(method, RECIPIENTS, b"{}", JSON))
                await until(lambda: len(recorder.requests) == 1)
            await asyncio.sleep(0.1)
            go_on.set()
            await until(lambda: bool(logged))
    assert not gone.is_set()
    assert [(line["http.response.status_code"], line["upstream_calls"]) for line in logged] == [
        (200, 1)
    ]


async def test_of_a_write_whose_client_has_gone_the_answer_is_read_to_its_end(
    tmp_path: Path,
) -> None:
    """A service may still work while it answers, and stop if the connection closes."""
    said, part = 0, b"x" * MEGABYTE

    async def play(_: Written, _reader: Any, writer: asyncio.StreamWriter) -> None:
        nonlocal said
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {60 * MEGABYTE}\r\n\r\n".encode())
        while said < 60:
            writer.write(part)
            await writer.drain()
            said += 1

    async with between(tmp_path, play) as (_, house):
        async with await wire(house.running.port) as connection:
            await connection.say(CLIENT.request("POST", RECIPIENTS, b"{}", JSON))
            await connection.reader.readuntil(b"\r\n\r\n")
            assert said < 60
        await until(lambda: said == 60, seconds=10)


async def test_what_is_under_way_is_finished_when_the_gateway_ends(tmp_path: Path) -> None:
    async def play(_: Written, _reader: Any, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.3)
        writer.write(OK)

    async with recording(play) as recorder:
        async with open_signed(tmp_path, recorder.url) as house:
            connection = await wire(house.running.port)
            await connection.say(CLIENT.request("POST", RECIPIENTS, b"{}", JSON))
            await until(lambda: len(recorder.requests) == 1)
        answer = await connection.answer()
        await connection.close()
    assert answer is not None
    assert answer.json == {"ok": True}


async def test_an_answer_that_is_not_finished_when_the_gateway_ends_does_not_look_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(_: Written, reader: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(UNTIL_CLOSED + b"half")
        await reader.read(1)

    monkeypatch.setattr("gateway.server.app.SPARE_SECONDS", -4.5)
    async with recording(play) as recorder:
        async with open_signed(tmp_path, recorder.url) as house:
            connection = await wire(house.running.port)
            await connection.say(CLIENT.request())
            assert (await connection.reader.readuntil(b"half")).endswith(b"half")
        try:
            with pytest.raises(ConnectionError):
                await connection.reader.read(1)
        finally:
            await connection.close()


# The log.


async def test_a_request_leaves_one_line_of_the_interface_s_own_words(tmp_path: Path) -> None:
    target = "/v1/recipients/R-1/accounts/A-2?search=ada@example.com"
    async with between(tmp_path) as (_, house):
        with capture_logs() as logged:
            await asked(house, CLIENT.request("GET", target))
            await asked(house, Client(secret_key="x").request("GET", "/v1/ada@example.com"))
    first, second = logged
    assert first["http.route"] == "/v1/recipients/…/accounts/…"
    assert second["http.route"] == "/v1/…"
    told = {
        "event": "request",
        "api": "signed",
        "operation": None,
        "http.request.method": "GET",
        "http.response.status_code": 200,
        "client.address": "127.0.0.1",
        "merchant": "demo",
        "environment": "sandbox",
        "upstream_calls": 1,
    }
    assert first.items() >= told.items()
    assert first["duration_ms"] >= first["upstream_duration_ms"] > 0
    assert (second["http.response.status_code"], second["upstream_calls"]) == (401, 0)
    assert json.dumps(logged)
