"""The upstream client over real sockets, against a small scripted server."""

import asyncio
import errno
import gzip
import json
import time
import zlib
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import formatdate

import aiohttp
import pytest
from structlog.testing import capture_logs

from gateway.auth.signing import Credentials, compute_signature
from gateway.config.settings import CurrentWords, Settings
from gateway.payloads.compressed_buffer import CompressedBuffer
from gateway.payloads.json_codec import LARGE
from gateway.upstream.client import Deadline, UpstreamClient, open_upstream
from gateway.upstream.clock import ServiceClock
from gateway.upstream.send_attempt import SignedAttempt, build_response_lost
from mappings.failures import Unknown, Unreachable

PAIR = Credentials("AK", "SK")
OK = b'{"ok":true}'
NO = b'{"ok":false,"errors":[{"code":"invalid_api_key","message":"no"}]}'


@dataclass
class Seen:
    """One request as the server received it."""

    line: str
    headers: dict[str, str]
    body: bytes
    at: float

    @property
    def target(self) -> str:
        return self.line.split(" ")[1]

    @property
    def stamp(self) -> int:
        return int(self.headers["x-svc-timestamp"])

    def signed_over(self, target: str) -> bool:
        method = self.line.split(" ")[0]
        made = compute_signature(PAIR.keyed, self.stamp, method, target, self.body)
        return self.headers["authorization"] == f"svcsign AK:{made}"


Play = Callable[[Seen, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Service:
    play: Play
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while not writer.is_closing():
                seen = await _request(reader)
                self.seen.append(seen)
                await self.play(seen, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def _request(reader: asyncio.StreamReader) -> Seen:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii").split("\r\n")
    pairs = [line.split(": ", 1) for line in head[1:] if line]
    headers = {name.lower(): value for name, value in pairs}
    assert len(headers) == len(pairs), "a header was sent twice"
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Seen(head[0], headers, body, time.time())


def http(status: int = 200, body: bytes = OK, **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Word", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def always(data: bytes, *, close: bool = False) -> Play:
    async def play(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        if close:
            writer.close()

    return play


async def drops(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def resets(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def hangs(seen: Seen, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(5)


async def drips(seen: Seen, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    for _ in range(100):
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.1)


def checks(clock: Callable[[], float] = time.time, *, over_query: bool = False) -> Play:
    """Respond as the service: with its own clock, and one interpretation of "request path"."""

    async def play(seen: Seen, writer: asyncio.StreamWriter) -> None:
        path = seen.target if over_query else seen.target.split("?")[0]
        fresh = abs(clock() - seen.stamp) <= 30
        date = formatdate(clock(), usegmt=True)
        if fresh and seen.signed_over(path):
            writer.write(http(Date=date))
        else:
            writer.write(http(401, NO, Date=date))

    return play


@asynccontextmanager
async def running(play: Play):
    service = Service(play)
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.ensure_future(service.serve(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    service.port = server.sockets[0].getsockname()[1]
    try:
        yield service
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)


def configured(port: int, *, prefix: str = "", body_bytes: int = 1 << 26, **upstream) -> Settings:
    return Settings(
        environments={"live": {"base_url": f"http://127.0.0.1:{port}{prefix}"}},
        upstream={"timeout_seconds": 10, **upstream},
        limits={"body_bytes": body_bytes},
    )


@asynccontextmanager
async def between(play: Play, *, clock: ServiceClock | None = None, learned=None, **settings):
    async with (
        running(play) as service,
        open_upstream(
            configured(service.port, **settings), clock=clock, capabilities=learned
        ) as upstream,
    ):
        yield service, upstream


async def get(upstream: UpstreamClient, target: str = "/v1/recipients/R-1"):
    return await upstream.send("live", PAIR, "GET", target, None, request_id="r", write=False)


async def write(
    upstream: UpstreamClient, method: str = "POST", body: bytes | CompressedBuffer | None = b'{"a":1}'
):
    return await upstream.send(
        "live", PAIR, method, "/v1/batches/B-1", body, request_id="r", write=True
    )


WRITES = ["POST", "PATCH", "PUT", "DELETE"]


# Requests.


async def test_a_write_is_sent_with_these_headers_and_no_others():
    async with between(checks()) as (service, upstream):
        reply = await write(upstream)
    [seen] = service.seen
    assert (reply.status, reply.body, reply.attempts) == (200, OK, 1)
    assert reply.headers["content-LENGTH"] == str(len(OK))
    assert 0 < reply.seconds < 1
    assert seen.line == "POST /v1/batches/B-1 HTTP/1.1"
    assert seen.body == b'{"a":1}'
    assert set(seen.headers) == {
        "host", "accept", "accept-encoding", "user-agent", "x-request-id",
        "content-type", "content-length", "authorization", "x-svc-timestamp",
    }  # fmt: skip
    assert seen.headers["host"] == f"127.0.0.1:{service.port}"
    assert seen.headers["accept"] == seen.headers["content-type"] == "application/json"
    assert seen.headers["accept-encoding"] == "identity"
    assert seen.headers["x-request-id"] == "r"
    assert seen.headers["user-agent"].startswith("payout-gateway/")


@pytest.mark.parametrize("method", WRITES)
async def test_without_a_body_no_content_type_is_sent(method: str):
    async with between(checks()) as (service, upstream):
        await write(upstream, method, None)
    assert "content-type" not in service.seen[0].headers
    assert service.seen[0].headers["content-length"] == "0"


@pytest.mark.parametrize(
    "target",
    [
        "/v1/recipients?search=a%40b.example&name=%2B+%20~&x=%c3%a9",
        "/v1/recipients/a%2Fb/../c//d;e=1/'(!*)",
        "/v1/recipients?a=1?b=2&a=3&c&d=",
        '/v1/recipients?q={a}|\\^`"<>[]',
    ],
)
async def test_the_target_is_sent_byte_for_byte(target: str):
    async with between(always(http()), signed_target="path-and-query") as (service, upstream):
        await get(upstream, target)
    assert service.seen[0].target == target
    assert service.seen[0].signed_over(target)


@pytest.mark.parametrize("target", ["/v2/x", "/v1/a b", "/v1/é", "/v1/a\r\nb", "/v1/x#y", ""])
async def test_what_cannot_be_sent_byte_for_byte_is_not_sent(target: str):
    async with between(always(http())) as (service, upstream):
        with pytest.raises(ValueError, match="a target begins"):
            await get(upstream, target)
    assert service.seen == []


async def test_a_prefix_of_base_url_is_sent_and_not_signed():
    async with between(checks(), prefix="/pre%20fix/x") as (service, upstream):
        await get(upstream, "/v1/recipients/R-1")
    assert service.seen[0].target == "/pre%20fix/x/v1/recipients/R-1"
    assert service.seen[0].signed_over("/v1/recipients/R-1")


async def test_a_large_body_is_sent_whole_and_signed():
    body = json.dumps({"a": "é" * 3_000_000}).encode()
    folded = CompressedBuffer()
    for start in range(0, len(body), 100_000):
        folded.put(body[start : start + 100_000])
    async with between(checks(), timeout_seconds=10) as (service, upstream):
        assert (await write(upstream, body=body)).status == 200
        assert (await write(upstream, body=folded)).status == 200
    assert [one.body for one in service.seen] == [body, body]


async def test_a_credential_brings_no_header_of_its_own_with_it():
    async with between(always(http())) as (service, upstream):
        pair = Credentials("AK\r\nX-Other: 1", "SK")
        with pytest.raises(Unreachable):
            await upstream.send("live", pair, "GET", "/v1/x", None, request_id="r", write=False)
    assert service.seen == []


async def test_a_connection_whose_request_was_answered_before_it_was_whole_is_not_used_again():
    lines: list[bytes] = []
    over = asyncio.Event()

    async def answers_the_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.append(await reader.readline())
        await reader.readuntil(b"\r\n\r\n")
        writer.write(http(413, NO))
        await over.wait()  # and reads nothing of the body
        writer.transport.abort()

    server = await asyncio.start_server(answers_the_head, "127.0.0.1", 0, limit=1024)
    port = server.sockets[0].getsockname()[1]
    async with open_upstream(configured(port)) as upstream:
        for _ in range(2):
            reply = await write(upstream, body=b"x" * 32 * 1024 * 1024)
            assert reply.status == 413
    assert lines == [b"POST /v1/batches/B-1 HTTP/1.1\r\n"] * 2, "each on its own connection"
    over.set()
    server.close()
    await server.wait_closed()


async def test_cookies_are_not_kept():
    async with between(always(http(Set_Cookie="a=b"))) as (service, upstream):
        await get(upstream)
        await get(upstream)
    assert service.connections == 1
    assert "cookie" not in service.seen[1].headers


async def test_proxies_and_netrc_of_the_environment_are_not_used(monkeypatch, tmp_path):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login a password b")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with between(checks()) as (_, upstream):
        assert (await get(upstream)).status == 200


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_returned_and_not_followed(status: int):
    async with between(always(http(status, Location="/v1/elsewhere"))) as (service, upstream):
        assert (await write(upstream)).status == status
        assert (await get(upstream)).status == status
    assert len(service.seen) == 2


@pytest.mark.parametrize("status", [200, 204, 400, 403, 404, 429, 500, 503])
async def test_any_answer_is_returned_as_it_is(status: int):
    body = b"" if status == 204 else b"<html>"
    answer = http(status, body, Content_Type="text/html", Retry_After="7")
    async with between(always(answer)) as (service, upstream):
        reply = await write(upstream)
    assert (reply.status, reply.body, reply.headers["retry-after"]) == (status, body, "7")
    assert len(service.seen) == 1


# Single delivery.


@pytest.mark.parametrize("method", WRITES)
@pytest.mark.parametrize("play", [drops, resets], ids=["drops", "resets"])
async def test_a_write_whose_connection_is_dropped_is_unknown_and_was_seen_once(method, play):
    async with between(play) as (service, upstream):
        for _ in range(2):
            with pytest.raises(Unknown):
                await write(upstream, method)
    assert len(service.seen) == 2


@pytest.mark.parametrize("method", WRITES)
async def test_a_write_on_a_connection_that_has_gone_stale_is_seen_once(method: str):
    """The server reads the second request on a kept connection and closes it without an answer."""
    answers = 0

    async def play(seen: Seen, writer: asyncio.StreamWriter) -> None:
        nonlocal answers
        answers += 1
        if answers == 2:
            writer.close()
        else:
            writer.write(http())

    async with between(play) as (service, upstream):
        await write(upstream, method)
        with pytest.raises(Unknown):
            await write(upstream, method)
        assert (len(service.seen), service.connections) == (2, 1)
        assert (await write(upstream, method)).status == 200
    assert (len(service.seen), service.connections) == (3, 2)


async def test_a_connection_that_was_closed_while_idle_is_not_used_for_a_write():
    async with between(always(http(), close=True)) as (service, upstream):
        for _ in range(3):
            await write(upstream)
            await asyncio.sleep(0.02)
    assert (len(service.seen), service.connections) == (3, 3)


async def test_a_read_is_sent_once_more_when_its_connection_is_dropped():
    async with between(drops) as (service, upstream):
        with pytest.raises(Unreachable, match="the connection was closed before an answer arrived"):
            await get(upstream)
    assert len(service.seen) == 2


def test_a_connection_that_was_reset_is_told_in_words_and_not_as_the_name_of_an_error():
    lost = build_response_lost(
        aiohttp.ClientOSError(errno.ECONNRESET, "Cannot write to ada@example.org")
    )
    assert str(lost) == "the connection failed: connection reset by peer"
    assert lost.is_connection_failure


async def test_a_read_that_is_answered_the_second_time_has_two_attempts_each_signed():
    first = True

    async def play(seen: Seen, writer: asyncio.StreamWriter) -> None:
        nonlocal first
        writer.close() if first else writer.write(http())
        first = False

    async with between(play) as (service, upstream):
        assert (await get(upstream)).attempts == 2
    assert all(seen.signed_over("/v1/recipients/R-1") for seen in service.seen)


async def test_an_attempt_cannot_be_signed_twice():
    headers: dict[str, str] = {}
    words, target = CurrentWords(), "/v1/x"
    attempt = SignedAttempt(PAIR, words, "GET", target, target, b"", time.time, 0.0, on_bytes_received=lambda _: None)
    await attempt.sign(headers)
    with pytest.raises(RuntimeError, match="once"):
        await attempt.sign(headers)


# Unreachable or unknown.


async def test_a_refused_connection_is_unreachable_for_reads_and_writes(unused_tcp_port: int):
    async with open_upstream(configured(unused_tcp_port)) as upstream:
        for call in (get, write):
            with pytest.raises(Unreachable, match="cannot connect to"):
                await call(upstream)


async def test_a_name_that_does_not_resolve_is_unreachable():
    settings = Settings(environments={"live": {"base_url": "https://nowhere.invalid"}})
    async with open_upstream(settings) as upstream:
        with pytest.raises(Unreachable):
            await write(upstream)


async def test_a_failed_tls_handshake_is_unreachable():
    async with running(always(b"HTTP/1.1 400 no\r\n\r\n", close=True)) as service:
        settings = Settings(
            environments={"live": {"base_url": f"https://127.0.0.1:{service.port}"}},
            upstream={"timeout_seconds": 2},
        )
        async with open_upstream(settings) as upstream:
            with pytest.raises(Unreachable):
                await write(upstream)
    assert service.seen == []


async def test_an_environment_that_is_not_configured_is_unreachable():
    async with between(always(http())) as (_, upstream):
        with pytest.raises(Unreachable, match="sandbox"):
            await upstream.send("sandbox", PAIR, "POST", "/v1/x", None, request_id="r", write=True)


async def test_a_write_that_waited_for_a_place_in_vain_is_unreachable():
    async with between(hangs, connections=1, timeout_seconds=0.5) as (service, upstream):
        # A caller that holds the only connection for longer than the second caller's timeout.
        holder = asyncio.create_task(
            upstream._session.get(f"http://127.0.0.1:{service.port}/", middlewares=(_unsigned,))
        )
        await asyncio.sleep(0.05)
        with pytest.raises(Unreachable, match=r"no answer within 0\.5 s"):
            await write(upstream)
        holder.cancel()
        await asyncio.gather(holder, return_exceptions=True)
    assert len(service.seen) == 1


async def _unsigned(request, handler):
    class Unsigned:
        path = request.url.raw_path_qs

        async def sign(self, headers):
            pass

    request.attempt = Unsigned()
    return await handler(request)


CUT_OFF = b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"ok":true}'
UNREADABLE = {
    "cut off": CUT_OFF,
    "cut off, chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n" + OK,
    "chunk of a wrong length": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n" + OK + b"\r\n0\r\n\r\n"
    ),
    "length is not a number": b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n" + OK,
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 11\r\n\r\n" + OK,
    "not HTTP": b"SSH-2.0-OpenSSH\r\n\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "not gzip": http(Content_Encoding="gzip"),
    "gzip cut off": http(body=gzip.compress(OK * 99)[:-12], Content_Encoding="gzip"),
    "an encoding nobody asked for": http(Content_Encoding="br"),
    "an encoding nobody knows": http(Content_Encoding="rot13"),
    "more than the length": http() + b"junk",
    "too much": http(body=b" " * 2000),
    "too much, chunked": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n"
        + b" " * 2000
        + b"\r\n0\r\n\r\n"
    ),
    "too much, gzip": http(body=gzip.compress(b" " * 100_000), Content_Encoding="gzip"),
}


@pytest.fixture(autouse=True)
def _small_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.upstream.client.ANSWER_BYTES", 1024)


@pytest.mark.parametrize("case", UNREADABLE)
async def test_an_answer_that_cannot_be_read_makes_a_write_unknown(case: str):
    play = always(UNREADABLE[case], close=True)
    async with between(play, body_bytes=1024) as (service, upstream):
        with pytest.raises(Unknown):
            await write(upstream)
        assert len(service.seen) == 1
        with pytest.raises(Unreachable):
            await get(upstream)
    assert len(service.seen) <= 3


@pytest.mark.parametrize("play", [hangs, drips], ids=["hangs", "drips"])
async def test_no_answer_in_time_is_unknown_for_a_write_and_seen_once(play: Play):
    async with between(play, timeout_seconds=0.3) as (service, upstream):
        began = time.monotonic()
        with pytest.raises(Unknown, match=r"no answer within 0\.3 s"):
            await write(upstream)
        with pytest.raises(Unreachable):
            await get(upstream)
        assert time.monotonic() - began < 0.9
    assert len(service.seen) == 2


@pytest.mark.parametrize(
    ("late", "more"), [(0, http(408, b"no")), (0.05, http(408, b"no")), (0.05, b"junk")]
)
async def test_what_comes_unasked_is_not_taken_for_the_next_answer(late: float, more: bytes):
    async def play(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(http())
        await asyncio.sleep(late)
        writer.write(more)

    async with between(play) as (service, upstream):
        for _ in range(3):
            reply = await write(upstream)
            assert (reply.body, reply.attempts) == (OK, 1)
            await asyncio.sleep(late * 2)
            await asyncio.sleep(late)  # time to notice it, even on a busy machine
    assert (len(service.seen), service.connections) == (3, 3)


@pytest.mark.parametrize("encoding", ["gzip", "Deflate", "identity"])
async def test_a_compressed_answer_is_read_where_a_proxy_sends_one_all_the_same(encoding: str):
    body = {"gzip": gzip.compress, "Deflate": zlib.compress, "identity": bytes}[encoding](OK)
    async with between(always(http(body=body, Content_Encoding=encoding))) as (_, upstream):
        assert (await get(upstream)).body == OK


async def test_a_large_answer_is_folded_and_is_the_same():
    body = b'{"ok":true,"padding":"%b"}' % (b"x" * 2 * LARGE)
    async with between(always(http(body=body))) as (_, upstream):
        answered = (await get(upstream)).body
    assert isinstance(answered, CompressedBuffer)
    assert bytes(answered) == body


async def test_a_server_that_speaks_first_is_not_tried_for_ever():
    connections = 0

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.write(b"220 mail.example ESMTP\r\n")
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with open_upstream(configured(server.sockets[0].getsockname()[1])) as upstream:
        for _ in range(10):
            with pytest.raises((Unreachable, Unknown)):
                await write(upstream)
    assert connections <= 50
    server.close()


async def test_errors_do_not_name_what_was_asked():
    target = "/v1/recipients?search=ada%40example.org"
    settings = configured(1)
    async with open_upstream(settings) as upstream:
        with pytest.raises(Unreachable) as refused:
            await get(upstream, target)
    async with between(drops) as (_, upstream):
        with pytest.raises(Unreachable) as dropped:
            await get(upstream, target)
    for failure in (refused.value, dropped.value):
        assert "ada" not in str(failure)
        assert (failure.__cause__, failure.__context__) == (None, None)


# Timestamps.


async def test_waiting_for_a_place_does_not_age_the_stamp():
    async def play(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(1.2)
        writer.write(http())

    async with between(play, connections=1, timeout_seconds=10) as (service, upstream):
        await asyncio.gather(write(upstream), write(upstream), write(upstream))
    assert [seen.at - seen.stamp < 1.1 for seen in service.seen] == [True] * 3
    assert service.connections == 1


@pytest.mark.parametrize("off", [300.0, -300.0])
async def test_a_clock_that_is_off_is_corrected_with_one_more_request(off: float):
    clock = ServiceClock(lambda: time.time() + off)
    async with between(checks(), clock=clock) as (service, upstream):
        with capture_logs() as logs:
            first = await write(upstream)
            second = await write(upstream)
    assert (first.status, first.attempts) == (200, 2)
    assert (second.status, second.attempts) == (200, 1)
    assert len(service.seen) == 3
    assert clock.offset("live") == pytest.approx(-off, abs=1.5)
    [warning] = [entry for entry in logs if entry["event"] == "clock_corrected"]
    assert warning["environment"] == "live"
    assert warning["log_level"] == "warning"
    assert warning["offset_seconds"] == pytest.approx(-off, abs=1.5)


class Taken(Exception):
    """Another instance has taken over the operation."""


class Slept:
    """The fence of a suspended machine whose clocks stopped: no time seems to have passed."""

    is_fenced = True

    async def fence(self) -> None:
        raise Taken


async def test_a_machine_that_slept_makes_sure_of_its_turn_before_it_stamps_a_write_anew():
    """Only the service's clock shows that another instance may have sent the write meanwhile."""
    clock = ServiceClock(lambda: time.time() - 300)
    async with between(checks(), clock=clock) as (service, upstream):
        with pytest.raises(Taken):
            await upstream.send(
                "live", PAIR, "POST", "/v1/x", None, request_id="r", write=True, fence=Slept()
            )
    assert len(service.seen) == 1


async def test_calls_side_by_side_are_all_corrected_and_it_is_said_once():
    clock = ServiceClock(lambda: time.time() - 300)
    async with between(checks(), clock=clock) as (service, upstream):
        with capture_logs() as logs:
            replies = await asyncio.gather(*(write(upstream) for _ in range(20)))
    assert {reply.status for reply in replies} == {200}
    assert len(service.seen) <= 40
    assert [entry["event"] for entry in logs] == ["clock_corrected"]


async def test_a_wrong_pair_does_not_change_a_right_clock():
    """The refusals come through a proxy with clock skew."""

    async def play(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(http(401, NO, Date=formatdate(time.time() + 300, usegmt=True)))

    async with between(play) as (service, upstream):
        assert (await write(upstream)).status == 401
    assert upstream.clock.offset("live") == 0
    assert len(service.seen) == 2


async def test_a_proxy_whose_clock_is_off_costs_nothing():
    """The service accepts the right timestamp; every answer has another date."""

    async def play(seen: Seen, writer: asyncio.StreamWriter) -> None:
        date = formatdate(time.time() + 300, usegmt=True)
        right = abs(time.time() - seen.stamp) <= 30
        writer.write(http(Date=date) if right else http(401, NO, Date=date))

    async with between(play) as (_, upstream):
        replies = [await write(upstream) for _ in range(6)]
    assert [reply.status for reply in replies] == [200] * 6
    assert [reply.attempts for reply in replies] == [1] * 6


# Signature scope.


class Notebook:
    def __init__(self, **known):
        self.known = known

    def get(self, environment: str, name: str):
        return self.known.get(name)

    async def put(self, environment: str, name: str, value) -> None:
        assert environment == "live"
        self.known[name] = value


QUERY = "/v1/recipients?page=1"


@pytest.mark.parametrize(
    ("setting", "over_query", "attempts", "statuses"),
    [
        ("path", False, [1, 1], [200, 200]),
        ("path", True, [1, 1], [401, 401]),
        ("path-and-query", True, [1, 1], [200, 200]),
        ("path-and-query", False, [1, 1], [401, 401]),
        ("auto", False, [1, 1], [200, 200]),
        ("auto", True, [2, 1], [200, 200]),
    ],
)
async def test_what_is_signed_is_as_set_or_found_out_once(setting, over_query, attempts, statuses):
    notebook = Notebook()
    play = checks(over_query=over_query)
    async with between(play, signed_target=setting, learned=notebook) as (service, upstream):
        replies = [await get(upstream, QUERY), await get(upstream, QUERY)]
    assert [reply.attempts for reply in replies] == attempts
    assert [reply.status for reply in replies] == statuses
    assert len(service.seen) == sum(attempts)
    found = {"signed_target": "path-and-query" if over_query else "path"}
    assert notebook.known == (found if setting == "auto" else {})


@pytest.mark.parametrize("known", ["path", "path-and-query"])
async def test_once_it_is_known_there_is_no_second_try(known: str):
    play = checks(over_query=known == "path")  # and the service has changed since
    async with between(play, learned=Notebook(signed_target=known)) as (service, upstream):
        assert (await get(upstream, QUERY)).status == 401
    assert len(service.seen) == 1


async def test_a_call_without_a_query_tells_nothing():
    notebook = Notebook()
    async with between(checks(), learned=notebook) as (service, upstream):
        await get(upstream, "/v1/recipients")
        await get(upstream, "/v1/recipients?")
    assert notebook.known == {}
    assert [seen.target for seen in service.seen] == ["/v1/recipients"] * 2


@pytest.mark.parametrize("status", [302, 404, 502])
async def test_an_answer_that_may_come_from_before_the_check_tells_nothing(status: int):
    notebook = Notebook()
    async with between(always(http(status)), learned=notebook) as (_, upstream):
        await get(upstream, QUERY)
    assert notebook.known == {}


async def test_a_refusal_in_the_other_form_alone_tells_that_it_was_accepted():
    async def play(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(http(404 if seen.signed_over(seen.target) else 401, NO))

    notebook = Notebook()
    async with between(play, learned=notebook) as (_, upstream):
        assert (await get(upstream, QUERY)).status == 404
    assert notebook.known == {"signed_target": "path-and-query"}


async def test_clock_and_form_together_take_three_attempts_and_then_one():
    clock = ServiceClock(lambda: time.time() - 300)
    async with between(checks(over_query=True), clock=clock) as (service, upstream):
        assert (await get(upstream, QUERY)).attempts == 3
        assert (await get(upstream, QUERY)).attempts == 1
    assert len(service.seen) == 4


@pytest.mark.parametrize(
    ("body", "request_count"),
    [
        (NO, 2),
        (b"<html>401</html>", 1),
        (b"", 1),
        (b'{"ok":false}', 1),
        (b'{"ok":false,"errors":[{"code":"not_authorized"}]}', 1),
        (b'{"ok":false,"errors":["invalid_api_key"]}', 1),
        (NO + b" " * 300_000, 1),
    ],
)
async def test_only_the_service_s_own_401_has_a_write_signed_again(body: bytes, request_count: int):
    ahead = formatdate(time.time() + 300, usegmt=True)  # so that another timestamp can be tried
    async with between(always(http(401, body, Date=ahead))) as (service, upstream):
        assert (await write(upstream)).attempts == request_count
        assert (await get(upstream)).attempts == 2
    assert len(service.seen) == request_count + 2


async def test_a_wrong_pair_is_tried_in_both_forms_returned_and_logged_without_its_secret():
    async with between(always(http(401, NO))) as (service, upstream):
        with capture_logs() as logs:
            reply = await get(upstream, QUERY)
    assert (reply.status, reply.body, reply.attempts) == (401, NO, 2)
    assert len(service.seen) == 2
    [entry] = logs
    assert (entry["log_level"], entry["environment"], entry["access_key"]) == (
        "error",
        "live",
        "…",
    )
    assert "SK" not in str(entry)
    assert "page" not in str(entry)


async def test_an_answer_is_not_lost_when_what_was_learned_cannot_be_kept():
    class Broken(Notebook):
        async def put(self, environment: str, name: str, value) -> None:
            raise OSError("disk full")

    async with between(checks(over_query=True), learned=Broken()) as (_, upstream):
        assert (await get(upstream, QUERY)).attempts == 2
        assert (await get(upstream, QUERY)).attempts == 1


# Deadlines.


async def test_a_call_has_the_longer_the_more_bytes_it_sends_and_is_answered() -> None:
    deadline = Deadline(1, bytes_per_second=100)
    with deadline.start(50) as within:
        when = within.deadline
        assert str(deadline) == "no answer within 1.5 s"
        deadline.extend(150)
        deadline.extend(50)
        assert within.deadline == pytest.approx(when + 2)
    assert str(deadline) == "no answer within 3.5 s"


async def test_where_no_rate_is_set_every_call_has_as_long() -> None:
    deadline = Deadline(1, bytes_per_second=0)
    with deadline.start(10**9) as within:
        when = within.deadline
        deadline.extend(10**9)
        assert within.deadline == when
    assert str(deadline) == "no answer within 1 s"
