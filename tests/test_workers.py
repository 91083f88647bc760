"""Several worker processes on one port: they lose no requests unnecessarily."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import socket
import ssl
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from gateway.auth.key_import import import_keys
from gateway.auth.key_lines import parse_key_lines
from gateway.config.settings import State
from gateway.storage import open_store
from gateway.storage.key_file import create_key_file
from tests.certificates import Authority
from tests.console import open_console_client
from tests.gateway.admission.limits.conftest import REDIS_URL
from tests.gateway.storage.conftest import (
    RECREATE_SCHEMA,
    create_temporary_database,
    run_statements,
)
from tests.metrics_scrape import fetch_metrics
from tests.operator_commands import wait_until_async
from tests.payouts import RECIPIENT_BODY
from tests.processes import (
    COMMAND,
    Process,
    find_free_port,
    is_listening,
    run_installed_command,
    run_serve,
)
from tests.running_gateway import KEY
from tests.simulator import Fault, Service, Simulator, start_simulator
from tests.sockets import RawConnection, wait_until
from tests.tcp_proxy import TcpProxy, open_tcp_proxy

START_SECONDS = 120
"""A parent and its workers each load the whole program, sequentially on a busy machine."""

TOKEN = "a-token-of-the-console"
_NUMBERS = itertools.count()


def build_other_recipient() -> dict[str, str]:
    """Builds a new recipient each time, because an identical concurrent body may be a retry."""
    return {**RECIPIENT_BODY, "email": f"ada{next(_NUMBERS)}@example.com"}


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    yield from create_temporary_database()


@pytest.fixture(scope="module")
def shared_database() -> Iterator[str]:
    yield from create_temporary_database()


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    simulator = await start_simulator(service=Service(seed=1))
    yield simulator
    await simulator.stop()


def write_settings(
    folder: Path, database: str, base_url: str, *, workers: int = 2, port: int = 0
) -> None:
    """Writes gateway.toml, with limits in Redis."""
    text = [
        f"[server]\nport = {port}\nadmin_port = 0\nworkers = {workers}",
        f'[environments.sandbox]\nbase_url = "{base_url}"',
        f'[state]\nurl = "{database}"\nencryption_key_file = "gateway.key"',
        f'[limits]\nurl = "{REDIS_URL}"',
    ]
    (folder / "gateway.toml").write_text("\n".join(text))


def protect_admin_port(folder: Path) -> None:
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    file = folder / "gateway.toml"
    file.write_text(file.read_text().replace("[server]", '[server]\nadmin_token_file = "token"'))


@pytest.fixture
def configuration(tmp_path: Path, database: str, simulator: Simulator, require_redis: None) -> None:
    run_statements(database, *RECREATE_SCHEMA)
    create_key_file(tmp_path / "gateway.key")
    write_settings(tmp_path, database, simulator.url)


async def import_api_key(folder: Path, database: str, **fields: Any) -> None:
    state = State(url=database, encryption_key_file=folder / "gateway.key")
    async with open_store(state) as store:
        await import_keys(store, parse_key_lines(json.dumps({**KEY, **fields}).encode()))


@asynccontextmanager
async def run_workers(folder: Path) -> AsyncIterator[Process]:
    async with run_serve(folder, seconds=START_SECONDS, command=COMMAND) as gateway:
        yield gateway


@dataclass(frozen=True, slots=True)
class SharedWorkers:
    """Two workers that several tests use, because each start loads the whole program three times."""

    gateway: Process
    folder: Path
    database: str
    service: Service
    proxy: TcpProxy
    """Between the workers and the service."""
    admin_session: aiohttp.ClientSession

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.admin_port}"

    async def import_api_key(self, **fields: Any) -> str:
        await import_api_key(self.folder, self.database, **fields)
        return str(fields["api_key"])

    async def load_page(self, path: str) -> tuple[int, Any]:
        async with self.admin_session.get(self.admin_url + path) as response:
            assert response.headers.getall("Server") == ["payout-gateway"]
            is_json = response.content_type == "application/json"
            return response.status, await (response.json() if is_json else response.text())


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def workers(
    tmp_path_factory: pytest.TempPathFactory, shared_database: str, require_redis: None
) -> AsyncIterator[SharedWorkers]:
    folder = tmp_path_factory.mktemp("workers")
    simulator = await start_simulator(service=Service(seed=1))
    authorization = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        open_tcp_proxy("127.0.0.1", int(simulator.url.rpartition(":")[2])) as proxy,
        aiohttp.ClientSession(headers=authorization) as session,
    ):
        create_key_file(folder / "gateway.key")
        write_settings(folder, shared_database, f"http://127.0.0.1:{proxy.port}")
        protect_admin_port(folder)
        async with run_workers(folder) as gateway:
            await import_api_key(folder, shared_database)
            yield SharedWorkers(gateway, folder, shared_database, simulator.service, proxy, session)
            assert await gateway.stop() == 0
    await simulator.stop()


def list_children(gateway: Process) -> set[int]:
    """Returns the running child processes of the parent."""
    parent = gateway.process.pid
    child_ids = Path(f"/proc/{parent}/task/{parent}/children").read_text("utf-8")
    return set(map(int, child_ids.split()))


def list_events(gateway: Process, name: str) -> list[dict[str, Any]]:
    return [line for line in gateway.parse_log() if line["event"] == name]


def count_served(gateway: Process) -> Counter[int]:
    """Counts the requests that each worker answered."""
    return Counter(line["process.pid"] for line in list_events(gateway, "request"))


@dataclass(slots=True)
class BackgroundLoad:
    """Clients that create recipients one after another, over persistent and new connections.

    They send writes, because HTTP clients silently repeat lost reads.
    """

    gateway: Process
    api_key: str = KEY["api_key"]
    tls: ssl.SSLContext | None = None
    statuses: Counter[int] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    is_stopped: bool = False

    async def run_client(self, *, is_fresh: bool) -> None:
        connector = aiohttp.TCPConnector(force_close=is_fresh, ssl=self.tls or True)
        scheme = "https" if self.tls else "http"
        headers = {"X-API-Key": self.api_key}
        timeout = aiohttp.ClientTimeout(total=START_SECONDS)
        async with aiohttp.ClientSession(
            connector=connector, headers=headers, timeout=timeout
        ) as session:
            while not self.is_stopped:
                try:
                    async with session.post(
                        f"{scheme}://127.0.0.1:{self.gateway.port}/v1/recipients",
                        json=build_other_recipient(),
                    ) as response:
                        self.statuses[response.status] += 1
                        assert (await response.json())["ok"] is (response.status == 200)
                except (aiohttp.ClientError, OSError) as error:
                    self.errors.append(repr(error))
                await asyncio.sleep(0.1)  # the workers need the machine too

    @property
    def answered_count(self) -> int:
        return sum(self.statuses.values())


CLIENT_COUNT = 8


@asynccontextmanager
async def run_load(
    gateway: Process, api_key: str = KEY["api_key"], tls: ssl.SSLContext | None = None
) -> AsyncIterator[BackgroundLoad]:
    load = BackgroundLoad(gateway, api_key, tls)
    clients = [
        asyncio.ensure_future(load.run_client(is_fresh=position % 2 == 0))
        for position in range(CLIENT_COUNT)
    ]
    try:
        yield load
    finally:
        load.is_stopped = True
        await asyncio.gather(*clients)


def read_startup_error(folder: Path, **variables: str) -> str:
    """Returns the error line of `serve`."""
    result = run_installed_command("serve", folder=folder, seconds=START_SECONDS, **variables)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


# Starting.


async def test_workers_start_on_an_empty_database_and_serve_until_they_are_stopped(
    tmp_path: Path, database: str, simulator: Simulator, configuration: None
) -> None:
    port = find_free_port()
    write_settings(tmp_path, database, simulator.url, port=port)
    async with run_workers(tmp_path) as gateway:
        assert gateway.output.count("\n") == 1
        assert len(list_children(gateway)) == 2
        await import_api_key(tmp_path, database)
        async with run_load(gateway) as load:
            await wait_until(
                lambda: set(count_served(gateway)) == list_children(gateway), START_SECONDS
            )
            second_error = await asyncio.to_thread(read_startup_error, tmp_path)
            assert f"port {port}: it is in use" in second_error, (
                "it gets none of the first's connections"
            )
            assert load.errors == []
            for _ in range(CLIENT_COUNT // 2):
                simulator.service.faults.append(Fault("POST", "/v1/recipients", answer_delay=1))
            await wait_until(lambda: not simulator.service.faults, START_SECONDS)
            count_before = load.answered_count
            gateway.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(START_SECONDS):
                assert await gateway.process.wait() == 0
        assert set(load.statuses) == {200}
        assert load.answered_count >= count_before + CLIENT_COUNT // 2
        # Every executed write was answered; only writes that were never started were lost.
        assert len(simulator.service.list_requests("POST", "/v1/recipients")) == load.answered_count
        assert sum(count_served(gateway).values()) == load.answered_count, (
            "whole lines, one for each request"
        )
    assert not list_events(gateway, "worker_exited")
    *worker_events, parent_event = list_events(gateway, "shutdown_complete")
    assert (len(worker_events), parent_event["workers_left"]) == (2, 2)
    assert sum(line["requests_left"] for line in worker_events) >= CLIENT_COUNT // 2


@pytest.mark.parametrize(
    ("invalid_settings", "message"),
    [
        ({"PAYOUT_GATEWAY_LIMITS__URL": "memory://"}, "set limits.url to a redis:// address"),
        ({"PAYOUT_GATEWAY_STATE__URL": "sqlite:///gateway.db"}, "set state.url to a postgresql://"),
        ({"PAYOUT_GATEWAY_STATE__URL": "postgresql://nobody@127.0.0.1:9/x"}, "cannot be used"),
    ],
)
def test_startup_failure_of_workers_is_a_one_line_error(
    tmp_path: Path, configuration: None, invalid_settings: dict[str, str], message: str
) -> None:
    assert message in read_startup_error(tmp_path, **invalid_settings)


def test_unusable_temporary_directory_is_a_one_line_error(
    tmp_path: Path, configuration: None
) -> None:
    long_path = tmp_path / ("x" * 100)
    long_path.mkdir()
    assert "TMPDIR" in read_startup_error(tmp_path, TMPDIR=str(long_path))


@pytest.mark.parametrize("port_name", ["PORT", "ADMIN_PORT"])
def test_port_in_use_is_a_one_line_error(
    tmp_path: Path, configuration: None, port_name: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        output = read_startup_error(tmp_path, **{f"PAYOUT_GATEWAY_SERVER__{port_name}": port})
    assert port in output
    assert "in use" in output


def _is_running(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:
        return False


# Dying.


async def test_killed_worker_is_replaced(
    tmp_path: Path, database: str, configuration: None
) -> None:
    """``/metrics`` has the series of each worker; those of one begin again, the other's continue."""
    async with run_workers(tmp_path) as gateway, aiohttp.ClientSession() as session:

        async def count_requests(worker: int) -> float:
            metrics = await fetch_metrics(session, f"http://127.0.0.1:{gateway.admin_port}")
            assert metrics.sum("payout_gateway_database_up", worker=str(worker)) == 1
            return metrics.sum("payout_gateway_requests_total", worker=str(worker))

        await import_api_key(tmp_path, database)
        children_before = list_children(gateway)
        killed_pid = min(children_before)
        async with run_load(gateway) as load:
            await wait_until(lambda: set(count_served(gateway)) == children_before, START_SECONDS)
            os.kill(killed_pid, signal.SIGKILL)
            await wait_until(lambda: bool(list_events(gateway, "worker_started")), START_SECONDS)
            (new,) = list_children(gateway) - children_before
            await wait_until(lambda: count_served(gateway)[new] > 10, START_SECONDS)
        served_counts = [count_served(gateway)[pid] for pid in list_children(gateway)]
        assert sorted(served_counts) == sorted([await count_requests(1), await count_requests(2)])
        assert set(load.statuses) == {200}
        assert len(load.errors) <= CLIENT_COUNT, load.errors
        (exit_event,) = list_events(gateway, "worker_exited")
        assert (exit_event["worker_pid"], exit_event["reason"]) == (killed_pid, "SIGKILL")
        # Again: the next worker starts after a growing pause, in which a shutdown is possible.
        os.kill(new, signal.SIGKILL)
        await wait_until(lambda: len(list_events(gateway, "worker_exited")) == 2, START_SECONDS)
        assert list_events(gateway, "worker_exited")[1]["restart_delay_seconds"] > 0
        assert await gateway.stop() == 0


# Reloading.


async def test_sighup_reloads_every_certificate_and_a_killed_parent_lets_workers_finish(
    tmp_path: Path, database: str, configuration: None, simulator: Simulator
) -> None:
    (tmp_path / "tls").mkdir()
    authority = Authority(tmp_path / "tls")
    first_pair, second_pair = authority.issue("first"), authority.issue("second")
    section = (
        f'tls_certificate_file = "{first_pair.certificate}"\ntls_key_file = "{first_pair.key}"'
    )
    configured = (tmp_path / "gateway.toml").read_text()
    text = configured.replace("workers = 2", f"workers = 2\n{section}")
    (tmp_path / "gateway.toml").write_text(text)

    async def load_common_name() -> str:
        opening = asyncio.open_connection(
            "127.0.0.1", gateway.port, ssl=authority.build_client_context()
        )
        async with RawConnection(*await opening) as connection:
            peer_certificate = connection.writer.get_extra_info("peercert")["subject"]
            await connection.send(b"GET /v1/x HTTP/1.1\r\nHost: x\r\n\r\n")
            response = await connection.read_response()
            assert response is not None
            assert response.status == 404
            return str(
                dict(entry for component in peer_certificate for entry in component)["commonName"]
            )

    async with run_workers(tmp_path) as gateway:
        assert {await load_common_name() for _ in range(6)} == {"first"}
        shutil.copy(second_pair.certificate, first_pair.certificate)
        shutil.copy(second_pair.key, first_pair.key)
        gateway.process.send_signal(signal.SIGHUP)
        await wait_until(
            lambda: len(list_events(gateway, "certificate_reloaded")) >= 2, START_SECONDS
        )
        assert {await load_common_name() for _ in range(6)} == {"second"}
        await import_api_key(tmp_path, database)
        both = list_children(gateway)
        simulator.service.faults.append(Fault("POST", "/v1/recipients", answer_delay=1))
        async with run_load(gateway, tls=authority.build_client_context()) as load:
            await wait_until(lambda: not simulator.service.faults, START_SECONDS)
            gateway.process.kill()
            await wait_until(lambda: not is_listening(gateway.port), START_SECONDS)
            load.is_stopped = True
        assert set(load.statuses) == {200}
        await wait_until(lambda: not any(map(_is_running, both)), START_SECONDS)


async def test_worker_ends_if_its_parent_died_while_it_started(tmp_path: Path) -> None:
    """It would hold the port, and no other gateway could start."""
    create_key_file(tmp_path / "gateway.key")
    url = f"sqlite:///{tmp_path}/gateway.db"
    write_settings(tmp_path, url, "http://127.0.0.1:1", workers=1)
    text = (tmp_path / "gateway.toml").read_text().partition("[limits]")[0]
    (tmp_path / "gateway.toml").write_text(text)
    start = {
        "config_file": "gateway.toml",
        "port": find_free_port(),
        "admin_socket": str(tmp_path / "admin"),
    }
    parent_end, worker_end = socket.socketpair()
    command = (sys.executable, "-m", "gateway.server.workers")
    worker = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stdin=worker_end)
    try:
        worker_end.close()
        parent_end.send(json.dumps(start).encode() + b"\n")
        parent_end.close()
        async with asyncio.timeout(START_SECONDS):
            assert await worker.wait() == 0
    finally:
        if worker.returncode is None:
            worker.kill()
            await worker.wait()


# What they have in common.


@pytest.mark.asyncio(loop_scope="module")
async def test_admin_port_reports_on_all_workers(workers: SharedWorkers) -> None:
    assert await workers.load_page("/healthz") == (200, {"status": "ok"})
    assert await workers.load_page("/readyz") == (
        200,
        {"status": "ok", "faults": {}, "circuit_breakers": {"sandbox": "closed"}},
    )
    assert (await workers.load_page("/no-such-page"))[0] == 404
    stopped_pid = min(list_children(workers.gateway))
    os.kill(stopped_pid, signal.SIGSTOP)
    try:
        status, body = await workers.load_page("/readyz")
        assert (status, body["status"]) == (200, "degraded")
        assert body["faults"] == {"workers": "1 of 2 do not answer"}
    finally:
        os.kill(stopped_pid, signal.SIGCONT)
    workers.proxy.disconnect()
    try:
        status, body = await workers.load_page("/readyz")
        assert (status, list(body["faults"])) == (503, ["environments.sandbox"])
        assert await workers.load_page("/healthz") == (200, {"status": "ok"})
    finally:
        workers.proxy.restore()


@pytest.mark.asyncio(loop_scope="module")
async def test_requests_page_covers_all_workers(workers: SharedWorkers) -> None:
    served_before = count_served(workers.gateway)
    async with run_load(workers.gateway) as load:
        await wait_until(lambda: load.answered_count > 40, START_SECONDS)
    assert len(count_served(workers.gateway) - served_before) == 2
    _, text = await workers.load_page("/requests")
    assert f">{len(list_events(workers.gateway, 'request'))} requests " in text


@pytest.mark.asyncio(loop_scope="module")
async def test_overview_covers_refusals_of_all_workers(workers: SharedWorkers) -> None:
    async def request(session: aiohttp.ClientSession) -> int:
        """Returns the process that answered."""
        count = len(list_events(workers.gateway, "request"))
        path, headers = "/v1/profile/balances", {"X-API-Key": KEY["api_key"]}
        async with session.get(workers.gateway.url + path, headers=headers) as response:
            await response.read()
        await wait_until(
            lambda: len(list_events(workers.gateway, "request")) > count, START_SECONDS
        )
        return int(list_events(workers.gateway, "request")[-1]["process.pid"])

    async def is_refusal_shown() -> bool:
        return f"credentials of {KEY['merchant']}" in (await workers.load_page("/"))[1]

    async def is_overview_clear() -> bool:
        return not await is_refusal_shown()

    async with AsyncExitStack() as stack:
        connections: dict[int, aiohttp.ClientSession] = {}
        while len(connections) < 2:
            session = await stack.enter_async_context(aiohttp.ClientSession())
            connections[await request(session)] = session
        for session in connections.values():
            workers.service.faults.append(Fault("GET", "/v1/balance", status=403))
            await request(session)
            await wait_until_async(is_refusal_shown, 60)
            await request(session)
            await wait_until_async(is_overview_clear, 60)


@pytest.mark.asyncio(loop_scope="module")
async def test_console_requires_the_token_once(workers: SharedWorkers) -> None:
    """The parent checks it, and passes the requests of a browser on to a worker."""
    async with open_console_client(workers.admin_url) as client:
        assert (await client.get("/")).status == 401
    async with open_console_client(workers.admin_url, TOKEN) as client:
        assert "Overview" in (await client.get("/")).text
    assert (await workers.load_page("/limits"))[0] == 200


@pytest.mark.asyncio(loop_scope="module")
async def test_rate_limit_is_shared_by_all_workers(workers: SharedWorkers) -> None:
    api_key = await workers.import_api_key(
        name="limited", api_key="key-with-a-limit", requests_per_hour=30
    )
    served_before = count_served(workers.gateway)
    async with run_load(workers.gateway, api_key) as load:
        await wait_until(lambda: load.answered_count > 60, START_SECONDS)
    assert load.statuses[200] == 30
    assert set(load.statuses) == {200, 429}
    assert len(count_served(workers.gateway) - served_before) == 2


@pytest.mark.asyncio(loop_scope="module")
async def test_revoked_key_is_refused_by_every_worker_within_3_seconds(
    workers: SharedWorkers,
) -> None:
    api_key = await workers.import_api_key(name="leaving", api_key="key-that-is-revoked")
    served_before = count_served(workers.gateway)
    async with run_load(workers.gateway, api_key):
        await wait_until(
            lambda: len(count_served(workers.gateway) - served_before) == 2, START_SECONDS
        )
    arguments = ("keys", "revoke", "leaving")
    process = await asyncio.to_thread(
        run_installed_command, *arguments, folder=workers.folder, seconds=START_SECONDS
    )
    assert process.returncode == 0, process.stderr
    await asyncio.sleep(3)
    served_before = count_served(workers.gateway)
    async with run_load(workers.gateway, api_key) as load:
        await wait_until(
            lambda: len(count_served(workers.gateway) - served_before) == 2, START_SECONDS
        )
    assert set(load.statuses) == {403}
