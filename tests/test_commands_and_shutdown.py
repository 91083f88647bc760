"""The real command as a process: startup, output, shutdown."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.cli import main
from gateway.storage import Tenant, open_store
from gateway.storage.mode_rows import GROUPS, set_mode
from tests.payouts import BANK as PAYOUT_BODY
from tests.payouts import RECIPIENT_BODY
from tests.processes import (
    COMMAND,
    SECONDS,
    Process,
    build_command,
    build_configuration,
    build_environment,
    find_free_port,
    is_listening,
    run_installed_command,
    run_serve,
)
from tests.running_gateway import KEY, build_settings, import_api_keys, open_gateway
from tests.simulator import Fault, Service, Simulator, start_simulator
from tests.sockets import open_connection, wait_until

PORTS = {"PAYOUT_GATEWAY_SERVER__PORT": "0", "PAYOUT_GATEWAY_SERVER__ADMIN_PORT": "0"}


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    simulator = await start_simulator(service=Service(seed=1))
    yield simulator
    await simulator.stop()


async def write_configuration(folder: Path, base_url: str, *keys: dict[str, Any]) -> None:
    """A configuration for `serve`, and keys in its state."""
    (folder / "gateway.toml").write_text(build_configuration(base_url))
    await import_api_keys(build_settings(folder, base_url), list(keys or (KEY,)))


@asynccontextmanager
async def open_client(api_key: str = KEY["api_key"]) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    async with aiohttp.ClientSession(headers={"X-API-Key": api_key}, timeout=timeout) as session:
        yield session


async def _load_status(
    session: aiohttp.ClientSession, gateway: Process, key: str | None = None
) -> int:
    headers = {"X-API-Key": key} if key else {}
    async with session.get(f"{gateway.url}/v1/recipients", headers=headers) as response:
        return response.status


def require_one_line(process: subprocess.CompletedProcess[str], *, code: int = 2) -> str:
    """Checks that a command failed with one line, and returns it."""
    assert (process.returncode, process.stdout) == (code, "")
    assert process.stderr.count("\n") == 1, process.stderr
    assert len(process.stderr) < 300
    return process.stderr


RunCommand = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_in_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> RunCommand:
    """Runs the command in this process, which is faster than starting one."""

    def run_main(*arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.argv", ["payout-gateway", *arguments])
        with pytest.raises(SystemExit) as exit_info:
            main()
        return subprocess.CompletedProcess(
            arguments, int(exit_info.value.code or 0), *capfd.readouterr()
        )

    return run_main


# The demo.


async def test_demo_prints_working_commands(tmp_path: Path) -> None:
    async with run_serve(tmp_path, "--demo", variables=PORTS) as gateway:
        assert "DEMO" in gateway.output
        assert "simulator" in gateway.output
        script = "\n".join(
            line for line in gateway.output.splitlines() if re.match(r"\s+(curl|ID=|http)", line)
        )
        assert script.count("curl") == 4
        output = await _run_in_shell(script.replace("\n  curl", "\necho\n  curl"))
        lines = filter(None, output.split("\n"))
        create_body, list_body, method = map(json.loads, lines)
        assert create_body["recipient"]["firstName"] == "Ada"
        assert list_body["recipients"][0]["id"] == create_body["recipient"]["id"]
        assert list_body["meta"]["records"] == 1
        assert method["ok"] is True
        assert method["accounts"]["bank"]["accountNum"] == "****67"
        assert await gateway.stop() == 0


async def test_demo_ends_with_its_terminal(tmp_path: Path) -> None:
    async with run_serve(tmp_path, "--demo", variables=PORTS) as gateway:
        gateway.process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(SECONDS):
            assert await gateway.process.wait() == 0


async def test_demo_uses_the_configured_vocabulary(tmp_path: Path) -> None:
    vocabulary = {
        "LEGACY__WALLET": "paypal",
        "CURRENT__WALLET": "payco",
        "CURRENT__SCHEME": "prsign",
    }
    variables = {f"PAYOUT_GATEWAY_VOCABULARY__{name}": word for name, word in vocabulary.items()}
    async with (
        run_serve(tmp_path, "--demo", variables={**PORTS, **variables}) as gateway,
        open_client("demo-api-key") as session,
        session.get(f"{gateway.url}/v1/profile/balances/paypal") as response,
    ):
        assert response.status == 200, await response.text()
        assert (await response.json())["balances"]["paypal"]["type"] == "paypal"


async def _run_in_shell(lines: str) -> str:
    """Returns the output of a shell that runs the lines."""
    shell = await asyncio.create_subprocess_exec(
        "bash", "-eu", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(SECONDS):
        output, _ = await shell.communicate(lines.encode())
    assert shell.returncode == 0
    return output.decode()


async def test_readme_payout_by_curl_works(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "README.md").read_text("utf-8")
    _, _, section = page.partition("## A payout, by curl")
    lines = section.split("```")[1]
    async with run_serve(tmp_path, "--demo", variables=PORTS) as gateway:
        output = await _run_in_shell(lines.replace("http://127.0.0.1:8080", gateway.url))
    *_, quote_line, start_line, summary_line = output.splitlines()
    assert json.loads(quote_line)["batch"]["amount"] == "12.50"
    assert json.loads(start_line)["batch"]["status"] == "processing"
    summary = json.loads(summary_line)["batchSummary"]
    assert (summary["enoughFunds"], summary["total"]["count"]) == (True, 1)


async def test_demo_listens_on_loopback_and_leaves_no_files(tmp_path: Path) -> None:
    open_addresses = {
        "PAYOUT_GATEWAY_SERVER__HOST": "0.0.0.0",
        "PAYOUT_GATEWAY_SERVER__ADMIN_HOST": "0.0.0.0",
        "TMPDIR": str(tmp_path),
    }
    variables = PORTS | open_addresses
    async with (
        run_serve(tmp_path, "--demo", variables=variables) as gateway,
        open_client() as session,
    ):
        assert await _load_status(session, gateway) == 403
        assert "0.0.0.0" not in gateway.output
        with pytest.raises(OSError):
            await open_connection(gateway.port, host=_find_other_address())
        assert await gateway.stop() == 0
    assert _list_file_names(tmp_path) == ["stderr"]


def _list_file_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _find_other_address() -> str:
    """An address of this machine that is not loopback, or one that nobody has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        try:
            client.connect(("192.0.2.1", 9))  # sends nothing: it only chooses an address
        except OSError:
            return "127.255.255.254"
        return str(client.getsockname()[0])


async def test_demo_uses_ports_of_the_environment(tmp_path: Path) -> None:
    port, admin_port = find_free_port(), find_free_port()
    variables = {
        "PAYOUT_GATEWAY_SERVER__PORT": str(port),
        "PAYOUT_GATEWAY_SERVER__ADMIN_PORT": str(admin_port),
    }
    async with run_serve(tmp_path, "--demo", variables=variables) as gateway:
        assert (gateway.port, gateway.admin_port) == (port, admin_port)


async def test_demo_sends_sample_traffic(tmp_path: Path) -> None:
    """All of it succeeds but for the client's mistakes that it makes on purpose."""
    async with run_serve(tmp_path, "--demo", "--traffic", variables=PORTS) as gateway:
        await wait_until(
            lambda: any(
                line.get("operation") == "read_batch_summary" for line in gateway.parse_log()
            ),
            SECONDS,
        )
        statuses = {line.get("http.response.status_code", 200) for line in gateway.parse_log()}
        assert statuses == {200}
        assert await gateway.stop() == 0


def test_demo_with_a_configuration_is_an_error(tmp_path: Path) -> None:
    result = run_installed_command("serve", "--demo", "--config", "gateway.toml", folder=tmp_path)
    assert "--config" in require_one_line(result)


# A configuration.


def test_serve_without_configuration_prints_instructions(tmp_path: Path) -> None:
    result = run_installed_command("serve", folder=tmp_path)
    output = require_one_line(result)
    assert "no configuration" in output
    assert "serve --demo" in output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[server]\nprot = 1", "gateway.toml:2: server.prot: unknown key"),
        ("[server\n", "gateway.toml: not TOML"),
        ("[server]\nport = 0", "environments: none is configured"),
        ("[environments.live]\nbase_url = 'https://service.example/v1'", "without /v1"),
    ],
)
def test_invalid_configuration_is_a_one_line_error(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "gateway.toml").write_text(text)
    assert message in require_one_line(run_installed_command("serve", folder=tmp_path))


async def test_environment_variables_are_sufficient_configuration(tmp_path: Path) -> None:
    variables = PORTS | {"PAYOUT_GATEWAY_ENVIRONMENTS__SANDBOX__BASE_URL": "http://127.0.0.1:9"}
    async with (
        run_serve(tmp_path, variables=variables) as gateway,
        open_client("unknown") as session,
    ):
        assert await _load_status(session, gateway) == 403


def test_example_configuration_has_placeholder_warnings_only(tmp_path: Path) -> None:
    example = Path(__file__).parent.parent / "deploy" / "gateway.example.toml"
    result = run_installed_command("check", "--config", str(example), folder=tmp_path)
    assert result.returncode == 0
    live_line, sandbox_line = result.stderr.splitlines()
    assert re.match(
        r"Warning: \S+\.toml:\d+: environments\.live\.base_url: .*placeholder", live_line
    )
    assert "environments.sandbox.base_url: https://sandbox.service.example" in sandbox_line
    assert ": valid\n" not in result.stdout
    result = run_installed_command("check", "--json", "--config", str(example), folder=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    report = json.loads(result.stdout)
    assert (report["ok"], report["problems"], len(report["warnings"])) == (True, [], 2)


async def test_start_and_stop_are_logged_with_the_version(
    tmp_path: Path, simulator: Simulator
) -> None:
    await write_configuration(tmp_path, simulator.url)
    async with run_serve(tmp_path) as gateway:
        assert await gateway.stop() == 0
        first, *_, last = gateway.parse_log()
    assert (first["event"], first["url"]) == ("startup_complete", gateway.url)
    assert (last["event"], last["service.version"]) == (
        "shutdown_complete",
        version("payout-gateway"),
    )


async def test_log_format_text_is_for_people(tmp_path: Path, simulator: Simulator) -> None:
    await write_configuration(tmp_path, simulator.url)
    async with run_serve(tmp_path, variables={"PAYOUT_GATEWAY_LOGS__FORMAT": "text"}) as gateway:
        assert await gateway.stop() == 0
        assert re.match(r"\d{4}-\S+ \[info +\] startup_complete +", gateway.read_log())


# Starting and ending.


async def test_serve_prints_one_line_when_ready(tmp_path: Path, simulator: Simulator) -> None:
    await write_configuration(tmp_path, simulator.url)
    async with run_serve(tmp_path) as gateway, open_client() as session:
        assert gateway.output.count("\n") == 1
        async with session.get(f"{gateway.url}/v1/recipients") as response:
            assert response.status == 200
        assert await gateway.stop() == 0
        remaining_output = await gateway.process.stdout.read()
        assert remaining_output == b""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_shutdown_completes_requests_in_flight(
    tmp_path: Path, simulator: Simulator, number: signal.Signals
) -> None:
    await write_configuration(tmp_path, simulator.url)
    simulator.service.faults.append(Fault("POST", "/v1/recipients", answer_delay=0.5))
    async with run_serve(tmp_path) as gateway, open_client() as session:
        idle_connection = await open_connection(gateway.port)
        pending_response = asyncio.create_task(
            _create_recipient(session, gateway, RECIPIENT_BODY | {"payout": PAYOUT_BODY})
        )
        await _wait_until_sent(simulator, gateway)
        gateway.process.send_signal(number)
        assert await pending_response == 200
        async with asyncio.timeout(SECONDS):
            assert await gateway.process.wait() == 0
        assert await idle_connection.wait_closed()
        await idle_connection.close()
        assert simulator.service.list_requests("POST", "/v1/recipients/*/accounts")
        assert [
            line["http.response.status_code"]
            for line in gateway.parse_log()
            if line["event"] == "request"
        ] == [200]
        last = gateway.parse_log()[-1]
        assert (last["event"], last["level"], last["requests_left"]) == (
            "shutdown_complete",
            "info",
            1,
        )
        assert last["drain_seconds"] > 0
        assert last["uptime_seconds"] >= 0


async def test_idle_shutdown_is_logged(tmp_path: Path, simulator: Simulator) -> None:
    await write_configuration(tmp_path, simulator.url)
    async with run_serve(tmp_path) as gateway:
        assert await gateway.stop() == 0
        assert gateway.parse_log()[-1]["requests_left"] == 0


async def test_shutdown_during_the_ready_line_exits_0(tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text(build_configuration("http://127.0.0.1:9"))
    port, filler = find_free_port(), b"-" * 4096
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, len(filler))
    os.write(write_end, filler)  # so that the gateway blocks on its line until the pipe is read
    running = await asyncio.create_subprocess_exec(
        *(*COMMAND, "serve"),
        cwd=tmp_path,
        env=build_environment(PAYOUT_GATEWAY_SERVER__ADMIN_PORT=str(port)),
        stdout=write_end,
    )
    os.close(write_end)
    await wait_until(lambda: is_listening(port), SECONDS)
    await asyncio.sleep(0.1)
    running.send_signal(signal.SIGTERM)
    await asyncio.sleep(0.1)
    output = await asyncio.to_thread(_read_all, read_end)
    async with asyncio.timeout(SECONDS):
        assert await running.wait() == 0
    assert b"accepts connections" in output


def _read_all(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as pipe:
        return pipe.read()


async def _create_recipient(session: aiohttp.ClientSession, gateway: Process, body: Any) -> int:
    async with session.post(f"{gateway.url}/v1/recipients", json=body) as response:
        return response.status


async def _wait_until_sent(simulator: Simulator, gateway: Process) -> None:
    """Waits until the fault is met: the service has the request and has not answered."""
    await wait_until(lambda: not simulator.service.faults)
    assert gateway.process.returncode is None


async def test_shutdown_completes_a_write_of_a_disconnected_client(
    tmp_path: Path, simulator: Simulator
) -> None:
    await write_configuration(tmp_path, simulator.url)
    simulator.service.faults.append(Fault("POST", "/v1/recipients", answer_delay=0.5))
    async with run_serve(tmp_path) as gateway:
        body = json.dumps(RECIPIENT_BODY | {"payout": PAYOUT_BODY}).encode()
        head = f"POST /v1/recipients HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEY['api_key']}\r\n"
        async with await open_connection(gateway.port) as connection:
            await connection.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await _wait_until_sent(simulator, gateway)
        await asyncio.sleep(0.05)
        assert await gateway.stop() == 0
    assert simulator.service.list_requests("POST", "/v1/recipients/*/accounts")


async def test_shutdown_refuses_new_connections(tmp_path: Path, simulator: Simulator) -> None:
    await write_configuration(tmp_path, simulator.url)
    simulator.service.faults.append(Fault("POST", "/v1/recipients", answer_delay=0.6))
    async with run_serve(tmp_path) as gateway, open_client() as session:
        pending_response = asyncio.create_task(_create_recipient(session, gateway, RECIPIENT_BODY))
        await _wait_until_sent(simulator, gateway)
        gateway.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.2)
        with pytest.raises(OSError):
            await open_connection(gateway.port)
        assert await pending_response == 200


async def test_reload_during_the_start_ends_nothing(tmp_path: Path) -> None:
    run_installed_command("keys", "new-encryption-key", folder=tmp_path)
    connected, reloaded = asyncio.Event(), asyncio.Event()

    async def refuse_late(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await reloaded.wait()
        writer.close()

    async with await asyncio.start_server(refuse_late, "127.0.0.1", 0) as database:
        port = database.sockets[0].getsockname()[1]
        process = await asyncio.create_subprocess_exec(
            *build_command(),
            "serve",
            cwd=tmp_path,
            env=build_environment(
                **PORTS,
                PAYOUT_GATEWAY_ENVIRONMENTS__SANDBOX__BASE_URL="http://127.0.0.1:9",
                PAYOUT_GATEWAY_STATE__URL=f"postgresql://postgres@127.0.0.1:{port}/x",
            ),
            stderr=asyncio.subprocess.DEVNULL,
        )
        async with asyncio.timeout(SECONDS):
            await connected.wait()
            process.send_signal(signal.SIGHUP)
            reloaded.set()
            assert await process.wait() == 2, "as it ends without a usable database"


@pytest.mark.parametrize("port_name", ["PORT", "ADMIN_PORT"])
@pytest.mark.parametrize("arguments", [["serve", "--demo"], ["serve"]], ids=["demo", "serve"])
def test_port_in_use_is_a_one_line_error(
    tmp_path: Path, port_name: str, arguments: list[str]
) -> None:
    (tmp_path / "gateway.toml").write_text(build_configuration("http://127.0.0.1:9"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        variables = PORTS | {f"PAYOUT_GATEWAY_SERVER__{port_name}": port}
        output = require_one_line(run_installed_command(*arguments, folder=tmp_path, **variables))
    assert port in output
    assert "in use" in output
    assert f"SERVER__{port_name} sets another" in output


def test_unavailable_address_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text(build_configuration("http://127.0.0.1:9"))
    variables = {"PAYOUT_GATEWAY_SERVER__HOST": "192.0.2.1"}
    output = require_one_line(run_installed_command("serve", folder=tmp_path, **variables))
    assert "192.0.2.1" in output
    assert "SERVER__HOST sets another" in output


# The whole of it, as an operator would set it up.


# Keys, in a gateway that runs.


# Its health.


async def test_readiness_follows_the_service(tmp_path: Path, simulator: Simulator) -> None:
    await write_configuration(tmp_path, simulator.url)
    async with run_serve(tmp_path) as gateway, open_client() as session:
        admin = f"http://127.0.0.1:{gateway.admin_port}"

        async def load_status(path: str) -> tuple[int, Any]:
            async with session.get(admin + path) as response:
                assert response.headers.getall("Server") == ["payout-gateway"]
                return response.status, await response.json()

        assert await load_status("/healthz") == (200, {"status": "ok"})
        assert await load_status("/readyz") == (
            200,
            {"status": "ok", "faults": {}, "circuit_breakers": {"sandbox": "closed"}},
        )
        await simulator.stop()
        status, body = await load_status("/readyz")
        assert (status, body["status"], list(body["faults"])) == (
            503,
            "error",
            ["environments.sandbox"],
        )
        assert len(body["faults"]["environments.sandbox"].split()) > 3
        assert await load_status("/healthz") == (200, {"status": "ok"})


async def test_gateway_is_ready_while_the_legacy_service_answers_clients(tmp_path: Path) -> None:
    simulator = await start_simulator(service=Service(seed=1), legacy_port=0)
    origin = f"http://127.0.0.1:{find_free_port()}"
    environments = {"sandbox": {"base_url": origin, "legacy_base_url": simulator.legacy_url}}
    async with (
        open_gateway(tmp_path, origin, environments=environments) as gateway,
        open_client() as session,
    ):

        async def load_readiness() -> tuple[int, str, set[str]]:
            async with session.get(f"{gateway.running.admin_url}/readyz") as response:
                body = await response.json()
                return response.status, body["status"], set(body["faults"])

        assert await load_readiness() == (503, "error", {"environments.sandbox"})
        async with open_store(gateway.settings.state) as store:
            await set_mode(store, Tenant("acme", "sandbox"), "", GROUPS, "forward")
        assert await load_readiness() == (200, "degraded", {"environments.sandbox"})
        await simulator.stop()
        assert await load_readiness() == (
            503,
            "error",
            {"environments.sandbox", "legacy.sandbox"},
        )


async def test_hanging_service_makes_the_gateway_unready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.admin.port.CHECK_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent_listener:  # never accepts
        url = f"http://127.0.0.1:{silent_listener.getsockname()[1]}"
        async with (
            open_gateway(tmp_path, url) as gateway,
            open_client() as session,
            session.get(f"{gateway.running.admin_url}/readyz") as response,
        ):
            assert response.status == 503
            body = await response.json()
    assert "no answer within" in body["faults"]["environments.sandbox"]


async def test_admin_pages_are_not_on_the_client_port(tmp_path: Path, simulator: Simulator) -> None:
    await write_configuration(tmp_path, simulator.url)
    async with run_serve(tmp_path) as gateway, open_client() as session:
        for path in ("/healthz", "/readyz", "/metrics", "/"):
            async with session.get(gateway.url + path) as response:
                assert response.status == 404


# check


def test_check_accepts_a_valid_configuration(tmp_path: Path, run_in_process: RunCommand) -> None:
    (tmp_path / "gateway.toml").write_text(build_configuration("https://127.0.0.1:9"))
    result = run_in_process("check")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "gateway.toml: valid\n"
    result = run_in_process("check", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout) == {"ok": True, "problems": [], "warnings": []}


def test_check_without_a_file_checks_environment_variables(
    run_in_process: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    base_url = "PAYOUT_GATEWAY_ENVIRONMENTS__SANDBOX__BASE_URL"
    monkeypatch.setenv(base_url, "http://127.0.0.1:1")
    result = run_in_process("check")
    assert (result.returncode, result.stdout) == (0, "environment variables: valid\n")
    monkeypatch.setenv(base_url, "nowhere")
    result = run_in_process("check")
    assert result.returncode == 1
    assert base_url in result.stderr


# Help and mistakes.


@pytest.mark.parametrize("arguments", [[], ["keys"]], ids=["payout-gateway", "keys"])
def test_missing_command_prints_help(run_in_process: RunCommand, arguments: list[str]) -> None:
    result = run_in_process(*arguments)
    assert result.returncode == 2
    output = result.stdout + result.stderr
    assert all(len(line) <= 200 for line in output.splitlines()), "help that is folded to one line"
    assert "--help" in output
