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
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.cli import main
from gateway.simulator import Fault, Service, Simulator, start
from tests.house import KEY, import_lines, open_house, settings_for
from tests.processes import (
    COMMAND,
    SECONDS,
    Process,
    command,
    configuration,
    environment,
    free_port,
    listens,
    serving,
)
from tests.sockets import until, wire

PORTS = {"PAYOUT_GATEWAY_SERVER__PORT": "0", "PAYOUT_GATEWAY_SERVER__ADMIN_PORT": "0"}
ADA = {"type": "individual", "firstName": "Ada", "lastName": "Lovelace", "email": "ada@example.com"}
PAYOUT = {
    "primary": {"method": "bank", "currency": "USD"},
    "accounts": {"bank": {"country": "US", "accountNum": "1234567", "routing": "021000021"}},
}


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    simulator = await start(service=Service(seed=1))
    yield simulator
    await simulator.stop()


async def configure(folder: Path, base_url: str, *keys: dict[str, Any]) -> None:
    """A configuration for `serve`, and keys in its state."""
    (folder / "gateway.toml").write_text(configuration(base_url))
    await import_lines(settings_for(folder, base_url), list(keys or (KEY,)))


@asynccontextmanager
async def client(api_key: str = KEY["api_key"]) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    async with aiohttp.ClientSession(headers={"X-API-Key": api_key}, timeout=timeout) as session:
        yield session


def one_line(done: subprocess.CompletedProcess[str], *, code: int = 2) -> str:
    """Checks that a command failed with one line, and returns it."""
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.count("\n") == 1, done.stderr
    assert len(done.stderr) < 300
    return done.stderr


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in this process, which is faster than starting one."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.argv", ["payout-gateway", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return subprocess.CompletedProcess(words, int(ended.value.code or 0), *capfd.readouterr())

    return run


# The demo.


async def test_the_demo_says_that_it_is_one_and_its_lines_work_when_pasted(tmp_path: Path) -> None:
    async with serving(tmp_path, "--demo", variables=PORTS) as gateway:
        assert "DEMO" in gateway.said
        assert "simulator" in gateway.said
        pasted = "\n".join(
            line for line in gateway.said.splitlines() if re.match(r"\s+(curl|ID=|http)", line)
        )
        assert pasted.count("curl") == 4
        printed = await _pasted(pasted.replace("\n  curl", "\necho\n  curl"))
        lines = filter(None, printed.split("\n"))
        created, listed, method = map(json.loads, lines)
        assert created["recipient"]["firstName"] == "Ada"
        assert listed["recipients"][0]["id"] == created["recipient"]["id"]
        assert listed["meta"]["records"] == 1
        assert method["ok"] is True
        assert method["accounts"]["bank"]["accountNum"] == "****67"
        assert await gateway.ends() == 0


async def test_the_demo_speaks_the_words_that_are_configured(tmp_path: Path) -> None:
    words = {"LEGACY__WALLET": "paypal", "CURRENT__WALLET": "payco", "CURRENT__SCHEME": "prsign"}
    variables = {f"PAYOUT_GATEWAY_VOCABULARY__{name}": word for name, word in words.items()}
    async with (
        serving(tmp_path, "--demo", variables={**PORTS, **variables}) as gateway,
        client("demo-api-key") as session,
        session.get(f"{gateway.url}/v1/profile/balances/paypal") as answer,
    ):
        assert answer.status == 200, await answer.text()
        assert (await answer.json())["balances"]["paypal"]["type"] == "paypal"


async def _pasted(lines: str) -> str:
    """Returns the output of a shell that runs the lines."""
    shell = await asyncio.create_subprocess_exec(
        "bash", "-eu", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(SECONDS):
        printed, _ = await shell.communicate(lines.encode())
    assert shell.returncode == 0
    return printed.decode()


async def test_the_payout_by_curl_in_the_readme_works_when_pasted(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "README.md").read_text("utf-8")
    _, _, section = page.partition("## A payout, by curl")
    lines = section.split("```")[1]
    async with serving(tmp_path, "--demo", variables=PORTS) as gateway:
        said = await _pasted(lines.replace("http://127.0.0.1:8080", gateway.url))
    *_, quoted, started, summed = said.splitlines()
    assert json.loads(quoted)["batch"]["amount"] == "12.50"
    assert json.loads(started)["batch"]["status"] == "processing"
    summary = json.loads(summed)["batchSummary"]
    assert (summary["enoughFunds"], summary["total"]["count"]) == (True, 1)


async def test_the_demo_listens_on_loopback_only_and_leaves_nothing_behind(tmp_path: Path) -> None:
    everywhere = {
        "PAYOUT_GATEWAY_SERVER__HOST": "0.0.0.0",
        "PAYOUT_GATEWAY_SERVER__ADMIN_HOST": "0.0.0.0",
        "TMPDIR": str(tmp_path),
    }
    variables = PORTS | everywhere
    async with serving(tmp_path, "--demo", variables=variables) as gateway, client() as session:
        assert await _status(session, gateway) == 403
        assert "0.0.0.0" not in gateway.said
        with pytest.raises(OSError):
            await wire(gateway.port, host=_other_address())
        assert await gateway.ends() == 0
    assert _names(tmp_path) == ["stderr"]


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _other_address() -> str:
    """An address of this machine that is not loopback, or one that nobody has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as toward:
        try:
            toward.connect(("192.0.2.1", 9))  # sends nothing: it only chooses an address
        except OSError:
            return "127.255.255.254"
        return str(toward.getsockname()[0])


async def test_the_demo_takes_its_ports_from_the_environment(tmp_path: Path) -> None:
    port, admin_port = free_port(), free_port()
    variables = {
        "PAYOUT_GATEWAY_SERVER__PORT": str(port),
        "PAYOUT_GATEWAY_SERVER__ADMIN_PORT": str(admin_port),
    }
    async with serving(tmp_path, "--demo", variables=variables) as gateway:
        assert (gateway.port, gateway.admin_port) == (port, admin_port)


def test_a_demo_with_a_configuration_is_a_mistake(tmp_path: Path) -> None:
    done = command("serve", "--demo", "--config", "gateway.toml", folder=tmp_path)
    assert "--config" in one_line(done)


# A configuration.


def test_without_a_configuration_serve_says_what_to_do(tmp_path: Path) -> None:
    done = command("serve", folder=tmp_path)
    said = one_line(done)
    assert "no configuration" in said
    assert "serve --demo" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[server]\nprot = 1", "gateway.toml:2: server.prot: unknown key"),
        ("[server\n", "gateway.toml: not TOML"),
        ("[server]\nport = 0", "environments: none is configured"),
        ("[environments.live]\nbase_url = 'https://service.example/v1'", "without /v1"),
    ],
)
def test_a_configuration_that_cannot_be_run_is_one_line(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "gateway.toml").write_text(text)
    assert said in one_line(command("serve", folder=tmp_path))


def test_a_configuration_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    said = one_line(command("serve", "--config", "other.toml", folder=tmp_path))
    assert "other.toml: there is no such file" in said


async def test_an_environment_without_a_file_is_configuration_enough(tmp_path: Path) -> None:
    variables = PORTS | {"PAYOUT_GATEWAY_ENVIRONMENTS__SANDBOX__BASE_URL": "http://127.0.0.1:9"}
    async with serving(tmp_path, variables=variables) as gateway, client("unknown") as session:
        assert await _status(session, gateway) == 403


def test_of_the_example_configuration_only_its_addresses_are_warned_of(tmp_path: Path) -> None:
    example = Path(__file__).parent.parent / "deploy" / "gateway.example.toml"
    done = command("check", "--config", str(example), folder=tmp_path)
    assert done.returncode == 0
    live, sandbox = done.stderr.splitlines()
    assert re.match(r"Warning: \S+\.toml:\d+: environments\.live\.base_url: .*placeholder", live)
    assert "environments.sandbox.base_url: https://sandbox.service.example" in sandbox
    assert ": valid\n" not in done.stdout
    done = command("check", "--json", "--config", str(example), folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert (told["ok"], told["problems"], len(told["warnings"])) == (True, [], 2)


# Starting and ending.


async def test_it_prints_one_line_when_it_accepts_connections(
    tmp_path: Path, simulator: Simulator
) -> None:
    await configure(tmp_path, simulator.url)
    async with serving(tmp_path) as gateway, client() as session:
        assert gateway.said.count("\n") == 1
        async with session.get(f"{gateway.url}/v1/recipients") as answer:
            assert answer.status == 200
        assert await gateway.ends() == 0
        rest = await gateway.running.stdout.read()
        assert rest == b""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_told_to_end_it_finishes_what_is_in_flight_and_exits_0(
    tmp_path: Path, simulator: Simulator, number: signal.Signals
) -> None:
    await configure(tmp_path, simulator.url)
    simulator.next(Fault("POST", "/v1/recipients", answer_delay=0.5))
    async with serving(tmp_path) as gateway, client() as session:
        idle = await wire(gateway.port)
        asking = asyncio.create_task(_created(session, gateway, ADA | {"payout": PAYOUT}))
        await _arrived(simulator, gateway)
        gateway.running.send_signal(number)
        assert await asking == 200
        async with asyncio.timeout(SECONDS):
            assert await gateway.running.wait() == 0
        assert await idle.closed()
        await idle.close()
        assert simulator.service.calls("POST", "/v1/recipients/*/accounts")
        assert [
            line["http.response.status_code"]
            for line in gateway.lines()
            if line["event"] == "request"
        ] == [200]
        last = gateway.lines()[-1]
        assert (last["event"], last["level"], last["requests_left"]) == (
            "shutdown_complete",
            "info",
            1,
        )
        assert last["drain_seconds"] > 0
        assert last["uptime_seconds"] >= 0


async def test_told_to_end_with_nothing_to_wait_for_it_says_that_it_ended(
    tmp_path: Path, simulator: Simulator
) -> None:
    await configure(tmp_path, simulator.url)
    async with serving(tmp_path) as gateway:
        assert await gateway.ends() == 0
        assert gateway.lines()[-1]["requests_left"] == 0


async def test_told_to_end_while_it_says_its_line_it_exits_0(tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text(configuration("http://127.0.0.1:9"))
    port, full = free_port(), b"-" * 4096
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, len(full))
    os.write(writing, full)  # so that it has to wait with its line until somebody reads
    running = await asyncio.create_subprocess_exec(
        *(*COMMAND, "serve"),
        cwd=tmp_path,
        env=environment(PAYOUT_GATEWAY_SERVER__ADMIN_PORT=str(port)),
        stdout=writing,
    )
    os.close(writing)
    await until(lambda: listens(port), SECONDS)
    await asyncio.sleep(0.1)
    running.send_signal(signal.SIGTERM)
    await asyncio.sleep(0.1)
    said = await asyncio.to_thread(_all_of, reading)
    async with asyncio.timeout(SECONDS):
        assert await running.wait() == 0
    assert b"accepts connections" in said


def _all_of(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as pipe:
        return pipe.read()


async def _created(session: aiohttp.ClientSession, gateway: Process, body: Any) -> int:
    async with session.post(f"{gateway.url}/v1/recipients", json=body) as answer:
        return answer.status


async def _arrived(simulator: Simulator, gateway: Process) -> None:
    """Waits until the fault is met: the service has the request and has not answered."""
    await until(lambda: not simulator.service.faults)
    assert gateway.running.returncode is None


async def test_told_to_end_it_finishes_a_write_whose_client_has_gone_away(
    tmp_path: Path, simulator: Simulator
) -> None:
    await configure(tmp_path, simulator.url)
    simulator.next(Fault("POST", "/v1/recipients", answer_delay=0.5))
    async with serving(tmp_path) as gateway:
        body = json.dumps(ADA | {"payout": PAYOUT}).encode()
        head = f"POST /v1/recipients HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEY['api_key']}\r\n"
        async with await wire(gateway.port) as connection:
            await connection.say(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await _arrived(simulator, gateway)
        await asyncio.sleep(0.05)
        assert await gateway.ends() == 0
    assert simulator.service.calls("POST", "/v1/recipients/*/accounts")


async def test_told_to_end_it_takes_no_new_connections(
    tmp_path: Path, simulator: Simulator
) -> None:
    await configure(tmp_path, simulator.url)
    simulator.next(Fault("POST", "/v1/recipients", answer_delay=0.6))
    async with serving(tmp_path) as gateway, client() as session:
        asking = asyncio.create_task(_created(session, gateway, ADA))
        await _arrived(simulator, gateway)
        gateway.running.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.2)
        with pytest.raises(OSError):
            await wire(gateway.port)
        assert await asking == 200


@pytest.mark.parametrize("which", ["PORT", "ADMIN_PORT"])
@pytest.mark.parametrize("arguments", [["serve", "--demo"], ["serve"]], ids=["demo", "serve"])
def test_a_port_in_use_is_one_line(tmp_path: Path, which: str, arguments: list[str]) -> None:
    (tmp_path / "gateway.toml").write_text(configuration("http://127.0.0.1:9"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        variables = PORTS | {f"PAYOUT_GATEWAY_SERVER__{which}": port}
        said = one_line(command(*arguments, folder=tmp_path, **variables))
    assert port in said
    assert "in use" in said


def test_an_address_that_is_not_ours_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text(configuration("http://127.0.0.1:9"))
    variables = {"PAYOUT_GATEWAY_SERVER__HOST": "192.0.2.1"}
    assert "192.0.2.1" in one_line(command("serve", folder=tmp_path, **variables))


# The whole of it, as an operator would set it up.


async def test_a_simulator_a_file_and_imported_keys_make_all_eleven_operations_work(
    tmp_path: Path,
) -> None:
    simulating = await asyncio.create_subprocess_exec(
        *COMMAND, "simulate", "--port", "0", env=environment(), stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(SECONDS):
            first, second = [(await simulating.stdout.readline()).decode() for _ in range(2)]
        url = re.search(r"http://\S+", first)[0]
        (tmp_path / "gateway.toml").write_text(configuration(url))
        line = re.search(r"\{.*\}", second)[0]
        imported = command("keys", "import", "-", folder=tmp_path, stdin=line)
        assert imported.returncode == 0
        assert imported.stderr.startswith("Created "), "a key file, which somebody must back up"
        async with serving(tmp_path) as gateway, client(json.loads(line)["api_key"]) as session:
            await _all_operations(session, f"{gateway.url}/v1")
            assert await gateway.ends() == 0
    finally:
        simulating.terminate()
        assert await simulating.wait() == 0
        await simulating.communicate()


async def _all_operations(session: aiohttp.ClientSession, base: str) -> None:
    async def ask(method: str, path: str, body: Any = None) -> Any:
        async with session.request(method, base + path, json=body) as answer:
            told = await answer.json()
            assert (answer.status, told["ok"]) == (200, True), told
            return told

    one = (await ask("POST", "/recipients", ADA))["recipient"]["id"]
    other = (await ask("POST", "/recipients", ADA | {"email": "eve@example.com"}))["recipient"][
        "id"
    ]
    path = f"/recipients/{one}"
    assert (await ask("POST", f"{path}/payout-methods", PAYOUT))["method"] == "bank"
    changed = {"primary": PAYOUT["primary"], "accounts": {"bank": {"bankCity": "Albany"}}}
    assert (await ask("PATCH", f"{path}/payout-methods", changed))["object"] == "updated"
    shown = await ask("GET", f"{path}/payout-methods")
    assert shown["accounts"]["bank"]["bankCity"] == "Albany"
    assert (await ask("PATCH", path, {"lastName": "Byron"}))["object"] == "updated"
    assert (await ask("GET", path))["recipient"]["lastName"] == "Byron"
    assert (await ask("GET", "/recipients?search=EXAMPLE"))["meta"]["records"] == 2
    assert (await ask("GET", f"{path}/logs"))["activities"]
    assert (await ask("GET", f"{path}/payments"))["payments"] == []
    assert (await ask("DELETE", path))["object"] == "deleted"
    assert (await ask("DELETE", "/recipients", {"ids": [other]}))["object"] == "deleted"
    assert (await ask("GET", "/recipients"))["recipients"] == []


# Keys, in a gateway that runs.


async def test_a_revoked_key_stops_working_in_the_running_gateway_within_5_seconds(
    tmp_path: Path, simulator: Simulator
) -> None:
    other = KEY | {"api_key": "another-api-key-for-tests", "name": "other"}
    await configure(tmp_path, simulator.url, KEY | {"name": "leaving"}, other)
    async with serving(tmp_path) as gateway, client() as session:
        assert await _status(session, gateway) == 200
        revoked = command("keys", "revoke", "leaving", folder=tmp_path)
        assert revoked.returncode == 0, revoked.stderr
        assert await _status_after(200, session, gateway, seconds=5) == 403
        assert await _status(session, gateway, other["api_key"]) == 200


async def test_a_key_imported_while_it_runs_works_within_10_seconds(
    tmp_path: Path, simulator: Simulator
) -> None:
    await configure(tmp_path, simulator.url)
    async with serving(tmp_path) as gateway, client("a-key-that-comes-later") as session:
        assert await _status(session, gateway) == 403
        line = json.dumps(KEY | {"api_key": "a-key-that-comes-later", "name": "later"})
        assert command("keys", "import", "-", folder=tmp_path, stdin=line).returncode == 0
        assert await _status_after(403, session, gateway, seconds=10) == 200


async def _status(session: aiohttp.ClientSession, gateway: Process, key: str | None = None) -> int:
    headers = {"X-API-Key": key} if key else {}
    async with session.get(f"{gateway.url}/v1/recipients", headers=headers) as answer:
        return answer.status


async def _status_after(
    before: int, session: aiohttp.ClientSession, gateway: Process, *, seconds: float
) -> int:
    """What a request is answered with once it is no longer answered as before."""
    end = time.monotonic() + seconds
    while (status := await _status(session, gateway)) == before and time.monotonic() < end:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return status


# Its health.


async def test_it_is_healthy_and_ready_while_the_service_answers_and_says_so_when_not(
    tmp_path: Path, simulator: Simulator
) -> None:
    await configure(tmp_path, simulator.url)
    async with serving(tmp_path) as gateway, client() as session:
        admin = f"http://127.0.0.1:{gateway.admin_port}"

        async def told(path: str) -> tuple[int, Any]:
            async with session.get(admin + path) as answer:
                assert answer.headers.getall("Server") == ["payout-gateway"]
                return answer.status, await answer.json()

        assert await told("/healthz") == (200, {"status": "ok"})
        assert await told("/readyz") == (
            200,
            {"status": "ok", "faults": {}, "circuit_breakers": {"sandbox": "closed"}},
        )
        await simulator.stop()
        status, body = await told("/readyz")
        assert (status, body["status"], list(body["faults"])) == (
            503,
            "error",
            ["environments.sandbox"],
        )
        assert len(body["faults"]["environments.sandbox"].split()) > 3
        assert await told("/healthz") == (200, {"status": "ok"})


async def test_a_service_that_hangs_makes_it_unready_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.admin.port.CHECK_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # nobody ever accepts
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with (
            open_house(tmp_path, url) as house,
            client() as session,
            session.get(f"{house.running.admin_url}/readyz") as answer,
        ):
            assert answer.status == 503
            told = await answer.json()
    assert "no answer within" in told["faults"]["environments.sandbox"]


async def test_the_admin_pages_are_not_on_the_clients_port(
    tmp_path: Path, simulator: Simulator
) -> None:
    await configure(tmp_path, simulator.url)
    async with serving(tmp_path) as gateway, client() as session:
        for path in ("/healthz", "/readyz", "/metrics", "/"):
            async with session.get(gateway.url + path) as answer:
                assert answer.status == 404


# check


def test_check_says_that_all_is_well(tmp_path: Path, run: Run) -> None:
    (tmp_path / "gateway.toml").write_text(configuration("https://127.0.0.1:9"))
    done = run("check")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "gateway.toml: valid\n"
    done = run("check", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"ok": True, "problems": [], "warnings": []}


def test_check_names_line_and_key_of_all_that_is_wrong(tmp_path: Path, run: Run) -> None:
    text = configuration("https://service.example/v1", "[limits]\nbody_bytes = 1\nbody_byte = 2048")
    (tmp_path / "own.toml").write_text(text)
    done = run("check", "--config", "own.toml")
    assert (done.returncode, done.stdout) == (1, "")
    problems = done.stderr.splitlines()
    assert [problem.partition(": ")[0] for problem in problems] == [
        "own.toml:5",
        "own.toml:10",
        "own.toml:11",
    ]
    assert "environments.sandbox.base_url" in problems[0]
    assert "limits.body_bytes" in problems[1]
    assert "limits.body_byte: unknown key" in problems[2]
    done = run("check", "--config", "own.toml", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout) == {"ok": False, "problems": problems, "warnings": []}


def test_check_of_a_file_that_is_not_there(run: Run) -> None:
    assert "gateway.toml: there is no such file in" in one_line(run("check"), code=2)


def test_check_without_a_file_is_of_the_variables(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    base_url = "PAYOUT_GATEWAY_ENVIRONMENTS__SANDBOX__BASE_URL"
    monkeypatch.setenv(base_url, "http://127.0.0.1:1")
    done = run("check")
    assert (done.returncode, done.stdout) == (0, "environment variables: valid\n")
    monkeypatch.setenv(base_url, "nowhere")
    done = run("check")
    assert done.returncode == 1
    assert base_url in done.stderr


def test_check_writes_nothing(tmp_path: Path, run: Run) -> None:
    (tmp_path / "gateway.toml").write_text(configuration("https://service.example"))
    run("check")
    assert _names(tmp_path) == ["gateway.toml"]


# Help and mistakes.

COMMANDS = {
    "": "serve",
    "serve": "--demo",
    "simulate": "--port",
    "check": "--json",
    "keys": "rotate-secret",
    "keys import": "JSON",
    "keys list": "--json",
    "keys revoke": "--config",
    "keys rotate-secret": "--no-verify",
    "keys verify": "--json",
    "keys new-encryption-key": "--add",
    "operations": "--json",
    "ids": "import",
    "ids import": "--merchant",
    "batches": "abandoned",
    "batches abandoned": "--json",
    "writes": "unsettled",
    "writes unsettled": "--json",
    "writes settle": "--did-not-happen",
    "writes close": "--yes",
    "freeze": "--environment",
    "unfreeze": "--merchant",
    "trace": "--merchant",
    "reconcile": "--environment",
    "backup": "--json",
    "restore": "--force",
    "brownout": "all that have not ended.",
    "compare": "`compare report`",
    "compare report": "--rules",
    "cutover": "import",
    "index": "drop",
    "modes": "list",
    "report": "usage",
}


@pytest.mark.parametrize(("words", "named"), COMMANDS.items())
def test_every_command_has_help(run: Run, words: str, named: str) -> None:
    done = run(*words.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: payout-gateway {words}".rstrip())
    assert named in " ".join(done.stdout.split())
    assert re.search(r"[a-z]\.\.\.", done.stdout) is None, "a sentence is cut off"


def test_help_names_every_command(tmp_path: Path) -> None:
    listed = command("--help", folder=tmp_path)
    assert (listed.returncode, listed.stderr) == (0, "")
    for words in COMMANDS:
        assert words.partition(" ")[0] in listed.stdout


@pytest.mark.parametrize("words", [["serv"], ["serve", "--prot", "1"]])
def test_a_mistake_of_the_real_command_is_one_line_on_stderr(
    tmp_path: Path, words: list[str]
) -> None:
    assert one_line(command(*words, folder=tmp_path)).startswith("payout-gateway: No such ")


MISTAKES = {
    "an unknown command": ["serv"],
    "an unknown command of keys": ["keys", "forget"],
    "an unknown option": ["--verbose"],
    "an unknown option of serve": ["serve", "--prot", "1"],
    "an unknown option of simulate": ["simulate", "--prot", "1"],
    "an argument too many": ["serve", "now"],
    "an argument too few": ["keys", "revoke"],
    "an option without its value": ["serve", "--config"],
    "a port that is no number": ["simulate", "--port", "http"],
    "a port that cannot be": ["simulate", "--port", "70000"],
    "a file that is not there": ["keys", "import", "no-such-file"],
    "a configuration that is not there": ["keys", "list", "--config", "no-such-file"],
    "a folder for a configuration": ["serve", "--config", "."],
    "no state yet": ["keys", "list"],
    "a key of nobody": ["keys", "revoke", "nobody"],
    "nothing to freeze": ["freeze"],
    "no state to freeze": ["freeze", "--all"],
    "no state to trace in": ["trace", "R-1"],
    "no state to compare": ["reconcile"],
    "nothing said of a write": ["writes", "settle", "000000000000.1", "--yes"],
    "no state to save": ["backup", "saved"],
    "a backup that is not there": ["restore", "saved"],
}


@pytest.mark.parametrize("words", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_on_stderr_and_exit_code_2(run: Run, words: list[str]) -> None:
    said = one_line(run(*words))
    assert said.startswith("payout-gateway: ")
    assert "Traceback" not in said


@pytest.mark.parametrize("words", [[], ["keys"]], ids=["payout-gateway", "keys"])
def test_a_command_that_is_left_out_is_asked_for(run: Run, words: list[str]) -> None:
    done = run(*words)
    assert done.returncode == 2
    said = done.stdout + done.stderr
    assert all(len(line) <= 200 for line in said.splitlines()), "help that is folded to one line"
    assert "--help" in said


def test_a_refused_rotation_exits_1_as_its_help_says(tmp_path: Path) -> None:
    # "It has to see the oldest recipients that the stored pair sees, or nothing is replaced (exit 1)"
    asyncio.run(_refused_rotation(tmp_path))


async def _refused_rotation(folder: Path) -> None:
    simulator = await start(service=Service(seed=1))
    try:
        await configure(folder, simulator.url)
        pair = json.dumps({"access_key": "OTHER", "secret_key": "another secret"})
        name = f"{KEY['merchant']}-{KEY['environment']}"
        done = await asyncio.to_thread(
            command, "keys", "rotate-secret", name, folder=folder, stdin=pair
        )
    finally:
        await simulator.stop()
    assert "nothing was replaced" in one_line(done, code=1)
    assert "another secret" not in done.stderr


def test_an_import_with_a_mistake_names_its_line_and_imports_nothing(tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text(configuration("https://service.example"))
    lines = json.dumps(KEY) + "\n" + json.dumps(KEY | {"api_key": "x y", "secret_key": "hush"})
    said = one_line(command("keys", "import", "-", folder=tmp_path, stdin=lines))
    assert "line 2: api_key" in said
    assert "hush" not in said
    assert KEY["api_key"] not in command("keys", "list", folder=tmp_path).stdout


def test_what_keys_prints_holds_no_secret(tmp_path: Path, run: Run) -> None:
    (tmp_path / "gateway.toml").write_text(configuration("http://127.0.0.1:9"))
    (tmp_path / "keys.jsonl").write_text(json.dumps(KEY))
    for words in (
        ["import", "keys.jsonl"],
        ["list"],
        ["list", "--json"],
        ["verify"],
        ["revoke", KEY["api_key"]],
    ):
        done = run("keys", *words)
        assert done.stdout + done.stderr
        assert KEY["api_key"] not in done.stdout + done.stderr
        assert KEY["secret_key"] not in done.stdout + done.stderr
