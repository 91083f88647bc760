"""``python -m tests.bench.delay_gateway``: runs a gateway with a task that measures event loop delays.

In the folder of a ``gateway.toml``. A line on its standard input has it print for how many milliseconds
its loop was held at most since the last one: by the processor's time that the process used meanwhile,
and by the clock, which also counts what other processes of the machine did.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import uvloop

from gateway.cli.serve import announce_start
from gateway.config.settings import load_settings
from gateway.observability import logs
from gateway.server.app import run_gateway
from gateway.server.process import install_shutdown_event, tune_garbage_collector_and_malloc

TICK = 0.001


class DelayTask:
    def __init__(self) -> None:
        self.held_seconds = 0.0
        self.wall_seconds = 0.0

    async def tick(self) -> None:
        last_tick, last_cpu_seconds = time.perf_counter(), time.process_time()
        while True:
            await asyncio.sleep(TICK)
            current_time, cpu_seconds = time.perf_counter(), time.process_time()
            gap = current_time - last_tick - TICK
            self.wall_seconds = max(self.wall_seconds, gap)
            self.held_seconds = max(self.held_seconds, min(gap, cpu_seconds - last_cpu_seconds))
            last_tick, last_cpu_seconds = current_time, cpu_seconds

    def report_delays(self) -> None:
        print(
            json.dumps({"held": 1000 * self.held_seconds, "clock": 1000 * self.wall_seconds}),
            flush=True,
        )
        self.held_seconds = self.wall_seconds = 0.0


async def serve() -> None:
    shutdown_event, delay_task, loop = (
        install_shutdown_event(),
        DelayTask(),
        asyncio.get_running_loop(),
    )
    logs.configure_logging()
    async with run_gateway(load_settings(Path("gateway.toml"))) as running:
        tune_garbage_collector_and_malloc()
        tick_task = asyncio.ensure_future(delay_task.tick())

        def report_on_request() -> None:
            if not os.read(sys.stdin.fileno(), 1024):
                loop.remove_reader(sys.stdin.fileno())
            delay_task.report_delays()

        loop.add_reader(sys.stdin.fileno(), report_on_request)
        announce_start(running.url, running.admin_url)
        await shutdown_event.wait()
        tick_task.cancel()


if __name__ == "__main__":
    uvloop.run(serve())
