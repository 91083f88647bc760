"""What is free goes back to the machine, also where it lies below what is in use."""

from __future__ import annotations

import asyncio
import platform
import subprocess
import sys
from pathlib import Path

from tests.house import open_house

MEGABYTES = 40

CROWD = f"""
import resource
from gateway.server.memory_tuning import trim_malloc, tune_gc

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()

tune_gc()
crowd = [bytes(4000) for _ in range({MEGABYTES * 250})]
above = bytes(4000)
del crowd
before = resident()
trim_malloc()
print(before - resident())
"""


def test_what_lies_below_something_in_use_goes_back_too() -> None:
    if sys.platform != "linux":
        return  # nothing tells it so there, and trim_malloc does what it can
    done = subprocess.run(
        [sys.executable, "-c", CROWD], capture_output=True, text=True, check=True, timeout=60
    )
    if platform.libc_ver()[0] == "glibc":
        assert int(done.stdout) > MEGABYTES / 2 * 1_000_000


async def test_a_running_gateway_gives_back_again_and_again(tmp_path: Path) -> None:
    async with open_house(tmp_path, "http://127.0.0.1:1"):
        assert "heap_trim" in {task.get_name() for task in asyncio.all_tasks()}
