"""A worker: ``python -m gateway.server.workers CONFIG``, started only by the supervisor."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import structlog
import uvloop

from gateway.config.settings import Misconfigured, load
from gateway.observability import logs
from gateway.server.app import Inherited, Running, install_shutdown_event, run_gateway
from gateway.server.connection import END_SECONDS
from gateway.server.memory_tuning import tune_gc
from gateway.server.shutdown import Lifetime
from gateway.server.workers.worker_config import Orders, encode_message
from gateway.storage import StoreUnavailable

log = structlog.get_logger()

FAILED = 2


async def run_worker(orders: Orders) -> int:
    """Serve until a signal or the supervisor's message; return the exit code."""
    told, life = install_shutdown_event(), Lifetime()
    parent = socket.socket(fileno=orders.parent)
    hears, says = await asyncio.open_connection(sock=parent)
    door = [[socket.socket(fileno=one) for one in queue] for queue in orders.door]
    try:
        settings = load(orders.config_path)
        async with run_gateway(
            settings, Inherited(door, orders.queues, Path(orders.admin))
        ) as running:
            tune_gc()
            says.write(encode_message(accepts=True))
            await _until_told(told, hears, running, life)
    except (Misconfigured, StoreUnavailable) as error:
        says.write(encode_message(failed=str(error)))
        return FAILED
    finally:
        says.close()
    life.ended()
    return 0


async def _until_told(
    told: asyncio.Event, hears: asyncio.StreamReader, running: Running, life: Lifetime
) -> None:
    """Wait for a signal, the supervisor's exit, or a finished retirement; then drain connections."""
    ended = asyncio.ensure_future(told.wait())
    heard = asyncio.ensure_future(_hear(hears, running))
    try:
        await asyncio.wait({ended, heard}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended.cancel()
        heard.cancel()
    life.ends(requests_left=running.requests)
    await running.retire(END_SECONDS)


async def _hear(hears: asyncio.StreamReader, running: Running) -> None:
    while said := await hears.readline():
        told = json.loads(said)
        if told.get("retire"):
            await running.retire()
            return
        await running.door.at(told["queues"])
    log.error("parent_process_lost", reason="this worker shuts down after its requests in flight")


def main() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # only the supervisor handles it
    fields: dict[str, Any] = {"process.pid": os.getpid()}
    logs.configure_logging(**fields)
    sys.exit(uvloop.run(run_worker(Orders.read(sys.argv[1]))))


if __name__ == "__main__":
    main()
