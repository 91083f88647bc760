"""Secrets and personal data in debug logs, on the disk of a killed process, in crashes, in the
output of commands and on the admin port.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from click.testing import CliRunner
from sqlalchemy import make_url

from gateway.cli import gateway, main
from gateway.config.settings import State
from tests.canaries import (
    ACCESS_KEY,
    API_KEY,
    EMAIL,
    IBAN,
    MEMO,
    PAYOUT,
    PERSON,
    PERSONAL,
    SECRET_KEY,
    SSN,
    Objects,
    assert_no_canary,
    build_batch,
    create_objects,
    list_requests,
)
from tests.gateway.storage.conftest import database, postgres  # noqa: F401 - fixtures
from tests.processes import build_configuration, build_environment, run_serve
from tests.running_gateway import GatewayUnderTest, build_settings, import_api_keys, open_gateway
from tests.simulator import (
    Fault,
    Service,
    ServiceCredentials,
    ServiceOptions,
    Simulator,
    start_simulator,
)
from tests.sockets import exchange

KEY = {
    "merchant": "canary",
    "environment": "sandbox",
    "api_key": API_KEY,
    "access_key": ACCESS_KEY,
    "secret_key": SECRET_KEY,
    "name": "first",
}
STORED_CANARIES = (API_KEY, SECRET_KEY, *PERSONAL)
"""Canaries that no database may contain in plain text; an access key is not secret."""


@asynccontextmanager
async def open_service(*, inferred: bool = True) -> AsyncIterator[Simulator]:
    credentials = ServiceCredentials(ACCESS_KEY, SECRET_KEY, "canary", "sandbox")
    service_options = ServiceOptions(inferred=inferred, processing_seconds=60)
    simulator = await start_simulator(
        service=Service(credentials=[credentials], seed=1, options=service_options)
    )
    try:
        yield simulator
    finally:
        await simulator.stop()


async def request_all_operations(gateway: GatewayUnderTest) -> None:
    """Requests every operation except deletions, so that the data remains in the database."""
    for method, path, body in list_requests(await create_objects(gateway)):
        if method != "DELETE":
            key_header = {"Idempotency-Key": f"{SSN}-{method}-{path}"[:255]}
            await gateway.request(method, f"/v1{path}", body or None, headers=key_header)


# At the most talkative level, of everything that logs.

DEBUG_LOGGING_SCRIPT = """
import logging
from gateway.observability import logs
configure = logs.configure_logging
def loudly(**_):
    configure(level="debug")
    logging.getLogger().setLevel(1)
    logging.getLogger("dependency").debug("this is logged")
logs.configure_logging = loudly
from gateway.cli import main
main()
"""


async def test_debug_log_contains_no_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tests.processes.build_command", lambda: [sys.executable, "-c", DEBUG_LOGGING_SCRIPT]
    )
    async with open_service() as simulator:
        (tmp_path / "gateway.toml").write_text(build_configuration(simulator.url))
        settings = build_settings(tmp_path, simulator.url)
        await import_api_keys(settings, [KEY])
        async with run_serve(tmp_path) as gateway:
            for method, path, body in list_requests(Objects("R-1", "B-1", "P-1")):
                for fault in (None, Fault("*", "*", status=200, body=f'["{EMAIL}"]'.encode()),
                              Fault("*", "*", close="before")):  # fmt: skip
                    simulator.service.faults[:] = [fault] if fault else []
                    data = json.dumps(body).encode() if body else b""
                    lines = [f"{method} /v1{path} HTTP/1.1", "Host: x", f"X-API-Key: {API_KEY}"]
                    lines += [f"Content-Length: {len(data)}", f"X-Own: {SSN}", f"{SSN}: {IBAN}"]
                    assert await exchange(
                        gateway.port, "\r\n".join([*lines, "", ""]).encode() + data
                    )
            assert await gateway.stop() == 0
        log = gateway.read_log()
    assert '"event":"library_warning"' in log, "it was not loud"
    assert_no_canary(log)


# On the disk.


@pytest.mark.parametrize("inferred", [True, False], ids=["inferred", "documented"])
async def test_killed_process_leaves_no_plain_text(tmp_path: Path, *, inferred: bool) -> None:
    async with open_service(inferred=inferred) as simulator:
        (tmp_path / "gateway.toml").write_text(build_configuration(simulator.url))
        await import_api_keys(build_settings(tmp_path, simulator.url), [KEY])
        async with run_serve(tmp_path) as gateway:
            (create_response,) = [
                await exchange(
                    gateway.port, _build_request("/recipients", PERSON | {"payout": PAYOUT})
                )
            ]
            assert create_response is not None
            recipient = create_response.parse_json["recipient"]["id"]
            batch = await exchange(gateway.port, _build_request("/batches", build_batch(recipient)))
            assert batch is not None
            change = {
                "payments": [{"recipient": {"id": recipient}, "sourceAmount": "8.00", "memo": MEMO}]
            }
            path = f"/batches/{batch.parse_json['batch']['id']}"
            change_response = await exchange(gateway.port, _build_request(path, change, "PATCH"))
            assert change_response is not None
            assert change_response.status == 200, change_response.body
            # Killed in the middle of a write.
            simulator.service.faults.append(Fault("*", "*", answer_delay=5, times=99))
            pending_request = asyncio.ensure_future(
                exchange(gateway.port, _build_request(f"{path}/payments", change["payments"][0]))
            )
            await asyncio.sleep(0.2)
            gateway.process.kill()
            await gateway.process.wait()
            await asyncio.gather(pending_request, return_exceptions=True)
            simulator.service.faults.clear()
    files = [item for item in tmp_path.iterdir() if item.name != "gateway.toml"]
    assert {"gateway.db", "stderr"} <= {file.name for file in files}
    for file in files:
        for canary in STORED_CANARIES:
            for canary_form in (
                canary.encode(),
                canary.encode("utf-16-le"),
                canary.encode().hex().encode(),
            ):
                assert canary_form.lower() not in file.read_bytes().lower(), (file.name, canary)


def _build_request(path: str, body: Any, method: str = "POST") -> bytes:
    data = json.dumps(body).encode()
    lines = [f"{method} /v1{path} HTTP/1.1", "Host: x", f"X-API-Key: {API_KEY}"]
    return "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode() + data


async def test_postgresql_tables_contain_no_secrets(
    postgres: State,  # noqa: F811 - the fixture
    tmp_path: Path,
) -> None:
    state = {"url": postgres.url, "encryption_key_file": postgres.encryption_key_file}
    async with open_service(inferred=False) as simulator:
        settings = build_settings(tmp_path, simulator.url, state=state)
        await import_api_keys(settings, [KEY])
        async with open_gateway(tmp_path, simulator.url, state=state) as gateway:
            gateway.headers["X-API-Key"] = API_KEY
            await request_all_operations(gateway)
    tables = await _load_all_rows(postgres.url)
    assert tables["batches"], "nothing was stored"
    assert_no_canary(str(tables), STORED_CANARIES)


async def _load_all_rows(url: str) -> dict[str, list[str]]:
    connection: Any = await asyncpg.connect(make_url(url).render_as_string(hide_password=False))
    try:
        names = await connection.fetch(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
        )
        return {
            name: [str(tuple(row)) for row in await connection.fetch(f'SELECT * FROM "{name}"')]
            for (name,) in names
        }
    finally:
        await connection.close()


# In a crash.

CRASH_SCRIPTS = {
    "uncaught": "raise ValueError(CANARY)",
    "in a thread": "import threading; t = threading.Thread(target=fails); t.start(); t.join()",
    "in a finalizer": "class Dies:\n    def __del__(self): fails()\nDies()",
    "in a task that nobody waits for": (
        "import asyncio, gc\n"
        "async def main():\n"
        "    async def one(): fails()\n"
        "    asyncio.create_task(one())\n"
        "    await asyncio.sleep(0); await asyncio.sleep(0); gc.collect()\n"
        "asyncio.run(main()); gc.collect()"
    ),
    "a warning": "import warnings; warnings.simplefilter('always'); warnings.warn(CANARY)",
    "with a cause": "try:\n    fails()\nexcept ValueError as error:\n    raise KeyError(CANARY) from error",
}  # fmt: skip


@pytest.mark.parametrize("crash", CRASH_SCRIPTS.values(), ids=CRASH_SCRIPTS)
def test_crash_is_logged_without_its_message(crash: str) -> None:
    begin = (
        "from gateway.observability.logs import configure_logging; configure_logging()\n"
        f"CANARY = '{SSN} {API_KEY}'\n"
        "def fails(): raise ValueError(CANARY)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", begin + crash],
        capture_output=True, text=True, check=False, timeout=20, env=build_environment(),
    )  # fmt: skip
    assert_no_canary(result.stdout + result.stderr)
    assert result.stderr, "nothing was told"
    for line in result.stderr.splitlines():
        assert json.loads(line)["level"] in ("error", "warning")


# In what commands print.


COMMANDS = [
    ["keys", "list"],
    ["keys", "list", "--json"],
    ["keys", "verify"],
    ["check"],
    ["check", "--json"],
    ["doctor"],
    ["doctor", "--json"],
    ["batches", "abandoned"],
    ["batches", "abandoned", "--json"],
    ["report", "usage"],
    ["report", "usage", "--json"],
    ["brownout", "list"],
]


async def test_commands_print_no_secrets_or_personal_data(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    async with open_service(inferred=False) as simulator:
        settings = build_settings(tmp_path, simulator.url)
        state = f'url = "{settings.state.url}"\nencryption_key_file = "{tmp_path}/gateway.key"'
        path.write_text(f'[environments.sandbox]\nbase_url = "{simulator.url}"\n[state]\n{state}\n')
        await import_api_keys(settings, [KEY])
        async with open_gateway(tmp_path, simulator.url) as http_gateway:
            http_gateway.headers["X-API-Key"] = API_KEY
            await request_all_operations(http_gateway)
        for arguments in COMMANDS:
            result = await asyncio.to_thread(
                CliRunner().invoke, gateway, [*arguments, "--config", str(path)]
            )
            assert result.exit_code in (0, 1), (arguments, result.output, result.exception)
            assert result.output, arguments
            assert_no_canary(result.output, STORED_CANARIES)


def run_main(
    arguments: list[str], stdin: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, str]:
    """Runs a command by `main` in a directory with a configuration; returns code and output."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["payout-gateway", *arguments])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        with pytest.raises(SystemExit) as exit_info:
            main()
    return int(exit_info.value.code or 0), output.getvalue()


LIVE_ENVIRONMENT = '[environments.live]\nbase_url = "http://127.0.0.1:1"\n'
CONFIGURATIONS = {
    "a password in an address that cannot be reached": (
        f'{LIVE_ENVIRONMENT}[state]\nurl = "postgresql://me:{SECRET_KEY}@127.0.0.1:1/db"'
    ),
    "a password in an address that cannot be read": (
        f'{LIVE_ENVIRONMENT}[state]\nurl = "postgresql://me:{SECRET_KEY}@127.0.0.1:port/db"'
    ),
    "a password in an address of another kind": (
        f'{LIVE_ENVIRONMENT}[state]\nurl = "mysql://me:{SECRET_KEY}@127.0.0.1/db"'
    ),
    "a password in the service's address": (
        f'[environments.live]\nbase_url = "https://me:{SECRET_KEY}@service.example"'
    ),
    "a password in the limit's address": (
        f'{LIVE_ENVIRONMENT}[limits]\nurl = "redis://:{SECRET_KEY}@127.0.0.1:1"'
    ),
    "a password in a limit's address of another kind": (
        f'{LIVE_ENVIRONMENT}[limits]\nurl = "memcached://:{SECRET_KEY}@127.0.0.1:1"'
    ),
    "a key that does not exist": f'{LIVE_ENVIRONMENT}[state]\npassword = "{SECRET_KEY}"',
    "a value of the wrong kind": f'[server]\nport = "{SECRET_KEY}"\n{LIVE_ENVIRONMENT}',
    "TOML that is none": f'{LIVE_ENVIRONMENT}[state]\nurl = "{SECRET_KEY}',
}


@pytest.mark.parametrize("text", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_configuration_error_contains_no_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "gateway.toml").write_text(text)
    for arguments in (["check"], ["keys", "list"], ["doctor"], ["batches", "abandoned"]):
        _code, output = run_main(arguments, "", tmp_path, monkeypatch)
        assert_no_canary(output)
        assert "Traceback" not in output


# On the admin port.


async def test_admin_port_discloses_no_secrets(tmp_path: Path) -> None:
    async with open_service() as simulator, open_gateway(tmp_path, simulator.url) as gateway:
        await import_api_keys(gateway.settings, [KEY])
        gateway.headers["X-API-Key"] = API_KEY
        await request_all_operations(gateway)
        for path in (
            "/healthz",
            "/readyz",
            "/metrics",
            "/limits",
            "/",
            f"/{SSN}?email={EMAIL}",
        ):
            async with gateway.session.get(f"{gateway.running.admin_url}{path}") as response:
                assert_no_canary(await response.text() + str(response.headers))
        for data in (
            f"GET /healthz HTTP/1.1\r\nHost: x\r\n{SECRET_KEY}\r\n\r\n",
            f"GET /healthz HTTP/1.1\r\nHost: x\r\nX-API-Key: {API_KEY}\0\r\n\r\n",
            f"{SSN} /healthz HTTP/1.1\r\n\r\n",
        ):
            raw_response = await exchange(gateway.running.admin_port, data.encode())
            assert raw_response is not None
            assert_no_canary(raw_response.body.decode() + json.dumps(raw_response.headers))
