"""``python -m tests.bench.request_path``: counts what one warm request costs in code.

Project files, Python calls, system calls and instructions do not depend on how busy the machine is.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from tests.bench import contestant_processes, counted_gateway
from tests.bench.figures import Goal
from tests.bench.workloads import COUNTED, Workload, insert_number
from tests.processes import find_free_port, run_serve

BATCHES, BATCH_SIZE = 12, 20
"""Counted batches of requests, of which the cheapest counts: background work only adds to one."""

WARM_UP = 60
FEW_NUMBERS = 20
"""Objects that reads name, so that after the warm-up all of them are known."""

TRACED_REQUESTS = 300
SWITCH_SECONDS = 10
VALGRIND_START_SECONDS = 300

MAX_READ_FILES, MAX_READ_CALLS = 25, 120
"""Goals for a recipient read."""

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class BlockingClient:
    """One connection that sends one request after another."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._number = time.time_ns() // 1_000_000 % 10**7

    def send_requests(self, workload: Workload, count: int) -> None:
        for _ in range(count):
            self._number += 1
            number = self._number % min(workload.number_count, FEW_NUMBERS)
            self._socket.sendall(
                insert_number(workload.request, self._number if workload.enters else number)
            )
            self._receive_response()

    def _receive_response(self) -> None:
        received = b""
        while (head_end := received.find(b"\r\n\r\n")) < 0:
            received += self._receive()
        length = _LENGTH.search(received[:head_end])
        if not received.startswith(b"HTTP/1.1 200") or length is None:
            raise SystemExit(f"not answered 200: {received[:600]!r}")
        while len(received) < head_end + 4 + int(length[1]):
            received += self._receive()

    def _receive(self) -> bytes:
        if not (received := self._socket.recv(1 << 16)):
            raise SystemExit("the connection ended")
        return received

    def close(self) -> None:
        self._socket.close()


@contextmanager
def open_client(port: int) -> Iterator[BlockingClient]:
    client = BlockingClient(port)
    try:
        yield client
    finally:
        client.close()


@dataclass(frozen=True, slots=True)
class CountedCalls:
    """Calls of one request, by function; ``c_calls`` are those of built-in functions."""

    functions: Counter[tuple[str, str]]
    python_calls: float
    c_calls: float

    @property
    def files(self) -> list[str]:
        return sorted({file for file, _function in self.functions})

    @property
    def project_calls(self) -> float:
        return self.functions.total() / BATCH_SIZE


def count_calls(pid: int, output: Path, client: BlockingClient, workload: Workload) -> CountedCalls:
    batches = []
    for _ in range(BATCHES):
        os.kill(pid, signal.SIGUSR1)
        _wait_until(lambda: not output.exists())
        client.send_requests(workload, BATCH_SIZE)
        os.kill(pid, signal.SIGUSR1)
        _wait_until(output.exists)
        batches.append(json.loads(output.read_text()))
    cheapest = min(batches, key=lambda batch: sum(row[3] for row in batch["python"]))
    functions: Counter[tuple[str, str]] = Counter()
    for file, function, _line, count in cheapest["python"]:
        path = Path(file)
        # Less often than the requests is what runs in the background.
        if path.is_relative_to(contestant_processes.PROJECT) and count * 2 >= BATCH_SIZE:
            name = str(path.relative_to(contestant_processes.PROJECT))
            if name.startswith(("gateway/", "mappings/")):
                functions[name, function] += count
    return CountedCalls(
        functions,
        sum(row[3] for row in cheapest["python"]) / BATCH_SIZE,
        cheapest["c"] / BATCH_SIZE,
    )


def count_system_calls(pid: int, client: BlockingClient, workload: Workload) -> str:
    """Returns the system calls of one request, with strace."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tracer = subprocess.Popen(
        ["strace", "-f", "-c", "-p", str(pid)], stderr=subprocess.PIPE, text=True
    )
    assert tracer.stderr is not None
    if "attached" not in tracer.stderr.readline():
        tracer.kill()
        return "strace may not attach to processes here"
    client.send_requests(workload, TRACED_REQUESTS)
    tracer.send_signal(signal.SIGINT)
    counts = {}
    for line in tracer.communicate()[1].splitlines():
        fields = line.split()
        if len(fields) >= 5 and fields[3].isdigit() and fields[-1] != "total":
            counts[fields[-1]] = int(fields[3]) / TRACED_REQUESTS
    # Those of background work are rare.
    frequent = {name: count for name, count in counts.items() if count >= 0.2}
    details = ", ".join(f"{name} {count:.1f}" for name, count in frequent.items())
    return f"{sum(frequent.values()):.1f} ({details})"


def _wait_until(is_reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SWITCH_SECONDS
    while not is_reached():
        if time.monotonic() > deadline:
            raise SystemExit("the counted gateway does not react to SIGUSR1")
        time.sleep(0.001)


async def count_paths(folder: Path, show_functions: bool) -> list[Goal]:
    """Prints the calls of each request; returns the goals for a read."""
    output = folder / "calls.json"
    command = [sys.executable, "-m", "tests.bench.counted_gateway"]
    variables = {
        "PYTHONPATH": str(contestant_processes.PROJECT),
        counted_gateway.OUTPUT: str(output),
    }
    goals = []
    async with (
        contestant_processes.start_service() as service_port,
        _prepare_gateway(folder / "counted", service_port),
        run_serve(folder / "counted", command=command, variables=variables) as running,
    ):
        with open_client(running.port) as client:
            for workload in COUNTED:
                client.send_requests(workload, WARM_UP)
                calls = count_calls(running.process.pid, output, client, workload)
                print(
                    f"{workload.name}: {len(calls.files)} project files, "
                    f"{calls.project_calls:.0f} calls in project code, "
                    f"{calls.python_calls:.0f} Python calls, {calls.c_calls:.0f} C calls",
                    flush=True,
                )
                if show_functions:
                    _print_functions(calls)
                if workload is COUNTED[0]:
                    goals = _list_goals(calls)
    async with (
        contestant_processes.start_service() as service_port,
        _prepare_gateway(folder / "traced", service_port),
        contestant_processes.run_gateway(folder / "traced") as running,
    ):
        with open_client(running.port) as client:
            for workload in COUNTED:
                client.send_requests(workload, WARM_UP)
                traced = count_system_calls(running.process.pid, client, workload)
                print(f"{workload.name}: system calls: {traced}", flush=True)
    return goals


def _list_goals(calls: CountedCalls) -> list[Goal]:
    name = COUNTED[0].name
    return [
        Goal(f"{name}: project files", len(calls.files), MAX_READ_FILES, at_most=True, unit=""),
        Goal(
            f"{name}: Python calls in project code",
            calls.project_calls,
            MAX_READ_CALLS,
            at_most=True,
            unit="",
        ),
    ]


def _print_functions(calls: CountedCalls) -> None:
    for (file, function), count in sorted(calls.functions.items()):
        print(f"  {count / BATCH_SIZE:6.1f} {file} {function}")


@asynccontextmanager
async def _prepare_gateway(folder: Path, service_port: int) -> AsyncIterator[None]:
    await contestant_processes.prepare_gateway(folder, service_port, "sqlite:///gateway.db")
    yield


# Instructions, with callgrind


async def measure_instructions(folder: Path) -> list[Goal]:
    """Prints the instructions of each request, and of those to the bare proxy."""
    if shutil.which("valgrind") is None:
        print("left out: instructions: valgrind is not installed")
        return []
    async with contestant_processes.start_service() as service_port:
        port = find_free_port()
        module = "tests.bench.contestants.passing"
        proxy_command = [sys.executable, "-m", module, str(port), str(service_port)]
        async with _run_under_valgrind(proxy_command, folder / "proxy", port) as pid:
            proxy = _count_instructions(pid, folder / "proxy", port)
        await contestant_processes.prepare_gateway(
            folder / "gateway", service_port, "sqlite:///gateway.db"
        )
        command = [*_build_valgrind_command(folder / "gateway"), sys.executable, "-m", "gateway"]
        async with run_serve(
            folder / "gateway",
            command=command,
            seconds=VALGRIND_START_SECONDS,
            variables={"PYTHONPATH": str(contestant_processes.PROJECT)},
        ) as running:
            gateway = _count_instructions(running.process.pid, folder / "gateway", running.port)
    goals = []
    for workload, own, bare in zip(COUNTED, gateway, proxy, strict=True):
        print(f"{workload.name}: {own / 1000:,.0f}k instructions, bare proxy {bare / 1000:,.0f}k")
        description = f"{workload.name}: instructions, against {contestant_processes.PASSING}"
        goals.append(Goal(description, own / bare, 1.0, at_most=True))
    return goals[:1]


def _build_valgrind_command(folder: Path) -> list[str]:
    # Counted only while requests are sent: the start would take ten times as long.
    output = f"--callgrind-out-file={folder}/callgrind.out"
    return ["valgrind", "--tool=callgrind", "--instr-atstart=no", output]


@asynccontextmanager
async def _run_under_valgrind(
    command: Sequence[str], folder: Path, port: int
) -> AsyncIterator[int]:
    folder.mkdir()
    valgrind = [*_build_valgrind_command(folder), *command]
    async with contestant_processes.find_process(
        port, *valgrind, start_seconds=VALGRIND_START_SECONDS
    ) as pid:
        yield pid


def _count_instructions(pid: int, folder: Path, port: int) -> list[float]:
    counts = []
    for workload in COUNTED:
        # A connection for each: under valgrind, the pauses may exceed the idle timeout.
        with open_client(port) as client:
            client.send_requests(workload, WARM_UP)
            _control_callgrind("-i", "on", pid)
            # The instrumented code is translated anew, which does not count, but takes time.
            client.send_requests(workload, BATCH_SIZE)
            _control_callgrind("-z", "", pid)
            started_at = time.monotonic()
            client.send_requests(workload, TRACED_REQUESTS)
            seconds = time.monotonic() - started_at
        busy = _dump_total(pid, folder)
        time.sleep(seconds)
        idle = _dump_total(pid, folder)
        _control_callgrind("-i", "off", pid)
        counts.append((busy - idle) / TRACED_REQUESTS)
    return counts


def _dump_total(pid: int, folder: Path) -> int:
    """Dumps and clears the counters; returns the instructions of all threads."""
    before = set(folder.glob("callgrind.out*"))
    _control_callgrind("-d", "", pid)
    dumps = set(folder.glob("callgrind.out*")) - before
    totals = re.findall(r"(?m)^(?:totals|summary): (\d+)", "".join(f.read_text() for f in dumps))
    return max(map(int, totals))


def _control_callgrind(option: str, value: str, pid: int) -> None:
    command = ["callgrind_control", f"{option}{'=' if value else ''}{value}", str(pid)]
    subprocess.run(command, check=True, capture_output=True)


async def run(options: argparse.Namespace) -> list[Goal]:
    with tempfile.TemporaryDirectory() as name:
        goals = await count_paths(Path(name), options.functions)
        if options.instructions:
            goals += await measure_instructions(Path(name))
    return goals


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.request_path", description=__doc__)
    parser.add_argument("--functions", action="store_true", help="prints each function's calls")
    parser.add_argument("--instructions", action="store_true", help="also with callgrind")
    options = parser.parse_args()
    contestant_processes.INSTALLED.mkdir(exist_ok=True)
    for goal in uvloop.run(run(options)):
        verdict = "met" if goal.is_met else "NOT MET"
        print(f"{goal.what:<72}{goal.measured:>10.2f}{goal.unit} ≤ {goal.goal:g}  {verdict}")


if __name__ == "__main__":
    main()
