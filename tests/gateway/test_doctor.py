"""The doctor: each common misconfiguration is reported with advice."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.admission.limits.in_redis import InRedis
from gateway.config.settings import Settings
from gateway.operator.doctor import Finding, run_doctor
from gateway.simulator import Fault, Key, Service, Simulator, Switches, start
from gateway.storage import Ledger, Tenant, open_store
from gateway.storage.keyfile import make_key_file
from gateway.storage.mode_rows import set_mode
from mappings.current import ENDPOINTS
from tests.certificates import Authority
from tests.gateway.store.conftest import administer, made_database
from tests.house import KEY, import_lines, settings_for
from tests.operating import configure, says
from tests.processes import command, configuration, free_port
from tests.test_state_faults import full

LIVE = {**KEY, "environment": "live", "api_key": "a-live-key", "access_key": "LIVE", "name": "l"}
LIVE_PAIR = Key("LIVE", LIVE["secret_key"], environment="live")


@asynccontextmanager
async def service(**given: Any) -> AsyncIterator[Simulator]:
    legacy_port = given.pop("legacy_port", None)
    simulator = await start(service=Service(seed=1, **given), legacy_port=legacy_port)
    try:
        yield simulator
    finally:
        await simulator.stop()


@asynccontextmanager
async def elsewhere(answer: web.Response) -> AsyncIterator[str]:
    """Serve one fixed answer, as a server that is not a payout service."""

    async def same(_request: web.BaseRequest) -> web.Response:
        return web.Response(status=answer.status, headers=answer.headers, text=answer.text)

    runner = web.ServerRunner(web.Server(same))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def examined(
    folder: Path, base_url: str, *more: Mapping[str, Any], **sections: Mapping[str, Any]
) -> list[Finding]:
    settings = settings_for(folder, base_url, **sections)
    await import_lines(settings, [KEY, *more])
    return await run_doctor(settings)


def wrong(found: list[Finding]) -> Finding:
    """Return the only error, after checking that it has advice."""
    (one,) = [each for each in found if each.state == "error"]
    assert one.do, one
    return one


def of(found: list[Finding], looked_at: str) -> Finding:
    (one,) = [each for each in found if each.looked_at == looked_at]
    return one


async def test_where_nothing_is_wrong_nothing_is_said_to_be(tmp_path: Path) -> None:
    async with service() as here:
        found = await examined(tmp_path, here.url)
    assert not [each for each in found if each.state == "error"]
    assert all(each.do for each in found if each.state in ("skipped", "warning"))
    for looked_at in ("program", "configuration", "state", "reachable", "credentials", "clock"):
        assert of(found, looked_at).state == "ok"


# 1. The base URL


@pytest.mark.parametrize(
    ("answer", "expected_text"),
    [
        (web.Response(status=200, text="<html>It works!</html>"), "status 200"),
        (web.Response(status=404, text="no such page"), "status 404"),
        (
            web.Response(status=301, headers={"Location": "https://other.example/x?y=1"}),
            "https://other.example",
        ),
    ],
    ids=["a page", "not found", "sent elsewhere"],
)
async def test_an_address_of_something_else(
    answer: web.Response, expected_text: str, tmp_path: Path
) -> None:
    async with elsewhere(answer) as url:
        told = wrong(await examined(tmp_path, url))
    assert told.looked_at == "base_url"
    assert expected_text in told.said
    assert "y=1" not in told.said
    assert url in told.do


async def test_the_legacy_service_s_address_in_the_place_of_the_current_one_s(
    tmp_path: Path,
) -> None:
    async with service(legacy_port=0) as here:
        assert here.legacy is not None
        told = wrong(await examined(tmp_path, here.legacy.url))
    assert told.looked_at == "base_url"
    assert "legacy interface answers" in told.said
    assert "legacy_base_url" in told.do


async def test_an_address_where_nobody_listens(tmp_path: Path) -> None:
    port = free_port()
    told = wrong(await examined(tmp_path, f"http://127.0.0.1:{port}"))
    assert told.looked_at == "reachable"
    assert told.said == f"cannot connect to 127.0.0.1:{port}: connection refused"
    assert "upstream.proxy" in told.do


# 2. The credentials


async def test_the_pair_of_the_other_environment(tmp_path: Path) -> None:
    async with service() as sandbox, service(keys=[LIVE_PAIR]) as live:
        both = {"sandbox": {"base_url": sandbox.url}, "live": {"base_url": live.url}}
        mixed_up = {**KEY, "environment": "live", "api_key": "another-key", "name": "mixed"}
        found = await examined(tmp_path, sandbox.url, mixed_up, environments=both)
    told = wrong(found)
    assert (told.environment, told.looked_at) == ("live", "credentials")
    assert "accepted by sandbox" in told.said
    assert '"environment": "sandbox"' in told.do
    assert "`payout-gateway keys rotate-secret mixed --no-verify`" in told.do
    assert "same merchant" in told.do


async def test_a_pair_that_nobody_knows(tmp_path: Path) -> None:
    async with service(keys=[LIVE_PAIR]) as here:
        told = wrong(await examined(tmp_path, here.url))
    assert told.looked_at == "credentials"
    assert "keys rotate-secret " in told.do
    assert " --no-verify`" in told.do
    assert "timestamp_header" in told.do
    assert "path" not in told.do, "its base_url has no path"
    assert KEY["secret_key"] not in str(told)


@pytest.mark.parametrize("status", [401, 404])
async def test_a_path_of_the_address_is_told_where_nothing_is_found_there(
    status: int, tmp_path: Path
) -> None:
    refusal = '{"ok":false,"errors":[{"code":"not_authorized","message":"no"}]}'
    async with elsewhere(web.Response(status=status, text=refusal)) as url:
        told = wrong(await examined(tmp_path, f"{url}/api"))
    assert "remove the path /api from base_url" in told.do


# 3. The signature scope


@pytest.mark.parametrize(
    ("form", "configured_form"), [("path", "path-and-query"), ("path-and-query", "path")]
)
async def test_signatures_of_the_form_that_the_service_does_not_take(
    form: Any, configured_form: str, tmp_path: Path
) -> None:
    async with service(switches=Switches(signed_target=form)) as here:
        found = await examined(tmp_path, here.url, upstream={"signed_target": configured_form})
    told = wrong(found)
    assert told.looked_at == "signature scope"
    assert configured_form in told.said
    assert '"auto"' in told.do
    assert of(found, "credentials").state == "ok", "if there is no query to sign"


# 4. The clock


@pytest.mark.parametrize("seconds", [-300, -10, 10, 300])
async def test_a_clock_that_is_off(seconds: int, tmp_path: Path) -> None:
    async with service(clock=lambda: time.time() + seconds) as here:
        told = wrong(await examined(tmp_path, here.url))
    assert told.looked_at == "clock"
    assert ("s behind the service" if seconds > 0 else "s ahead of the service") in told.said
    assert "NTP" in told.do


# 5. TLS


@asynccontextmanager
async def tls(authority: Authority) -> AsyncIterator[int]:
    """A port that presents a certificate and then closes the connection."""
    context = authority.pair("service").serving()
    server = await asyncio.start_server(
        lambda _r, writer: writer.close(), "127.0.0.1", 0, ssl=context
    )
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_a_certificate_of_an_authority_that_is_not_believed(tmp_path: Path) -> None:
    async with tls(Authority(tmp_path)) as port:
        told = wrong(await examined(tmp_path, f"https://127.0.0.1:{port}"))
    assert told.looked_at == "reachable"
    assert "ca_file" in told.do
    assert f"openssl s_client -showcerts -connect 127.0.0.1:{port}" in told.do


@pytest.mark.parametrize(
    ("host", "more", "expected_text"),
    [
        ("127.0.0.2", {}, "another host name"),
        ("127.0.0.1", {"lasts": -timedelta(days=1)}, "expired"),
    ],
)
async def test_a_certificate_that_is_believed_and_no_good(
    host: str, more: dict[str, Any], expected_text: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    context = authority.pair("service", **more).serving()
    server = await asyncio.start_server(lambda _r, writer: writer.close(), host, 0, ssl=context)
    async with server:
        url = f"https://{host}:{server.sockets[0].getsockname()[1]}"
        told = wrong(await examined(tmp_path, url, upstream={"ca_file": str(authority.file)}))
    assert expected_text in told.do


async def test_the_address_of_the_example(tmp_path: Path) -> None:
    told = wrong(await examined(tmp_path, "https://service.example"))
    assert "replace it with the address of your service" in told.do


async def test_a_name_that_there_is_not(tmp_path: Path) -> None:
    told = wrong(await examined(tmp_path, "https://service.invalid"))
    assert told.said.startswith("cannot connect to service.invalid:443: ")
    assert "ssl" not in told.said


async def test_https_where_no_tls_is_spoken(tmp_path: Path) -> None:
    async with service() as here:
        told = wrong(await examined(tmp_path, here.url.replace("http://", "https://")))
    assert "does not use TLS" in told.do


async def test_the_gateway_s_own_certificate_when_it_is_about_to_end(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    states = {}
    async with service() as here:
        for days in (3, 60):
            pair = authority.pair(f"for-{days}", lasts=timedelta(days=days))
            files = {
                "tls_certificate_file": str(pair.certificate),
                "tls_key_file": str(pair.key),
            }
            found = await examined(tmp_path, here.url, server=files)
            states[days] = of(found, "certificate for clients")
    assert (states[3].state, states[60].state) == ("error", "warning")
    assert "replace it" in states[3].do
    assert "intermediate" in states[60].do


# 6. The state


async def test_a_state_that_has_no_room(tmp_path: Path) -> None:
    async with service() as here:
        settings = settings_for(tmp_path, here.url)
        await import_lines(settings, [KEY])
        async with full(tmp_path / "gateway.db"):
            told = wrong(await run_doctor(settings))
    assert told.looked_at == "state"
    assert "room" in told.do or "owner" in told.do


async def test_a_state_that_nothing_was_written_in_is_not_said_to_have_been_used(
    tmp_path: Path,
) -> None:
    async with service() as here:
        found = await examined(tmp_path, here.url)
    assert of(found, "state").said == "writable; it is new: nothing was written through it yet"


async def test_a_state_that_is_not_there(tmp_path: Path) -> None:
    told = wrong(await run_doctor(settings_for(tmp_path, "http://127.0.0.1:9")))
    assert told.looked_at == "state"
    assert "--config" in told.do


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A state in PostgreSQL whose user may read but not write."""
    for url in made_database():
        name = url.rpartition("/")[2]
        make_key_file(tmp_path / "gateway.key")
        key_file = str(tmp_path / "gateway.key")
        settings = settings_for(tmp_path, "http://127.0.0.1:9", state={"url": url})
        asyncio.run(import_lines(settings, [KEY]))
        administer(
            url,
            f"CREATE ROLE {name} LOGIN PASSWORD 'made-up'",
            f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}",
        )
        try:
            own = url.replace("://postgres@", f"://{name}:made-up@")
            yield {"url": own, "encryption_key_file": key_file}
        finally:
            administer(url, f"DROP OWNED BY {name}", f"DROP ROLE {name}")


async def test_a_state_that_may_only_be_read(read_only: dict[str, str], tmp_path: Path) -> None:
    told = wrong(await run_doctor(settings_for(tmp_path, "http://127.0.0.1:9", state=read_only)))
    assert told.looked_at == "state"
    assert "permission denied" in told.said
    assert "GRANT" in told.do
    assert "made-up" not in str(told)


# 7. Redis


@asynccontextmanager
async def redis_that_forgets() -> AsyncIterator[str]:
    if not (program := shutil.which("redis-server")):
        pytest.skip("no redis-server to start")
    port = free_port()
    words = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--maxmemory", "1mb"]
    running = await asyncio.create_subprocess_exec(
        program, *words, "--maxmemory-policy", "allkeys-lru", stdout=asyncio.subprocess.PIPE
    )
    try:
        assert running.stdout
        while b"Ready to accept" not in await running.stdout.readline():
            pass
        yield f"redis://127.0.0.1:{port}"
    finally:
        running.terminate()
        await running.communicate()


async def test_a_redis_that_may_forget_what_was_counted(tmp_path: Path) -> None:
    async with service() as here, redis_that_forgets() as url:
        told = wrong(await examined(tmp_path, here.url, limits={"url": url}))
    assert told.looked_at == "limits in Redis"
    assert "noeviction" in told.do


async def test_a_redis_that_refuses_the_password(tmp_path: Path) -> None:
    async def refuses(asked: asyncio.StreamReader, says: asyncio.StreamWriter) -> None:
        while await asked.read(1000):
            says.write(b"-WRONGPASS invalid username-password pair or user is disabled.\r\n" * 9)
        says.close()

    door = await asyncio.start_server(refuses, "127.0.0.1", 0)
    url = f"redis://:a-wrong-one@127.0.0.1:{door.sockets[0].getsockname()[1]}"
    async with service() as here, door:
        found = await examined(tmp_path, here.url, limits={"url": url})
        async with InRedis(url, b"k", 1) as limits:
            fault = await limits.fault()
    told = of(found, "limits in Redis")
    assert told.said == "Redis refuses the password"
    assert "a-wrong-one" not in str(told)
    assert (fault or "").startswith(told.said)


# 8. and 9. The program, and valid settings that cannot run


def test_a_program_without_its_c_extensions(tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text(configuration("http://127.0.0.1:9"))
    done = command("doctor", "--json", folder=tmp_path, AIOHTTP_NO_EXTENSIONS="1")
    assert done.returncode == 1, done.stderr
    told = next(one for one in json.loads(done.stdout)["findings"] if one["state"] == "error")
    assert told["looked_at"] == "program"
    assert "binary wheel" in told["do"]


async def test_several_workers_on_sqlite_and_what_else_is_told_all_the_same(
    tmp_path: Path,
) -> None:
    async with service() as here:
        found = await examined(tmp_path, here.url, server={"workers": 2})
    told = [one for one in found if one.state == "error"]
    assert {one.looked_at for one in told} == {"configuration"}
    assert "postgresql://" in told[0].do
    assert "redis://" in told[1].do
    assert of(found, "credentials").state == "ok"


# 10. Optional endpoints


async def test_inferred_operations_that_nobody_has_tried(tmp_path: Path) -> None:
    async with service() as here:
        found = await examined(tmp_path, here.url)
        untried = [one for one in found if one.said == "not tried yet"]
        assert len(untried) == sum(one.is_optional for one in ENDPOINTS) - 1 > 0
        assert of(found, "GET /batches").said == "available: tried just now"
        assert all(one.state == "skipped" and one.do.startswith("nothing") for one in untried)
        avoid = {"inferred_operations": "avoid"}
        found = await examined(tmp_path, here.url, upstream=avoid)
    assert of(found, "optional endpoints").state == "ok"


async def test_a_service_that_lists_no_batches(tmp_path: Path) -> None:
    async with service(switches=Switches(inferred=False)) as here:
        found = await examined(tmp_path, here.url)
    assert of(found, "GET /batches").said.startswith("not available (status 404, just now)")
    assert of(found, "GET /batches").state == "ok"


async def test_a_list_that_is_refused_while_documented_reads_fail_is_not_said_to_be_gone(
    tmp_path: Path,
) -> None:
    async with service() as here:
        assert here.service.faults is not None
        here.service.faults += [
            Fault("GET", "/v1/batches", status=404, body=b"<html>", times=2),
            *[Fault("GET", "/v1/recipients")] * 3,
            Fault("GET", "/v1/recipients", status=404, body=b"<html>"),
        ]
        found = await examined(tmp_path, here.url)
        told = of(found, "GET /batches")
        assert (told.state, "inconclusive" in told.said) == ("warning", True)
        assert told.do
        found = await examined(tmp_path, here.url)
        assert of(found, "GET /batches").said == "available: tried just now"


@pytest.mark.parametrize("is_available", [True, False])
async def test_inferred_operations_that_are_to_be_used(is_available: bool, tmp_path: Path) -> None:
    use = {"inferred_operations": "use"}
    async with service(switches=Switches(inferred=is_available)) as here:
        found = await examined(tmp_path, here.url, upstream=use)
    told = of(found, "optional endpoints")
    if is_available:
        assert (told.state, "GET /batches is available" in told.said) == ("ok", True)
    else:
        assert wrong(found) == told
        assert told.do == 'set upstream.inferred_operations to "auto"'


async def test_whether_what_is_to_be_used_is_there_is_not_known_unasked(tmp_path: Path) -> None:
    use = {"inferred_operations": "use"}
    found = await examined(tmp_path, f"http://127.0.0.1:{free_port()}", upstream=use)
    told = of(found, "optional endpoints")
    assert told.state == "skipped"
    assert "the service was not reached" in told.said


# Skipped checks, and remembered results


ROWS = ("reachable", "credentials", "signature scope", "clock")


async def test_what_is_remembered_is_not_said_to_be_tried_now(tmp_path: Path) -> None:
    async with service() as here:
        found = await examined(tmp_path, here.url)
        assert of(found, "signature scope").said == "path: accepted just now"
        async with open_store(settings_for(tmp_path, here.url).state) as store:
            seen = {"present": True, "at": 1_790_000_000}
            await Ledger(store).learn("sandbox", "inferred GET /batches", seen)
        url = here.url
    gone = await run_doctor(settings_for(tmp_path, url))
    assert wrong(gone).looked_at == "reachable"
    form, clock, pair = (of(gone, one) for one in ("signature scope", "clock", "credentials"))
    assert (form.state, clock.state, pair.state) == ("skipped", "skipped", "skipped")
    assert re.fullmatch(
        r"path, detected since \d{4}-\d\d-\d\d \d\d:\d\d UTC; skipped: the service was not reached",
        form.said,
    )
    assert clock.said == "skipped: the service was not reached"
    assert pair.said == "skipped: the service was not reached"
    listing = "there, detected since 2026-09-21 14:13 UTC; not tried now"
    assert of(gone, "GET /batches").said == listing


@pytest.mark.parametrize("form", ["auto", "path"])
@pytest.mark.parametrize("answer", [200, 401, 403, 404])
async def test_every_row_is_there_whatever_the_service_says(
    answer: int, form: str, tmp_path: Path
) -> None:
    refusal = '{"ok":false,"errors":[{"code":"not_authorized","message":"no"}]}'
    async with elsewhere(web.Response(status=answer, text=refusal if answer > 400 else "")) as url:
        found = await examined(tmp_path, url, upstream={"signed_target": form})
    assert wrong(found)
    for looked_at in ROWS:
        one = of(found, looked_at)
        assert one.state == "ok" or one.do, one
        assert looked_at == "reachable" or one.state != "ok", one


async def test_an_environment_without_a_key_says_what_was_not_tried(tmp_path: Path) -> None:
    async with service() as here:
        both = {"sandbox": {"base_url": here.url}, "live": {"base_url": here.url}}
        found = await examined(tmp_path, here.url, environments=both)
    live = {one.looked_at: one for one in found if one.environment == "live"}
    assert live["keys"].said == "no key is imported"
    for looked_at in ROWS:
        assert live[looked_at].state == "skipped"
        assert "no key of this environment is imported" in live[looked_at].said


async def test_keys_of_an_environment_that_is_not_configured(tmp_path: Path) -> None:
    async with service() as here:
        settings = settings_for(tmp_path, here.url)
        await import_lines(settings, [LIVE])
        told = wrong(await run_doctor(settings))
        assert (told.environment, told.looked_at) == ("live", "keys")
        assert "[environments.live] is not configured" in told.said
        assert "set environments.live.base_url" in told.do
        await import_lines(settings, [KEY])
        found = await run_doctor(settings)
    assert not [one for one in found if one.state == "error"]
    assert of(found, "keys").state == "warning", "the other endpoints can be used"


# The legacy service, if a mode uses it


async def switched(folder: Path, base_url: str, legacy: str) -> list[Finding]:
    environments = {"sandbox": {"base_url": base_url, "legacy_base_url": legacy}}
    settings: Settings = settings_for(folder, base_url, environments=environments)
    await import_lines(settings, [KEY])
    before = await run_doctor(settings)
    assert not [one for one in before if one.looked_at == "legacy service"], "no key uses it"
    async with open_store(settings.state) as store:
        await set_mode(store, Tenant(KEY["merchant"], "sandbox"), "", ["balances"], "forward")
    return await run_doctor(settings)


async def test_the_legacy_service_is_tried_where_a_key_is_switched_to_it(tmp_path: Path) -> None:
    async with service(legacy_port=0) as here:
        assert here.legacy is not None
        found = await switched(tmp_path, here.url, here.legacy.url)
    assert of(found, "legacy service").state == "ok"


async def test_a_key_that_is_switched_to_a_legacy_service_without_an_address(
    tmp_path: Path,
) -> None:
    async with service() as here:
        told = wrong(await switched(tmp_path, here.url, ""))
    assert told.looked_at == "legacy service"
    assert "environments.sandbox.legacy_base_url" in told.do


async def test_a_legacy_address_that_is_another_s(tmp_path: Path) -> None:
    async with service() as here, elsewhere(web.Response(status=502, text="bad")) as url:
        told = wrong(await switched(tmp_path, here.url, url))
    assert "status 502" in told.said
    assert url in told.do


async def test_a_legacy_address_where_nobody_listens(tmp_path: Path) -> None:
    async with service() as here:
        told = wrong(await switched(tmp_path, here.url, f"http://127.0.0.1:{free_port()}"))
    assert told.looked_at == "legacy service"


async def test_the_command_says_all_of_it_and_exits_1(tmp_path: Path) -> None:
    async with service(clock=lambda: time.time() + 300) as here:
        configure(tmp_path, here.url)
        await import_lines(settings_for(tmp_path, here.url), [KEY])
        told = json.loads((await says(tmp_path, "doctor", "--json", code=1)).stdout)
        assert told["ok"] is False
        assert [one["looked_at"] for one in told["findings"] if one["state"] == "error"] == [
            "clock"
        ]
        shown = (await says(tmp_path, "doctor", code=1)).stdout
    assert "synchronize" in shown


# Freezes and brownouts


async def test_freezes_and_brownouts_that_are_in_force_are_told_and_are_not_wrong(
    tmp_path: Path,
) -> None:
    async with service() as here:
        configure(tmp_path, here.url)
        settings = settings_for(tmp_path, here.url)
        await import_lines(settings, [KEY])
        await says(tmp_path, "freeze", "--merchant", "demo", "--environment", "sandbox")
        await says(tmp_path, "freeze", "--all")
        for words in (("--key", "demo-sandbox"), ("--from", "2090-01-01T00:00:00Z")):
            await says(tmp_path, "brownout", "schedule", "--until", "2099-01-01T00:00:00Z", *words)
        told = await doctored(tmp_path)
        assert told["ok"] is True
        frozen = [one for one in told["findings"] if one["looked_at"] == "freeze"]
        all_, one = sorted(frozen, key=lambda each: each["environment"])
        assert (all_["state"], all_["environment"]) == ("warning", "all")
        assert "every merchant, live and sandbox" in all_["said"]
        assert "`payout-gateway unfreeze --all`" in all_["do"]
        assert "unfreeze --merchant demo --environment sandbox`" in one["do"]
        (brownout,) = [one for one in told["findings"] if one["looked_at"] == "brownout"]
        assert "requests are refused until 2099-01-01 00:00 UTC: demo-sandbox" in brownout["said"]
        said = (await says(tmp_path, "doctor")).stdout
        assert "writes have been frozen since" in said
        assert max(map(len, said.splitlines())) <= 160
        await says(tmp_path, "unfreeze", "--merchant", "demo", "--environment", "sandbox")
        await says(tmp_path, "unfreeze", "--all")
        await says(tmp_path, "brownout", "off")
        assert "warning" not in {one["state"] for one in (await doctored(tmp_path))["findings"]}


async def doctored(folder: Path) -> Any:
    return json.loads((await says(folder, "doctor", "--json")).stdout)
