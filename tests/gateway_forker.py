"""Forks gateways that tests start, kill and advance in time: ``python -m tests.gateway_forker``.

It reads a line of JSON on standard input for each gateway and forks it, so that modules are imported only
once. SIGUSR1 advances a gateway's monotonic clock by a minute, so that no test has to wait for the time after
which a stamp is refused; the product has no such signal.

    {"name", "settings": {sections}, "lease_seconds"?, "skew_seconds"?, "kill_point"?}   requests a gateway
    {"name", "pid", "port"}                             it accepts connections
    {"name", "pid", "code"}                             it has ended; code is negative for a signal
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import select
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from gateway.config.settings import Settings
from tests.kill_points import install_kill_point
from tests.running_gateway import configure_logging, open_gateway, run_until_shutdown

POLL_SECONDS = 0.02
AHEAD_SECONDS = 60.0


def write_event(event: dict[str, Any]) -> None:
    os.write(
        1, json.dumps(event).encode() + b"\n"
    )  # one write, because several processes share the pipe


async def run_forked_gateway(order: dict[str, Any]) -> None:
    ahead = [0.0]

    def advance_clock() -> None:
        ahead[0] += AHEAD_SECONDS

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, advance_clock)
    settings = Settings(**order["settings"])
    await run_until_shutdown(
        settings,
        lambda running: write_event(
            {"name": order["name"], "pid": os.getpid(), "port": running.port}
        ),
        monotonic=lambda: time.monotonic() + ahead[0],
        lease_seconds=order.get("lease_seconds"),
        wall_clock=lambda: time.time() + order.get("skew_seconds", 0.0),
    )


def run_child(order: dict[str, Any]) -> None:
    code = 1
    try:
        if "kill_point" in order:
            install_kill_point(order["kill_point"], Path(order["log"]).with_name("armed"))
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        configure_logging()
        uvloop.run(run_forked_gateway(order))
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)  # run no exit handlers of the parent


def warm_up() -> None:
    """Runs one gateway, so that children inherit what a process initialises once."""

    async def run_once() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with open_gateway(Path(folder), "http://127.0.0.1:1") as gateway:
                await gateway.request("GET", "/v1/recipients")

    uvloop.run(run_once())
    gc.collect()
    gc.freeze()  # a collection would write to, and so copy, shared pages
    gc.disable()


def main() -> None:
    configure_logging()
    warm_up()
    names: dict[int, str] = {}
    waiting = b""
    while True:
        with contextlib.suppress(ChildProcessError):
            while (exit_status := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                pid, status = exit_status
                code = os.waitstatus_to_exitcode(status)
                write_event({"name": names.pop(pid), "pid": pid, "code": code})
        if not select.select([0], [], [], POLL_SECONDS)[0]:
            continue
        data = os.read(0, 65536)
        if not data:
            break
        *lines, waiting = (waiting + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            if (pid := os.fork()) == 0:
                run_child(order)
            names[pid] = order["name"]
    for pid in names:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
