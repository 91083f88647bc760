"""Console access: login, sessions, CSRF protection, and data that no page may show."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from gateway.admin import session as admin_session
from gateway.admin.authentication import CLIENT_ADDRESS_HEADER
from gateway.admin.authentication import create_auth_middleware as admin_door
from gateway.admin.session import COOKIE, SESSION_SECONDS, Sessions
from gateway.server.app import run_gateway
from gateway.server.listener import WorkerPorts
from gateway.server.workers.admin_port import (
    create_workers_admin_application,
)
from gateway.simulator import Service, ServiceCredentials, start_simulator
from gateway.storage import open_store
from gateway.storage.audit_log import list_audit_events
from gateway.storage.freezes import list_freezes
from tests.canaries import (
    ACCESS_KEY,
    API_KEY,
    PAYOUT,
    PERSON,
    SECRET_KEY,
    Objects,
    assert_no_canary,
    build_batch,
    list_requests,
)
from tests.console import TOKEN, ConsoleClient, ConsoleUnderTest, open_console, open_console_client
from tests.gateway.console.test_pages import PAGES
from tests.running_gateway import (
    KEY,
    GatewayUnderTest,
    build_settings,
    import_api_keys,
    open_gateway,
)
from tests.sockets import exchange

FREEZE_FORM = {"do": "freeze", "merchant": "demo", "environment": "*"}


@asynccontextmanager
async def open_token_protected_console(folder: Path) -> AsyncIterator[ConsoleUnderTest]:
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    async with open_console(folder, server={"admin_token_file": str(folder / "token")}) as console:
        yield console


async def is_frozen(console: ConsoleUnderTest) -> bool:
    async with open_store(console.gateway.settings.state) as store:
        return bool(await list_freezes(store))


async def test_token_opens_login_for_browser_and_authorizes_program(tmp_path: Path) -> None:
    async with (
        open_token_protected_console(tmp_path) as console,
        open_console_client(console.url) as client,
    ):
        for path in ("/", "/switches", "/metrics"):
            redirect = await client.get(path)
            assert (redirect.status, redirect.headers["Location"]) == (303, "/login")
            unauthorized_response = await client.get(path, Accept="*/*")
            assert (
                unauthorized_response.status,
                unauthorized_response.headers["WWW-Authenticate"],
            ) == (
                401,
                "Bearer",
            )
        assert (await client.post("/switches", FREEZE_FORM, word="x")).status == 401
        login = await client.get("/login")
        assert login.status == 200
        assert "<nav" not in login.text
        for asset_path in re.findall(r'"(/assets/[^"]+)"', login.text):
            assert (await client.get(asset_path)).status == 200
        assert (await client.get("/assets/../switches")).status in (303, 404)

        rejected_login = await client.post("/login", {"token": TOKEN[:-1] + "x"})
        assert rejected_login.status == 403
        assert TOKEN not in rejected_login.text
        assert (await client.get("/")).status == 303

        accepted_login = await client.post("/login", {"token": TOKEN})
        assert (accepted_login.status, accepted_login.headers["Location"]) == (303, "/")
        cookie = accepted_login.headers["Set-Cookie"]
        for part in ("HttpOnly", "SameSite=Strict", "Path=/", f"Max-Age={SESSION_SECONDS}"):
            assert part in cookie
        assert TOKEN not in cookie
        assert "Secure" not in cookie
        for path in (*PAGES, "/metrics"):
            page = await client.get(path)
            assert page.status in (200, 404), path
            assert TOKEN not in page.text
            assert "Set-Cookie" not in page.headers
        assert "Log out" in (await client.get("/")).text
        assert (await client.post("/logout", {})).status == 303
        assert (await client.get("/")).status == 303

        bearer_header = {"Authorization": f"Bearer {TOKEN}"}
        assert (await client.get("/", **bearer_header)).status == 200


async def test_logout_ends_every_copy_of_the_session(tmp_path: Path) -> None:
    async with (
        open_token_protected_console(tmp_path) as console,
        open_console_client(console.url) as client,
    ):
        await client.get("/login")
        login = await client.post("/login", {"token": TOKEN})
        copied_cookie = login.headers["Set-Cookie"].partition(";")[0]
        async with aiohttp.ClientSession() as session:
            headers = {"Cookie": copied_cookie, "Accept": "text/html"}
            request_overview = partial(
                session.get, f"{console.url}/", headers=headers, allow_redirects=False
            )
            async with request_overview() as response_before:
                assert response_before.status == 200
            assert (await client.post("/logout", {})).status == 303
            async with request_overview() as response_after:
                assert (response_after.status, response_after.headers["Location"]) == (
                    303,
                    "/login",
                )


async def test_wrong_tokens_do_not_delay_a_right_one(tmp_path: Path) -> None:
    async with (
        open_token_protected_console(tmp_path) as console,
        aiohttp.ClientSession() as session,
    ):

        async def request_with_token(token: str) -> int:
            headers = {"Authorization": f"Bearer {token}"}
            async with session.get(f"{console.url}/metrics", headers=headers) as response:
                return response.status

        wrong_attempts = [
            asyncio.ensure_future(request_with_token(f"wrong-token-number-{number}"))
            for number in range(12)
        ]
        await asyncio.sleep(0.2)
        assert await request_with_token(TOKEN) == 200
        assert not any(attempt.done() for attempt in wrong_attempts)
        assert set(await asyncio.gather(*wrong_attempts)) == {401}


async def test_cookie_is_secure_behind_tls(tmp_path: Path) -> None:
    async with (
        open_token_protected_console(tmp_path) as console,
        open_console_client(console.url) as client,
    ):
        await client.get("/login")
        host = console.url.removeprefix("http://")
        login = await client.post("/login", {"token": TOKEN}, Origin=f"https://{host}")
        assert login.status == 303
        assert "Secure" in login.headers["Set-Cookie"]


def test_session_ends_with_the_process_which_knows_what_was_revoked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cookie = Sessions(TOKEN).log_in(TOKEN)
    assert cookie
    assert Sessions(TOKEN).is_valid(cookie)
    monkeypatch.setattr(admin_session, "_PROCESS_SECRET", b"of another process")
    assert not Sessions(TOKEN).is_valid(cookie)


def test_session_expires_ends_with_token_change_and_cannot_be_forged() -> None:
    now = [1_000_000.0]
    sessions = Sessions(TOKEN, lambda: now[0])
    cookie = sessions.log_in(TOKEN)
    assert cookie
    assert sessions.is_valid(cookie)
    assert not Sessions(TOKEN + "2", lambda: now[0]).is_valid(cookie)
    number, expires_at, digest = cookie.split(".")
    for forged_cookie in (
        f"{number}.{int(expires_at) + 1}.{digest}",
        f"{number}.{expires_at}.{'0' * 64}",
        f"{number}.{expires_at}",
        f"{cookie} ",
        "",
    ):
        assert not sessions.is_valid(forged_cookie)
    now[0] += SESSION_SECONDS
    assert not sessions.is_valid(cookie)
    assert not Sessions("").is_valid(cookie)
    assert Sessions("").log_in("") is None


CROSS_SITE_HEADERS: list[dict[str, Any]] = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "http://[", "Sec-Fetch-Site": ""},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "none"},
    {"Origin": "", "Sec-Fetch-Site": ""},
    {"Content-Type": "text/plain"},
    {"word": ""},
    {"word": "0" * 64},
    {"word": "é"},
]


async def test_only_forms_of_this_console_change_anything(tmp_path: Path) -> None:
    async with open_console(tmp_path) as console, open_console_client(console.url) as client:
        for headers in CROSS_SITE_HEADERS:
            response = await client.post("/switches", FREEZE_FORM, **headers)
            assert response.status == 403, headers
            assert not await is_frozen(console)
        async with open_console_client(console.url) as other_client:
            other_token = await other_client.load_csrf_token()
        assert (await client.post("/switches", FREEZE_FORM, word=other_token)).status == 403
        for path in ("/explain", "/service", "/logout", "/login"):
            assert (await client.post(path, {}, word="")).status == 403
        for path in (
            "/switches?do=freeze&merchant=demo",
            "/switches/confirm?do=freeze&merchant=*&environment=*",
        ):
            assert (await client.get(path)).status == 200
        assert not await is_frozen(console)
        assert (await client.post("/switches", FREEZE_FORM)).status == 303
        assert await is_frozen(console)


async def test_page_is_refused_to_a_rebound_host_name(tmp_path: Path) -> None:
    async with open_console(tmp_path) as console:
        for path in ("/", "/login", "/assets/console.css", "/switches"):
            for host_header in ("Host: rebound.example", "Host: 127.0.0.1.rebound.example:80"):
                request_text = f"GET {path} HTTP/1.1\r\n{host_header}\r\nAccept: text/html\r\n\r\n"
                answer = await exchange(console.gateway.running.admin_port, request_text.encode())
                assert answer is not None
                assert answer.status == 403


async def use_every_operation(gateway: GatewayUnderTest) -> None:
    response = await gateway.request("POST", "/v1/recipients", PERSON | {"payout": PAYOUT})
    recipient = response.body["recipient"]["id"]
    batch = (await gateway.request("POST", "/v1/batches", build_batch(recipient))).body["batch"][
        "id"
    ]
    payment_list = await gateway.request("GET", f"/v1/batches/{batch}/payments")
    created_objects = Objects(recipient, batch, payment_list.body["payments"][0]["id"])
    for method, path, body in list_requests(created_objects):
        data = {"data": body} if isinstance(body, bytes) else {"body": body}
        await gateway.request(method, f"/v1{path}", **data)
    await gateway.request("GET", f"/v1/{SECRET_KEY}?x={API_KEY}")


async def test_pages_contain_no_secret_and_no_personal_data(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    service_credentials = ServiceCredentials(ACCESS_KEY, SECRET_KEY, "canary", "sandbox")
    simulator = await start_simulator(service=Service(credentials=[service_credentials], seed=1))
    try:
        async with open_gateway(tmp_path, simulator.url) as gateway:
            gateway.api_key = await gateway.import_key(
                merchant="canary", api_key=API_KEY, access_key=ACCESS_KEY, secret_key=SECRET_KEY
            )
            await asyncio.sleep(1.1)  # until the key cache has polled
            await use_every_operation(gateway)
            async with open_console_client(gateway.running.admin_url) as client:
                await check_every_page(client)
    finally:
        await simulator.stop()
    captured_output = capfd.readouterr()
    assert_no_canary(captured_output.out + captured_output.err)


async def check_every_page(client: ConsoleClient) -> None:
    for path in (*PAGES, "/switches/confirm?do=brownout&minutes=5"):
        assert_no_canary((await client.get(path)).text)
    check_page = await client.post("/service", {})
    assert_no_canary(check_page.text)
    for method, target, body in list_requests(Objects("R-abc", "B-abc", "P-abc")):
        data = "" if isinstance(body, bytes) else f" -d {shlex.quote(json.dumps(body))}"
        header = "'X-API-Key: only-in-the-header'"
        curl_command = f"curl -H {header} -X {method} {shlex.quote(f'/v1{target}')}{data}"
        page = await client.post("/explain", {"request": curl_command})
        assert page.status in (200, 422), page.text
        textarea = re.search("<textarea.*?</textarea>", page.text, re.DOTALL)
        assert textarea
        # What was pasted is explained, but not its headers.
        assert "only-in-the-header" not in page.text.replace(textarea[0], "")


async def test_log_and_audit_log_name_operator_without_secrets(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with (
        open_token_protected_console(tmp_path) as console,
        open_console_client(console.url) as client,
    ):
        await client.get("/login")
        await client.post("/login", {"token": TOKEN})
        assert (await client.post("/switches", FREEZE_FORM)).status == 303
        async with open_store(console.gateway.settings.state) as store:
            _import_event, freeze_event = await list_audit_events(store)
    assert (freeze_event.action, freeze_event.merchant, freeze_event.actor) == (
        "froze",
        "demo",
        "console, from 127.0.0.1",
    )
    log_text = "".join(capfd.readouterr())
    assert "Freeze writes of merchant demo, live and sandbox" in log_text
    assert "127.0.0.1" in log_text
    assert TOKEN not in log_text
    assert COOKIE not in log_text


async def test_worker_behind_parent_accepts_login_and_sees_client_address(tmp_path: Path) -> None:
    settings = build_settings(
        tmp_path, "http://127.0.0.1:9", server={"port": 0, "admin_port": 0, "admin_token": TOKEN}
    )
    await import_api_keys(settings, [KEY])
    async with run_gateway(settings, WorkerPorts(0, tmp_path / "admin")):
        workers = [tmp_path / "admin"]
        parent_application = create_workers_admin_application(
            lambda: workers,
            [admin_door(settings.server)],
        )
        async with (
            TestServer(parent_application) as server,
            open_console_client(f"http://127.0.0.1:{server.port}") as client,
        ):
            assert (await client.get("/")).headers["Location"] == "/login"
            assert (await client.post("/switches", FREEZE_FORM, word="x")).status == 401
            assert (await client.get("/login")).status == 200
            assert (await client.post("/login", {"token": "wrong"})).status == 403
            assert (await client.post("/login", {"token": TOKEN})).status == 303
            assert "Overview" in (await client.get("/")).text
            address_header = {CLIENT_ADDRESS_HEADER: "203.0.113.9"}
            assert (await client.post("/switches", FREEZE_FORM, **address_header)).status == 303
            assert (await client.post("/logout", {})).status == 303
            assert (await client.get("/")).status == 303
    async with open_store(settings.state) as store:
        _import_event, freeze_event = await list_audit_events(store)
    assert freeze_event.actor == "console, from 127.0.0.1"


async def test_without_parent_claimed_client_address_is_ignored(tmp_path: Path) -> None:
    async with open_console(tmp_path) as console, open_console_client(console.url) as client:
        address_header = {CLIENT_ADDRESS_HEADER: "203.0.113.9"}
        assert (await client.post("/switches", FREEZE_FORM, **address_header)).status == 303
        async with open_store(console.gateway.settings.state) as store:
            _import_event, freeze_event = await list_audit_events(store)
    assert freeze_event.actor == "console, from 127.0.0.1"
