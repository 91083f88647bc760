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

from gateway.config.settings import ConfigurationError
from gateway.operator.preflight import check_settings_are_runnable
from gateway.server import app
from tests.certificates import DAY, Authority, CertificatePair
from tests.processes import build_configuration, run_serve
from tests.running_gateway import ENVIRONMENT, KEY, GatewayUnderTest, build_settings
from tests.signed_requests import (
    CLIENT,
    EMPTY_LIST,
    INTERNAL,
    RawService,
    extract_error,
    open_raw_service,
    open_signed_gateway,
    respond_with,
    send_raw,
)
from tests.sockets import RawConnection, assert_legacy, open_connection, wait_until
from tests.state import count_operations_by_state

BODY = b'{"type":"individual","firstName":"Ada","lastName":"Byron","email":"ada@example.com"}'
READ_REQUEST = (
    f"GET /v1/profile/balances HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEY['api_key']}\r\n\r\n".encode()
)
WRITE_REQUEST = (
    b"POST /v1/recipients HTTP/1.1\r\nHost: x\r\nX-API-Key: %b\r\nContent-Length: %d\r\n\r\n%b"
    % (KEY["api_key"].encode(), len(BODY), BODY)
)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    (tmp_path / "tls").mkdir()
    return Authority(tmp_path / "tls")


def build_server_section(certificate_pair: CertificatePair) -> dict[str, str]:
    return {
        "tls_certificate_file": str(certificate_pair.certificate),
        "tls_key_file": str(certificate_pair.key),
    }


async def open_tls_connection(port: int, authority: Authority) -> RawConnection:
    streams = await asyncio.open_connection("127.0.0.1", port, ssl=authority.build_client_context())
    return RawConnection(*streams)


def find_common_name(connection: RawConnection) -> str:
    """The name on the certificate that the other side showed."""
    peer_certificate = connection.writer.get_extra_info("peercert")
    return str(
        dict(entry for component in peer_certificate["subject"] for entry in component)[
            "commonName"
        ]
    )


# Towards clients.


async def test_both_interfaces_are_served_over_tls(tmp_path: Path, authority: Authority) -> None:
    certificate_pair = authority.issue("gateway")
    async with (
        open_raw_service(respond_with(EMPTY_LIST)) as recorder,
        open_signed_gateway(
            tmp_path, recorder.url, server=build_server_section(certificate_pair)
        ) as gateway,
        await open_tls_connection(gateway.running.port, authority) as connection,
    ):
        assert gateway.running.url.startswith("https://")
        for request in (READ_REQUEST, CLIENT.build_request(), READ_REQUEST):
            await connection.send(request)
            response = await connection.read_response()
            assert response is not None
            assert response.status == 200
        assert len(recorder.requests) == 3
        async with await open_connection(gateway.running.port) as plain_connection:
            await plain_connection.send(READ_REQUEST)
            assert await plain_connection.wait_closed()
        assert len(recorder.requests) == 3


async def test_request_sent_with_the_end_of_the_handshake_is_answered(
    tmp_path: Path, authority: Authority
) -> None:
    certificate_pair = authority.issue("gateway")

    def send_with_handshake(port: int) -> list[bytes]:
        """Blocking sockets send what they have at once, the client's last word of TLS included."""
        chunks = []
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as tcp_socket:
                with authority.build_client_context().wrap_socket(
                    tcp_socket, server_hostname="localhost"
                ) as tls_socket:
                    tls_socket.sendall(READ_REQUEST)
                    chunks.append(tls_socket.recv(12))
        return chunks

    async with (
        open_raw_service(respond_with(EMPTY_LIST)) as recorder,
        open_signed_gateway(
            tmp_path, recorder.url, server=build_server_section(certificate_pair)
        ) as gateway,
    ):
        response_bytes = await asyncio.to_thread(send_with_handshake, gateway.running.port)
        assert response_bytes == [b"HTTP/1.1 200"] * 20


async def test_unfinished_handshakes_are_closed_for_new_connections(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "HEAD_SECONDS", 5.0)
    server, load = build_server_section(authority.issue("gateway")), {"connections": 16}
    async with open_raw_service(respond_with(EMPTY_LIST)) as recorder, AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(
            open_signed_gateway(tmp_path, recorder.url, server=server, load=load)
        )
        tracker = gateway.running.server.tracker
        for number in range(40):
            connection = await stack.enter_async_context(
                await open_connection(gateway.running.port)
            )
            await connection.send(b"\x16\x03\x01" if number % 2 else b"")
        async with await open_tls_connection(gateway.running.port, authority) as connection:
            await connection.send(READ_REQUEST)
            response = await connection.read_response()
            assert response is not None
            assert response.status == 200
            assert tracker.closed_counts["for_others"] >= 40 - 16
        await wait_until(lambda: tracker.closed_counts.total() >= 40)
        await wait_until(lambda: not gateway.running.server.handshakes)
        assert len(tracker.connections) <= 1


async def test_reloaded_certificate_is_used_by_new_connections(
    tmp_path: Path, authority: Authority
) -> None:
    first_pair, second_pair = authority.issue("first"), authority.issue("second")
    live_pair = CertificatePair(tmp_path / "tls/live.pem", tmp_path / "tls/live.key")
    for target, source in zip(
        (live_pair.certificate, live_pair.key),
        (first_pair.certificate, first_pair.key),
        strict=True,
    ):
        shutil.copy(source, target)
    async with (
        open_raw_service(respond_with(EMPTY_LIST)) as recorder,
        open_signed_gateway(
            tmp_path, recorder.url, server=build_server_section(live_pair)
        ) as gateway,
        await open_tls_connection(gateway.running.port, authority) as old,
    ):
        assert find_common_name(old) == "first"
        live_pair.certificate.write_text("half a file")
        gateway.running.reload_certificate()
        async with await open_tls_connection(
            gateway.running.port, authority
        ) as old_certificate_connection:
            assert find_common_name(old_certificate_connection) == "first", (
                "what cannot be used takes nothing's place"
            )
        shutil.copy(second_pair.certificate, live_pair.certificate)
        shutil.copy(second_pair.key, live_pair.key)
        gateway.running.reload_certificate()
        async with await open_tls_connection(gateway.running.port, authority) as new:
            assert find_common_name(new) == "second"
        await old.send(READ_REQUEST)
        response = await old.read_response()
        assert response is not None
        assert response.status == 200


async def test_sighup_reloads_the_certificate(tmp_path: Path, authority: Authority) -> None:
    first_pair, second_pair = authority.issue("first"), authority.issue("second")
    section = (
        f'tls_certificate_file = "{first_pair.certificate}"\ntls_key_file = "{first_pair.key}"'
    )
    text = build_configuration("http://127.0.0.1:9").replace(
        "admin_port = 0", f"admin_port = 0\n{section}"
    )
    (tmp_path / "gateway.toml").write_text(text)
    async with run_serve(tmp_path, seconds=60) as gateway:
        async with await open_tls_connection(gateway.port, authority) as connection:
            assert find_common_name(connection) == "first"
            shutil.copy(second_pair.certificate, first_pair.certificate)
            shutil.copy(second_pair.key, first_pair.key)
            gateway.process.send_signal(signal.SIGHUP)
            await wait_until(lambda: "certificate_reloaded" in gateway.read_log())
            async with await open_tls_connection(gateway.port, authority) as new:
                assert find_common_name(new) == "second"
            await connection.send(b"GET /v1/x HTTP/1.1\r\nHost: x\r\n\r\n")
            response = await connection.read_response()
            assert response is not None
            assert response.status == 404
        assert await gateway.stop() == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tls_key_file": "nothing.key"}, "check that both files exist"),
        ({"tls_key_file": "other.key"}, "not a certificate and its key"),
        ({"tls_certificate_file": "gateway.key"}, "not a certificate and its key"),
        ({"tls_key_file": "text.key"}, r"not a certificate and its key \(no PEM\)"),
    ],
)
def test_unusable_certificate_is_a_startup_error(
    tmp_path: Path, authority: Authority, changes: dict[str, str], message: str
) -> None:
    server = build_server_section(authority.issue("gateway"))
    authority.issue("other")
    (tmp_path / "tls" / "text.key").write_text("no PEM")
    server |= {name: str(tmp_path / "tls" / file) for name, file in changes.items()}
    with pytest.raises(ConfigurationError, match=message):
        check_settings_are_runnable(build_settings(tmp_path, "http://127.0.0.1:9", server=server))


# Towards the service.


@asynccontextmanager
async def open_tls_service(
    certificate_pair: CertificatePair, recorder: RawService
) -> AsyncIterator[int]:
    """Opens a TLS service; yields its port."""
    tasks: set[asyncio.Task[None]] = set()

    def accept_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(recorder.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(lambda _task: writer.close())

    server = await asyncio.start_server(
        accept_connection, "127.0.0.1", 0, ssl=certificate_pair.build_server_context()
    )
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def build_environments(port: int, authority: Authority | None) -> dict[str, object]:
    section = {"base_url": f"https://127.0.0.1:{port}"}
    return {"sandbox": section | ({"ca_file": str(authority.file)} if authority else {})}


@asynccontextmanager
async def open_gateway_before(
    folder: Path, port: int, authority: Authority | None, **sections: object
) -> AsyncIterator[GatewayUnderTest]:
    environments = build_environments(port, authority)
    async with open_signed_gateway(
        folder, "http://x", environments=environments, **sections
    ) as gateway:
        yield gateway


async def test_service_certificate_of_the_configured_authority_is_trusted(
    tmp_path: Path, authority: Authority
) -> None:
    async with (
        open_raw_service(respond_with(EMPTY_LIST)) as recorder,
        open_tls_service(authority.issue("service"), recorder) as port,
    ):
        async with open_gateway_before(tmp_path, port, authority) as gateway:
            assert (await send_raw(gateway, READ_REQUEST)).status == 200
            assert (await send_raw(gateway, CLIENT.build_request())).status == 200
            async with gateway.session.get(gateway.running.admin_url + "/readyz") as response:
                assert response.status == 200


@pytest.mark.parametrize("reason", ["expired", "unknown authority", "another name"])
async def test_untrusted_service_gets_no_request(
    tmp_path: Path, authority: Authority, reason: str
) -> None:
    certificate_pair = authority.issue("service", lifetime=-DAY if reason == "expired" else DAY)
    configured_authority = None if reason == "unknown authority" else authority
    async with (
        open_raw_service(respond_with(EMPTY_LIST)) as recorder,
        open_tls_service(certificate_pair, recorder) as port,
    ):
        environments = build_environments(port, configured_authority)
        if reason == "another name":
            environments["sandbox"]["base_url"] = f"https://127.0.0.2:{port}"  # type: ignore[index]
        async with open_signed_gateway(tmp_path, "http://x", environments=environments) as gateway:
            for request in (WRITE_REQUEST, CLIENT.build_request("POST", "/v1/recipients", BODY)):
                response = await send_raw(gateway, request)
                assert (response.status, response.code) == INTERNAL
                assert "nothing was changed" in response.parse_json["errors"][0]["message"]
            async with gateway.session.get(gateway.running.admin_url + "/readyz") as readiness:
                assert readiness.status == 503
            states = await count_operations_by_state(gateway.settings)
        assert recorder.requests == []
        assert "unsettled" not in str(states)
        assert "unknown" not in str(states)


@pytest.mark.parametrize("text", ["", "no certificate", None])
def test_unreadable_ca_file_is_a_startup_error(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "authorities.pem").write_text(text)
    upstream = {"ca_file": str(tmp_path / "authorities.pem")}
    with pytest.raises(ConfigurationError, match=r"ca_file: .*authorities\.pem cannot be used"):
        check_settings_are_runnable(
            build_settings(tmp_path, "https://service.example", upstream=upstream)
        )


# Through a proxy.


class ConnectProxy:
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
        await asyncio.gather(copy_stream(reader, far_writer), copy_stream(far_reader, writer))

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        def accept_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self.serve(reader, writer))
            self._tasks.add(task)
            task.add_done_callback(lambda _task: writer.close())

        server = await asyncio.start_server(accept_connection, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)


async def copy_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
    finally:
        writer.close()


async def test_both_interfaces_use_the_proxy_with_its_credentials(
    tmp_path: Path, authority: Authority
) -> None:
    credentials = tmp_path / "proxy-credentials"
    credentials.write_text("gate:hush-hush\n")
    credentials.chmod(0o600)
    proxy = ConnectProxy()
    async with (
        open_raw_service(respond_with(EMPTY_LIST)) as recorder,
        open_tls_service(authority.issue("service"), recorder) as port,
        proxy.open() as url,
    ):
        upstream = {"proxy": url, "proxy_credentials_file": str(credentials)}
        async with open_gateway_before(tmp_path, port, authority, upstream=upstream) as gateway:
            assert (await send_raw(gateway, READ_REQUEST)).status == 200
            assert (await send_raw(gateway, CLIENT.build_request())).status == 200
    encoded_credentials = base64.b64encode(b"gate:hush-hush").decode()
    assert len(recorder.requests) == 2
    assert len(proxy.heads) == 2
    for head in proxy.heads:
        assert head.startswith(f"CONNECT 127.0.0.1:{port} ")
        assert f"Proxy-Authorization: Basic {encoded_credentials}" in head
        assert "svcsign" not in head
    assert all("proxy-authorization" not in request.headers for request in recorder.requests)


async def test_request_refused_by_the_proxy_is_unsent(tmp_path: Path, authority: Authority) -> None:
    proxy = ConnectProxy(b"407 Proxy Authentication Required")
    async with proxy.open() as url:
        async with open_gateway_before(tmp_path, 9, authority, upstream={"proxy": url}) as gateway:
            response = await send_raw(gateway, WRITE_REQUEST)
            assert_legacy(response)
            assert "nothing was changed" in response.parse_json["errors"][0]["message"]
            signed_response = await send_raw(
                gateway, CLIENT.build_request("POST", "/v1/recipients", BODY)
            )
            assert extract_error(signed_response) == INTERNAL
            assert "nothing was changed" in signed_response.parse_json["errors"][0]["message"]
    assert len(proxy.heads) >= 2


async def test_untrusted_certificate_behind_the_proxy_is_the_services(
    tmp_path: Path, authority: Authority, capfd: pytest.CaptureFixture[str]
) -> None:
    async with (
        open_raw_service(respond_with(EMPTY_LIST)) as recorder,
        open_tls_service(authority.issue("service"), recorder) as port,
        ConnectProxy().open() as url,
        open_gateway_before(tmp_path, port, None, upstream={"proxy": url}) as gateway,
    ):
        assert (await send_raw(gateway, READ_REQUEST)).status == 500
        output = "".join(capfd.readouterr())
        assert f"cannot connect to 127.0.0.1:{port}: unable to get local issuer" in output
        assert "the proxy" not in output


async def test_proxy_is_asked_for_an_ipv6_address_in_brackets(tmp_path: Path) -> None:
    proxy = ConnectProxy(b"403 Forbidden")
    environments = {ENVIRONMENT: {"base_url": "https://[::1]:9"}}
    async with proxy.open() as url:
        sections = {"environments": environments, "upstream": {"proxy": url}}
        async with open_signed_gateway(tmp_path, "http://x", **sections) as gateway:
            await send_raw(gateway, READ_REQUEST)
    assert {head.partition("\r\n")[0] for head in proxy.heads} == {"CONNECT [::1]:9 HTTP/1.1"}


def test_proxy_requires_https(tmp_path: Path) -> None:
    upstream = {"proxy": "http://proxy.example:3128"}
    environments = {ENVIRONMENT: {"base_url": "http://service.example", "allow_http": True}}
    settings = build_settings(tmp_path, "", environments=environments, upstream=upstream)
    with pytest.raises(ConfigurationError, match="is not https"):
        check_settings_are_runnable(settings)
