"""Several worker processes on one port: they lose no requests unnecessarily."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.auth.key_import import import_keys
from gateway.auth.key_lines import parse_key_lines
from gateway.config.settings import State
from gateway.server.workers.pool import assign_queues
from gateway.simulator import Fault, Service, Simulator, start_simulator
from gateway.storage import open_store
from gateway.storage.key_file import create_key_file
from tests.certificates import Authority
from tests.gateway.admission.limits.conftest import REDIS_URL
from tests.gateway.storage.conftest import create_temporary_database, run_statements
from tests.metrics_scrape import fetch_metrics
from tests.processes import Process, find_free_port, is_listening, run_installed_command, run_serve
from tests.running_gateway import KEY
from tests.sockets import RawConnection, wait_until

START_SECONDS = 120
"""A parent and its workers each load the whole program, sequentially on a busy machine."""

RECIPIENT_BODY = {
    "type": "individual",
    "firstName": "Ada",
    "lastName": "Lovelace",
    "email": "ada@example.com",
}
_NUMBERS = itertools.count()


def build_other_recipient() -> dict[str, str]:
    """Builds a new recipient each time, because an identical concurrent body may be a retry."""
    return {**RECIPIENT_BODY, "email": f"ada{next(_NUMBERS)}@example.com"}


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    yield from create_temporary_database()


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    simulator = await start_simulator(service=Service(seed=1))
    yield simulator
    await simulator.stop()


Configure = Callable[..., None]


@pytest.fixture
def write_configuration(
    tmp_path: Path, database: str, simulator: Simulator, require_redis: None
) -> Configure:
    """Returns a function that writes gateway.toml, with an empty database and limits in Redis."""
    run_statements(database, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    create_key_file(tmp_path / "gateway.key")

    def write_file(workers: int = 2, *, port: int = 0, base_url: str = "", **limits: Any) -> None:
        lines = [f"{name} = {json.dumps(value)}" for name, value in limits.items()]
        text = [
            f"[server]\nport = {port}\nadmin_port = 0\nworkers = {workers}",
            f'[environments.sandbox]\nbase_url = "{base_url or simulator.url}"',
            f'[state]\nurl = "{database}"\nencryption_key_file = "gateway.key"',
            f'[limits]\nurl = "{REDIS_URL}"',
            *lines,
        ]
        (tmp_path / "gateway.toml").write_text("\n".join(text))

    write_file()
    return write_file


@pytest.fixture
def require_redis() -> None:
    """Skips the test without Redis; the key file makes the names of counters unique."""
    import redis

    client = redis.Redis.from_url(REDIS_URL)
    try:
        client.ping()
    except redis.RedisError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no Redis: {error}")
    finally:
        client.close()


async def import_api_key(folder: Path, database: str, **more: Any) -> None:
    state = State(url=database, encryption_key_file=folder / "gateway.key")
    async with open_store(state) as store:
        await import_keys(store, parse_key_lines(json.dumps({**KEY, **more}).encode()))


@asynccontextmanager
async def run_workers(folder: Path) -> AsyncIterator[Process]:
    async with run_serve(folder, seconds=START_SECONDS) as gateway:
        yield gateway


def list_children(gateway: Process) -> set[int]:
    """Returns the running child processes of the parent."""
    parent = gateway.process.pid
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text("utf-8")
    return set(map(int, found.split()))


def list_events(gateway: Process, name: str) -> list[dict[str, Any]]:
    return [line for line in gateway.parse_log() if line["event"] == name]


def count_served(gateway: Process) -> Counter[int]:
    """Counts the requests that each worker answered."""
    return Counter(line["process.pid"] for line in list_events(gateway, "request"))


@dataclass(slots=True)
class BackgroundLoad:
    """Clients that create recipients one after another, over kept connections and fresh ones.

    A write, because HTTP clients quietly send a read again that was lost.
    """

    gateway: Process
    statuses: Counter[int] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    is_stopped: bool = False

    async def run_client(self, *, fresh: bool) -> None:
        connector = aiohttp.TCPConnector(force_close=fresh)
        headers = {"X-API-Key": KEY["api_key"]}
        timeout = aiohttp.ClientTimeout(total=START_SECONDS)
        async with aiohttp.ClientSession(
            connector=connector, headers=headers, timeout=timeout
        ) as session:
            while not self.is_stopped:
                try:
                    async with session.post(
                        f"{self.gateway.url}/v1/recipients", json=build_other_recipient()
                    ) as response:
                        self.statuses[response.status] += 1
                        assert (await response.json())["ok"] is (response.status == 200)
                except (aiohttp.ClientError, OSError) as error:
                    self.errors.append(repr(error))
                await asyncio.sleep(0.03)  # the workers need the machine too

    @property
    def answered_count(self) -> int:
        return sum(self.statuses.values())


CLIENT_COUNT = 8


@asynccontextmanager
async def run_load(gateway: Process) -> AsyncIterator[BackgroundLoad]:
    made = BackgroundLoad(gateway)
    clients = [
        asyncio.ensure_future(made.run_client(fresh=at % 2 == 0)) for at in range(CLIENT_COUNT)
    ]
    try:
        yield made
    finally:
        made.is_stopped = True
        await asyncio.gather(*clients)


def read_startup_error(folder: Path, **variables: str) -> str:
    """Returns the error line of `serve`."""
    result = run_installed_command("serve", folder=folder, seconds=START_SECONDS, **variables)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


# Starting.


async def test_workers_start_on_an_empty_database_and_all_serve(
    tmp_path: Path, database: str, write_configuration: Configure
) -> None:
    port = find_free_port()
    write_configuration(3, port=port)
    async with run_workers(tmp_path) as gateway:
        assert gateway.output.count("\n") == 1
        assert len(list_children(gateway)) == 3
        await import_api_key(tmp_path, database)
        async with run_load(gateway) as made:
            await wait_until(
                lambda: set(count_served(gateway)) == list_children(gateway), START_SECONDS
            )
            await wait_until(lambda: made.answered_count > 200, START_SECONDS)
        assert set(made.statuses) == {200}
        assert made.errors == []
        assert sum(count_served(gateway).values()) == made.answered_count, (
            "whole lines, one for each request"
        )
        second = await asyncio.to_thread(read_startup_error, tmp_path)
        assert f"port {port}: it is in use" in second, "it gets none of the first's connections"
        assert await gateway.stop() == 0
    assert not list_events(gateway, "worker_exited")
    *each, parent_event = list_events(gateway, "shutdown_complete")
    assert (len(each), parent_event["workers_left"]) == (3, 3)
    assert {line["requests_left"] for line in each} == {0}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"PAYOUT_GATEWAY_LIMITS__URL": "memory://"}, "set limits.url to a redis:// address"),
        ({"PAYOUT_GATEWAY_STATE__URL": "sqlite:///gateway.db"}, "set state.url to a postgresql://"),
        ({"PAYOUT_GATEWAY_STATE__URL": "postgresql://nobody@127.0.0.1:9/x"}, "cannot be used"),
    ],
)
def test_startup_failure_of_workers_is_a_one_line_error(
    tmp_path: Path, write_configuration: Configure, wrong: dict[str, str], says: str
) -> None:
    assert says in read_startup_error(tmp_path, **wrong)


def test_unusable_temporary_directory_is_a_one_line_error(
    tmp_path: Path, write_configuration: Configure
) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    assert "TMPDIR" in read_startup_error(tmp_path, TMPDIR=str(deep))


@pytest.mark.parametrize("which", ["PORT", "ADMIN_PORT"])
def test_port_in_use_is_a_one_line_error(
    tmp_path: Path, write_configuration: Configure, which: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        output = read_startup_error(tmp_path, **{f"PAYOUT_GATEWAY_SERVER__{which}": port})
    assert port in output
    assert "in use" in output


def test_queues_are_assigned_evenly() -> None:
    assert assign_queues(2, 2) == [[0], [1]]
    assert assign_queues(2, 5) == [[0, 2, 4], [1, 3]]
    assert assign_queues(5, 2) == [[0], [1], [0], [1], [0]]
    assert assign_queues(3, 1) == [[0], [0], [0]]


# Ending.


async def test_shutdown_under_load_completes_requests_in_flight(
    tmp_path: Path, database: str, write_configuration: Configure, simulator: Simulator
) -> None:
    async with run_workers(tmp_path) as gateway:
        await import_api_key(tmp_path, database)
        async with run_load(gateway) as made:
            await wait_until(lambda: made.answered_count > 50, START_SECONDS)
            for _ in range(CLIENT_COUNT // 2):
                simulator.inject_fault(Fault("POST", "/v1/recipients", answer_delay=1))
            await wait_until(lambda: not simulator.service.faults, START_SECONDS)
            before = made.answered_count
            gateway.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(START_SECONDS):
                assert await gateway.process.wait() == 0
        assert set(made.statuses) == {200}
        assert made.answered_count >= before + CLIENT_COUNT // 2
        # Every write that was made was answered: no other was lost than those never begun.
        assert len(simulator.service.list_requests("POST", "/v1/recipients")) == made.answered_count


async def test_workers_finish_and_exit_if_the_parent_is_killed(
    tmp_path: Path, database: str, write_configuration: Configure, simulator: Simulator
) -> None:
    async with run_workers(tmp_path) as gateway:
        await import_api_key(tmp_path, database)
        both = list_children(gateway)
        simulator.inject_fault(Fault("POST", "/v1/recipients", answer_delay=1))
        async with run_load(gateway) as made:
            await wait_until(lambda: not simulator.service.faults, START_SECONDS)
            gateway.process.kill()
            await wait_until(lambda: not is_listening(gateway.port), START_SECONDS)
            made.is_stopped = True
        assert set(made.statuses) == {200}
        await wait_until(lambda: not any(map(_is_running, both)), START_SECONDS)


def _is_running(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:
        return False


# Dying.


async def test_killed_worker_is_replaced(
    tmp_path: Path, database: str, write_configuration: Configure
) -> None:
    async with run_workers(tmp_path) as gateway:
        await import_api_key(tmp_path, database)
        before = list_children(gateway)
        killed = min(before)
        async with run_load(gateway) as made:
            await wait_until(lambda: set(count_served(gateway)) == before, START_SECONDS)
            os.kill(killed, signal.SIGKILL)
            await wait_until(lambda: bool(list_events(gateway, "worker_started")), START_SECONDS)
            (new,) = list_children(gateway) - before
            await wait_until(lambda: count_served(gateway)[new] > 10, START_SECONDS)
        assert set(made.statuses) == {200}
        assert len(made.errors) <= CLIENT_COUNT, made.errors
        (died,) = list_events(gateway, "worker_exited")
        assert (died["worker_pid"], died["reason"]) == (killed, "SIGKILL")
        # And again: another starts after a pause that grows, in which it can be told to end.
        os.kill(new, signal.SIGKILL)
        await wait_until(lambda: len(list_events(gateway, "worker_exited")) == 2, START_SECONDS)
        assert list_events(gateway, "worker_exited")[1]["restart_delay_seconds"] > 0
        assert await gateway.stop() == 0


# Rolling restarts.


async def test_rolling_restart_under_load_drops_no_request(
    tmp_path: Path, database: str, write_configuration: Configure, simulator: Simulator
) -> None:
    async with run_workers(tmp_path) as gateway:
        await import_api_key(tmp_path, database)
        old = list_children(gateway)
        async with run_load(gateway) as made:
            await wait_until(lambda: set(count_served(gateway)) == old, START_SECONDS)
            gateway.process.send_signal(signal.SIGHUP)
            await wait_until(lambda: bool(list_events(gateway, "restart_complete")), START_SECONDS)
            await wait_until(lambda: not list_children(gateway) & old, START_SECONDS)
            new = list_children(gateway)
            await wait_until(
                lambda: made.answered_count > 300 and new < set(count_served(gateway)),
                START_SECONDS,
            )
        assert len(new) == 2
        assert made.errors == []
        assert set(made.statuses) == {200}
        assert len(simulator.service.list_requests("POST", "/v1/recipients")) == made.answered_count
        assert not list_events(gateway, "worker_exited")
        assert await gateway.stop() == 0


async def test_rolling_restart_applies_a_valid_configuration_only(
    tmp_path: Path, write_configuration: Configure
) -> None:
    async with run_workers(tmp_path) as gateway, aiohttp.ClientSession() as session:
        old = list_children(gateway)
        (tmp_path / "gateway.toml").write_text("[server]\nprot = 1")
        gateway.process.send_signal(signal.SIGHUP)
        await wait_until(lambda: len(list_events(gateway, "restart_failed")) == 1, START_SECONDS)
        write_configuration(3, requests_per_hour=77)
        (tmp_path / "gateway.key").rename(tmp_path / "lost.key")
        gateway.process.send_signal(signal.SIGHUP)
        await wait_until(lambda: len(list_events(gateway, "restart_failed")) == 2, START_SECONDS)
        unreadable, without_key = list_events(gateway, "restart_failed")
        assert "server.prot: unknown key" in unreadable["reason"]
        assert "gateway.key" in without_key["reason"]
        await wait_until(lambda: list_children(gateway) == old, START_SECONDS)
        assert await _load_limit(session, gateway) == "10000"
        (tmp_path / "lost.key").rename(tmp_path / "gateway.key")
        gateway.process.send_signal(signal.SIGHUP)
        await wait_until(lambda: bool(list_events(gateway, "restart_complete")), START_SECONDS)
        await wait_until(lambda: len(list_children(gateway) - old) == 3, START_SECONDS)
        await wait_until(lambda: not list_children(gateway) & old, START_SECONDS)
        assert await _load_limit(session, gateway) == "77"
        assert await gateway.stop() == 0


async def test_rolling_restart_reloads_the_tls_certificate(
    tmp_path: Path, write_configuration: Configure
) -> None:
    (tmp_path / "tls").mkdir()
    authority = Authority(tmp_path / "tls")
    first, second = authority.issue("first"), authority.issue("second")
    token = tmp_path / "token"
    token.write_text("a-token-of-some-length")
    token.chmod(0o600)
    section = [
        f'tls_certificate_file = "{first.certificate}"\ntls_key_file = "{first.key}"',
        f'admin_token_file = "{token}"',
    ]
    configured = (tmp_path / "gateway.toml").read_text()
    text = configured.replace("workers = 2", "\n".join(["workers = 2", *section]))
    (tmp_path / "gateway.toml").write_text(text)

    async def load_common_name() -> str:
        made = asyncio.open_connection(
            "127.0.0.1", gateway.port, ssl=authority.build_client_context()
        )
        async with RawConnection(*await made) as connection:
            peer_certificate = connection.writer.get_extra_info("peercert")["subject"]
            await connection.send(b"GET /v1/x HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = await connection.read_response()
            assert answer is not None
            assert answer.status == 404
            return str(dict(entry for part in peer_certificate for entry in part)["commonName"])

    async with run_workers(tmp_path) as gateway, aiohttp.ClientSession() as session:
        old = list_children(gateway)
        assert {await load_common_name() for _ in range(6)} == {"first"}
        shutil.copy(second.certificate, first.certificate)
        shutil.copy(second.key, first.key)
        gateway.process.send_signal(signal.SIGHUP)
        await wait_until(lambda: bool(list_events(gateway, "restart_complete")), START_SECONDS)
        await wait_until(lambda: not list_children(gateway) & old, START_SECONDS)
        assert {await load_common_name() for _ in range(6)} == {"second"}
        page = f"http://127.0.0.1:{gateway.admin_port}/openapi.json"
        async with session.get(page) as answer:
            assert answer.status == 401
        told = {"Authorization": "Bearer a-token-of-some-length"}
        async with session.get(page, headers=told) as answer:
            assert answer.status == 200
        assert await gateway.stop() == 0


async def _load_limit(session: aiohttp.ClientSession, gateway: Process) -> str:
    path, closes = "/v1/geography/countries/US", {"Connection": "close"}
    async with session.get(gateway.url + path, headers=closes) as answer:
        assert answer.status == 200
        return answer.headers["RateLimit-Limit"]


# What they have in common.


async def test_admin_port_reports_on_all_workers(
    tmp_path: Path, write_configuration: Configure, simulator: Simulator
) -> None:
    async with run_workers(tmp_path) as gateway, aiohttp.ClientSession() as session:

        async def load_page(path: str) -> tuple[int, Any]:
            async with session.get(f"http://127.0.0.1:{gateway.admin_port}{path}") as answer:
                assert answer.headers.getall("Server") == ["payout-gateway"]
                is_json = answer.content_type == "application/json"
                return answer.status, await (answer.json() if is_json else answer.text())

        assert await load_page("/healthz") == (200, {"status": "ok"})
        assert await load_page("/readyz") == (
            200,
            {"status": "ok", "faults": {}, "circuit_breakers": {"sandbox": "closed"}},
        )
        assert (await load_page("/no-such-page"))[0] == 404
        stopped = min(list_children(gateway))
        os.kill(stopped, signal.SIGSTOP)
        try:
            status, body = await load_page("/readyz")
            assert (status, body["status"]) == (200, "warning")
            assert body["faults"] == {"workers": "1 of 2 do not answer"}
        finally:
            os.kill(stopped, signal.SIGCONT)
        await simulator.stop()
        status, body = await load_page("/readyz")
        assert (status, list(body["faults"])) == (503, ["environments.sandbox"])
        assert await load_page("/healthz") == (200, {"status": "ok"})


async def test_metrics_cover_all_workers_and_never_decrease(
    tmp_path: Path, database: str, write_configuration: Configure
) -> None:
    counted = "payout_gateway_requests_total"

    async with run_workers(tmp_path) as gateway, aiohttp.ClientSession() as session:
        await import_api_key(tmp_path, database)
        async with run_load(gateway) as made:
            await wait_until(lambda: made.answered_count > 40, START_SECONDS)
        by_pid = count_served(gateway)
        assert len(by_pid) == 2
        metrics = await fetch_metrics(session, f"http://127.0.0.1:{gateway.admin_port}")
        assert metrics.sum("payout_gateway_workers") == 2
        before = metrics.sum(counted)
        assert before == len(list_events(gateway, "request"))
        os.kill(min(list_children(gateway)), signal.SIGKILL)
        await wait_until(lambda: bool(list_events(gateway, "worker_exited")), START_SECONDS)
        metrics = await fetch_metrics(session, f"http://127.0.0.1:{gateway.admin_port}")
        assert metrics.sum(counted) == before
        gateway.process.send_signal(signal.SIGHUP)
        await wait_until(lambda: bool(list_events(gateway, "restart_complete")), START_SECONDS)
        metrics = await fetch_metrics(session, f"http://127.0.0.1:{gateway.admin_port}")
        assert metrics.sum(counted) == before
        assert metrics.sum("payout_gateway_workers") == 2
        # What an old one answers while it leaves is not counted: until they have left.
        await wait_until(lambda: len(list_children(gateway)) == 2, START_SECONDS)
        async with run_load(gateway) as again:
            await wait_until(lambda: again.answered_count > 10, START_SECONDS)
        metrics = await fetch_metrics(session, f"http://127.0.0.1:{gateway.admin_port}")
        assert metrics.sum(counted) == len(list_events(gateway, "request")) > before


async def test_rate_limit_is_shared_by_all_workers(
    tmp_path: Path, database: str, write_configuration: Configure
) -> None:
    write_configuration(requests_per_hour=30)
    async with run_workers(tmp_path) as gateway:
        await import_api_key(tmp_path, database)
        async with run_load(gateway) as made:
            await wait_until(lambda: made.answered_count > 60, START_SECONDS)
        assert made.statuses[200] == 30
        assert set(made.statuses) == {200, 429}
        assert len(count_served(gateway)) == 2


async def test_revoked_key_is_refused_by_every_worker_within_3_seconds(
    tmp_path: Path, database: str, write_configuration: Configure
) -> None:
    async with run_workers(tmp_path) as gateway:
        await import_api_key(tmp_path, database, name="leaving")
        async with run_load(gateway):
            await wait_until(lambda: len(count_served(gateway)) == 2, START_SECONDS)
        words = ("keys", "revoke", "leaving")
        revoked = await asyncio.to_thread(
            run_installed_command, *words, folder=tmp_path, seconds=START_SECONDS
        )
        assert revoked.returncode == 0, revoked.stderr
        await asyncio.sleep(3)
        before = count_served(gateway)
        async with run_load(gateway) as made:
            await wait_until(lambda: len(count_served(gateway) - before) == 2, START_SECONDS)
        assert set(made.statuses) == {403}
