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

from tests.processes import Process, run_installed_command, run_serve
from tests.soak.clients import IdleConnections, LoadClients, Tally, read_response
from tests.soak.service import Service
from tests.soak.steady import run_steady

IDLE, SLOW = 4000, 1500
SHED_SECONDS = 15
BIG, MEGABYTE = 1000, 1024 * 1024
MAX_HELD_BODY_BYTES = 256 * MEGABYTE
SPARE_MEMORY = 192 * MEGABYTE
"""Bytes for connections and requests in flight, besides bodies."""

FAULTS = 0.25
"""Share of the time with crowds, overload and a silent service; each happens at least once."""

LEAST_STEADY = 10
"""Seconds."""

BREAKER_SECONDS = 2
PEOPLE = {"quick": "QUICKACCESSKEY", "slow": "SLOWACCESSKEY"}

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
        self.broken: list[str] = []
        print(f"{'what':<58}{'measured':>14}  bound")

    def add_row(
        self, what: str, measured: float | None, unit: str, most: float | None = None
    ) -> None:
        told = "not in time" if measured is None else f"{measured:,.1f} {unit}"
        bound = "" if most is None else f"at most {most:g} {unit}"
        is_broken = most is not None and (measured is None or not measured <= most)
        print(f"{what:<58}{told:>14}  {bound}{'  BROKEN' if is_broken else ''}", flush=True)
        if is_broken:
            self.broken.append(what)

    def add_tally(self, who: str, tally: Tally, most: float | None = None) -> None:
        self.add_row(f"{who}: answered", tally.answered, "")
        self.add_row(f"{who}: p50", tally.compute_percentile(50), "ms")
        self.add_row(f"{who}: p99", tally.compute_percentile(99), "ms", most)


class SoakRun:
    def __init__(self, gateway: Process, service: Service, report: Report) -> None:
        self.gateway = gateway
        self.service = service
        self.report = report

    def run_clients(self, who: str, clients: int, pause: float = 0.0) -> LoadClients:
        return LoadClients(self.gateway.port, f"{who}-api-key", clients, pause=pause)

    def read_memory_bytes(self) -> int:
        pages = Path(f"/proc/{self.gateway.process.pid}/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()

    async def run_calm(self) -> None:
        async with self.run_clients("quick", 8, 0.01) as tally:
            await asyncio.sleep(3)
        self.report.add_tally("calm", tally)
        self.report.add_row("calm: not answered", tally.statuses.total() - tally.answered, "", 0)

    async def run_crowd(self) -> None:
        """Opens 4,000 silent and 1,500 slow connections while other clients work."""
        crowd = IdleConnections(self.gateway.port)
        slow_head = b"GET /v1/recipients HTTP/1.1\r\nHost: gateway\r\nX-"
        slow_body = (
            b"POST /v1/recipients HTTP/1.1\r\nHost: gateway\r\nX-API-Key: slow-api-key\r\n"
            b"Content-Length: 100000\r\n\r\n{"
        )
        saying = [b""] * IDLE + [slow_head] * (SLOW - 100) + [slow_body] * 100
        async with self.run_clients("quick", 8, 0.01) as tally:
            began = time.monotonic()
            await crowd.connect(saying)
            self.report.add_row("crowd: 5,500 have come", time.monotonic() - began, "s")
            gone = await crowd.wait_until_closed(3 * SHED_SECONDS)
        crowd.disconnect()
        self.report.add_row("crowd: all of it shed", gone, "s", SHED_SECONDS)
        self.report.add_tally("crowd, others meanwhile", tally, 3000)
        self.report.add_row(
            "crowd, others: not answered", tally.statuses.total() - tally.answered, "", 0
        )

    async def run_overload(self) -> None:
        """One merchant sends 400 requests of 1 s at once; another continues."""
        self.service.slow[PEOPLE["slow"]] = 1.0
        before = self.service.request[PEOPLE["slow"]]
        async with (
            self.run_clients("slow", 400) as slow,
            self.run_clients("quick", 8, 0.01) as quick,
        ):
            await asyncio.sleep(6)
        asked = self.service.request[PEOPLE["slow"]] - before
        self.service.slow.clear()
        began = time.monotonic()
        while await self._seconds_of("slow") > 0.5:
            await asyncio.sleep(0.05)
        self.report.add_row("overload: the merchant's shed", slow.statuses[500], "")
        self.report.add_row("overload: neither answered nor told when to come", slow.others, "", 0)
        # Some were in flight when their clients disconnected.
        self.report.add_row("overload: sent and not answered", asked - slow.answered, "", 64)
        self.report.add_tally("overload, another merchant", quick, 3000)
        self.report.add_row(
            "overload, another: not answered", quick.statuses.total() - quick.answered, "", 0
        )
        self.report.add_row("overload: recovered after its end", time.monotonic() - began, "s", 5)

    async def run_large_bodies(self) -> None:
        """Announces a thousand bodies of a megabyte at once and sends a quarter of each."""
        crowd, before = IdleConnections(self.gateway.port), self.read_memory_bytes()
        head = (
            f"POST /v1/recipients HTTP/1.1\r\nHost: gateway\r\nX-API-Key: slow-api-key\r\n"
            f"Content-Length: {MEGABYTE}\r\n\r\n"
        ).encode()
        most = before
        async with self.run_clients("quick", 4, 0.01) as tally:
            coming = asyncio.ensure_future(crowd.connect([head + b" " * (MEGABYTE // 4)] * BIG))
            while not coming.done():
                most = max(most, self.read_memory_bytes())
                await asyncio.sleep(0.05)
            for _ in range(40):
                most = max(most, self.read_memory_bytes())
                await asyncio.sleep(0.05)
        crowd.disconnect()
        grown = (most - before) / MEGABYTE
        self.report.add_row(
            "bodies: memory grew by", grown, "MB", (MAX_HELD_BODY_BYTES + SPARE_MEMORY) / MEGABYTE
        )
        self.report.add_tally("bodies, others meanwhile", tally, 3000)

    async def run_silence(self) -> None:
        """Stops the service for some seconds."""
        while await self._seconds_of("quick") > 0.5:
            await asyncio.sleep(0.05)
        self.service.close()
        async with self.run_clients("quick", 8) as tally:
            await asyncio.sleep(3)
        refused = min([await self._seconds_of("quick") for _ in range(5)])
        await self.service.open()
        began = time.monotonic()
        while await self._status("quick") != 200:
            await asyncio.sleep(0.05)
        self.report.add_row(
            "silence: told to come again", tally.statuses[500] - tally.without_wait, ""
        )
        self.report.add_row("silence: a refusal takes", 1000 * refused, "ms", 500)
        back = time.monotonic() - began
        self.report.add_row("silence: recovered after its end", back, "s", BREAKER_SECONDS + 3)

    async def _seconds_of(self, who: str) -> float:
        began = time.monotonic()
        await self._status(who)
        return time.monotonic() - began

    async def _status(self, who: str) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway.port)
        try:
            writer.write(self.run_clients(who, 0)._data)
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
                "merchant": who,
                "environment": "sandbox",
                "api_key": f"{who}-api-key",
                "access_key": key,
                "secret_key": f"{who}-secret",
            }
            for who, key in PEOPLE.items()
        ]
        stdin = "\n".join(map(json.dumps, lines))
        await asyncio.to_thread(
            run_installed_command, "keys", "import", "-", folder=folder, stdin=stdin, seconds=60
        )
        async with run_serve(folder, seconds=60) as gateway:
            yield gateway


async def run_soak(seconds: float) -> list[str]:
    end, service, report = time.monotonic() + seconds, Service(), Report()
    await service.open()
    async with start_gateway(service) as gateway:
        run = SoakRun(gateway, service, report)
        after: list[float] = []
        while not after or time.monotonic() < end - (1 - FAULTS) * seconds:
            for part in (
                run.run_calm,
                run.run_crowd,
                run.run_overload,
                run.run_large_bodies,
                run.run_silence,
            ):
                await part()
            after.append(run.read_memory_bytes() / MEGABYTE)
            # Caches are full after the first round.
            report.add_row("memory after this round", after[-1], "MB", 1.3 * after[0] + 64)
        code = await gateway.stop()
        report.add_row("exit code", code, "", 0)
    service.close()
    await run_steady(max(end - time.monotonic(), LEAST_STEADY), report)
    return report.broken


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536) if hard > 0 else 65536, hard))
    seconds = float(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("SECONDS", "60"))
    if broken := asyncio.run(run_soak(seconds)):
        print("out of bounds: " + "; ".join(dict.fromkeys(broken)))
        sys.exit(1)


if __name__ == "__main__":
    main()
