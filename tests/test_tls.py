"""TLS on both sides: certificates for clients, and verification of the service."""

from __future__ import annotations

import asyncio
import base64
import shutil
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from gateway.config.settings import Misconfigured
from gateway.operator.preflight import check_runnable
from tests.certificates import DAY, Authority, Pair
from tests.house import ENVIRONMENT, KEY, House, settings_for
from tests.processes import configuration, serving
from tests.signed import (
    CLIENT,
    INTERNAL,
    NOTHING_HELD,
    Recorder,
    asked,
    open_signed,
    recording,
    refused,
    says,
)
from tests.sockets import Wire, assert_legacy, until, wire
from tests.state import operations_by_state

BODY = b'{"type":"individual","firstName":"Ada","lastName":"Byron","email":"ada@example.com"}'
READ = (
    f"GET /v1/profile/balances HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEY['api_key']}\r\n\r\n".encode()
)
WRITE = (
    b"POST /v1/recipients HTTP/1.1\r\nHost: x\r\nX-API-Key: %b\r\nContent-Length: %d\r\n\r\n%b"
    % (KEY["api_key"].encode(), len(BODY), BODY)
)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    (tmp_path / "tls").mkdir()
    return Authority(tmp_path / "tls")


def server_of(pair: Pair) -> dict[str, str]:
    return {"tls_certificate_file": str(pair.certificate), "tls_key_file": str(pair.key)}


async def securely(port: int, authority: Authority) -> Wire:
    made = await asyncio.open_connection("127.0.0.1", port, ssl=authority.believing())
    return Wire(*made)


def shown(connection: Wire) -> str:
    """The name on the certificate that the other side showed."""
    told = connection.writer.get_extra_info("peercert")
    return str(dict(one for part in told["subject"] for one in part)["commonName"])


# Towards clients.


async def test_both_faces_are_served_over_tls(tmp_path: Path, authority: Authority) -> None:
    pair = authority.pair("gateway")
    async with (
        recording(says(NOTHING_HELD)) as recorder,
        open_signed(tmp_path, recorder.url, server=server_of(pair)) as house,
        await securely(house.running.port, authority) as connection,
    ):
        assert house.running.url.startswith("https://")
        for request in (READ, CLIENT.request(), READ):
            await connection.say(request)
            answer = await connection.answer()
            assert answer is not None
            assert answer.status == 200
        assert len(recorder.requests) == 3
        async with await wire(house.running.port) as plain:
            await plain.say(READ)
            assert await plain.closed()
        assert len(recorder.requests) == 3


async def test_a_request_that_comes_with_the_end_of_the_handshake_is_heard(
    tmp_path: Path, authority: Authority
) -> None:
    pair = authority.pair("gateway")

    def at_once(port: int) -> list[bytes]:
        """Blocking sockets send what they have at once, the client's last word of TLS included."""
        heard = []
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
                with authority.believing().wrap_socket(
                    plain, server_hostname="localhost"
                ) as secure:
                    secure.sendall(READ)
                    heard.append(secure.recv(12))
        return heard

    async with (
        recording(says(NOTHING_HELD)) as recorder,
        open_signed(tmp_path, recorder.url, server=server_of(pair)) as house,
    ):
        said = await asyncio.to_thread(at_once, house.running.port)
        assert said == [b"HTTP/1.1 200"] * 20


async def test_connections_that_never_end_their_handshake_make_place(
    tmp_path: Path, authority: Authority
) -> None:
    server, load = server_of(authority.pair("gateway")), {"connections": 16, "head_seconds": 5}
    async with recording(says(NOTHING_HELD)) as recorder, AsyncExitStack() as stack:
        house = await stack.enter_async_context(
            open_signed(tmp_path, recorder.url, server=server, load=load)
        )
        tracker = house.running.server.tracker
        for number in range(40):
            connection = await stack.enter_async_context(await wire(house.running.port))
            await connection.say(b"\x16\x03\x01" if number % 2 else b"")
        async with await securely(house.running.port, authority) as connection:
            await connection.say(READ)
            answer = await connection.answer()
            assert answer is not None
            assert answer.status == 200
            assert tracker.shed["for_others"] >= 40 - 16
        await until(lambda: tracker.shed.total() >= 40)
        await until(lambda: not house.running.server.handshakes)
        assert len(tracker.connections) <= 1


async def test_a_new_certificate_is_shown_to_new_connections_and_old_ones_go_on(
    tmp_path: Path, authority: Authority
) -> None:
    first, second = authority.pair("first"), authority.pair("second")
    live = Pair(tmp_path / "tls/live.pem", tmp_path / "tls/live.key")
    for ours, theirs in zip(
        (live.certificate, live.key), (first.certificate, first.key), strict=True
    ):
        shutil.copy(theirs, ours)
    async with (
        recording(says(NOTHING_HELD)) as recorder,
        open_signed(tmp_path, recorder.url, server=server_of(live)) as house,
        await securely(house.running.port, authority) as old,
    ):
        assert shown(old) == "first"
        live.certificate.write_text("half a file")
        house.running.reload()
        async with await securely(house.running.port, authority) as same:
            assert shown(same) == "first", "what cannot be used takes nothing's place"
        shutil.copy(second.certificate, live.certificate)
        shutil.copy(second.key, live.key)
        house.running.reload()
        async with await securely(house.running.port, authority) as new:
            assert shown(new) == "second"
        await old.say(READ)
        answer = await old.answer()
        assert answer is not None
        assert answer.status == 200


async def test_a_process_reads_its_certificate_again_when_it_is_told_to(
    tmp_path: Path, authority: Authority
) -> None:
    first, second = authority.pair("first"), authority.pair("second")
    section = f'tls_certificate_file = "{first.certificate}"\ntls_key_file = "{first.key}"'
    text = configuration("http://127.0.0.1:9").replace(
        "admin_port = 0", f"admin_port = 0\n{section}"
    )
    (tmp_path / "gateway.toml").write_text(text)
    async with serving(tmp_path, seconds=60) as gateway:
        async with await securely(gateway.port, authority) as connection:
            assert shown(connection) == "first"
            shutil.copy(second.certificate, first.certificate)
            shutil.copy(second.key, first.key)
            gateway.running.send_signal(signal.SIGHUP)
            await until(lambda: "certificate_reloaded" in gateway.logged())
            async with await securely(gateway.port, authority) as new:
                assert shown(new) == "second"
            await connection.say(b"GET /v1/x HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = await connection.answer()
            assert answer is not None
            assert answer.status == 404
        assert await gateway.ends() == 0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tls_key_file": "nothing.key"}, "check that both files exist"),
        ({"tls_key_file": "other.key"}, "not a certificate and its key"),
        ({"tls_certificate_file": "gateway.key"}, "not a certificate and its key"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_told_before_it_is_served(
    tmp_path: Path, authority: Authority, changes: dict[str, str], says: str
) -> None:
    server = server_of(authority.pair("gateway"))
    authority.pair("other")
    server |= {name: str(tmp_path / "tls" / file) for name, file in changes.items()}
    with pytest.raises(Misconfigured, match=says):
        check_runnable(settings_for(tmp_path, "http://127.0.0.1:9", server=server))


# Towards the service.


@asynccontextmanager
async def secured(pair: Pair, recorder: Recorder) -> AsyncIterator[int]:
    """Opens a TLS service; yields its port."""
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.ensure_future(recorder.serve(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=pair.serving())
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def service_of(port: int, authority: Authority | None) -> dict[str, object]:
    one = {"base_url": f"https://127.0.0.1:{port}"}
    return {"sandbox": one | ({"ca_file": str(authority.file)} if authority else {})}


@asynccontextmanager
async def before(
    folder: Path, port: int, authority: Authority | None, **sections: object
) -> AsyncIterator[House]:
    environments = service_of(port, authority)
    async with open_signed(folder, "http://x", environments=environments, **sections) as house:
        yield house


async def test_a_service_that_the_named_authority_vouches_for_is_believed(
    tmp_path: Path, authority: Authority
) -> None:
    async with (
        recording(says(NOTHING_HELD)) as recorder,
        secured(authority.pair("service"), recorder) as port,
    ):
        async with before(tmp_path, port, authority) as house:
            assert (await asked(house, READ)).status == 200
            assert (await asked(house, CLIENT.request())).status == 200
            async with house.session.get(house.running.admin_url + "/readyz") as ready:
                assert ready.status == 200


@pytest.mark.parametrize("why", ["expired", "unknown authority", "another name"])
async def test_to_a_service_that_is_not_believed_nothing_is_ever_sent(
    tmp_path: Path, authority: Authority, why: str
) -> None:
    pair = authority.pair("service", lasts=-DAY if why == "expired" else DAY)
    named = None if why == "unknown authority" else authority
    async with recording(says(NOTHING_HELD)) as recorder, secured(pair, recorder) as port:
        environments = service_of(port, named)
        if why == "another name":
            environments["sandbox"]["base_url"] = f"https://127.0.0.2:{port}"  # type: ignore[index]
        async with open_signed(tmp_path, "http://x", environments=environments) as house:
            for request in (WRITE, CLIENT.request("POST", "/v1/recipients", BODY)):
                answer = await asked(house, request)
                assert (answer.status, answer.code) == INTERNAL
                assert "nothing was changed" in answer.json["errors"][0]["message"]
            async with house.session.get(house.running.admin_url + "/readyz") as ready:
                assert ready.status == 503
            states = await operations_by_state(house.settings)
        assert recorder.requests == []
        assert "unsettled" not in str(states)
        assert "unknown" not in str(states)


@pytest.mark.parametrize("text", ["", "no certificate", None])
def test_authorities_that_cannot_be_read_are_told_at_once(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "authorities.pem").write_text(text)
    upstream = {"ca_file": str(tmp_path / "authorities.pem")}
    with pytest.raises(Misconfigured, match=r"ca_file: .*authorities\.pem cannot be used"):
        check_runnable(settings_for(tmp_path, "https://service.example", upstream=upstream))


# Through a proxy.


class Proxy:
    """A CONNECT proxy that records the request heads."""

    def __init__(self, status: bytes = b"200 OK") -> None:
        self.heads: list[str] = []
        self._status = status
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        writer.write(b"HTTP/1.1 %b\r\n\r\n" % self._status)
        if not self._status.startswith(b"200"):
            writer.close()
            return
        host, _, port = head.split(" ")[1].partition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(pour(reader, far_writer), pour(far_reader, writer))

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._tasks.add(asyncio.ensure_future(self.serve(reader, writer)))

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)


async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
    finally:
        writer.close()


async def test_both_faces_go_through_the_proxy_with_its_credentials_and_no_others(
    tmp_path: Path, authority: Authority
) -> None:
    credentials = tmp_path / "proxy-credentials"
    credentials.write_text("gate:hush-hush\n")
    credentials.chmod(0o600)
    proxy = Proxy()
    async with (
        recording(says(NOTHING_HELD)) as recorder,
        secured(authority.pair("service"), recorder) as port,
        proxy.open() as url,
    ):
        upstream = {"proxy": url, "proxy_credentials_file": str(credentials)}
        async with before(tmp_path, port, authority, upstream=upstream) as house:
            assert (await asked(house, READ)).status == 200
            assert (await asked(house, CLIENT.request())).status == 200
    told = base64.b64encode(b"gate:hush-hush").decode()
    assert len(recorder.requests) == 2
    assert len(proxy.heads) == 2
    for head in proxy.heads:
        assert head.startswith(f"CONNECT 127.0.0.1:{port} ")
        assert f"Proxy-Authorization: Basic {told}" in head
        assert "svcsign" not in head
    assert all("proxy-authorization" not in one.headers for one in recorder.requests)


async def test_what_a_proxy_refuses_was_not_sent(tmp_path: Path, authority: Authority) -> None:
    proxy = Proxy(b"407 Proxy Authentication Required")
    async with proxy.open() as url:
        async with before(tmp_path, 9, authority, upstream={"proxy": url}) as house:
            answer = await asked(house, WRITE)
            assert_legacy(answer)
            assert "nothing was changed" in answer.json["errors"][0]["message"]
            signed = await asked(house, CLIENT.request("POST", "/v1/recipients", BODY))
            assert refused(signed) == INTERNAL
            assert "nothing was changed" in signed.json["errors"][0]["message"]
    assert len(proxy.heads) >= 2


def test_a_proxy_is_not_given_what_goes_in_plain_text(tmp_path: Path) -> None:
    upstream = {"proxy": "http://proxy.example:3128"}
    its = {ENVIRONMENT: {"base_url": "http://service.example", "allow_http": True}}
    settings = settings_for(tmp_path, "", environments=its, upstream=upstream)
    with pytest.raises(Misconfigured, match="is not https"):
        check_runnable(settings)
