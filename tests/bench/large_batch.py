"""Measures a batch of very many payments, and its effect on other requests meanwhile.

A task in the gateway's event loop (``delay_gateway``) measures how long the loop was blocked at most. Another
client reads a recipient again and again, and the peak memory of the process is read.
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

    def read_memory_bytes(self, field_name: str) -> int:
        """Bytes: ``VmRSS``, or ``VmHWM`` for the most since ``forget_most``."""
        lines = Path(f"/proc/{self.running.pid}/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field_name))

    def reset_peak_memory(self) -> None:
        Path(f"/proc/{self.running.pid}/clear_refs").write_text("5")


@dataclass(slots=True)
class OtherClient:
    """A client that sends small requests meanwhile."""

    durations: list[float] = field(default_factory=list)

    async def send_requests(self, session: aiohttp.ClientSession) -> None:
        while True:
            start_time = time.perf_counter()
            async with session.get(RECIPIENT) as response:
                assert response.status == 200, response.status
                await response.read()
            self.durations.append(time.perf_counter() - start_time)


@dataclass(frozen=True, slots=True)
class Measurement:
    description: str
    size: int
    """Size of the large body in bytes."""
    seconds: float
    cpu: float
    loop_delays: LoopDelays
    memory: int
    other_requests: int
    longest: float
    plain_json_seconds: float
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
            ready_line = (await running.stdout.readline()).decode()
        yield Gateway(running, ready_line.split()[4].rstrip(","))
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()


def measure_plain_json(data: bytes) -> float:
    start_time = time.perf_counter()
    json.dumps(json.loads(data))
    return time.perf_counter() - start_time


async def measure_request(
    gateway: Gateway,
    session: aiohttp.ClientSession,
    description: str,
    send_request: Callable[[], Awaitable[bytes]],
    size: int,
) -> tuple[Measurement, Any]:
    other_client = OtherClient()
    other_task = asyncio.ensure_future(other_client.send_requests(session))
    await asyncio.sleep(1)  # let start-up costs pass before measuring the batch
    other_client.durations.clear()
    await gateway.measure_loop_delays()
    gateway.reset_peak_memory()
    bytes_before = gateway.read_memory_bytes("VmRSS")
    start_time, cpu_before = time.perf_counter(), machine.read_cpu_seconds(gateway.running.pid)
    data = await send_request()
    seconds = time.perf_counter() - start_time
    cpu = machine.read_cpu_seconds(gateway.running.pid) - cpu_before
    await asyncio.sleep(0.5)
    other_task.cancel()
    with suppress(asyncio.CancelledError):
        await other_task
    loop_delays, peak_bytes = (
        await gateway.measure_loop_delays(),
        gateway.read_memory_bytes("VmHWM"),
    )
    plain_json_seconds = await asyncio.to_thread(measure_plain_json, data)
    measurement = Measurement(
        description,
        size or len(data),
        seconds,
        cpu,
        loop_delays,
        peak_bytes - bytes_before,
        len(other_client.durations),
        1000 * max(other_client.durations, default=0.0),
        plain_json_seconds,
    )
    return measurement, json.loads(data)


async def measure_batch(gateway: Gateway, count: int, memos: Memos) -> list[Measurement]:
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    async with aiohttp.ClientSession(gateway.url, headers=HEADERS, timeout=timeout) as session:

        async def post(body: bytes) -> bytes:
            async with session.post("/v1/batches", data=body) as response:
                data = await response.read()
                assert response.status == 200, data[:600]
                return data

        async def get() -> bytes:
            async with session.get(f"/v1/batches/{id_}") as response:
                data = await response.read()
                assert response.status == 200, data[:600]
                return data

        async def measure_patch(description: str, id_: str, body: bytes) -> Measurement:
            async def patch() -> bytes:
                async with session.patch(f"/v1/batches/{id_}", data=body) as response:
                    data = await response.read()
                    assert response.status == 200, data[:600]
                    return data

            plain_json_seconds = await asyncio.to_thread(measure_plain_json, body)
            measurement, _ = await measure_request(gateway, session, description, patch, len(body))
            return replace(measurement, plain_json_seconds=plain_json_seconds)

        await post(large_batch_bodies.build_create_body(3, 0))  # warm up
        body = large_batch_bodies.build_create_body(count, 1, memos)
        plain_json_seconds = await asyncio.to_thread(measure_plain_json, body)
        create_measurement, response_body = await measure_request(
            gateway, session, "POST /batches", lambda: post(body), len(body)
        )
        id_ = response_body["batch"]["id"]
        read_measurement, response_body = await measure_request(
            gateway, session, "GET /batches/:id", get, 0
        )
        if len(response_body["batch"]["payments"]["payments"]) != count:
            raise SystemExit("it did not answer with every payment")
        ids = [payment["id"] for payment in response_body["batch"]["payments"]["payments"]]
        repeated_measurement, _ = await measure_request(gateway, session, "GET, once more", get, 0)
        measurements = [
            replace(create_measurement, plain_json_seconds=plain_json_seconds),
            read_measurement,
            repeated_measurement,
        ]
        empty_batch = json.loads(await post(large_batch_bodies.build_create_body(0, 2)))["batch"][
            "id"
        ]
        for description, batch_id, body in (
            ("PATCH, adds all", empty_batch, large_batch_bodies.build_additions(count, memos)),
            ("PATCH, changes all", id_, large_batch_bodies.build_updates(ids, memos)),
            ("PATCH, to a draft", id_, large_batch_bodies.build_removal(ids[0])),
            ("PATCH of a draft", id_, large_batch_bodies.build_additions(1, memos)),
        ):
            measurements.append(await measure_patch(description, batch_id, body))
        draft, _ = await measure_request(gateway, session, "GET of a draft", get, 0)
        return [*measurements, draft]


def format_table(measurements: list[Measurement], count: int) -> str:
    head = f"{f'{count:,} payments':<22}{'body MB':>9}{'loop held ms':>14}{'by clock':>10}{'seconds':>9}{'CPU s':>7}"
    head += f"{'memory MB':>11}{'of body':>9}{'json s':>8}{'others':>8}{'longest ms':>12}"
    lines = [head]
    lines += [
        (
            f"{measurement.description:<22}{measurement.size / 1e6:>9.1f}{measurement.loop_delays.held:>14.1f}{measurement.loop_delays.clock:>10.1f}{measurement.seconds:>9.2f}{measurement.cpu:>7.1f}"
            f"{measurement.memory / 1e6:>11.1f}{measurement.memory / measurement.size:>8.1f}×{measurement.plain_json_seconds:>8.2f}"
            f"{measurement.other_requests:>8}{measurement.longest:>12.1f}"
        )
        for measurement in measurements
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
    server_core, client_cores = machine.select_cores()
    port = find_free_port()
    with tempfile.TemporaryDirectory() as name, machine.pin_to_cores(client_cores):
        arguments = ("-m", "tests.bench.large_batch_service", str(port), str(count), memos)
        async with contestant_processes.find_process(port, sys.executable, *arguments):
            with machine.pin_to_cores(server_core):
                gateway_context = run_delay_gateway(Path(name) / "gateway", port)
                gateway = await gateway_context.__aenter__()
            try:
                return await measure_batch(gateway, count, memos)
            finally:
                await gateway_context.__aexit__(None, None, None)
