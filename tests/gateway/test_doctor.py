"""The doctor: each common misconfiguration is reported with advice."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from sqlalchemy import select

from gateway.admission.limits.in_redis import RedisRateLimiter
from gateway.cli.doctor import format_verdict, print_findings
from gateway.config.settings import Settings
from gateway.operator.doctor import Finding, run_doctor
from gateway.operator.doctor.findings import State
from gateway.storage import Tenant, open_store
from gateway.storage.capability_cache import CapabilityCache
from gateway.storage.key_file import create_key_file
from gateway.storage.mode_rows import set_mode
from gateway.storage.tables import counters
from mappings.current import ENDPOINTS
from tests.certificates import Authority
from tests.gateway.storage.conftest import create_temporary_database, run_statements
from tests.operator_commands import run_command, write_configuration
from tests.processes import find_free_port
from tests.running_gateway import KEY, build_settings, import_api_keys
from tests.simulator import (
    Fault,
    Service,
    ServiceCredentials,
    ServiceOptions,
    Simulator,
    start_simulator,
)
from tests.test_database_faults import fill_disk

LIVE_KEY = {
    **KEY,
    "environment": "live",
    "api_key": "a-live-key",
    "access_key": "LIVE",
    "name": "l",
}
LIVE_CREDENTIALS = ServiceCredentials("LIVE", LIVE_KEY["secret_key"], environment="live")


@asynccontextmanager
async def open_simulator(**service_options: Any) -> AsyncIterator[Simulator]:
    legacy_port = service_options.pop("legacy_port", None)
    simulator = await start_simulator(
        service=Service(seed=1, **service_options), legacy_port=legacy_port
    )
    try:
        yield simulator
    finally:
        await simulator.stop()


@asynccontextmanager
async def open_other_server(answer: web.Response) -> AsyncIterator[str]:
    """Serve one fixed answer, as a server that is not a payout service."""

    async def respond(_request: web.BaseRequest) -> web.Response:
        return web.Response(status=answer.status, headers=answer.headers, text=answer.text)

    runner = web.ServerRunner(web.Server(respond))
    await runner.setup()
    tcp_site = web.TCPSite(runner, "127.0.0.1", 0)
    await tcp_site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def examine(
    folder: Path, base_url: str, *key_lines: Mapping[str, Any], **sections: Mapping[str, Any]
) -> list[Finding]:
    settings = build_settings(folder, base_url, **sections)
    await import_api_keys(settings, [KEY, *key_lines])
    return await run_doctor(settings)


def require_only_error(findings: list[Finding]) -> Finding:
    """Return the only error, after checking that it has advice."""
    (finding,) = [listed_finding for listed_finding in findings if listed_finding.state == "error"]
    assert finding.advice, finding
    return finding


def require_finding(findings: list[Finding], check_name: str) -> Finding:
    (finding,) = [
        listed_finding for listed_finding in findings if listed_finding.check_name == check_name
    ]
    return finding


async def test_healthy_setup_has_no_error(tmp_path: Path) -> None:
    async with open_simulator() as simulator:
        findings = await examine(tmp_path, simulator.url)
    assert not [finding for finding in findings if finding.state == "error"]
    assert all(finding.advice for finding in findings if finding.state in ("skipped", "warning"))
    for check_name in ("configuration", "state", "reachable", "credentials", "clock"):
        assert require_finding(findings, check_name).state == "ok"


# 1. The base URL


@pytest.mark.parametrize(
    ("answer", "expected_text"),
    [
        (web.Response(status=200, text="<html>It works!</html>"), "status 200"),
        (web.Response(status=404, text="no such page"), "status 404"),
        (web.Response(status=503, text="no backend"), "the service fails (status 503)"),
        (
            web.Response(status=301, headers={"Location": "https://other.example/x?y=1"}),
            "https://other.example",
        ),
    ],
    ids=["a page", "not found", "no backend", "sent elsewhere"],
)
async def test_base_url_of_another_server_is_reported(
    answer: web.Response, expected_text: str, tmp_path: Path
) -> None:
    async with open_other_server(answer) as url:
        finding = require_only_error(await examine(tmp_path, url))
    assert finding.check_name == "base_url"
    assert expected_text in finding.result
    assert "y=1" not in finding.result
    assert url in finding.advice


@pytest.mark.parametrize("status", [200, None])
@pytest.mark.parametrize(
    ("code", "expected_status", "expected_text"),
    [
        ("rate_limit_exceeded", 429, "by its rate limit"),
        ("internal_server_error", 500, "the service fails"),
        ("invalid_api_key", 401, "is refused"),
        ("not_authorized", 403, "not permitted"),
    ],
)
async def test_refusal_of_service_is_reported_whatever_status_it_has(
    code: str, expected_status: int, expected_text: str, status: int | None, tmp_path: Path
) -> None:
    text = json.dumps({"ok": False, "errors": [{"code": code, "message": "no"}]})
    async with open_other_server(web.Response(status=status or expected_status, text=text)) as url:
        finding = require_only_error(await examine(tmp_path, url))
    assert expected_text in finding.result
    assert finding.advice


async def test_base_url_of_legacy_service_is_reported(
    tmp_path: Path,
) -> None:
    async with open_simulator(legacy_port=0) as simulator:
        finding = require_only_error(await examine(tmp_path, simulator.legacy_url))
    assert finding.check_name == "base_url"
    assert "legacy interface answers" in finding.result
    assert "legacy_base_url" in finding.advice


async def test_refused_connection_is_reported(tmp_path: Path) -> None:
    port = find_free_port()
    finding = require_only_error(await examine(tmp_path, f"http://127.0.0.1:{port}"))
    assert finding.check_name == "reachable"
    assert finding.result == f"cannot connect to 127.0.0.1:{port}: connection refused"
    assert "upstream.proxy" in finding.advice


async def test_proxy_that_refuses_connections_is_reported(tmp_path: Path) -> None:
    upstream = {"proxy": f"http://127.0.0.1:{find_free_port()}"}
    finding = require_only_error(
        await examine(tmp_path, "https://sandbox.service.net", upstream=upstream)
    )
    assert "cannot connect to the proxy" in finding.result
    assert "that the proxy runs" in finding.advice


# 2. The credentials


async def test_credentials_of_other_environment_are_reported(tmp_path: Path) -> None:
    async with (
        open_simulator() as sandbox_simulator,
        open_simulator(credentials=[LIVE_CREDENTIALS]) as live_simulator,
    ):
        environments = {
            "sandbox": {"base_url": sandbox_simulator.url},
            "live": {"base_url": live_simulator.url},
        }
        wrong_environment_key = {
            **KEY,
            "environment": "live",
            "api_key": "another-key",
            "name": "mixed",
        }
        findings = await examine(
            tmp_path, sandbox_simulator.url, wrong_environment_key, environments=environments
        )
    finding = require_only_error(findings)
    assert (finding.environment, finding.check_name) == ("live", "credentials")
    assert "accepted by sandbox" in finding.result
    assert '"environment": "sandbox"' in finding.advice
    assert "`payout-gateway keys rotate-secret mixed --no-verify`" in finding.advice
    assert "same merchant" in finding.advice


async def test_unknown_credentials_are_reported(tmp_path: Path) -> None:
    async with open_simulator(credentials=[LIVE_CREDENTIALS]) as simulator:
        finding = require_only_error(await examine(tmp_path, simulator.url))
    assert finding.check_name == "credentials"
    assert "keys rotate-secret " in finding.advice
    assert " --no-verify`" in finding.advice
    assert "timestamp_header" in finding.advice
    assert "path" not in finding.advice, "its base_url has no path"
    assert KEY["secret_key"] not in str(finding)


@pytest.mark.parametrize("status", [401, 404])
async def test_base_url_with_wrong_path_is_reported(status: int, tmp_path: Path) -> None:
    refusal = '{"ok":false,"errors":[{"code":"not_authorized","message":"no"}]}'
    async with open_other_server(web.Response(status=status, text=refusal)) as url:
        finding = require_only_error(await examine(tmp_path, f"{url}/api"))
    assert "remove the path /api from base_url" in finding.advice


# 3. The signature scope


@pytest.mark.parametrize(
    ("service_scope", "configured_form"), [("path", "path-and-query"), ("path-and-query", "path")]
)
async def test_unaccepted_signature_scope_is_reported(
    service_scope: Any, configured_form: str, tmp_path: Path
) -> None:
    async with open_simulator(options=ServiceOptions(signed_target=service_scope)) as simulator:
        findings = await examine(
            tmp_path, simulator.url, upstream={"signed_target": configured_form}
        )
    finding = require_only_error(findings)
    assert finding.check_name == "signature scope"
    assert configured_form in finding.result
    assert '"auto"' in finding.advice
    assert require_finding(findings, "credentials").state == "ok", "if there is no query to sign"


# 4. The clock


@pytest.mark.parametrize("seconds", [-300, -10, 10, 300])
async def test_clock_skew_is_reported(seconds: int, tmp_path: Path) -> None:
    async with open_simulator(clock=lambda: time.time() + seconds) as simulator:
        finding = require_finding(await examine(tmp_path, simulator.url), "clock")
    assert finding.state == "warning", "it is corrected for"
    assert ("s behind the service" if seconds > 0 else "s ahead of the service") in finding.result
    assert "NTP" in finding.advice


# 5. TLS


@asynccontextmanager
async def open_tls_port(authority: Authority) -> AsyncIterator[int]:
    """A port that presents a certificate and then closes the connection."""
    context = authority.issue("service").build_server_context()
    server = await asyncio.start_server(
        lambda _r, writer: writer.close(), "127.0.0.1", 0, ssl=context
    )
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_untrusted_certificate_authority_is_reported(tmp_path: Path) -> None:
    async with open_tls_port(Authority(tmp_path)) as port:
        finding = require_only_error(await examine(tmp_path, f"https://127.0.0.1:{port}"))
    assert finding.check_name == "reachable"
    assert "ca_file" in finding.advice
    assert f"openssl s_client -showcerts -connect 127.0.0.1:{port}" in finding.advice


@pytest.mark.parametrize(
    ("host", "certificate_options", "expected_text"),
    [
        ("127.0.0.2", {}, "another host name"),
        ("127.0.0.1", {"lifetime": -timedelta(days=1)}, "expired"),
    ],
)
async def test_invalid_certificate_of_trusted_authority_is_reported(
    host: str, certificate_options: dict[str, Any], expected_text: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    context = authority.issue("service", **certificate_options).build_server_context()
    server = await asyncio.start_server(lambda _r, writer: writer.close(), host, 0, ssl=context)
    async with server:
        url = f"https://{host}:{server.sockets[0].getsockname()[1]}"
        finding = require_only_error(
            await examine(tmp_path, url, upstream={"ca_file": str(authority.file)})
        )
    assert expected_text in finding.advice


async def test_authority_without_key_usage_is_reported_if_python_refuses_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path, has_usage=False)
    context = authority.issue("service").build_server_context()
    server = await asyncio.start_server(
        lambda _r, writer: writer.close(), "127.0.0.1", 0, ssl=context
    )
    async with server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finding = require_only_error(
            await examine(tmp_path, url, upstream={"ca_file": str(authority.file)})
        )
    assert ("keyUsage" in finding.advice) is (sys.version_info >= (3, 13))


async def test_example_base_url_is_reported(tmp_path: Path) -> None:
    finding = require_only_error(await examine(tmp_path, "https://service.example"))
    assert "replace it with the address of your service" in finding.advice


async def test_missing_tls_is_reported(tmp_path: Path) -> None:
    async with open_simulator() as simulator:
        finding = require_only_error(
            await examine(tmp_path, simulator.url.replace("http://", "https://"))
        )
    assert "does not use TLS" in finding.advice


async def test_expiring_gateway_certificate_is_reported(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    states = {}
    async with open_simulator() as simulator:
        for days in (-1, 13, 60):
            certificate = authority.issue(f"for-{days}", lifetime=timedelta(days=days))
            files = {
                "tls_certificate_file": str(certificate.certificate),
                "tls_key_file": str(certificate.key),
            }
            findings = await examine(tmp_path, simulator.url, server=files)
            states[days] = require_finding(findings, "certificate for clients")
    assert [states[days].state for days in (-1, 13, 60)] == ["error", "warning", "warning"]
    assert "replace it" in states[-1].advice
    assert "replace it" in states[13].advice
    assert (
        format_verdict([states[-1]]) == "NOT READY: 1 error. Clients refuse an expired certificate."
    )
    assert format_verdict([states[13]]) == "READY: no errors; 1 warning."
    assert "intermediate" in states[60].advice


# 6. The state


async def test_full_disk_is_reported(tmp_path: Path) -> None:
    async with open_simulator() as simulator:
        settings = build_settings(tmp_path, simulator.url)
        await import_api_keys(settings, [KEY])
        # A running gateway has files that are large enough to be read.
        async with open_store(settings.state) as store:
            await store.read(lambda tx: tx.fetch(select(counters)))
            async with fill_disk(tmp_path / "gateway.db", 4096):
                finding = require_only_error(await run_doctor(settings))
    assert finding.check_name == "state"
    assert "free space" in finding.advice
    assert "GRANT" not in finding.advice, "a file has no such thing"


async def test_missing_state_is_reported(tmp_path: Path) -> None:
    finding = require_only_error(await run_doctor(build_settings(tmp_path, "http://127.0.0.1:9")))
    assert finding.check_name == "state"
    assert "--config" in finding.advice


@pytest.fixture
def read_only_state(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A state in PostgreSQL whose user may read but not write."""
    for url in create_temporary_database():
        name = url.rpartition("/")[2]
        create_key_file(tmp_path / "gateway.key")
        key_file = str(tmp_path / "gateway.key")
        settings = build_settings(tmp_path, "http://127.0.0.1:9", state={"url": url})
        asyncio.run(import_api_keys(settings, [KEY]))
        run_statements(
            url,
            f"CREATE ROLE {name} LOGIN PASSWORD 'made-up'",
            f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}",
        )
        try:
            read_only_url = url.replace("://postgres@", f"://{name}:made-up@")
            yield {"url": read_only_url, "encryption_key_file": key_file}
        finally:
            run_statements(url, f"DROP OWNED BY {name}", f"DROP ROLE {name}")


async def test_read_only_state_is_reported(read_only_state: dict[str, str], tmp_path: Path) -> None:
    finding = require_only_error(
        await run_doctor(build_settings(tmp_path, "http://127.0.0.1:9", state=read_only_state))
    )
    assert finding.check_name == "state"
    assert "permission denied" in finding.result
    assert "GRANT" in finding.advice
    assert "made-up" not in str(finding)


# 7. Redis


@asynccontextmanager
async def open_evicting_redis() -> AsyncIterator[str]:
    if not (program := shutil.which("redis-server")):
        pytest.skip("no redis-server to start")
    port = find_free_port()
    server_options = [
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--maxmemory",
        "1mb",
    ]
    process = await asyncio.create_subprocess_exec(
        program,
        *server_options,
        "--maxmemory-policy",
        "allkeys-lru",
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout
        while b"Ready to accept" not in await process.stdout.readline():
            pass
        yield f"redis://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.communicate()


async def test_evicting_redis_is_reported(tmp_path: Path) -> None:
    async with open_simulator() as simulator, open_evicting_redis() as url:
        finding = require_only_error(await examine(tmp_path, simulator.url, limits={"url": url}))
    assert finding.check_name == "limits in Redis"
    assert "noeviction" in finding.advice


async def test_wrong_redis_password_is_reported(tmp_path: Path) -> None:
    async def refuse_password(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1000):
            writer.write(b"-WRONGPASS invalid username-password pair or user is disabled.\r\n" * 9)
        writer.close()

    server = await asyncio.start_server(refuse_password, "127.0.0.1", 0)
    url = f"redis://:a-wrong-one@127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with open_simulator() as simulator, server:
        findings = await examine(tmp_path, simulator.url, limits={"url": url})
        async with RedisRateLimiter(url, b"k", 1) as limits:
            fault = await limits.find_limiter_problem()
    finding = require_finding(findings, "limits in Redis")
    assert finding.result == (
        "Redis refuses the password; each process admits its share of the limit"
    )
    assert finding.consequence == "Rate limits would not hold exactly.", "clients are served"
    assert "a-wrong-one" not in str(finding)
    assert (fault or "").startswith(finding.result)


async def test_invalid_redis_url_is_reported_once(tmp_path: Path) -> None:
    async with open_simulator() as simulator:
        findings = await examine(
            tmp_path, simulator.url, limits={"url": "redis://me:hush#@127.0.0.1/0"}
        )
    finding = require_only_error(findings)
    assert finding.check_name == "configuration"
    assert "limits.url: is not a valid URL" in finding.result
    assert "hush" not in str(findings)


# 10. Optional endpoints


async def test_untried_optional_endpoints_are_listed(tmp_path: Path) -> None:
    async with open_simulator() as simulator:
        findings = await examine(tmp_path, simulator.url)
        untried_findings = [finding for finding in findings if finding.result == "not tried yet"]
        assert len(untried_findings) == sum(endpoint.is_optional for endpoint in ENDPOINTS) - 1 > 0
        assert (
            require_finding(findings, "GET /batches").result
            == "the service has it: it answered just now"
        )
        assert all(
            finding.state == "skipped" and finding.advice.startswith("no action needed")
            for finding in untried_findings
        )
        upstream_settings = {"inferred_operations": "avoid"}
        findings = await examine(tmp_path, simulator.url, upstream=upstream_settings)
    assert require_finding(findings, "optional endpoints").state == "ok"


async def test_unsupported_batch_list_is_reported_as_ok(tmp_path: Path) -> None:
    async with open_simulator(options=ServiceOptions(inferred=False)) as simulator:
        findings = await examine(tmp_path, simulator.url)
    assert require_finding(findings, "GET /batches").result.startswith(
        "the service does not have it: it refused it just now"
    )
    assert require_finding(findings, "GET /batches").state == "ok"


async def test_list_refused_with_another_status_names_the_setting(tmp_path: Path) -> None:
    body = b'{"message":"Missing Authentication Token"}'
    async with open_simulator() as simulator:
        simulator.service.faults.append(Fault("GET", "/v1/batches", status=403, body=body, times=2))
        finding = require_finding(await examine(tmp_path, simulator.url), "GET /batches")
    assert finding.state == "warning"
    assert "unclear whether the service has it: it answered status 403" in finding.result
    assert 'upstream.inferred_operations = "avoid"' in finding.advice


async def test_refused_list_is_not_absent_if_documented_reads_fail(
    tmp_path: Path,
) -> None:
    async with open_simulator() as simulator:
        assert simulator.service.faults is not None
        simulator.service.faults += [
            Fault("GET", "/v1/batches", status=404, body=b"<html>", times=2),
            *[Fault("GET", "/v1/recipients")] * 3,
            Fault("GET", "/v1/recipients", status=404, body=b"<html>"),
        ]
        findings = await examine(tmp_path, simulator.url)
        finding = require_finding(findings, "GET /batches")
        assert (finding.state, "unclear whether" in finding.result) == ("warning", True)
        assert finding.advice
        findings = await examine(tmp_path, simulator.url)
        assert (
            require_finding(findings, "GET /batches").result
            == "the service has it: it answered just now"
        )


@pytest.mark.parametrize("is_available", [True, False])
async def test_enabled_optional_endpoints_are_probed(is_available: bool, tmp_path: Path) -> None:
    upstream_settings = {"inferred_operations": "use"}
    async with open_simulator(options=ServiceOptions(inferred=is_available)) as simulator:
        findings = await examine(tmp_path, simulator.url, upstream=upstream_settings)
    finding = require_finding(findings, "GET /batches")
    if is_available:
        assert (finding.state, "it answered just now" in finding.result) == ("ok", True)
    else:
        assert require_only_error(findings) == finding
        assert finding.advice == 'set upstream.inferred_operations to "auto"'


# Skipped checks, and remembered results


SERVICE_ROWS = ("reachable", "credentials", "signature scope", "clock")


async def test_remembered_capability_is_not_reported_as_just_tried(tmp_path: Path) -> None:
    async with open_simulator() as simulator:
        findings = await examine(tmp_path, simulator.url)
        assert require_finding(findings, "signature scope").result == "path: accepted just now"
        async with open_store(build_settings(tmp_path, simulator.url).state) as store:
            recorded_capability = {"present": True, "at": 1_790_000_000}
            await CapabilityCache(store).put(
                "sandbox", "inferred GET /batches", recorded_capability
            )
        url = simulator.url
    offline_findings = await run_doctor(build_settings(tmp_path, url))
    assert require_only_error(offline_findings).check_name == "reachable"
    scope_finding, clock, credentials_finding = (
        require_finding(offline_findings, check_name)
        for check_name in ("signature scope", "clock", "credentials")
    )
    assert (scope_finding.state, clock.state, credentials_finding.state) == (
        "skipped",
        "skipped",
        "skipped",
    )
    assert (
        scope_finding.result
        == "path: the service has accepted it; skipped: the service was not reached"
    )
    assert clock.result == "skipped: the service was not reached"
    assert credentials_finding.result == "skipped: the service was not reached"
    listing = "there, by an answer of the service at 2026-09-21 14:13 UTC; not tried now"
    assert require_finding(offline_findings, "GET /batches").result == listing


@pytest.mark.parametrize("signature_scope", ["auto", "path"])
@pytest.mark.parametrize("answer", [200, 401, 403, 404])
async def test_report_has_every_row_for_any_service_answer(
    answer: int, signature_scope: str, tmp_path: Path
) -> None:
    refusal = '{"ok":false,"errors":[{"code":"not_authorized","message":"no"}]}'
    async with open_other_server(
        web.Response(status=answer, text=refusal if answer > 400 else "")
    ) as url:
        findings = await examine(tmp_path, url, upstream={"signed_target": signature_scope})
    assert require_only_error(findings)
    for check_name in SERVICE_ROWS:
        finding = require_finding(findings, check_name)
        assert finding.state == "ok" or finding.advice, finding
        assert check_name == "reachable" or finding.state != "ok", finding


async def test_environment_without_key_lists_skipped_checks(tmp_path: Path) -> None:
    async with open_simulator() as simulator:
        environments = {"sandbox": {"base_url": simulator.url}, "live": {"base_url": simulator.url}}
        findings = await examine(tmp_path, simulator.url, environments=environments)
    live_findings = {
        finding.check_name: finding for finding in findings if finding.environment == "live"
    }
    assert live_findings["keys"].result == "no key is imported"
    for check_name in SERVICE_ROWS:
        assert live_findings[check_name].state == "skipped"
        assert "no key of this environment is imported" in live_findings[check_name].result


async def test_gateway_without_any_key_is_not_ready(tmp_path: Path) -> None:
    async with open_simulator() as simulator:
        settings = build_settings(tmp_path, simulator.url)
        async with open_store(settings.state):
            pass  # creates the tables
        finding = require_only_error(await run_doctor(settings))
    assert (finding.environment, finding.check_name) == ("all", "keys")
    assert "every client is refused" in finding.result


async def test_keys_of_unconfigured_environment_are_reported(tmp_path: Path) -> None:
    async with open_simulator() as simulator:
        settings = build_settings(tmp_path, simulator.url)
        await import_api_keys(settings, [LIVE_KEY])
        finding = require_only_error(await run_doctor(settings))
        assert (finding.environment, finding.check_name) == ("live", "keys")
        assert "[environments.live] is not configured" in finding.result
        assert "set environments.live.base_url" in finding.advice
        await import_api_keys(settings, [KEY])
        assert require_only_error(await run_doctor(settings)) == finding, "its clients get 403"


# A service that hangs


async def test_hanging_service_is_reported_after_one_short_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.config.settings.CHECK_TIMEOUT_SECONDS", 0.2)
    connections: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(
        lambda _r, writer: connections.append(writer), "127.0.0.1", 0
    )
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finding = require_only_error(await examine(tmp_path, url))
        for connection in connections:
            connection.close()
    assert len(connections) == 1, "none after the one that hung"
    assert (finding.check_name, finding.result) == ("reachable", "no answer within 0.2 s")
    assert f"{url} accepts connections and does not answer" in finding.advice


# The legacy service, if a mode uses it


async def examine_forwarded_key(folder: Path, base_url: str, legacy: str) -> list[Finding]:
    environments = {"sandbox": {"base_url": base_url, "legacy_base_url": legacy}}
    settings: Settings = build_settings(folder, base_url, environments=environments)
    await import_api_keys(settings, [KEY])
    findings_before = await run_doctor(settings)
    assert not [finding for finding in findings_before if finding.check_name == "legacy service"], (
        "no key uses it"
    )
    async with open_store(settings.state) as store:
        await set_mode(store, Tenant(KEY["merchant"], "sandbox"), "", ["balances"], "forward")
    return await run_doctor(settings)


async def test_legacy_service_is_checked_if_a_key_is_forwarded(tmp_path: Path) -> None:
    async with open_simulator(legacy_port=0) as simulator:
        findings = await examine_forwarded_key(tmp_path, simulator.url, simulator.legacy_url)
    assert require_finding(findings, "legacy service").state == "ok"


async def test_forwarded_key_without_legacy_base_url_is_reported(
    tmp_path: Path,
) -> None:
    async with open_simulator() as simulator:
        finding = require_only_error(await examine_forwarded_key(tmp_path, simulator.url, ""))
    assert finding.check_name == "legacy service"
    assert "environments.sandbox.legacy_base_url" in finding.advice


async def test_legacy_base_url_of_another_server_is_reported(tmp_path: Path) -> None:
    async with (
        open_simulator() as simulator,
        open_other_server(web.Response(status=502, text="bad")) as url,
    ):
        finding = require_only_error(await examine_forwarded_key(tmp_path, simulator.url, url))
    assert "status 502" in finding.result
    assert url in finding.advice


async def test_doctor_command_prints_errors_first_and_exits_with_1(tmp_path: Path) -> None:
    async with open_simulator(credentials=[LIVE_CREDENTIALS]) as simulator:
        write_configuration(tmp_path, simulator.url)
        await import_api_keys(build_settings(tmp_path, simulator.url), [KEY])
        report = json.loads((await run_command(tmp_path, "doctor", "--json", code=1)).stdout)
        assert report["ok"] is False
        assert [
            finding["looked_at"] for finding in report["findings"] if finding["state"] == "error"
        ] == ["credentials"]
        verdict, _, error, *_ = (await run_command(tmp_path, "doctor", code=1)).stdout.splitlines()
    assert verdict == "NOT READY: 1 error. Clients would be refused."
    assert error.startswith("error  sandbox      credentials")


async def test_healthy_setup_is_reported_in_five_lines(tmp_path: Path) -> None:
    async with open_simulator() as simulator:
        write_configuration(tmp_path, simulator.url)
        await import_api_keys(build_settings(tmp_path, simulator.url), [KEY])
        lines = (await run_command(tmp_path, "doctor")).stdout.splitlines()
        complete_output = (await run_command(tmp_path, "doctor", "--verbose")).stdout
    assert lines[0] == "READY: no errors or warnings."
    assert len(lines) <= 5
    assert "skipped  sandbox" in complete_output


@pytest.mark.parametrize(
    ("state", "last_line"),
    [
        ("ok", "--verbose shows every check."),
        ("skipped", "1 check skipped. --verbose shows every check."),
    ],
)
def test_only_skipped_checks_are_counted(
    state: State, last_line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_findings([Finding("sandbox", "service", state, "tried")], is_complete=False)
    assert capsys.readouterr().out.splitlines()[-1] == last_line


# Freezes and brownouts


async def test_active_freezes_and_brownouts_are_listed_and_no_error(
    tmp_path: Path,
) -> None:
    async with open_simulator() as simulator:
        write_configuration(tmp_path, simulator.url)
        settings = build_settings(tmp_path, simulator.url)
        await import_api_keys(settings, [KEY])
        await run_command(tmp_path, "freeze", "--merchant", "demo", "--environment", "sandbox")
        await run_command(tmp_path, "freeze", "--all")
        for options in (("--key", "demo-sandbox"), ("--from", "2090-01-01T00:00:00Z")):
            await run_command(
                tmp_path, "brownout", "schedule", "--until", "2099-01-01T00:00:00Z", *options
            )
        report = await run_doctor_command(tmp_path)
        assert report["ok"] is True
        freezes = [finding for finding in report["findings"] if finding["looked_at"] == "freeze"]
        global_freeze, merchant_freeze = sorted(freezes, key=lambda finding: finding["environment"])
        assert (global_freeze["state"], global_freeze["environment"]) == ("warning", "all")
        assert "every merchant, live and sandbox" in global_freeze["said"]
        assert "`payout-gateway unfreeze --all`" in global_freeze["do"]
        assert "unfreeze --merchant demo --environment sandbox`" in merchant_freeze["do"]
        (brownout,) = [
            finding for finding in report["findings"] if finding["looked_at"] == "brownout"
        ]
        assert (
            "requests are refused until 2099-01-01 00:00 UTC: demo, demo-sandbox"
            in brownout["said"]
        )
        output = (await run_command(tmp_path, "doctor")).stdout
        assert "writes have been frozen since" in output
        assert output.startswith("READY: no errors; "), "clients are not served"
        assert max(map(len, output.splitlines())) <= 160
        await run_command(tmp_path, "unfreeze", "--merchant", "demo", "--environment", "sandbox")
        await run_command(tmp_path, "unfreeze", "--all")
        await run_command(tmp_path, "brownout", "off")
        assert "warning" not in {
            finding["state"] for finding in (await run_doctor_command(tmp_path))["findings"]
        }


async def test_refusal_after_the_sunset_is_not_reported_as_served(tmp_path: Path) -> None:
    async with open_simulator() as simulator:
        write_configuration(tmp_path, simulator.url)
        with (tmp_path / "gateway.toml").open("a") as file:
            file.write('[deprecation]\nannounced = "2026-01-10"\nafter_sunset = "refuse"\n')
        await import_api_keys(build_settings(tmp_path, simulator.url), [KEY])
        output = (await run_command(tmp_path, "doctor")).stdout
        assert output.startswith("READY: no errors; 1 warning."), "clients are not served"
        assert "every legacy request has been refused (403) since 2026-04-10" in output


async def run_doctor_command(folder: Path) -> Any:
    return json.loads((await run_command(folder, "doctor", "--json")).stdout)
