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

from gateway.admin.authentication import CLIENT_ADDRESS_HEADER
from gateway.admin.authentication import create_auth_middleware as admin_door
from gateway.admin.session import COOKIE, SESSION_SECONDS, Sessions
from gateway.server.app import Inherited, run_gateway
from gateway.server.listening import bind_sockets
from gateway.server.workers.admin import create_worker_metrics, create_workers_admin_application
from gateway.simulator import Key, Service, start
from gateway.storage import open_store
from gateway.storage.audit_log import acts_of
from gateway.storage.freezes import frozen
from tests.canaries import (
    ACCESS_KEY,
    API_KEY,
    CANARIES,
    PAYOUT,
    PERSON,
    SECRET_KEY,
    SSN,
    Objects,
    assert_no_canary,
    batch_of,
    operations,
)
from tests.console import TOKEN, Seen, Visitor, open_console, visiting
from tests.gateway.console.test_pages import PAGES
from tests.house import KEY, House, import_lines, open_house, settings_for
from tests.sockets import heard

FREEZE = {"do": "freeze", "merchant": "demo", "environment": ""}


@asynccontextmanager
async def guarded(folder: Path) -> AsyncIterator[Seen]:
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    async with open_console(folder, server={"admin_token_file": str(folder / "token")}) as seen:
        yield seen


async def is_frozen(seen: Seen) -> bool:
    async with open_store(seen.house.settings.state) as store:
        return bool(await frozen(store))


async def test_with_a_token_a_browser_logs_in_and_a_program_shows_it(tmp_path: Path) -> None:
    async with guarded(tmp_path) as seen, visiting(seen.url) as visitor:
        for path in ("/", "/switches", "/metrics"):
            sent = await visitor.get(path)
            assert (sent.status, sent.headers["Location"]) == (303, "/login")
            refused = await visitor.get(path, Accept="*/*")
            assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert (await visitor.post("/switches", FREEZE, word="x")).status == 401
        login = await visitor.get("/login")
        assert login.status == 200
        assert "<nav" not in login.text
        for one in re.findall(r'"(/assets/[^"]+)"', login.text):
            assert (await visitor.get(one)).status == 200
        assert (await visitor.get("/assets/../switches")).status in (303, 404)

        wrong = await visitor.post("/login", {"token": TOKEN[:-1] + "x"})
        assert wrong.status == 403
        assert TOKEN not in wrong.text
        assert (await visitor.get("/")).status == 303

        begun = await visitor.post("/login", {"token": TOKEN})
        assert (begun.status, begun.headers["Location"]) == (303, "/")
        cookie = begun.headers["Set-Cookie"]
        for part in ("HttpOnly", "SameSite=Strict", "Path=/", f"Max-Age={SESSION_SECONDS}"):
            assert part in cookie
        assert TOKEN not in cookie
        assert "Secure" not in cookie
        for path in (*PAGES, "/metrics"):
            page = await visitor.get(path)
            assert page.status in (200, 404), path
            assert TOKEN not in page.text
            assert "Set-Cookie" not in page.headers
        assert "Log out" in (await visitor.get("/")).text
        assert (await visitor.post("/logout", {})).status == 303
        assert (await visitor.get("/")).status == 303

        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert (await visitor.get("/", **bearer)).status == 200


async def test_logout_ends_the_session_wherever_its_cookie_is(tmp_path: Path) -> None:
    async with guarded(tmp_path) as seen, visiting(seen.url) as visitor:
        await visitor.get("/login")
        begun = await visitor.post("/login", {"token": TOKEN})
        stolen = begun.headers["Set-Cookie"].partition(";")[0]
        async with aiohttp.ClientSession() as other:
            headers = {"Cookie": stolen, "Accept": "text/html"}
            ask = partial(other.get, f"{seen.url}/", headers=headers, allow_redirects=False)
            async with ask() as before:
                assert before.status == 200
            assert (await visitor.post("/logout", {})).status == 303
            async with ask() as after:
                assert (after.status, after.headers["Location"]) == (303, "/login")


async def test_wrong_tokens_of_one_address_do_not_delay_a_right_one(tmp_path: Path) -> None:
    async with guarded(tmp_path) as seen, aiohttp.ClientSession() as session:

        async def ask(token: str) -> int:
            headers = {"Authorization": f"Bearer {token}"}
            async with session.get(f"{seen.url}/metrics", headers=headers) as got:
                return got.status

        wrong = [asyncio.ensure_future(ask(f"wrong-token-number-{number}")) for number in range(12)]
        await asyncio.sleep(0.2)
        assert await ask(TOKEN) == 200
        assert not any(one.done() for one in wrong)
        assert set(await asyncio.gather(*wrong)) == {401}


async def test_behind_tls_the_cookie_is_for_tls_alone(tmp_path: Path) -> None:
    async with guarded(tmp_path) as seen, visiting(seen.url) as visitor:
        await visitor.get("/login")
        host = seen.url.removeprefix("http://")
        begun = await visitor.post("/login", {"token": TOKEN}, Origin=f"https://{host}")
        assert begun.status == 303
        assert "Secure" in begun.headers["Set-Cookie"]


def test_a_login_ends_by_itself_and_with_another_token_and_cannot_be_made_up() -> None:
    now = [1_000_000.0]
    sessions = Sessions(TOKEN, lambda: now[0])
    cookie = sessions.create_cookie(TOKEN)
    assert cookie
    assert sessions.is_valid(cookie)
    assert not Sessions(TOKEN + "2", lambda: now[0]).is_valid(cookie)
    number, until, digest = cookie.split(".")
    for made_up in (
        f"{number}.{int(until) + 1}.{digest}",
        f"{number}.{until}.{'0' * 64}",
        f"{number}.{until}",
        f"{cookie} ",
        "",
    ):
        assert not sessions.is_valid(made_up)
    now[0] += SESSION_SECONDS
    assert not sessions.is_valid(cookie)
    assert not Sessions("").is_valid(cookie)
    assert Sessions("").create_cookie("") is None


ELSEWHERE: list[dict[str, Any]] = [
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


async def test_only_a_form_of_this_very_console_changes_anything(tmp_path: Path) -> None:
    async with open_console(tmp_path) as seen, visiting(seen.url) as visitor:
        for how in ELSEWHERE:
            refused = await visitor.post("/switches", FREEZE, **how)
            assert refused.status == 403, how
            assert not await is_frozen(seen)
        async with visiting(seen.url) as other:
            theirs = await other.word()
        assert (await visitor.post("/switches", FREEZE, word=theirs)).status == 403
        for path in ("/explain", "/service", "/logout", "/login"):
            assert (await visitor.post(path, {}, word="")).status == 403
        for path in ("/switches?do=freeze&merchant=demo", "/switches/confirm?do=freeze"):
            assert (await visitor.get(path)).status == 200
        assert not await is_frozen(seen)
        assert (await visitor.post("/switches", FREEZE)).status == 303
        assert await is_frozen(seen)


async def test_a_name_that_is_bound_to_this_machine_gets_no_page(tmp_path: Path) -> None:
    async with open_console(tmp_path) as seen:
        for path in ("/", "/login", "/assets/console.css", "/switches"):
            for head in ("Host: rebound.example", "Host: 127.0.0.1.rebound.example:80"):
                sent = f"GET {path} HTTP/1.1\r\n{head}\r\nAccept: text/html\r\n\r\n"
                answer = await heard(seen.house.running.admin_port, sent.encode())
                assert answer is not None
                assert answer.status == 403


async def _used(house: House) -> None:
    made = await house.ask("POST", "/v1/recipients", PERSON | {"payout": PAYOUT})
    recipient = made.body["recipient"]["id"]
    batch = (await house.ask("POST", "/v1/batches", batch_of(recipient))).body["batch"]["id"]
    listed = await house.ask("GET", f"/v1/batches/{batch}/payments")
    there = Objects(recipient, batch, listed.body["payments"][0]["id"])
    for method, path, body in operations(there):
        data = {"data": body} if isinstance(body, bytes) else {"body": body}
        await house.ask(method, f"/v1{path}", **data)
    await house.ask("GET", f"/v1/{SECRET_KEY}?x={API_KEY}")


async def test_no_page_shows_a_secret_or_anything_personal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pair = Key(ACCESS_KEY, SECRET_KEY, "canary", "sandbox")
    simulator = await start(service=Service(keys=[pair], seed=1))
    try:
        async with open_house(tmp_path, simulator.url) as house:
            house.api_key = await house.import_key(
                merchant="canary", api_key=API_KEY, access_key=ACCESS_KEY, secret_key=SECRET_KEY
            )
            await asyncio.sleep(1.1)  # until the key cache has polled
            await _used(house)
            async with visiting(house.running.admin_url) as visitor:
                await _look_everywhere(visitor)
    finally:
        await simulator.stop()
    logged = capfd.readouterr()
    assert_no_canary(logged.out + logged.err)


async def _look_everywhere(visitor: Visitor) -> None:
    for path in (*PAGES, "/switches/confirm?do=brownout&minutes=5"):
        assert_no_canary((await visitor.get(path)).text)
    tried = await visitor.post("/service", {})
    assert_no_canary(tried.text)
    for method, target, body in operations(Objects("R-abc", "B-abc", "P-abc")):
        data = "" if isinstance(body, bytes) else f" -d {shlex.quote(json.dumps(body))}"
        header = shlex.quote(f"X-API-Key: {API_KEY}")
        pasted = f"curl -H {header} -X {method} {shlex.quote(f'/v1{target}')}{data}"
        said = await visitor.post("/explain", {"request": pasted})
        assert said.status in (200, 422), said.text
        typed = re.search("<textarea.*?</textarea>", said.text, re.DOTALL)
        assert typed
        # A number sent as an id is treated as an id.
        has_ids = isinstance(body, dict) and "ids" in body
        hidden = tuple(one for one in CANARIES if one != SSN or not has_ids)
        assert_no_canary(said.text.replace(typed[0], ""), hidden)


async def test_the_log_and_the_audit_trail_say_who_switched_and_nothing_secret(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with guarded(tmp_path) as seen, visiting(seen.url) as visitor:
        await visitor.get("/login")
        await visitor.post("/login", {"token": TOKEN})
        assert (await visitor.post("/switches", FREEZE)).status == 303
        async with open_store(seen.house.settings.state) as store:
            _imported, act = await acts_of(store)
    assert (act.what, act.merchant, act.by) == ("froze", "demo", "console, from 127.0.0.1")
    logged = "".join(capfd.readouterr())
    assert "froze merchant demo, live and sandbox" in logged
    assert "127.0.0.1" in logged
    assert TOKEN not in logged
    assert COOKIE not in logged


async def test_a_worker_behind_its_parent_logs_in_and_hears_who_asks(tmp_path: Path) -> None:
    settings = settings_for(
        tmp_path, "http://127.0.0.1:9", server={"port": 0, "admin_port": 0, "admin_token": TOKEN}
    )
    await import_lines(settings, [KEY])
    door = bind_sockets("127.0.0.1", 0, "SERVER__PORT")
    inherited = Inherited(door, [0], tmp_path / "admin")
    async with run_gateway(settings, inherited):
        workers = [tmp_path / "admin"]
        parent = create_workers_admin_application(
            lambda: workers, create_worker_metrics(lambda: workers), [admin_door(settings.server)]
        )
        async with TestServer(parent) as server, visiting(f"http://127.0.0.1:{server.port}") as one:
            assert (await one.get("/")).headers["Location"] == "/login"
            assert (await one.post("/switches", FREEZE, word="x")).status == 401
            assert (await one.get("/login")).status == 200
            assert (await one.post("/login", {"token": "wrong"})).status == 403
            assert (await one.post("/login", {"token": TOKEN})).status == 303
            assert "Overview" in (await one.get("/")).text
            claimed = {CLIENT_ADDRESS_HEADER: "203.0.113.9"}
            assert (await one.post("/switches", FREEZE, **claimed)).status == 303
            assert (await one.post("/logout", {})).status == 303
            assert (await one.get("/")).status == 303
    async with open_store(settings.state) as store:
        _imported, act = await acts_of(store)
    assert act.by == "console, from 127.0.0.1"


async def test_without_a_parent_nobody_is_told_who_asks(tmp_path: Path) -> None:
    async with open_console(tmp_path) as seen, visiting(seen.url) as visitor:
        claimed = {CLIENT_ADDRESS_HEADER: "203.0.113.9"}
        assert (await visitor.post("/switches", FREEZE, **claimed)).status == 303
        async with open_store(seen.house.settings.state) as store:
            _imported, act = await acts_of(store)
    assert act.by == "console, from 127.0.0.1"
