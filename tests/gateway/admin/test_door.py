"""Who may ask the admin port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.config.settings import Misconfigured
from gateway.operator.preflight import check_runnable
from tests.house import House, open_house, settings_for
from tests.sockets import heard

NOWHERE = "http://127.0.0.1:9"
TOKEN = "a-token-of-some-length"
PAGE = "/openapi.json"


@asynccontextmanager
async def guarded(folder: Path, **server: str) -> AsyncIterator[House]:
    (folder / "token").write_text(f"{TOKEN}\n")
    (folder / "token").chmod(0o600)
    token = {"admin_token_file": str(folder / "token")} if server.pop("token", "") else {}
    async with open_house(folder, NOWHERE, server={**server, **token}) as house:
        yield house


async def status(house: House, path: str, *headers: str) -> int:
    data = "\r\n".join([f"GET {path} HTTP/1.1", *headers, "", ""]).encode()
    answer = await heard(house.running.admin_port, data)
    assert answer is not None
    return answer.status


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:8081", "localhost:8081", "LOCALHOST", "[::1]:8081", "localhost."],
)
async def test_without_a_token_a_name_of_this_machine_is_good_enough(
    tmp_path: Path, host: str
) -> None:
    async with guarded(tmp_path) as house:
        assert await status(house, PAGE, f"Host: {host}") == 200
        assert await status(house, "/healthz", f"Host: {host}") == 200


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
async def test_without_a_token_a_page_that_rebinds_its_name_gets_nothing(
    tmp_path: Path, host: str
) -> None:
    async with guarded(tmp_path) as house:
        for path in (PAGE, "/healthz", "/readyz", "/nothing"):
            assert await status(house, path, f"Host: {host}") == 403


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ("Authorization: Bearer",),
        ("Authorization: Bearer a-token-of-some-lengtH",),
        (f"Authorization: Basic {TOKEN}",),
        (f"Authorization: {TOKEN}",),
        ("Authorization: Bearer t\u00f6ken",),
        (f"Authorization: Bearer {TOKEN}", "Authorization: Bearer other"),
    ],
)
async def test_where_there_is_a_token_nothing_but_health_is_told_without_it(
    tmp_path: Path, headers: tuple[str, ...]
) -> None:
    async with guarded(tmp_path, token="yes") as house:
        for path in (PAGE, "/", "/healthz/", "/nothing"):
            assert await status(house, path, "Host: gateway.example", *headers) == 401
        assert await status(house, "/healthz", "Host: gateway.example", *headers) == 200
        assert await status(house, "/readyz", "Host: gateway.example", *headers) == 503


async def test_who_has_the_token_may_ask_from_anywhere(tmp_path: Path) -> None:
    async with guarded(tmp_path, token="yes", admin_host="0.0.0.0") as house:
        told = ("Host: gateway.example", f"Authorization: bearer {TOKEN}")
        assert await status(house, PAGE, *told) == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "gateway.example", "10.0.0.1"])
def test_no_admin_port_is_opened_to_others_without_a_token(tmp_path: Path, host: str) -> None:
    with pytest.raises(
        Misconfigured,
        match=r"set server\.admin_token_file to a file with a token, or server\.admin_host",
    ):
        check_runnable(settings_for(tmp_path, NOWHERE, server={"admin_host": host}))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_none(tmp_path: Path, host: str) -> None:
    check_runnable(settings_for(tmp_path, NOWHERE, server={"admin_host": host}))
