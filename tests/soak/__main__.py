"""``python -m tests.soak [SECONDS]``: prints a table, and exits with 1 if a bound is exceeded."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.bench import contestant_processes
from tests.processes import Process, run_installed_command
from tests.soak.clients import IdleConnections, LoadClients, Tally, read_response
from tests.soak.service import Service
from tests.soak.steady import run_steady

IDLE_COUNT, SLOW_COUNT = 4000, 1500
SHED_SECONDS = 15
LARGE_BODY_COUNT, MEGABYTE = 1000, 1024 * 1024
MAX_HELD_BODY_BYTES = 256 * MEGABYTE
SPARE_MEMORY = 192 * MEGABYTE
"""Bytes for connections and requests in flight, besides bodies."""

FAULT_SHARE = 0.25
"""Share of the time with crowds, overload and a silent service; each happens at least once."""

MIN_STEADY_SECONDS = 10
"""Seconds."""

BREAKER_SECONDS = 2
ACCESS_KEYS = {"quick": "QUICKACCESSKEY", "slow": "SLOWACCESSKEY"}

CONFIGURATION = f"""
[server]
port = 0
admin_port = 0
[environments.sandbox]
base_url = "http://127.0.0.1:{{port}}"
[state]
url = "sqlite:///gateway.db"
encryption_key_file = "gateway.key"
[limits]
requests_per_hour = 1_000_000_000
[upstream]
breaker_seconds = {BREAKER_SECONDS}
"""


class Report:
    """The table, and the rows that exceed their bounds."""

    def __init__(self) -> None:
        self.exceeded_rows: list[str] = []
        print(f"{'what':<58}{'measured':>14}  bound")

    def add_row(
        self, description: str, value: float | None, unit: str, max_value: float | None = None
    ) -> None:
        value_text = "not in time" if value is None else f"{value:,.1f} {unit}"
        bound_text = "" if max_value is None else f"at most {max_value:g} {unit}"
        is_broken = max_value is not None and (value is None or not value <= max_value)
        print(
            f"{description:<58}{value_text:>14}  {bound_text}{'  BROKEN' if is_broken else ''}",
            flush=True,
        )
        if is_broken:
            self.exceeded_rows.append(description)

    def add_tally(self, label: str, tally: Tally, max_p99: float | None = None) -> None:
        self.add_row(f"{label}: answered", tally.success_count, "")
        self.add_row(f"{label}: p50", tally.compute_percentile(50), "ms")
        self.add_row(f"{label}: p99", tally.compute_percentile(99), "ms", max_p99)


class SoakRun:
    def __init__(self, gateway: Process, service: Service, report: Report) -> None:
        self.gateway = gateway
        self.service = service
        self.report = report

    def run_clients(self, merchant: str, clients: int, pause: float = 0.0) -> LoadClients:
        return LoadClients(self.gateway.port, f"{merchant}-api-key", clients, pause=pause)

    def read_memory_bytes(self) -> int:
        pages = Path(f"/proc/{self.gateway.process.pid}/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()

    async def run_calm(self) -> None:
        async with self.run_clients("quick", 8, 0.01) as tally:
            await asyncio.sleep(3)
        self.report.add_tally("calm", tally)
        self.report.add_row(
            "calm: not answered", tally.statuses.total() - tally.success_count, "", 0
        )

    async def run_crowd(self) -> None:
        """Opens 4,000 silent and 1,500 slow connections while other clients work."""
        idle_connections = IdleConnections(self.gateway.port)
        slow_head = b"GET /v1/recipients HTTP/1.1\r\nHost: gateway\r\nX-"
        slow_body = (
            b"POST /v1/recipients HTTP/1.1\r\nHost: gateway\r\nX-API-Key: slow-api-key\r\n"
            b"Content-Length: 100000\r\n\r\n{"
        )
        first_bytes = [b""] * IDLE_COUNT + [slow_head] * (SLOW_COUNT - 100) + [slow_body] * 100
        async with self.run_clients("quick", 8, 0.01) as tally:
            start_time = time.monotonic()
            await idle_connections.connect(first_bytes)
            self.report.add_row("crowd: 5,500 have come", time.monotonic() - start_time, "s")
            close_seconds = await idle_connections.wait_until_closed(3 * SHED_SECONDS)
        idle_connections.disconnect()
        self.report.add_row("crowd: all of it shed", close_seconds, "s", SHED_SECONDS)
        self.report.add_tally("crowd, others meanwhile", tally, 3000)
        self.report.add_row(
            "crowd, others: not answered", tally.statuses.total() - tally.success_count, "", 0
        )

    async def run_overload(self) -> None:
        """One merchant sends 400 requests of 1 s at once; another continues."""
        self.service.slow[ACCESS_KEYS["slow"]] = 1.0
        request_count_before = self.service.request_counts[ACCESS_KEYS["slow"]]
        async with (
            self.run_clients("slow", 400) as slow_tally,
            self.run_clients("quick", 8, 0.01) as quick_tally,
        ):
            await asyncio.sleep(6)
        sent_count = self.service.request_counts[ACCESS_KEYS["slow"]] - request_count_before
        self.service.slow.clear()
        start_time = time.monotonic()
        while await self._seconds_of("slow") > 0.5:
            await asyncio.sleep(0.05)
        self.report.add_row("overload: the merchant's shed", slow_tally.statuses[500], "")
        self.report.add_row(
            "overload: neither answered nor told when to come", slow_tally.neither_count, "", 0
        )
        # Some were in flight when their clients disconnected.
        self.report.add_row(
            "overload: sent and not answered", sent_count - slow_tally.success_count, "", 64
        )
        self.report.add_tally("overload, another merchant", quick_tally, 3000)
        self.report.add_row(
            "overload, another: not answered",
            quick_tally.statuses.total() - quick_tally.success_count,
            "",
            0,
        )
        self.report.add_row(
            "overload: recovered after its end", time.monotonic() - start_time, "s", 5
        )

    async def run_large_bodies(self) -> None:
        """Announces a thousand bodies of a megabyte at once and sends a quarter of each."""
        idle_connections, bytes_before = (
            IdleConnections(self.gateway.port),
            self.read_memory_bytes(),
        )
        head = (
            f"POST /v1/recipients HTTP/1.1\r\nHost: gateway\r\nX-API-Key: slow-api-key\r\n"
            f"Content-Length: {MEGABYTE}\r\n\r\n"
        ).encode()
        peak_bytes = bytes_before
        async with self.run_clients("quick", 4, 0.01) as tally:
            connect_task = asyncio.ensure_future(
                idle_connections.connect([head + b" " * (MEGABYTE // 4)] * LARGE_BODY_COUNT)
            )
            while not connect_task.done():
                peak_bytes = max(peak_bytes, self.read_memory_bytes())
                await asyncio.sleep(0.05)
            for _ in range(40):
                peak_bytes = max(peak_bytes, self.read_memory_bytes())
                await asyncio.sleep(0.05)
        idle_connections.disconnect()
        growth_megabytes = (peak_bytes - bytes_before) / MEGABYTE
        self.report.add_row(
            "bodies: memory grew by",
            growth_megabytes,
            "MB",
            (MAX_HELD_BODY_BYTES + SPARE_MEMORY) / MEGABYTE,
        )
        self.report.add_tally("bodies, others meanwhile", tally, 3000)

    async def run_silence(self) -> None:
        """Stops the service for some seconds."""
        while await self._seconds_of("quick") > 0.5:
            await asyncio.sleep(0.05)
        self.service.close()
        async with self.run_clients("quick", 8) as tally:
            await asyncio.sleep(3)
        refusal_seconds = min([await self._seconds_of("quick") for _ in range(5)])
        await self.service.open()
        start_time = time.monotonic()
        while await self._status("quick") != 200:
            await asyncio.sleep(0.05)
        self.report.add_row(
            "silence: told to come again", tally.statuses[500] - tally.without_wait, ""
        )
        self.report.add_row("silence: a refusal takes", 1000 * refusal_seconds, "ms", 500)
        recovery_seconds = time.monotonic() - start_time
        self.report.add_row(
            "silence: recovered after its end", recovery_seconds, "s", BREAKER_SECONDS + 3
        )

    async def _seconds_of(self, merchant: str) -> float:
        start_time = time.monotonic()
        await self._status(merchant)
        return time.monotonic() - start_time

    async def _status(self, merchant: str) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway.port)
        try:
            writer.write(self.run_clients(merchant, 0)._data)
            return (await read_response(reader))[0]
        finally:
            writer.close()


@asynccontextmanager
async def start_gateway(service: Service) -> AsyncIterator[Process]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "gateway.toml").write_text(CONFIGURATION.format(port=service.port))
        lines = [
            {
                "merchant": merchant,
                "environment": "sandbox",
                "api_key": f"{merchant}-api-key",
                "access_key": key,
                "secret_key": f"{merchant}-secret",
            }
            for merchant, key in ACCESS_KEYS.items()
        ]
        stdin = "\n".join(map(json.dumps, lines))
        await asyncio.to_thread(
            run_installed_command, "keys", "import", "-", folder=folder, stdin=stdin, seconds=60
        )
        async with contestant_processes.run_gateway(folder) as gateway:
            yield gateway


async def run_soak(seconds: float) -> list[str]:
    end_time, service, report = time.monotonic() + seconds, Service(), Report()
    await service.open()
    async with start_gateway(service) as gateway:
        run = SoakRun(gateway, service, report)
        memory_after_rounds: list[float] = []
        while not memory_after_rounds or time.monotonic() < end_time - (1 - FAULT_SHARE) * seconds:
            for run_part in (
                run.run_calm,
                run.run_crowd,
                run.run_overload,
                run.run_large_bodies,
                run.run_silence,
            ):
                await run_part()
            memory_after_rounds.append(run.read_memory_bytes() / MEGABYTE)
            # Caches are full after the first round.
            report.add_row(
                "memory after this round",
                memory_after_rounds[-1],
                "MB",
                1.3 * memory_after_rounds[0] + 64,
            )
        code = await gateway.stop()
        report.add_row("exit code", code, "", 0)
    service.close()
    await run_steady(max(end_time - time.monotonic(), MIN_STEADY_SECONDS), report)
    return report.exceeded_rows


def main() -> None:
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (min(hard_limit, 65536) if hard_limit > 0 else 65536, hard_limit)
    )
    seconds = float(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("SECONDS", "60"))
    if exceeded_rows := asyncio.run(run_soak(seconds)):
        print("out of bounds: " + "; ".join(dict.fromkeys(exceeded_rows)))
        sys.exit(1)


if __name__ == "__main__":
    main()
