"""Four processes on two hosts share one PostgreSQL, while they pause, die and lose connections.

Clients are behind load balancers that hold connections of clients that have left. Each write is sent until it is
answered, to a random process each time, and the service must have executed it once.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
from sqlalchemy import make_url

from gateway.config.settings import Settings, State
from tests.gateway.storage.conftest import database, postgres  # noqa: F401 - fixtures
from tests.gateway_processes import (
    GatewayForker,
    GatewayProcess,
    open_forker,
    request_gateway,
)
from tests.killed_gateways import (
    KINDS,
    UNSUPPORTED_EDITS,
    GatewaySeries,
    check_nothing_in_doubt,
    check_outcome,
    create_payee,
)
from tests.recording_service import open_recording_service
from tests.running_gateway import KEY, GatewayResponse, build_settings, import_api_keys
from tests.simulator import Service
from tests.sockets import wait_until
from tests.tcp_proxy import TcpProxy, open_tcp_proxy
from tests.test_random_faults import build_random_faults

HOSTS = 2
WORKERS = 2
SECONDS = int(os.environ.get("KILLS", "10"))
"""How long faults last; `make soak` has ten minutes."""
PAUSE_SECONDS = (1, 4) if SECONDS < 60 else (5, 60)
"""A lease is expired after 2.5 seconds."""
CLIENTS = 6
REQUEST_SECONDS = 15
RECOVERY_SECONDS = 200


@dataclass(slots=True)
class Hosts(GatewaySeries):
    rng: random.Random = field(default_factory=random.Random)
    processes: list[GatewayProcess] = field(default_factory=list)
    database_proxies: list[TcpProxy] = field(default_factory=list)
    host_settings: list[Settings] = field(default_factory=list)
    held: set[asyncio.Task[Any]] = field(default_factory=set)
    """Requests whose clients have left, and whose connections are open."""
    are_faults_over: bool = False

    async def request(
        self, method: str, path: str, body: Any = None, **options: Any
    ) -> GatewayResponse | None:
        """Sends a request to a random process; returns None if it fails or its client leaves."""
        content = {} if body is None else {"json": body}
        process = self.rng.choice(self.processes)
        pending = asyncio.ensure_future(
            request_gateway(self.session, process, method, path, **content, **options)
        )
        leaves = not self.are_faults_over and self.rng.random() < 0.2
        seconds = self.rng.uniform(0, 0.5) if leaves else REQUEST_SECONDS
        done, _ = await asyncio.wait([pending], timeout=seconds)
        if done:
            return pending.result()
        self.held.add(pending)
        pending.add_done_callback(self.held.discard)
        return None


async def pause(hosts: Hosts) -> None:
    process = hosts.rng.choice(hosts.processes)
    process.kill(signal.SIGSTOP)
    try:
        await asyncio.sleep(hosts.rng.uniform(*PAUSE_SECONDS))
    finally:
        process.kill(signal.SIGCONT)


async def kill(hosts: Hosts) -> None:
    number = hosts.rng.randrange(len(hosts.processes))
    await hosts.processes[number].stop()
    settings = hosts.host_settings[number // WORKERS]
    while hosts.processes[number].code.done():
        # A process that does not reach its database ends, and whatever started it starts it again.
        with suppress(RuntimeError):
            hosts.processes[number] = await hosts.forker.start(settings, hosts.folder)


async def terminate_database_connections(hosts: Hosts) -> None:
    connection: Any = await asyncpg.connect(hosts.settings.state.url)
    try:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() < 0.5"
        )
    finally:
        await connection.close()


async def cut_database_off(hosts: Hosts) -> None:
    proxy = hosts.rng.choice(hosts.database_proxies)
    proxy.disconnect()
    await asyncio.sleep(hosts.rng.uniform(0, 2))
    proxy.restore()


async def hang_database(hosts: Hosts) -> None:
    proxy = hosts.rng.choice(hosts.database_proxies)
    proxy.hang()
    await asyncio.sleep(hosts.rng.uniform(0, 3))
    proxy.restore()


FAULTS: tuple[Callable[[Hosts], Awaitable[None]], ...] = (
    pause,
    pause,
    pause,
    kill,
    terminate_database_connections,
    cut_database_off,
    hang_database,
)


async def cause_faults(hosts: Hosts, counts: Counter[str], until: float) -> None:
    while asyncio.get_running_loop().time() < until:
        fault = hosts.rng.choice(FAULTS)
        counts[fault.__name__] += 1
        await fault(hosts)
        await asyncio.sleep(hosts.rng.uniform(0, 1))


async def send_writes(hosts: Hosts, client: int, until: float) -> int:
    """Sends writes one after the other, each until it is answered; returns their number."""
    count = 0
    while asyncio.get_running_loop().time() < until:
        tag = f"client-{client}-{count:04d}-end"
        write = await hosts.rng.choice(list(KINDS.values()))(hosts, tag)
        await hosts.request_successfully(write.method, write.path, write.body)
        check_outcome(hosts, write, tag)
        count += 1
    return count


@asynccontextmanager
async def open_hosts(state: State, folder: Path, forker: GatewayForker) -> AsyncIterator[Hosts]:
    address = make_url(state.url)
    target = address.host or "127.0.0.1", address.port or 5432
    async with (
        open_recording_service(Service(seed=1)) as recorder,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=90)) as session,
        open_tcp_proxy(*target) as first,
        open_tcp_proxy(*target) as second,
    ):
        recorder.missing_endpoints += UNSUPPORTED_EDITS

        def build_host_settings(url: str) -> Settings:
            return build_settings(
                folder,
                recorder.url,
                state={"url": url, "encryption_key_file": str(state.encryption_key_file)},
                upstream={"timeout_seconds": 3},
                server={"trusted_proxies": ["127.0.0.1"]},
                writes={"replay_seconds": 3600},
            )

        settings = build_host_settings(state.url)
        await import_api_keys(settings, [KEY])
        urls = [
            address.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
            for proxy in (first, second)
        ]
        host_settings = [build_host_settings(url) for url in urls]
        processes = [
            await forker.start(host_settings[number // WORKERS], folder)
            for number in range(HOSTS * WORKERS)
        ]
        hosts = Hosts(forker, recorder, settings, folder, session, processes[0])
        hosts.processes, hosts.host_settings = processes, host_settings
        hosts.database_proxies = [first, second]
        hosts.recipient_id = await create_payee(hosts)
        yield hosts


async def test_writes_of_paused_and_cut_off_hosts_are_executed_once(
    postgres: State,  # noqa: F811
    tmp_path: Path,
) -> None:
    async with open_forker() as forker, open_hosts(postgres, tmp_path, forker) as hosts:
        until = asyncio.get_running_loop().time() + SECONDS
        hosts.recorder.choose_fault = build_random_faults(1, 0.1)
        counts: Counter[str] = Counter()
        async with asyncio.timeout(SECONDS + RECOVERY_SECONDS), asyncio.TaskGroup() as group:
            faults = [group.create_task(cause_faults(hosts, counts, until)) for _ in range(2)]
            clients = [
                group.create_task(send_writes(hosts, each, until)) for each in range(CLIENTS)
            ]
            await asyncio.wait(faults)
            hosts.are_faults_over = True
            hosts.recorder.choose_fault = lambda _request: None
            await wait_until(lambda: hosts.recorder.is_idle)
            for process in hosts.processes:
                process.advance_clock()  # past the age at which the service refuses a stamp
        assert sum(client.result() for client in clients) >= CLIENTS
        assert counts["pause"]
        hosts.gateway = hosts.processes[0]
        await check_nothing_in_doubt(hosts)
