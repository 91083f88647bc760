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
from gateway.simulator import Fault, Service, Simulator, start
from gateway.storage import open_store
from gateway.storage.keyfile import make_key_file
from tests.certificates import Authority
from tests.gateway.limits.conftest import REDIS
from tests.gateway.store.conftest import administer, made_database
from tests.house import KEY
from tests.processes import Process, command, free_port, listens, serving
from tests.scrape import scraped
from tests.sockets import Wire, until

START_SECONDS = 120
"""A parent and its workers each load the whole program, sequentially on a busy machine."""

ADA = {"type": "individual", "firstName": "Ada", "lastName": "Lovelace", "email": "ada@example.com"}
_NUMBERS = itertools.count()


def another() -> dict[str, str]:
    """Builds a new recipient each time, because an identical concurrent body may be a retry."""
    return {**ADA, "email": f"ada{next(_NUMBERS)}@example.com"}


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    yield from made_database()


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    simulator = await start(service=Service(seed=1))
    yield simulator
    await simulator.stop()


Configure = Callable[..., None]


@pytest.fixture
def configure(tmp_path: Path, database: str, simulator: Simulator, redis: None) -> Configure:
    """Returns a function that writes gateway.toml, with an empty database and limits in Redis."""
    administer(database, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    make_key_file(tmp_path / "gateway.key")

    def write(workers: int = 2, *, port: int = 0, base_url: str = "", **limits: Any) -> None:
        lines = [f"{name} = {json.dumps(value)}" for name, value in limits.items()]
        text = [
            f"[server]\nport = {port}\nadmin_port = 0\nworkers = {workers}",
            f'[environments.sandbox]\nbase_url = "{base_url or simulator.url}"',
            f'[state]\nurl = "{database}"\nencryption_key_file = "gateway.key"',
            f'[limits]\nurl = "{REDIS}"',
            *lines,
        ]
        (tmp_path / "gateway.toml").write_text("\n".join(text))

    write()
    return write


@pytest.fixture
def redis() -> None:
    """Skips the test without Redis; the key file makes the names of counters unique."""
    import redis

    client = redis.Redis.from_url(REDIS)
    try:
        client.ping()
    except redis.RedisError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no Redis: {error}")
    finally:
        client.close()


async def import_key(folder: Path, database: str, **more: Any) -> None:
    state = State(url=database, encryption_key_file=folder / "gateway.key")
    async with open_store(state) as store:
        await import_keys(store, parse_key_lines(json.dumps({**KEY, **more}).encode()))


@asynccontextmanager
async def workers(folder: Path) -> AsyncIterator[Process]:
    async with serving(folder, seconds=START_SECONDS) as gateway:
        yield gateway


def children(gateway: Process) -> set[int]:
    """Returns the running child processes of the parent."""
    parent = gateway.running.pid
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text("utf-8")
    return set(map(int, found.split()))


def events(gateway: Process, name: str) -> list[dict[str, Any]]:
    return [line for line in gateway.lines() if line["event"] == name]


def served(gateway: Process) -> Counter[int]:
    """Counts the requests that each worker answered."""
    return Counter(line["process.pid"] for line in events(gateway, "request"))


@dataclass(slots=True)
class Load:
    """Clients that create recipients one after another, over kept connections and fresh ones.

    A write, because HTTP clients quietly send a read again that was lost.
    """

    gateway: Process
    statuses: Counter[int] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    ended: bool = False

    async def client(self, *, fresh: bool) -> None:
        connector = aiohttp.TCPConnector(force_close=fresh)
        headers = {"X-API-Key": KEY["api_key"]}
        timeout = aiohttp.ClientTimeout(total=START_SECONDS)
        async with aiohttp.ClientSession(
            connector=connector, headers=headers, timeout=timeout
        ) as session:
            while not self.ended:
                try:
                    async with session.post(
                        f"{self.gateway.url}/v1/recipients", json=another()
                    ) as got:
                        self.statuses[got.status] += 1
                        assert (await got.json())["ok"] is (got.status == 200)
                except (aiohttp.ClientError, OSError) as error:
                    self.lost.append(repr(error))
                await asyncio.sleep(0.03)  # the workers need the machine too

    @property
    def answered(self) -> int:
        return sum(self.statuses.values())


CLIENTS = 8


@asynccontextmanager
async def load(gateway: Process) -> AsyncIterator[Load]:
    made = Load(gateway)
    clients = [asyncio.ensure_future(made.client(fresh=at % 2 == 0)) for at in range(CLIENTS)]
    try:
        yield made
    finally:
        made.ended = True
        await asyncio.gather(*clients)


def one_line(folder: Path, **variables: str) -> str:
    """Returns the error line of `serve`."""
    done = command("serve", folder=folder, seconds=START_SECONDS, **variables)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


# Starting.


async def test_workers_start_at_once_on_an_empty_database_and_all_of_them_serve(
    tmp_path: Path, database: str, configure: Configure
) -> None:
    port = free_port()
    configure(3, port=port)
    async with workers(tmp_path) as gateway:
        assert gateway.said.count("\n") == 1
        assert len(children(gateway)) == 3
        await import_key(tmp_path, database)
        async with load(gateway) as made:
            await until(lambda: set(served(gateway)) == children(gateway), START_SECONDS)
            await until(lambda: made.answered > 200, START_SECONDS)
        assert set(made.statuses) == {200}
        assert made.lost == []
        assert sum(served(gateway).values()) == made.answered, "whole lines, one for each request"
        second = await asyncio.to_thread(one_line, tmp_path)
        assert f"port {port}: it is in use" in second, "it gets none of the first's connections"
        assert await gateway.ends() == 0
    assert not events(gateway, "worker_exited")
    *each, all_of_them = events(gateway, "shutdown_complete")
    assert (len(each), all_of_them["workers_left"]) == (3, 3)
    assert {line["requests_left"] for line in each} == {0}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"PAYOUT_GATEWAY_LIMITS__URL": "memory://"}, "set limits.url to a redis:// address"),
        ({"PAYOUT_GATEWAY_STATE__URL": "sqlite:///gateway.db"}, "set state.url to a postgresql://"),
        ({"PAYOUT_GATEWAY_STATE__URL": "postgresql://nobody@127.0.0.1:9/x"}, "cannot be used"),
    ],
)
def test_workers_that_cannot_start_are_one_line(
    tmp_path: Path, configure: Configure, wrong: dict[str, str], says: str
) -> None:
    assert says in one_line(tmp_path, **wrong)


def test_a_temporary_folder_in_which_no_socket_can_be_is_one_line(
    tmp_path: Path, configure: Configure
) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    assert "TMPDIR" in one_line(tmp_path, TMPDIR=str(deep))


@pytest.mark.parametrize("which", ["PORT", "ADMIN_PORT"])
def test_a_port_in_use_is_one_line(tmp_path: Path, configure: Configure, which: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = one_line(tmp_path, **{f"PAYOUT_GATEWAY_SERVER__{which}": port})
    assert port in said
    assert "in use" in said


def test_every_queue_has_a_worker_and_they_are_even() -> None:
    assert assign_queues(2, 2) == [[0], [1]]
    assert assign_queues(2, 5) == [[0, 2, 4], [1, 3]]
    assert assign_queues(5, 2) == [[0], [1], [0], [1], [0]]
    assert assign_queues(3, 1) == [[0], [0], [0]]


# Ending.


async def test_told_to_end_under_load_they_finish_what_is_in_flight_and_it_exits_0(
    tmp_path: Path, database: str, configure: Configure, simulator: Simulator
) -> None:
    async with workers(tmp_path) as gateway:
        await import_key(tmp_path, database)
        async with load(gateway) as made:
            await until(lambda: made.answered > 50, START_SECONDS)
            for _ in range(CLIENTS // 2):
                simulator.next(Fault("POST", "/v1/recipients", answer_delay=1))
            await until(lambda: not simulator.service.faults, START_SECONDS)
            before = made.answered
            gateway.running.send_signal(signal.SIGTERM)
            async with asyncio.timeout(START_SECONDS):
                assert await gateway.running.wait() == 0
        assert set(made.statuses) == {200}
        assert made.answered >= before + CLIENTS // 2
        # Every write that was made was answered: no other was lost than those never begun.
        assert len(simulator.service.calls("POST", "/v1/recipients")) == made.answered


async def test_when_the_parent_is_killed_its_workers_finish_and_end(
    tmp_path: Path, database: str, configure: Configure, simulator: Simulator
) -> None:
    async with workers(tmp_path) as gateway:
        await import_key(tmp_path, database)
        both = children(gateway)
        simulator.next(Fault("POST", "/v1/recipients", answer_delay=1))
        async with load(gateway) as made:
            await until(lambda: not simulator.service.faults, START_SECONDS)
            gateway.running.kill()
            await until(lambda: not listens(gateway.port), START_SECONDS)
            made.ended = True
        assert set(made.statuses) == {200}
        await until(lambda: not any(map(_runs, both)), START_SECONDS)


def _runs(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:
        return False


# Dying.


async def test_a_worker_that_is_killed_loses_what_it_had_in_flight_and_is_replaced(
    tmp_path: Path, database: str, configure: Configure
) -> None:
    async with workers(tmp_path) as gateway:
        await import_key(tmp_path, database)
        before = children(gateway)
        killed = min(before)
        async with load(gateway) as made:
            await until(lambda: set(served(gateway)) == before, START_SECONDS)
            os.kill(killed, signal.SIGKILL)
            await until(lambda: bool(events(gateway, "worker_started")), START_SECONDS)
            (new,) = children(gateway) - before
            await until(lambda: served(gateway)[new] > 10, START_SECONDS)
        assert set(made.statuses) == {200}
        assert len(made.lost) <= CLIENTS, made.lost
        (died,) = events(gateway, "worker_exited")
        assert (died["worker_pid"], died["reason"]) == (killed, "SIGKILL")
        # And again: another starts after a pause that grows, in which it can be told to end.
        os.kill(new, signal.SIGKILL)
        await until(lambda: len(events(gateway, "worker_exited")) == 2, START_SECONDS)
        assert events(gateway, "worker_exited")[1]["restart_delay_seconds"] > 0
        assert await gateway.ends() == 0


# Rolling restarts.


async def test_a_rolling_restart_under_load_drops_nothing(
    tmp_path: Path, database: str, configure: Configure, simulator: Simulator
) -> None:
    async with workers(tmp_path) as gateway:
        await import_key(tmp_path, database)
        old = children(gateway)
        async with load(gateway) as made:
            await until(lambda: set(served(gateway)) == old, START_SECONDS)
            gateway.running.send_signal(signal.SIGHUP)
            await until(lambda: bool(events(gateway, "restart_complete")), START_SECONDS)
            await until(lambda: not children(gateway) & old, START_SECONDS)
            new = children(gateway)
            await until(lambda: made.answered > 300 and new < set(served(gateway)), START_SECONDS)
        assert len(new) == 2
        assert made.lost == []
        assert set(made.statuses) == {200}
        assert len(simulator.service.calls("POST", "/v1/recipients")) == made.answered
        assert not events(gateway, "worker_exited")
        assert await gateway.ends() == 0


async def test_a_rolling_restart_takes_the_configuration_as_it_is_then_or_changes_nothing(
    tmp_path: Path, configure: Configure
) -> None:
    async with workers(tmp_path) as gateway, aiohttp.ClientSession() as session:
        old = children(gateway)
        (tmp_path / "gateway.toml").write_text("[server]\nprot = 1")
        gateway.running.send_signal(signal.SIGHUP)
        await until(lambda: len(events(gateway, "restart_failed")) == 1, START_SECONDS)
        configure(3, requests_per_hour=77)
        (tmp_path / "gateway.key").rename(tmp_path / "lost.key")
        gateway.running.send_signal(signal.SIGHUP)
        await until(lambda: len(events(gateway, "restart_failed")) == 2, START_SECONDS)
        unreadable, without_key = events(gateway, "restart_failed")
        assert "server.prot: unknown key" in unreadable["reason"]
        assert "gateway.key" in without_key["reason"]
        await until(lambda: children(gateway) == old, START_SECONDS)
        assert await _limit(session, gateway) == "10000"
        (tmp_path / "lost.key").rename(tmp_path / "gateway.key")
        gateway.running.send_signal(signal.SIGHUP)
        await until(lambda: bool(events(gateway, "restart_complete")), START_SECONDS)
        await until(lambda: len(children(gateway) - old) == 3, START_SECONDS)
        await until(lambda: not children(gateway) & old, START_SECONDS)
        assert await _limit(session, gateway) == "77"
        assert await gateway.ends() == 0


async def test_workers_speak_tls_and_a_rolling_restart_shows_the_new_certificate(
    tmp_path: Path, configure: Configure
) -> None:
    (tmp_path / "tls").mkdir()
    authority = Authority(tmp_path / "tls")
    first, second = authority.pair("first"), authority.pair("second")
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

    async def shown() -> str:
        made = asyncio.open_connection("127.0.0.1", gateway.port, ssl=authority.believing())
        async with Wire(*await made) as connection:
            told = connection.writer.get_extra_info("peercert")["subject"]
            await connection.say(b"GET /v1/x HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = await connection.answer()
            assert answer is not None
            assert answer.status == 404
            return str(dict(one for part in told for one in part)["commonName"])

    async with workers(tmp_path) as gateway, aiohttp.ClientSession() as session:
        old = children(gateway)
        assert {await shown() for _ in range(6)} == {"first"}
        shutil.copy(second.certificate, first.certificate)
        shutil.copy(second.key, first.key)
        gateway.running.send_signal(signal.SIGHUP)
        await until(lambda: bool(events(gateway, "restart_complete")), START_SECONDS)
        await until(lambda: not children(gateway) & old, START_SECONDS)
        assert {await shown() for _ in range(6)} == {"second"}
        page = f"http://127.0.0.1:{gateway.admin_port}/openapi.json"
        async with session.get(page) as answer:
            assert answer.status == 401
        told = {"Authorization": "Bearer a-token-of-some-length"}
        async with session.get(page, headers=told) as answer:
            assert answer.status == 200
        assert await gateway.ends() == 0


async def _limit(session: aiohttp.ClientSession, gateway: Process) -> str:
    path, closes = "/v1/geography/countries/US", {"Connection": "close"}
    async with session.get(gateway.url + path, headers=closes) as answer:
        assert answer.status == 200
        return answer.headers["RateLimit-Limit"]


# What they have in common.


async def test_the_admin_port_answers_for_all_workers(
    tmp_path: Path, configure: Configure, simulator: Simulator
) -> None:
    async with workers(tmp_path) as gateway, aiohttp.ClientSession() as session:

        async def told(path: str) -> tuple[int, Any]:
            async with session.get(f"http://127.0.0.1:{gateway.admin_port}{path}") as answer:
                assert answer.headers.getall("Server") == ["payout-gateway"]
                is_json = answer.content_type == "application/json"
                return answer.status, await (answer.json() if is_json else answer.text())

        assert await told("/healthz") == (200, {"status": "ok"})
        assert await told("/readyz") == (
            200,
            {"status": "ok", "faults": {}, "circuit_breakers": {"sandbox": "closed"}},
        )
        assert (await told("/no-such-page"))[0] == 404
        stopped = min(children(gateway))
        os.kill(stopped, signal.SIGSTOP)
        try:
            status, body = await told("/readyz")
            assert (status, body["status"]) == (200, "warning")
            assert body["faults"] == {"workers": "1 of 2 do not answer"}
        finally:
            os.kill(stopped, signal.SIGCONT)
        await simulator.stop()
        status, body = await told("/readyz")
        assert (status, list(body["faults"])) == (503, ["environments.sandbox"])
        assert await told("/healthz") == (200, {"status": "ok"})


async def test_metrics_are_those_of_all_workers_and_never_go_back(
    tmp_path: Path, database: str, configure: Configure
) -> None:
    counted = "payout_gateway_requests_total"

    async with workers(tmp_path) as gateway, aiohttp.ClientSession() as session:
        await import_key(tmp_path, database)
        async with load(gateway) as made:
            await until(lambda: made.answered > 40, START_SECONDS)
        by_pid = served(gateway)
        assert len(by_pid) == 2
        found = await scraped(session, f"http://127.0.0.1:{gateway.admin_port}")
        assert found.sum("payout_gateway_workers") == 2
        before = found.sum(counted)
        assert before == len(events(gateway, "request"))
        os.kill(min(children(gateway)), signal.SIGKILL)
        await until(lambda: bool(events(gateway, "worker_exited")), START_SECONDS)
        found = await scraped(session, f"http://127.0.0.1:{gateway.admin_port}")
        assert found.sum(counted) == before
        gateway.running.send_signal(signal.SIGHUP)
        await until(lambda: bool(events(gateway, "restart_complete")), START_SECONDS)
        found = await scraped(session, f"http://127.0.0.1:{gateway.admin_port}")
        assert found.sum(counted) == before
        assert found.sum("payout_gateway_workers") == 2
        # What an old one answers while it leaves is not counted: until they have left.
        await until(lambda: len(children(gateway)) == 2, START_SECONDS)
        async with load(gateway) as again:
            await until(lambda: again.answered > 10, START_SECONDS)
        found = await scraped(session, f"http://127.0.0.1:{gateway.admin_port}")
        assert found.sum(counted) == len(events(gateway, "request")) > before


async def test_a_limit_is_one_for_all_workers(
    tmp_path: Path, database: str, configure: Configure
) -> None:
    configure(requests_per_hour=30)
    async with workers(tmp_path) as gateway:
        await import_key(tmp_path, database)
        async with load(gateway) as made:
            await until(lambda: made.answered > 60, START_SECONDS)
        assert made.statuses[200] == 30
        assert set(made.statuses) == {200, 429}
        assert len(served(gateway)) == 2


async def test_a_revoked_key_stops_working_in_every_worker_within_3_seconds(
    tmp_path: Path, database: str, configure: Configure
) -> None:
    async with workers(tmp_path) as gateway:
        await import_key(tmp_path, database, name="leaving")
        async with load(gateway):
            await until(lambda: len(served(gateway)) == 2, START_SECONDS)
        words = ("keys", "revoke", "leaving")
        revoked = await asyncio.to_thread(command, *words, folder=tmp_path, seconds=START_SECONDS)
        assert revoked.returncode == 0, revoked.stderr
        await asyncio.sleep(3)
        before = served(gateway)
        async with load(gateway) as made:
            await until(lambda: len(served(gateway) - before) == 2, START_SECONDS)
        assert set(made.statuses) == {403}
