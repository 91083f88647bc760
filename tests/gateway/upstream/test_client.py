"""The upstream client over real sockets, against a small scripted server."""

import asyncio
import gzip
import time
import zlib
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import formatdate

import pytest
from structlog.testing import capture_logs

from gateway.auth.signing import Credentials, compute_signature
from gateway.config.settings import Settings
from gateway.storage.capability_cache import CapabilityCache
from gateway.upstream import client
from gateway.upstream.client import UpstreamClient, open_upstream_client
from gateway.upstream.clock import ServiceClock
from mappings.failures import Unknown, Unreachable

CREDENTIALS = Credentials("AK", "SK")
OK_BODY = b'{"ok":true}'
REFUSAL_BODY = b'{"ok":false,"errors":[{"code":"invalid_api_key","message":"no"}]}'


@dataclass
class ReceivedRequest:
    """One request as the server received it."""

    line: str
    headers: dict[str, str]
    body: bytes
    received_at: float

    @property
    def target(self) -> str:
        return self.line.split(" ")[1]

    @property
    def timestamp(self) -> int:
        return int(self.headers["x-svc-timestamp"])

    def is_signed_over(self, target: str) -> bool:
        method = self.line.split(" ")[0]
        signature = compute_signature(CREDENTIALS.keyed, self.timestamp, method, target, self.body)
        return self.headers["authorization"] == f"svcsign AK:{signature}"


Responder = Callable[[ReceivedRequest, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class FakeServer:
    respond: Responder
    requests: list[ReceivedRequest] = field(default_factory=list)
    connections: int = 0
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while not writer.is_closing():
                received_request = await read_request(reader)
                self.requests.append(received_request)
                await self.respond(received_request, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def read_request(reader: asyncio.StreamReader) -> ReceivedRequest:
    head_lines = (await reader.readuntil(b"\r\n\r\n")).decode("ascii").split("\r\n")
    pairs = [line.split(": ", 1) for line in head_lines[1:] if line]
    headers = {name.lower(): value for name, value in pairs}
    assert len(headers) == len(pairs), "a header was sent twice"
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return ReceivedRequest(head_lines[0], headers, body, time.time())


def build_response(status: int = 200, body: bytes = OK_BODY, **headers: str) -> bytes:
    head_lines = [f"HTTP/1.1 {status} Word", f"Content-Length: {len(body)}"]
    head_lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*head_lines, "", ""]).encode() + body


def respond_always(data: bytes, *, close: bool = False) -> Responder:
    async def respond(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        if close:
            writer.close()

    return respond


async def drop_connection(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def keep_waiting(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(5)


def check_signature(
    clock: Callable[[], float] = time.time, *, over_query: bool = False
) -> Responder:
    """Respond as the service: with its own clock, and one interpretation of "request path"."""

    async def respond(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        path = received.target if over_query else received.target.split("?")[0]
        is_fresh = abs(clock() - received.timestamp) <= 30
        date = formatdate(clock(), usegmt=True)
        if is_fresh and received.is_signed_over(path):
            writer.write(build_response(Date=date))
        else:
            writer.write(build_response(401, REFUSAL_BODY, Date=date))

    return respond


@asynccontextmanager
async def open_server(respond: Responder):
    service = FakeServer(respond)
    tasks: set[asyncio.Task[None]] = set()

    def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.ensure_future(service.serve(reader, writer)))

    server = await asyncio.start_server(serve_connection, "127.0.0.1", 0)
    service.port = server.sockets[0].getsockname()[1]
    try:
        yield service
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)


def build_settings(
    port: int, *, prefix: str = "", body_bytes: int = 1 << 26, **upstream
) -> Settings:
    return Settings(
        environments={"live": {"base_url": f"http://127.0.0.1:{port}{prefix}"}},
        upstream={"timeout_seconds": 10, **upstream},
        limits={"body_bytes": body_bytes},
    )


@asynccontextmanager
async def open_upstream_and_server(
    respond: Responder, *, clock: ServiceClock | None = None, capabilities=None, **settings
):
    async with (
        open_server(respond) as service,
        open_upstream_client(
            build_settings(service.port, **settings), clock=clock, capabilities=capabilities
        ) as upstream,
    ):
        yield service, upstream


async def send_read(upstream: UpstreamClient, target: str = "/v1/recipients/R-1"):
    return await upstream.send(
        "live", CREDENTIALS, "GET", target, None, request_id="r", write=False
    )


async def send_write(
    upstream: UpstreamClient,
    method: str = "POST",
    body: bytes | None = b'{"a":1}',
):
    return await upstream.send(
        "live", CREDENTIALS, method, "/v1/batches/B-1", body, request_id="r", write=True
    )


WRITE_METHODS = ["POST", "PATCH", "PUT", "DELETE"]


# Requests.


async def test_write_has_exactly_these_headers():
    async with open_upstream_and_server(check_signature()) as (service, upstream):
        reply = await send_write(upstream)
    [received_request] = service.requests
    assert (reply.status, reply.body, reply.attempts) == (200, OK_BODY, 1)
    assert reply.headers["content-LENGTH"] == str(len(OK_BODY))
    assert 0 < reply.seconds < 1
    assert received_request.line == "POST /v1/batches/B-1 HTTP/1.1"
    assert received_request.body == b'{"a":1}'
    assert set(received_request.headers) == {
        "host", "accept", "accept-encoding", "user-agent", "x-request-id",
        "content-type", "content-length", "authorization", "x-svc-timestamp",
    }  # fmt: skip
    assert received_request.headers["host"] == f"127.0.0.1:{service.port}"
    assert (
        received_request.headers["accept"]
        == received_request.headers["content-type"]
        == "application/json"
    )
    assert received_request.headers["accept-encoding"] == "identity"
    assert received_request.headers["x-request-id"] == "r"
    assert received_request.headers["user-agent"].startswith("payout-gateway/")


@pytest.mark.parametrize("method", WRITE_METHODS)
async def test_request_without_body_has_no_content_type(method: str):
    async with open_upstream_and_server(check_signature()) as (service, upstream):
        await send_write(upstream, method, None)
    assert "content-type" not in service.requests[0].headers
    assert service.requests[0].headers["content-length"] == "0"


@pytest.mark.parametrize(
    "target",
    [
        "/v1/recipients?search=a%40b.example&name=%2B+%20~&x=%c3%a9",
        "/v1/recipients/a%2Fb/../c//d;e=1/'(!*)",
        "/v1/recipients?a=1?b=2&a=3&c&d=",
        '/v1/recipients?q={a}|\\^`"<>[]',
    ],
)
async def test_target_is_sent_byte_for_byte(target: str):
    async with open_upstream_and_server(
        respond_always(build_response()), signed_target="path-and-query"
    ) as (service, upstream):
        await send_read(upstream, target)
    assert service.requests[0].target == target
    assert service.requests[0].is_signed_over(target)


@pytest.mark.parametrize("target", ["/v2/x", "/v1/a b", "/v1/é", "/v1/a\r\nb", "/v1/x#y", ""])
async def test_target_that_would_be_altered_is_not_sent(target: str):
    async with open_upstream_and_server(respond_always(build_response())) as (service, upstream):
        with pytest.raises(ValueError, match="a target begins"):
            await send_read(upstream, target)
    assert service.requests == []


async def test_path_prefix_of_base_url_is_sent_and_not_signed():
    async with open_upstream_and_server(check_signature(), prefix="/pre%20fix/x") as (
        service,
        upstream,
    ):
        await send_read(upstream, "/v1/recipients/R-1")
    assert service.requests[0].target == "/pre%20fix/x/v1/recipients/R-1"
    assert service.requests[0].is_signed_over("/v1/recipients/R-1")


async def test_credentials_cannot_inject_headers():
    async with open_upstream_and_server(respond_always(build_response())) as (service, upstream):
        credentials = Credentials("AK\r\nX-Other: 1", "SK")
        with pytest.raises(Unreachable):
            await upstream.send(
                "live", credentials, "GET", "/v1/x", None, request_id="r", write=False
            )
    assert service.requests == []


async def test_connection_answered_before_request_end_is_not_reused():
    request_lines: list[bytes] = []
    is_finished = asyncio.Event()

    async def respond_to_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request_lines.append(await reader.readline())
        await reader.readuntil(b"\r\n\r\n")
        writer.write(build_response(413, REFUSAL_BODY))
        await is_finished.wait()  # and reads nothing of the body
        writer.transport.abort()

    server = await asyncio.start_server(respond_to_head, "127.0.0.1", 0, limit=1024)
    port = server.sockets[0].getsockname()[1]
    async with open_upstream_client(build_settings(port)) as upstream:
        for _ in range(2):
            reply = await send_write(upstream, body=b"x" * 32 * 1024 * 1024)
            assert reply.status == 413
    assert request_lines == [b"POST /v1/batches/B-1 HTTP/1.1\r\n"] * 2, "each on its own connection"
    is_finished.set()
    server.close()
    await server.wait_closed()


async def test_cookies_are_not_kept():
    async with open_upstream_and_server(respond_always(build_response(Set_Cookie="a=b"))) as (
        service,
        upstream,
    ):
        await send_read(upstream)
        await send_read(upstream)
    assert service.connections == 1
    assert "cookie" not in service.requests[1].headers


async def test_proxy_variables_and_netrc_are_ignored(monkeypatch, tmp_path):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login a password b")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with open_upstream_and_server(check_signature()) as (_, upstream):
        assert (await send_read(upstream)).status == 200


# Single delivery.


@pytest.mark.parametrize("method", WRITE_METHODS)
async def test_write_on_stale_connection_is_sent_once(method: str):
    """The server reads the second request on a kept connection and closes it without an answer."""
    answers = 0

    async def respond(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        nonlocal answers
        answers += 1
        if answers == 2:
            writer.close()
        else:
            writer.write(build_response())

    async with open_upstream_and_server(respond) as (service, upstream):
        await send_write(upstream, method)
        with pytest.raises(Unknown):
            await send_write(upstream, method)
        assert (len(service.requests), service.connections) == (2, 1)
        assert (await send_write(upstream, method)).status == 200
    assert (len(service.requests), service.connections) == (3, 2)


async def test_read_is_retried_once_after_dropped_connection():
    async with open_upstream_and_server(drop_connection) as (service, upstream):
        with pytest.raises(Unreachable, match="the connection was closed before an answer arrived"):
            await send_read(upstream)
    assert len(service.requests) == 2


async def test_retried_read_has_two_attempts_each_signed():
    first = True

    async def respond(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        nonlocal first
        writer.close() if first else writer.write(build_response())
        first = False

    async with open_upstream_and_server(respond) as (service, upstream):
        assert (await send_read(upstream)).attempts == 2
    assert all(
        received_request.is_signed_over("/v1/recipients/R-1")
        for received_request in service.requests
    )


# Unreachable or unknown.


async def test_unresolvable_host_is_unreachable():
    settings = Settings(environments={"live": {"base_url": "https://nowhere.invalid"}})
    async with open_upstream_client(settings) as upstream:
        with pytest.raises(Unreachable):
            await send_write(upstream)


async def test_failed_tls_handshake_is_unreachable():
    async with open_server(respond_always(b"HTTP/1.1 400 no\r\n\r\n", close=True)) as service:
        settings = Settings(
            environments={"live": {"base_url": f"https://127.0.0.1:{service.port}"}},
            upstream={"timeout_seconds": 2},
        )
        async with open_upstream_client(settings) as upstream:
            with pytest.raises(Unreachable):
                await send_write(upstream)
    assert service.requests == []


async def test_unconfigured_environment_is_unreachable():
    async with open_upstream_and_server(respond_always(build_response())) as (_, upstream):
        with pytest.raises(Unreachable, match="sandbox"):
            await upstream.send(
                "sandbox", CREDENTIALS, "POST", "/v1/x", None, request_id="r", write=True
            )


async def test_write_that_never_got_a_connection_is_unreachable():
    async with open_upstream_and_server(keep_waiting, connections=1, timeout_seconds=0.5) as (
        service,
        upstream,
    ):
        deadline = asyncio.get_running_loop().time() + 60
        connection = await upstream.origins["live"].wait_for_connection(deadline)
        with pytest.raises(Unreachable, match=r"no answer within 0\.5 s"):
            await send_write(upstream)
        connection.close()
    assert service.requests == []


TRUNCATED_RESPONSE = b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"ok":true}'
UNREADABLE_RESPONSES = {
    "cut off": TRUNCATED_RESPONSE,
    "cut off, chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n" + OK_BODY,
    "chunk of a wrong length": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n" + OK_BODY + b"\r\n0\r\n\r\n"
    ),
    "length is not a number": b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n" + OK_BODY,
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 11\r\n\r\n" + OK_BODY,
    "not HTTP": b"SSH-2.0-OpenSSH\r\n\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "not gzip": build_response(Content_Encoding="gzip"),
    "gzip cut off": build_response(body=gzip.compress(OK_BODY * 99)[:-12], Content_Encoding="gzip"),
    "an encoding nobody asked for": build_response(Content_Encoding="br"),
    "an encoding nobody knows": build_response(Content_Encoding="rot13"),
    "more than the length": build_response() + b"junk",
    "too much": build_response(body=b" " * 2000),
    "too much, chunked": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n"
        + b" " * 2000
        + b"\r\n0\r\n\r\n"
    ),
    "too much, gzip": build_response(body=gzip.compress(b" " * 100_000), Content_Encoding="gzip"),
}


@pytest.fixture(autouse=True)
def limit_answer_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.upstream.client.MAX_ANSWER_BYTES", 1024)


@pytest.mark.parametrize("case", UNREADABLE_RESPONSES)
async def test_unreadable_answer_makes_write_unknown(case: str):
    respond = respond_always(UNREADABLE_RESPONSES[case], close=True)
    async with open_upstream_and_server(respond, body_bytes=1024) as (service, upstream):
        with pytest.raises(Unknown):
            await send_write(upstream)
        assert len(service.requests) == 1
        with pytest.raises(Unreachable):
            await send_read(upstream)
    assert len(service.requests) <= 3


@pytest.mark.parametrize(
    ("delay_seconds", "extra_data"),
    [(0, build_response(408, b"no")), (0.05, build_response(408, b"no")), (0.05, b"junk")],
)
async def test_unsolicited_data_is_not_the_next_answer(delay_seconds: float, extra_data: bytes):
    async def respond(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(build_response())
        await asyncio.sleep(delay_seconds)
        writer.write(extra_data)

    async with open_upstream_and_server(respond) as (service, upstream):
        for _ in range(3):
            reply = await send_write(upstream)
            assert (reply.body, reply.attempts) == (OK_BODY, 1)
            await asyncio.sleep(delay_seconds * 2)
            await asyncio.sleep(delay_seconds)  # time to notice it, even on a busy machine
    assert (len(service.requests), service.connections) == (3, 3)


@pytest.mark.parametrize("encoding", ["gzip", "Deflate", "identity"])
async def test_compressed_answer_is_decoded(encoding: str):
    body = {"gzip": gzip.compress, "Deflate": zlib.compress, "identity": bytes}[encoding](OK_BODY)
    async with open_upstream_and_server(
        respond_always(build_response(body=body, Content_Encoding=encoding))
    ) as (_, upstream):
        assert (await send_read(upstream)).body == OK_BODY


async def test_server_that_speaks_first_is_not_retried_forever():
    connections = 0

    def greet_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.write(b"220 mail.example ESMTP\r\n")
        writer.close()

    server = await asyncio.start_server(greet_connection, "127.0.0.1", 0)
    async with open_upstream_client(build_settings(server.sockets[0].getsockname()[1])) as upstream:
        for _ in range(10):
            with pytest.raises((Unreachable, Unknown)):
                await send_write(upstream)
    assert connections <= 50
    server.close()


async def test_errors_do_not_quote_the_target():
    target = "/v1/recipients?search=ada%40example.org"
    settings = build_settings(1)
    async with open_upstream_client(settings) as upstream:
        with pytest.raises(Unreachable) as refused_error:
            await send_read(upstream, target)
    async with open_upstream_and_server(drop_connection) as (_, upstream):
        with pytest.raises(Unreachable) as dropped_error:
            await send_read(upstream, target)
    for failure in (refused_error.value, dropped_error.value):
        assert "ada" not in str(failure)
        assert (failure.__cause__, failure.__context__) == (None, None)


# Timestamps.


async def test_timestamp_is_made_after_waiting_for_a_connection():
    async def respond(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(1.2)
        writer.write(build_response())

    async with open_upstream_and_server(respond, connections=1, timeout_seconds=10) as (
        service,
        upstream,
    ):
        await asyncio.gather(send_write(upstream), send_write(upstream), send_write(upstream))
    assert [
        received_request.received_at - received_request.timestamp < 1.1
        for received_request in service.requests
    ] == [True] * 3
    assert service.connections == 1


@pytest.mark.parametrize("skew_seconds", [300.0, -300.0])
async def test_clock_skew_is_corrected_with_one_more_request(skew_seconds: float):
    clock = ServiceClock(lambda: time.time() + skew_seconds)
    async with open_upstream_and_server(check_signature(), clock=clock) as (service, upstream):
        with capture_logs() as logs:
            first = await send_write(upstream)
            second = await send_write(upstream)
    assert (first.status, first.attempts) == (200, 2)
    assert (second.status, second.attempts) == (200, 1)
    assert len(service.requests) == 3
    assert clock.offset("live") == pytest.approx(-skew_seconds, abs=1.5)
    [warning] = [entry for entry in logs if entry["event"] == "clock_corrected"]
    assert warning["environment"] == "live"
    assert warning["log_level"] == "warning"
    assert warning["offset_seconds"] == pytest.approx(-skew_seconds, abs=1.5)


class TakenOver(Exception):
    """Another instance has taken over the operation."""


class SuspendedMachineFence:
    """The fence of a suspended machine whose clocks stopped: no time seems to have passed."""

    is_fence_recent = True

    async def verify_fence(self, stamped_at: float | None = None) -> None:
        raise TakenOver


async def test_suspended_machine_renews_its_fence_before_signing_again():
    """Only the service's clock shows that another instance may have sent the write meanwhile."""
    clock = ServiceClock(lambda: time.time() - 300)
    async with open_upstream_and_server(check_signature(), clock=clock) as (service, upstream):
        with pytest.raises(TakenOver):
            await upstream.send(
                "live",
                CREDENTIALS,
                "POST",
                "/v1/x",
                None,
                request_id="r",
                write=True,
                fence=SuspendedMachineFence(),
            )
    assert len(service.requests) == 1


async def test_concurrent_calls_are_all_corrected_and_logged_once():
    clock = ServiceClock(lambda: time.time() - 300)
    async with open_upstream_and_server(check_signature(), clock=clock) as (service, upstream):
        with capture_logs() as logs:
            replies = await asyncio.gather(*(send_write(upstream) for _ in range(20)))
    assert {reply.status for reply in replies} == {200}
    assert len(service.requests) <= 40
    assert [entry["event"] for entry in logs] == ["clock_corrected"]


async def test_wrong_credentials_do_not_change_a_right_clock():
    """The refusals come through a proxy with clock skew."""

    async def respond(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(
            build_response(401, REFUSAL_BODY, Date=formatdate(time.time() + 300, usegmt=True))
        )

    async with open_upstream_and_server(respond) as (service, upstream):
        assert (await send_write(upstream)).status == 401
    assert upstream.clock.offset("live") == 0
    assert len(service.requests) == 2


async def test_proxy_with_clock_skew_has_no_effect():
    """The service accepts the right timestamp; every answer has another date."""

    async def respond(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        date = formatdate(time.time() + 300, usegmt=True)
        is_clock_right = abs(time.time() - received.timestamp) <= 30
        writer.write(
            build_response(Date=date)
            if is_clock_right
            else build_response(401, REFUSAL_BODY, Date=date)
        )

    async with open_upstream_and_server(respond) as (_, upstream):
        replies = [await send_write(upstream) for _ in range(6)]
    assert [reply.status for reply in replies] == [200] * 6
    assert [reply.attempts for reply in replies] == [1] * 6


# Signature scope.


class FakeLearnedStore:
    def __init__(self, **capabilities):
        self.capabilities = capabilities

    def get(self, environment: str, name: str):
        return self.capabilities.get(name)

    async def put(self, environment: str, name: str, value) -> None:
        assert environment == "live"
        self.capabilities[name] = value


QUERY_TARGET = "/v1/recipients?page=1"


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
async def test_signature_scope_is_configured_or_detected_once(
    setting, over_query, attempts, statuses
):
    learned_store = FakeLearnedStore()
    respond = check_signature(over_query=over_query)
    async with open_upstream_and_server(
        respond, signed_target=setting, capabilities=learned_store
    ) as (
        service,
        upstream,
    ):
        replies = [await send_read(upstream, QUERY_TARGET), await send_read(upstream, QUERY_TARGET)]
    assert [reply.attempts for reply in replies] == attempts
    assert [reply.status for reply in replies] == statuses
    assert len(service.requests) == sum(attempts)
    expected_capabilities = {"signed_target": "path-and-query" if over_query else "path"}
    assert learned_store.capabilities == (expected_capabilities if setting == "auto" else {})


@pytest.mark.parametrize("recorded_scope", ["path", "path-and-query"])
async def test_known_signature_scope_is_not_probed_again(recorded_scope: str):
    respond = check_signature(
        over_query=recorded_scope == "path"
    )  # and the service has changed since
    async with open_upstream_and_server(
        respond, capabilities=FakeLearnedStore(signed_target=recorded_scope)
    ) as (
        service,
        upstream,
    ):
        assert (await send_read(upstream, QUERY_TARGET)).status == 401
    assert len(service.requests) == 1


async def test_call_without_query_reveals_no_scope():
    learned_store = FakeLearnedStore()
    async with open_upstream_and_server(check_signature(), capabilities=learned_store) as (
        service,
        upstream,
    ):
        await send_read(upstream, "/v1/recipients")
        await send_read(upstream, "/v1/recipients?")
    assert learned_store.capabilities == {}
    assert [received_request.target for received_request in service.requests] == [
        "/v1/recipients"
    ] * 2


@pytest.mark.parametrize("status", [302, 404, 502])
async def test_answer_sent_before_signature_check_reveals_no_scope(status: int):
    learned_store = FakeLearnedStore()
    async with open_upstream_and_server(
        respond_always(build_response(status)), capabilities=learned_store
    ) as (_, upstream):
        await send_read(upstream, QUERY_TARGET)
    assert learned_store.capabilities == {}


async def test_non_401_refusal_of_other_scope_proves_acceptance():
    async def respond(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(
            build_response(404 if received.is_signed_over(received.target) else 401, REFUSAL_BODY)
        )

    learned_store = FakeLearnedStore()
    async with open_upstream_and_server(respond, capabilities=learned_store) as (_, upstream):
        assert (await send_read(upstream, QUERY_TARGET)).status == 404
    assert learned_store.capabilities == {"signed_target": "path-and-query"}


async def test_clock_and_scope_detection_take_three_attempts_once():
    clock = ServiceClock(lambda: time.time() - 300)
    async with open_upstream_and_server(check_signature(over_query=True), clock=clock) as (
        service,
        upstream,
    ):
        assert (await send_read(upstream, QUERY_TARGET)).attempts == 3
        assert (await send_read(upstream, QUERY_TARGET)).attempts == 1
    assert len(service.requests) == 4


@pytest.mark.parametrize(
    ("body", "request_count"),
    [
        (REFUSAL_BODY, 2),
        (b"<html>401</html>", 1),
        (b"", 1),
        (b'{"ok":false}', 1),
        (b'{"ok":false,"errors":[{"code":"not_authorized"}]}', 1),
        (b'{"ok":false,"errors":["invalid_api_key"]}', 1),
        (REFUSAL_BODY + b" " * 300_000, 1),
    ],
)
async def test_write_is_signed_again_only_after_401_of_the_service(body: bytes, request_count: int):
    future_date = formatdate(
        time.time() + 300, usegmt=True
    )  # so that another timestamp can be tried
    async with open_upstream_and_server(
        respond_always(build_response(401, body, Date=future_date))
    ) as (
        service,
        upstream,
    ):
        assert (await send_write(upstream)).attempts == request_count
        assert (await send_read(upstream)).attempts == 2
    assert len(service.requests) == request_count + 2


async def test_wrong_credentials_are_tried_in_both_scopes_and_logged_without_secret():
    async with open_upstream_and_server(respond_always(build_response(401, REFUSAL_BODY))) as (
        service,
        upstream,
    ):
        with capture_logs() as logs:
            reply = await send_read(upstream, QUERY_TARGET)
    assert (reply.status, reply.body, reply.attempts) == (401, REFUSAL_BODY, 2)
    assert len(service.requests) == 2
    [entry] = logs
    assert (entry["log_level"], entry["environment"], entry["access_key"]) == (
        "error",
        "live",
        "…",
    )
    assert "SK" not in str(entry)
    assert "page" not in str(entry)


async def test_answer_is_returned_if_learned_scope_cannot_be_saved():
    class UnwritableStore:
        clock = datetime.now

        async def write(self, body) -> None:
            raise OSError("disk full")

    capabilities = CapabilityCache(UnwritableStore())
    async with open_upstream_and_server(
        check_signature(over_query=True), capabilities=capabilities
    ) as (
        _,
        upstream,
    ):
        assert (await send_read(upstream, QUERY_TARGET)).attempts == 2
        assert (await send_read(upstream, QUERY_TARGET)).attempts == 1


# Deadlines.


@pytest.mark.parametrize("bytes_per_second", [1_000_000, 1000])
async def test_deadline_grows_with_bytes_at_the_minimum_rate(
    bytes_per_second: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "BYTES_PER_SECOND", bytes_per_second)

    async def respond_slowly(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(10):
            await asyncio.sleep(0.1)
            writer.write(b" " * 100)

    async with open_upstream_and_server(respond_slowly, timeout_seconds=0.5) as (_, upstream):
        if bytes_per_second == 1000:
            assert (await send_read(upstream)).body == b" " * 1000
        else:
            with pytest.raises(Unreachable, match=r"no answer within 0\.5 s"):
                await send_read(upstream)
