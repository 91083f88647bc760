"""A worker: ``python -m gateway.server.workers``, started only by the parent process."""

import asyncio
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog
import uvloop

from gateway.config.settings import ConfigurationError, load_settings
from gateway.observability import logs
from gateway.server.app import run_process
from gateway.server.listener import WorkerPorts
from gateway.server.workers.supervisor import WorkerStart
from gateway.storage import StoreUnavailable

log = structlog.get_logger()

START_FAILED_EXIT_CODE = 2

LOG_FIELDS: dict[str, Any] = {"process.pid": os.getpid()}
"""The fields of every log line of this worker."""


async def run_worker() -> int:
    """Serves until a signal or the parent's exit; returns the exit code."""
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=sys.stdin.fileno()))
    start = WorkerStart(**json.loads(await reader.readline()))
    try:
        settings = load_settings(Path(start.config_file) if start.config_file else None)
        logs.configure_logging(
            level=settings.logs.level, line_format=settings.logs.format, **LOG_FIELDS
        )
        ports = WorkerPorts(start.port, Path(start.admin_socket))
        async with run_process(settings, ports) as (_gateway, stop_event):
            writer.write(b"null\n")
            parent_task = asyncio.ensure_future(_stop_if_parent_exits(reader, stop_event))
            await stop_event.wait()
            parent_task.cancel()
    except (ConfigurationError, StoreUnavailable) as error:
        writer.write(json.dumps(str(error)).encode() + b"\n")
        return START_FAILED_EXIT_CODE
    finally:
        writer.close()
    return 0


async def _stop_if_parent_exits(reader: asyncio.StreamReader, stop_event: asyncio.Event) -> None:
    # After an error, too: a parent that died during the start leaves one.
    with suppress(ConnectionError):
        await reader.read()
    if not stop_event.is_set():
        log.error(
            "parent_process_lost", reason="this worker shuts down after its requests in flight"
        )
        stop_event.set()


def main() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is a certificate to load again
    # Until the settings are read, for a crash before that.
    logs.configure_logging(**LOG_FIELDS)
    sys.exit(uvloop.run(run_worker()))


if __name__ == "__main__":
    main()
