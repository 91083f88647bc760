"""Measures a batch of very many payments, and its effect on other requests meanwhile.

The gateway's loop has a task that ticks (``ticking``): how long it was held at most. Another client
asks for a recipient again and again, and the process is asked how much memory it had at most.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import aiohttp

from tests.bench import contestant_processes, large_batch_bodies, machine
from tests.bench.large_batch_bodies import Memos
from tests.bench.workloads import API_KEY
from tests.processes import build_environment, find_free_port

HEADERS = {"X-API-Key": API_KEY, "Content-Type": "application/json"}
RECIPIENT = "/v1/recipients/R-BENCHABC00000001"
ANSWER_SECONDS = 600

GOAL_MS = 20.0
GOAL_BODIES = 2.0


@dataclass(frozen=True, slots=True)
class LoopDelays:
    """Milliseconds of CPU time and of wall time."""

    held: float
    clock: float


@dataclass(slots=True)
class Gateway:
    running: asyncio.subprocess.Process
    url: str

    async def measure_loop_delays(self) -> LoopDelays:
        """The longest delay of its event loop since the last call."""
        assert self.running.stdin is not None
        assert self.running.stdout is not None
        self.running.stdin.write(b"\n")
        return LoopDelays(**json.loads(await self.running.stdout.readline()))

    def read_memory_bytes(self, what: str) -> int:
        """Bytes: ``VmRSS``, or ``VmHWM`` for the most since ``forget_most``."""
        lines = Path(f"/proc/{self.running.pid}/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(what))

    def reset_peak_memory(self) -> None:
        Path(f"/proc/{self.running.pid}/clear_refs").write_text("5")


@dataclass(slots=True)
class OtherClient:
    """A client that sends small requests meanwhile."""

    took: list[float] = field(default_factory=list)

    async def ask(self, session: aiohttp.ClientSession) -> None:
        while True:
            began = time.perf_counter()
            async with session.get(RECIPIENT) as answer:
                assert answer.status == 200, answer.status
                await answer.read()
            self.took.append(time.perf_counter() - began)


@dataclass(frozen=True, slots=True)
class Measurement:
    what: str
    size: int
    """Size of the large body in bytes."""
    seconds: float
    cpu: float
    held: LoopDelays
    memory: int
    others: int
    longest: float
    plain: float
    """Seconds that ``json.loads`` and ``json.dumps`` take for it."""


@asynccontextmanager
async def run_delay_gateway(folder: Path, service_port: int) -> AsyncIterator[Gateway]:
    await contestant_processes.prepare_gateway(folder, service_port, "sqlite:///gateway.db")
    with (contestant_processes.INSTALLED / "output").open("ab") as output:
        running = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.bench.delay_gateway",
            cwd=folder,
            env=build_environment(PYTHONPATH=str(contestant_processes.PROJECT)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=output,
        )
    assert running.stdout is not None
    try:
        async with asyncio.timeout(contestant_processes.START_SECONDS):
            said = (await running.stdout.readline()).decode()
        yield Gateway(running, said.split()[4].rstrip(","))
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()


def measure_plain_json(data: bytes) -> float:
    began = time.perf_counter()
    json.dumps(json.loads(data))
    return time.perf_counter() - began


async def measure_request(
    gateway: Gateway,
    session: aiohttp.ClientSession,
    what: str,
    asked: Callable[[], Awaitable[bytes]],
    size: int,
) -> tuple[Measurement, Any]:
    others = OtherClient()
    asking = asyncio.ensure_future(others.ask(session))
    await asyncio.sleep(1)  # let start-up costs pass before measuring the batch
    others.took.clear()
    await gateway.measure_loop_delays()
    gateway.reset_peak_memory()
    before = gateway.read_memory_bytes("VmRSS")
    began, used = time.perf_counter(), machine.read_cpu_seconds(gateway.running.pid)
    data = await asked()
    seconds = time.perf_counter() - began
    cpu = machine.read_cpu_seconds(gateway.running.pid) - used
    await asyncio.sleep(0.5)
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking
    held, most = await gateway.measure_loop_delays(), gateway.read_memory_bytes("VmHWM")
    plain = await asyncio.to_thread(measure_plain_json, data)
    found = Measurement(
        what,
        size or len(data),
        seconds,
        cpu,
        held,
        most - before,
        len(others.took),
        1000 * max(others.took, default=0.0),
        plain,
    )
    return found, json.loads(data)


async def measure_batch(gateway: Gateway, count: int, memos: Memos) -> list[Measurement]:
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    async with aiohttp.ClientSession(gateway.url, headers=HEADERS, timeout=timeout) as session:

        async def post(body: bytes) -> bytes:
            async with session.post("/v1/batches", data=body) as answer:
                data = await answer.read()
                assert answer.status == 200, data[:600]
                return data

        async def get() -> bytes:
            async with session.get(f"/v1/batches/{id_}") as answer:
                data = await answer.read()
                assert answer.status == 200, data[:600]
                return data

        async def patched(what: str, id_: str, body: bytes) -> Measurement:
            async def patch() -> bytes:
                async with session.patch(f"/v1/batches/{id_}", data=body) as answer:
                    data = await answer.read()
                    assert answer.status == 200, data[:600]
                    return data

            plain = await asyncio.to_thread(measure_plain_json, body)
            found, _ = await measure_request(gateway, session, what, patch, len(body))
            return replace(found, plain=plain)

        await post(large_batch_bodies.build_create_body(3, 0))  # warm up
        body = large_batch_bodies.build_create_body(count, 1, memos)
        plain = await asyncio.to_thread(measure_plain_json, body)
        made, answer = await measure_request(
            gateway, session, "POST /batches", lambda: post(body), len(body)
        )
        id_ = answer["batch"]["id"]
        read, answer = await measure_request(gateway, session, "GET /batches/:id", get, 0)
        if len(answer["batch"]["payments"]["payments"]) != count:
            raise SystemExit("it did not answer with every payment")
        ids = [one["id"] for one in answer["batch"]["payments"]["payments"]]
        again, _ = await measure_request(gateway, session, "GET, once more", get, 0)
        found = [replace(made, plain=plain), read, again]
        empty = json.loads(await post(large_batch_bodies.build_create_body(0, 2)))["batch"]["id"]
        for what, whose, body in (
            ("PATCH, adds all", empty, large_batch_bodies.build_additions(count, memos)),
            ("PATCH, changes all", id_, large_batch_bodies.build_updates(ids, memos)),
            ("PATCH, to a draft", id_, large_batch_bodies.build_removal(ids[0])),
            ("PATCH of a draft", id_, large_batch_bodies.build_additions(1, memos)),
        ):
            found.append(await patched(what, whose, body))
        draft, _ = await measure_request(gateway, session, "GET of a draft", get, 0)
        return [*found, draft]


def format_table(found: list[Measurement], count: int) -> str:
    head = f"{f'{count:,} payments':<22}{'body MB':>9}{'loop held ms':>14}{'by clock':>10}{'seconds':>9}{'CPU s':>7}"
    head += f"{'memory MB':>11}{'of body':>9}{'json s':>8}{'others':>8}{'longest ms':>12}"
    lines = [head]
    lines += [
        (
            f"{one.what:<22}{one.size / 1e6:>9.1f}{one.held.held:>14.1f}{one.held.clock:>10.1f}{one.seconds:>9.2f}{one.cpu:>7.1f}"
            f"{one.memory / 1e6:>11.1f}{one.memory / one.size:>8.1f}×{one.plain:>8.2f}"
            f"{one.others:>8}{one.longest:>12.1f}"
        )
        for one in found
    ]
    return "\n".join(lines)


async def run_bench(count: int) -> None:
    """Uses fresh processes for each kind of memo, because freed memory is not returned to the system."""
    for memos in get_args(Memos):
        print(
            f"memos {memos}\n{format_table(await run_in_own_processes(count, memos), count)}\n",
            flush=True,
        )


async def run_in_own_processes(count: int, memos: Memos) -> list[Measurement]:
    server, beside = machine.select_cores()
    port = find_free_port()
    with tempfile.TemporaryDirectory() as name, machine.pin_to_cores(beside):
        words = ("-m", "tests.bench.large_batch_service", str(port), str(count), memos)
        async with contestant_processes.find_process(port, sys.executable, *words):
            with machine.pin_to_cores(server):
                opening = run_delay_gateway(Path(name) / "gateway", port)
                gateway = await opening.__aenter__()
            try:
                return await measure_batch(gateway, count, memos)
            finally:
                await opening.__aexit__(None, None, None)
