"""Access control of the admin port: token, host names and listening address."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.config.settings import ConfigurationError
from gateway.operator.preflight import check_settings_are_runnable
from tests.running_gateway import GatewayUnderTest, build_settings, open_gateway
from tests.sockets import exchange

UNREACHABLE_URL = "http://127.0.0.1:9"
TOKEN = "a-token-of-some-length"
PAGE = "/metrics"


@asynccontextmanager
async def open_token_protected_gateway(
    folder: Path, **server: str
) -> AsyncIterator[GatewayUnderTest]:
    (folder / "token").write_text(f"{TOKEN}\n")
    (folder / "token").chmod(0o600)
    token = {"admin_token_file": str(folder / "token")} if server.pop("token", "") else {}
    async with open_gateway(folder, UNREACHABLE_URL, server={**server, **token}) as gateway:
        yield gateway


async def request_status(gateway: GatewayUnderTest, path: str, *headers: str) -> int:
    data = "\r\n".join([f"GET {path} HTTP/1.1", *headers, "", ""]).encode()
    answer = await exchange(gateway.running.admin_port, data)
    assert answer is not None
    return answer.status


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:8081", "localhost:8081", "LOCALHOST", "[::1]:8081", "localhost."],
)
async def test_without_token_loopback_host_is_accepted(tmp_path: Path, host: str) -> None:
    async with open_token_protected_gateway(tmp_path) as gateway:
        assert await request_status(gateway, PAGE, f"Host: {host}") == 200
        assert await request_status(gateway, "/healthz", f"Host: {host}") == 200


@pytest.mark.parametrize(
    "host",
    [
        "rebound.example",
        "127.0.0.1.rebound.example",
        "localhost.rebound.example:8081",
        "10.0.0.1",
        "",
    ],
)
async def test_without_token_dns_rebinding_is_rejected(tmp_path: Path, host: str) -> None:
    async with open_token_protected_gateway(tmp_path) as gateway:
        for path in (PAGE, "/healthz", "/readyz", "/nothing"):
            assert await request_status(gateway, path, f"Host: {host}") == 403


OTHER_HEADERS: list[tuple[str, ...]] = [
    (),
    ("Authorization: Bearer",),
    ("Authorization: Bearer a-token-of-some-lengtH",),
    (f"Authorization: Basic {TOKEN}",),
    (f"Authorization: {TOKEN}",),
    ("Authorization: Bearer t\u00f6ken",),
    (f"Authorization: Bearer {TOKEN}", "Authorization: Bearer other"),
]
"""Headers that do not hold the token."""


async def test_with_token_only_health_is_public(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.admin.authentication.FAILURE_DELAY_SECONDS", 0)
    async with open_token_protected_gateway(tmp_path, token="yes") as gateway:

        async def check_status(path: str, headers: tuple[str, ...], status: int) -> None:
            answered = await request_status(gateway, path, "Host: gateway.example", *headers)
            assert answered == status, (path, headers)

        # A refused credential is answered with a delay, so other paths are tried without one.
        for headers in OTHER_HEADERS:
            await check_status(PAGE, headers, 401)
        for path, status in (
            ("/", 401),
            ("/healthz/", 401),
            ("/nothing", 401),
            ("/healthz", 200),
            ("/readyz", 503),
        ):
            await check_status(path, (), status)


async def test_token_admits_any_host(tmp_path: Path) -> None:
    async with open_token_protected_gateway(tmp_path, token="yes", admin_host="0.0.0.0") as gateway:
        headers = ("Host: gateway.example", f"Authorization: bearer {TOKEN}")
        assert await request_status(gateway, PAGE, *headers) == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "gateway.example", "10.0.0.1"])
def test_public_admin_port_requires_token(tmp_path: Path, host: str) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"set server\.admin_token_file to a file with a token, or server\.admin_host",
    ):
        check_settings_are_runnable(
            build_settings(tmp_path, UNREACHABLE_URL, server={"admin_host": host})
        )


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_admin_port_requires_no_token(tmp_path: Path, host: str) -> None:
    check_settings_are_runnable(
        build_settings(tmp_path, UNREACHABLE_URL, server={"admin_host": host})
    )
