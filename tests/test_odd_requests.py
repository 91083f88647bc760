"""Malformed HTTP requests: each gets an answer in legacy form, or the connection is closed.

The gateway is a process of its own, as it is deployed, in front of the simulator. Almost every
request carries a valid key, so that only its malformation can prevent an upstream call.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.house import KEY
from tests.placed import Place, open_place
from tests.sockets import assert_legacy, heard, wire

pytestmark = pytest.mark.asyncio(loop_scope="module")

BODY_BYTES = 4096
API_KEY = KEY["api_key"]
PATH = b"/v1/recipients"
WITH_KEY = b"Host: gateway\r\nX-API-Key: " + API_KEY.encode() + b"\r\n"
CHUNKED = WITH_KEY + b"Transfer-Encoding: chunked\r\n"

CLOSE = None
"""The connection is closed without an answer."""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    async with open_place(tmp_path_factory.mktemp("place"), BODY_BYTES) as place:
        yield place


def get(target: bytes = PATH, headers: bytes = WITH_KEY, version: bytes = b"HTTP/1.1") -> bytes:
    return b"GET " + target + b" " + version + b"\r\n" + headers + b"\r\n"


def post(headers: bytes, body: bytes = b"") -> bytes:
    return b"POST " + PATH + b" HTTP/1.1\r\n" + headers + b"\r\n" + body


def sized(body: bytes, more: bytes = b"") -> bytes:
    return post(WITH_KEY + more + b"Content-Length: %d\r\n" % len(body), body)


REQUEST_LINES = {
    "empty lines only": (b"\r\n\r\n\r\nX\r\n\r\n", 406),
    "no request line": (b"\r\n" + WITH_KEY + b"\r\n", 406),
    "one word": (b"GET\r\n\r\n", 406),
    "no target": (b"GET  HTTP/1.1\r\n" + WITH_KEY + b"\r\n", 406),
    "no protocol name": (get(version=b"1.1"), 406),
    "another protocol": (get(version=b"ICAP/1.0"), 406),
    "a version that is none": (get(version=b"HTTP/1.x"), 406),
    "a version with a sign": (get(version=b"HTTP/-1.1"), 406),
    "a version of two digits": (get(version=b"HTTP/11.1"), 406),
    "a protocol in lower case": (get(version=b"http/1.1"), 406),
    "more after the version": (get(version=b"HTTP/1.1 x"), 406),
    "a space in the target": (get(b"/v1/reci pients"), 406),
    "a tab for a space": (b"GET\t/v1/recipients\tHTTP/1.1\r\n" + WITH_KEY + b"\r\n", 406),
    "HTTP/0.9": (b"GET /v1/recipients\r\n\r\n", 406),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x12\4\0\0\0\0\0", 406),
    "a TLS hello": (bytes.fromhex("1603010200010001fc0303") + b"\0" * 32, 406),
    "NULs": (b"\0" * 64, 406),
    "bytes that are not text": (b"\xff\xfe\xfd\r\n\r\n", 406),
    "a method in lower case": (b"get /v1/recipients HTTP/1.1\r\n" + WITH_KEY + b"\r\n", 406),
    "a method with a NUL": (b"GE\0T /v1/recipients HTTP/1.1\r\n" + WITH_KEY + b"\r\n", 406),
    "a NUL in the target": (get(b"/v1/recipients\0"), 406),
    "bytes over 127 in the target": (get(b"/v1/recipients?search=\xff"), 406),
    "UTF-8 in the target": (get("/v1/recipients?search=ü".encode()), 406),
    "a control character in the target": (get(b"/v1/recipients?search=\x1b"), 406),
    "a target without a slash": (get(b"v1/recipients"), 406),
    "a query as the target": (get(b"?page=1"), 406),
    "a line that is too long": (get(PATH + b"?search=" + b"a" * 9000), 406),
    "a line that never ends": (b"GET /" + b"a" * 70_000, 406),
}

TARGETS = {
    "an absolute target of an unknown path": (get(b"http://gateway/v1/merchants"), 404),
    "an absolute target without a path": (get(b"http://gateway"), 404),
    "an absolute target with credentials": (get(b"http://me:secret@gateway/v1/batch"), 404),
    "an absolute target of another scheme": (get(b"ftp://gateway/v1/recipients"), 404),
    "an absolute target with a key": (
        get(b"http://elsewhere/v1/recipients", b"Host: x\r\n"),
        403,
    ),
    "OPTIONS of everything": (b"OPTIONS * HTTP/1.1\r\n" + WITH_KEY + b"\r\n", 404),
    "CONNECT": (b"CONNECT service:443 HTTP/1.1\r\n" + WITH_KEY + b"\r\n", 404),
    "an encoded line end": (get(PATH + b"%0d%0aX-Injected:%201"), 404),
    "an encoded NUL": (get(PATH + b"%00"), 404),
    "a broken escape": (get(PATH + b"/%zz"), 404),
    "dots": (get(b"/v1/recipients/../recipients"), 404),
    "a backslash": (get(b"/v1\\recipients"), 404),
    "a parameter of the path": (get(b"/v1/recipients;x=1"), 404),
}

HEADERS = {
    "no Host": (get(headers=b"X-API-Key: " + API_KEY.encode() + b"\r\n"), 406),
    "two Hosts": (get(headers=b"Host: other\r\n" + WITH_KEY), 406),
    "a header without a colon": (get(headers=WITH_KEY + b"Broken\r\n"), 406),
    "a header without a name": (get(headers=WITH_KEY + b": value\r\n"), 406),
    "a space before the colon": (get(headers=WITH_KEY + b"Name : value\r\n"), 406),
    "a space in the name": (get(headers=WITH_KEY + b"A name: value\r\n"), 406),
    "a name that is not ASCII": (get(headers=WITH_KEY + b"N\xc3\xa4me: value\r\n"), 406),
    "a NUL in a value": (get(headers=WITH_KEY + b"Name: a\0b\r\n"), 406),
    "a bare CR in a value": (get(headers=WITH_KEY + b"Name: a\rb\r\n"), 406),
    "a control character in a value": (get(headers=WITH_KEY + b"Name: a\x01b\r\n"), 406),
    "a folded value": (get(headers=WITH_KEY + b"Name: a\r\n b\r\n"), 406),
    "a header that begins with a space": (get(headers=b" Name: a\r\n" + WITH_KEY), 406),
    "bare LF as line end": (get().replace(b"\r\n", b"\n"), 406),
    "bare LF after one header": (get(headers=WITH_KEY + b"Name: a\n"), 406),
    "CR alone as line end": (get().replace(b"\r\n", b"\r"), 406),
    "a value that is too long": (get(headers=WITH_KEY + b"Name: " + b"a" * 9000 + b"\r\n"), 406),
    "a name that is too long": (get(headers=WITH_KEY + b"a" * 9000 + b": a\r\n"), 406),
    "more headers than anyone sends": (
        get(headers=WITH_KEY + b"".join(b"A%d: a\r\n" % number for number in range(500))),
        406,
    ),
    "a key in a header without a colon": (
        get(headers=b"Host: gateway\r\nX-API-Key " + API_KEY.encode() + b"\r\n"),
        406,
    ),
    "a key with a space before the colon": (
        get(headers=b"Host: gateway\r\nX-API-Key : " + API_KEY.encode() + b"\r\n"),
        406,
    ),
    "a key with a NUL": (
        get(headers=b"Host: gateway\r\nX-API-Key: " + API_KEY.encode() + b"\0\r\n"),
        406,
    ),
    "a folded key": (
        get(headers=b"Host: gateway\r\nX-API-Key: " + API_KEY.encode() + b"\r\n more\r\n"),
        406,
    ),
    "a key of the length of a line": (
        get(headers=b"Host: gateway\r\nX-API-Key: " + API_KEY.encode() * 350 + b"\r\n"),
        403,
    ),
    "a key in the wrong place": (
        get(PATH + b"?X-API-Key=" + API_KEY.encode(), b"Host: gateway\r\n"),
        403,
    ),
}

BODIES = {
    "a chunk size that is no number": (post(CHUNKED, b"ZZ\r\n{}\r\n0\r\n\r\n"), 406),
    "a negative chunk size": (post(CHUNKED, b"-2\r\n{}\r\n0\r\n\r\n"), 406),
    "a chunk size with a prefix": (post(CHUNKED, b"0x2\r\n{}\r\n0\r\n\r\n"), 406),
    "a chunk size beyond counting": (post(CHUNKED, b"F" * 40 + b"\r\n{}\r\n"), 406),
    "a chunk longer than it says": (post(CHUNKED, b"1\r\n{}\r\n0\r\n\r\n"), 406),
    "a chunk without its line end": (post(CHUNKED, b"2\r\n{}0\r\n\r\n"), 406),
    "bare LF between chunks": (post(CHUNKED, b"2\n{}\n0\n\n"), 406),
    "chunks and a length": (post(CHUNKED + b"Content-Length: 2\r\n", b"2\r\n{}\r\n0\r\n\r\n"), 406),
    "chunked twice": (post(CHUNKED + b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n"), 406),
    "chunked, and then something": (
        post(WITH_KEY + b"Transfer-Encoding: chunked, gzip\r\n", b"0\r\n\r\n"),
        406,
    ),
    "an unknown transfer encoding": (post(WITH_KEY + b"Transfer-Encoding: x\r\n", b"{}"), 406),
    "no chunk at all": (post(CHUNKED, b"0\r\n\r\n"), 406),
    "an extension of a chunk": (post(CHUNKED, b"2;a=b\r\n[]\r\n0\r\n\r\n"), 406),
    "a trailer": (post(CHUNKED, b"2\r\n[]\r\n0\r\nX-API-Key: other\r\n\r\n"), 406),
    "a length that is no number": (post(WITH_KEY + b"Content-Length: two\r\n", b"{}"), 406),
    "a negative length": (post(WITH_KEY + b"Content-Length: -2\r\n", b"{}"), 406),
    "a length with a sign": (post(WITH_KEY + b"Content-Length: +2\r\n", b"{}"), 406),
    "a length with a point": (post(WITH_KEY + b"Content-Length: 2.0\r\n", b"{}"), 406),
    "an empty length": (post(WITH_KEY + b"Content-Length:\r\n", b"{}"), 406),
    "a length beyond counting": (post(WITH_KEY + b"Content-Length: " + b"9" * 40 + b"\r\n"), 406),
    "two lengths": (post(WITH_KEY + b"Content-Length: 2\r\nContent-Length: 3\r\n", b"{}}"), 406),
    "two lengths that agree": (
        post(WITH_KEY + b"Content-Length: 2\r\nContent-Length: 2\r\n", b"[]"),
        406,
    ),
    "two lengths in one header": (post(WITH_KEY + b"Content-Length: 2, 2\r\n", b"{}"), 406),
    "a length over the limit": (post(WITH_KEY + b"Content-Length: 99999999\r\n", b"{}"), 413),
    "no body": (post(WITH_KEY), 406),
    "a body that is not gzip as it says": (sized(b"hello", b"Content-Encoding: gzip\r\n"), 406),
    "a body that is not deflate as it says": (sized(b"he", b"Content-Encoding: deflate\r\n"), 406),
    "gzip that is cut off": (
        sized(gzip.compress(b'{"type":"individual"}')[:-9], b"Content-Encoding: gzip\r\n"),
        406,
    ),
    "gzip that grows over the limit": (
        sized(gzip.compress(b" " * 1_000_000), b"Content-Encoding: gzip\r\n"),
        413,
    ),
    "an encoding nobody knows": (sized(b"hello", b"Content-Encoding: x\r\n"), 406),
    "a charset nobody knows": (sized(b"{}", b"Content-Type: application/json; charset=x\r\n"), 406),
    "UTF-16": (sized('{"type":"individual"}'.encode("utf-16")), 406),
    "bytes that are no text": (sized(b"\xff\xfe\xfd"), 406),
    "a form": (sized(b"type=individual", b"Content-Type: multipart/form-data\r\n"), 406),
    "an expectation nobody knows": (sized(b"[]", b"Expect: miracles\r\n"), 406),
}

UPGRADES = {
    "an upgrade to websocket": (
        get(b"/v1/x", WITH_KEY + b"Connection: Upgrade\r\nUpgrade: websocket\r\n"),
        404,
    ),
    "an upgrade to HTTP/2 with a body": (
        sized(
            b"[]", b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: A\r\n"
        ),
        406,
    ),
    "an upgrade with chunks": (
        post(CHUNKED + b"Connection: Upgrade\r\nUpgrade: h2c\r\n", b"2\r\n[]\r\n0\r\n\r\n"),
        406,
    ),
    "an upgrade to nothing": (get(b"/v1/x", WITH_KEY + b"Connection: Upgrade\r\n"), 404),
    "a connection of every kind": (
        get(b"/v1/x", WITH_KEY + b"Connection: close, keep-alive, X-API-Key\r\n"),
        404,
    ),
}

ODD = {**REQUEST_LINES, **TARGETS, **HEADERS, **BODIES, **UPGRADES}


@pytest.mark.parametrize(("request_", "status"), ODD.values(), ids=ODD)
async def test_an_odd_request_is_answered_in_the_legacy_form_and_goes_no_further(
    place: Place, request_: bytes, status: int | None
) -> None:
    calls = len(place.simulator.service.calls())
    answer = await heard(place.gateway.port, request_)
    if answer is None:
        assert status is CLOSE
    else:
        assert answer.status == status
        assert_legacy(answer)
        assert API_KEY.encode() not in answer.body
    assert len(place.simulator.service.calls()) == calls
    await _answers_a_good_request(place)


async def _answers_a_good_request(place: Place) -> None:
    good = await heard(place.gateway.port, get())
    assert good is not None
    assert good.status == 200
    assert_legacy(good)


LATE = {
    "a chunk size that is no number": (CHUNKED, [b"1\r\n{\r\n", b"ZZ\r\n}\r\n"], 406),
    "a chunk longer than it says": (CHUNKED, [b"1\r\n{\r\n", b"1\r\n}}}}\r\n"], 406),
    "a chunk that ends, and no chunk size": (CHUNKED, [b"1\r\n{", b"\r\nZ\r\n}\r\n"], 406),
    "gzip that turns bad": (
        CHUNKED + b"Content-Encoding: gzip\r\n",
        [b"A\r\n" + gzip.compress(b"{}")[:10] + b"\r\n", b"5\r\nhello\r\n0\r\n\r\n"],
        406,
    ),
    "chunks that go over the limit": (
        CHUNKED,
        [b"800\r\n" + b" " * 0x800 + b"\r\n"] * 3,
        413,
    ),
}


@pytest.mark.parametrize(("headers", "parts", "status"), LATE.values(), ids=LATE)
async def test_a_body_that_goes_wrong_later_is_refused_in_the_legacy_form(
    place: Place, headers: bytes, parts: list[bytes], status: int
) -> None:
    calls = len(place.simulator.service.calls())
    async with await wire(place.gateway.port) as connection:
        await connection.say(post(headers))
        for part in parts:
            await asyncio.sleep(0.03)
            await connection.say(part)
        answer = await connection.answer()
    assert answer is not None
    assert answer.status == status
    assert_legacy(answer)
    assert len(place.simulator.service.calls()) == calls
    await _answers_a_good_request(place)


GOES_AWAY = {
    "in the request line": b"GET /v1/rec",
    "in a header": b"GET /v1/recipients HTTP/1.1\r\nX-API-",
    "before the last empty line": get()[:-2],
    "before its body": post(WITH_KEY + b"Content-Length: 20\r\n"),
    "in its body": post(WITH_KEY + b"Content-Length: 20\r\n", b'{"type":'),
    "in a chunk": post(CHUNKED, b'8\r\n{"typ'),
    "before the last chunk": post(CHUNKED, b"2\r\n{}\r\n"),
}


@pytest.mark.parametrize("request_", GOES_AWAY.values(), ids=GOES_AWAY)
async def test_a_client_that_goes_away_in_its_request_leaves_nothing_behind(
    place: Place, request_: bytes
) -> None:
    calls, logged = len(place.simulator.service.calls()), len(place.gateway.lines())
    async with await wire(place.gateway.port) as connection:
        await connection.say(request_)
        await asyncio.sleep(0.03)
    await _answers_a_good_request(place)
    assert len(place.simulator.service.calls()) == calls + 1
    new = place.gateway.lines()[logged:]
    assert not [line for line in new if line["level"] == "error"], "a client's fault, not ours"


@pytest.mark.parametrize("request_", GOES_AWAY.values(), ids=GOES_AWAY)
async def test_a_request_that_ends_early_gets_a_legacy_answer_or_a_close(
    place: Place, request_: bytes
) -> None:
    answer = await heard(place.gateway.port, request_, ended=True)
    if answer is not None:
        assert answer.status == 406
        assert_legacy(answer)
    await _answers_a_good_request(place)


async def test_requests_sent_at_once_are_answered_in_their_order(place: Place) -> None:
    one, two = get(b"/v1/none"), get(headers=b"Host: gateway\r\n")
    async with await wire(place.gateway.port) as connection:
        await connection.say(one + two + one + two)
        answers = [await connection.answer() for _ in range(4)]
    assert [answer.status for answer in answers if answer] == [404, 403, 404, 403]


async def test_more_requests_at_once_than_are_kept_are_all_answered(place: Place) -> None:
    async with await wire(place.gateway.port) as connection:
        await connection.say(get(b"/v1/none") * 200)
        answers = [await connection.answer() for _ in range(200)]
    assert [answer.status for answer in answers if answer] == [404] * 200


async def test_what_follows_a_malformed_request_is_not_read_as_another(place: Place) -> None:
    calls = len(place.simulator.service.calls())
    async with await wire(place.gateway.port) as connection:
        await connection.say(get(headers=WITH_KEY + b"Broken\r\n") + get())
        answer = await connection.answer()
        assert answer is not None
        assert answer.status == 406
        assert await connection.closed()
    assert len(place.simulator.service.calls()) == calls


async def test_a_body_is_never_read_as_the_next_request(place: Place) -> None:
    hidden = get(b"/v1/recipients?search=hidden")
    async with await wire(place.gateway.port) as connection:
        await connection.say(post(b"Host: x\r\nContent-Length: %d\r\n" % len(hidden), hidden))
        await connection.say(get(b"/v1/none"))
        answers = [await connection.answer() for _ in range(2)]
    assert [answer.status for answer in answers if answer] == [403, 404]
    assert not [call for call in place.simulator.service.calls() if "hidden" in call.target]


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
async def test_a_refused_upgrade_leaves_the_connection_in_use(
    place: Place, protocol: bytes
) -> None:
    headers = WITH_KEY + b"Connection: Upgrade\r\nUpgrade: " + protocol + b"\r\n"
    async with await wire(place.gateway.port) as connection:
        await connection.say(sized(b"[]", headers.removeprefix(WITH_KEY)))
        upgrade = await connection.answer()
        await connection.say(get(headers=b"Host: gateway\r\n"))
        after = await connection.answer()
    assert upgrade is not None
    assert after is not None
    assert (upgrade.status, after.status) == (406, 403)


async def test_a_key_in_a_malformed_header_is_neither_repeated_nor_logged(place: Place) -> None:
    secret = b"key-in-a-malformed-header"
    for broken in (
        b"X-API-Key " + secret + b"\r\n",
        b"X-API-Key: " + secret + b"\0\r\n",
        b"X-API-Key: " + secret + b"\r\n " + secret + b"\r\n",
        secret + b"\r\n",
        secret * 400 + b": a\r\n",
    ):
        answer = await heard(place.gateway.port, get(headers=b"Host: x\r\n" + broken))
        assert answer is not None
        assert secret not in answer.body
        assert secret.decode() not in json.dumps(answer.headers)
    answer = await heard(place.gateway.port, secret + b" / HTTP/1.1\r\n\r\n")
    assert answer is not None
    assert secret not in answer.body
    assert secret.decode() not in place.gateway.logged()


async def test_no_odd_request_left_a_traceback_or_a_key_in_the_log(place: Place) -> None:
    assert await heard(place.gateway.port, get())  # others may have run in another process
    logged = place.gateway.logged()
    assert "Traceback" not in logged
    assert API_KEY not in logged
    assert place.gateway.lines()
