"""Console access: the token, forms of other pages, and data that no page may show."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from gateway.admin.authentication import CLIENT_ADDRESS_HEADER
from gateway.admin.authentication import create_auth_middleware as admin_door
from gateway.server.app import run_gateway
from gateway.server.listener import WorkerPorts
from gateway.server.workers.admin_port import create_workers_admin_application
from gateway.storage import open_store
from gateway.storage.audit_log import list_audit_events
from gateway.storage.freezes import list_freezes
from tests.canaries import (
    ACCESS_KEY,
    API_KEY,
    SECRET_KEY,
    Objects,
    assert_no_canary,
    create_objects,
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
from tests.simulator import Service, ServiceCredentials, start_simulator
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


async def test_browser_is_asked_for_the_token_and_program_for_a_bearer_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.admin.authentication.FAILURE_DELAY_SECONDS", 0)
    async with open_token_protected_console(tmp_path) as console:
        async with open_console_client(console.url) as client:
            for path in (
                "/",
                "/switches",
                "/metrics",
                "/assets/console.css",
                "/assets/../switches",
            ):
                page = await client.get(path)
                assert (page.status, page.text.count("\n")) == (401, 0)
                assert page.headers["WWW-Authenticate"].startswith("Basic realm=")
                response = await client.get(path, Accept="*/*")
                assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
                part = await client.get(path, Accept="*/*", **{"Sec-Fetch-Dest": "style"})
                assert part.headers["WWW-Authenticate"].startswith("Basic realm=")
            assert (await client.post("/switches", FREEZE_FORM)).status == 401
            bearer_header = {"Authorization": f"Bearer {TOKEN}"}
            assert (await client.get("/", **bearer_header)).status == 200
        for wrong_token in (TOKEN[:-1] + "x", f"{TOKEN}:", f"x:{TOKEN}"):
            async with open_console_client(console.url, wrong_token) as client:
                refused_page = await client.get("/")
                assert refused_page.status == 401
                assert TOKEN not in refused_page.text
        async with open_console_client(console.url, TOKEN) as client:
            for path in (*PAGES, "/metrics"):
                page = await client.get(path)
                assert page.status in (200, 404), path
                assert TOKEN not in page.text
                assert "Set-Cookie" not in page.headers
            for asset_path in re.findall(r'"(/assets/[^"]+)"', (await client.get("/")).text):
                assert (await client.get(asset_path)).status == 200
            assert (await client.post("/switches", FREEZE_FORM)).status == 303
            assert await is_frozen(console)


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
]


async def test_only_forms_of_this_console_change_anything(tmp_path: Path) -> None:
    async with open_console(tmp_path) as console, open_console_client(console.url) as client:
        for headers in CROSS_SITE_HEADERS:
            response = await client.post("/switches", FREEZE_FORM, **headers)
            assert response.status == 403, headers
            assert not await is_frozen(console)
        for path in ("/explain", "/service"):
            assert (await client.post(path, {}, Origin="http://evil.example")).status == 403
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
        for path in ("/", "/assets/console.css", "/switches"):
            for host_header in ("Host: rebound.example", "Host: 127.0.0.1.rebound.example:80"):
                request_text = f"GET {path} HTTP/1.1\r\n{host_header}\r\nAccept: text/html\r\n\r\n"
                answer = await exchange(console.gateway.running.admin_port, request_text.encode())
                assert answer is not None
                assert answer.status == 403


async def use_every_operation(gateway: GatewayUnderTest) -> None:
    for method, path, body in list_requests(await create_objects(gateway)):
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
    for path in (*PAGES, "/switches/confirm?do=freeze&merchant=*"):
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
        open_console_client(console.url, TOKEN) as client,
    ):
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


async def test_worker_behind_parent_sees_client_address(tmp_path: Path) -> None:
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
        async with TestServer(parent_application) as server:
            url = f"http://127.0.0.1:{server.port}"
            async with open_console_client(url) as client:
                assert (await client.get("/")).status == 401
                assert (await client.post("/switches", FREEZE_FORM)).status == 401
            async with open_console_client(url, TOKEN) as client:
                assert "Overview" in (await client.get("/")).text
                address_header = {CLIENT_ADDRESS_HEADER: "203.0.113.9"}
                assert (await client.post("/switches", FREEZE_FORM, **address_header)).status == 303
    async with open_store(settings.state) as store:
        _import_event, freeze_event = await list_audit_events(store)
    assert freeze_event.actor == "console, from 127.0.0.1"


async def test_parent_without_ready_workers_says_that_they_may_be_starting() -> None:
    async with (
        TestServer(create_workers_admin_application(list)) as server,
        open_console_client(f"http://127.0.0.1:{server.port}") as client,
    ):
        page = await client.get("/readyz")
    assert (page.status, "they may still be starting" in page.text) == (503, True)


async def test_without_parent_claimed_client_address_is_ignored(tmp_path: Path) -> None:
    async with open_console(tmp_path) as console, open_console_client(console.url) as client:
        address_header = {CLIENT_ADDRESS_HEADER: "203.0.113.9"}
        assert (await client.post("/switches", FREEZE_FORM, **address_header)).status == 303
        async with open_store(console.gateway.settings.state) as store:
            _import_event, freeze_event = await list_audit_events(store)
    assert freeze_event.actor == "console, from 127.0.0.1"
