"""Free memory is returned to the system, even below objects in use."""

from __future__ import annotations

import asyncio
import platform
import subprocess
import sys
from pathlib import Path

from tests.running_gateway import open_gateway

MEGABYTES = 40

FRAGMENTING_SCRIPT = f"""
import resource
from gateway.server.process import trim_malloc, tune_garbage_collector_and_malloc

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()

tune_garbage_collector_and_malloc()
crowd = [bytes(4000) for _ in range({MEGABYTES * 250})]
above = bytes(4000)
del crowd
before = resident()
trim_malloc()
print(before - resident())
"""


def test_free_memory_below_live_objects_is_returned() -> None:
    if sys.platform != "linux":
        return  # it cannot be measured there; trim_malloc does what the platform allows
    result = subprocess.run(
        [sys.executable, "-c", FRAGMENTING_SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    if platform.libc_ver()[0] == "glibc":
        assert int(result.stdout) > MEGABYTES / 2 * 1_000_000


async def test_running_gateway_trims_heap_periodically(tmp_path: Path) -> None:
    async with open_gateway(tmp_path, "http://127.0.0.1:1"):
        assert "heap_trim" in {task.get_name() for task in asyncio.all_tasks()}
