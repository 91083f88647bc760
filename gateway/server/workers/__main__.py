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

from gateway.admin.session import adopt_session_secret
from gateway.config.settings import ConfigurationError, load_settings
from gateway.observability import logs
from gateway.server.app import RunningGateway, run_gateway
from gateway.server.http_server import SHUTDOWN_IDLE_SECONDS
from gateway.server.listener import InheritedSockets
from gateway.server.memory_tuning import tune_garbage_collector_and_malloc
from gateway.server.shutdown import ProcessLifetime, install_shutdown_event
from gateway.server.workers.worker_config import WorkerConfig, encode_message
from gateway.storage import StoreUnavailable

log = structlog.get_logger()

START_FAILED_EXIT_CODE = 2

LOG_FIELDS: dict[str, Any] = {"process.pid": os.getpid()}
"""The fields of every log line of this worker."""


async def run_worker(worker_config: WorkerConfig) -> int:
    """Serves until a signal or the supervisor's message; returns the exit code."""
    shutdown_requested, lifetime = install_shutdown_event(), ProcessLifetime()
    parent_socket = socket.socket(fileno=worker_config.parent_fd)
    reader, writer = await asyncio.open_connection(sock=parent_socket)
    accept_queues = [
        [socket.socket(fileno=socket_fd) for socket_fd in queue_fds]
        for queue_fds in worker_config.socket_fds
    ]
    adopt_session_secret(bytes.fromhex(json.loads(await reader.readline())["session_secret"]))
    try:
        settings = load_settings(worker_config.config_path)
        logs.configure_logging(
            level=settings.logs.level, line_format=settings.logs.format, **LOG_FIELDS
        )
        async with run_gateway(
            settings,
            InheritedSockets(
                accept_queues, worker_config.queue_numbers, Path(worker_config.admin_socket)
            ),
        ) as gateway:
            # Done before the worker is announced, because freezing the objects of the start takes
            # time.
            tune_garbage_collector_and_malloc()
            writer.write(encode_message(accepts=True))
            lifetime.log_startup_complete(url=gateway.url)
            await _serve_until_stopped(shutdown_requested, reader, gateway, lifetime)
    except (ConfigurationError, StoreUnavailable) as error:
        writer.write(encode_message(failed=str(error)))
        return START_FAILED_EXIT_CODE
    finally:
        writer.close()
    lifetime.log_shutdown_complete()
    return 0


async def _serve_until_stopped(
    shutdown_requested: asyncio.Event,
    reader: asyncio.StreamReader,
    gateway: RunningGateway,
    lifetime: ProcessLifetime,
) -> None:
    """Waits for a signal, the supervisor's exit, or the end of a retirement; drains connections."""
    shutdown_task = asyncio.ensure_future(shutdown_requested.wait())
    message_task = asyncio.ensure_future(_handle_supervisor_messages(reader, gateway))
    try:
        await asyncio.wait({shutdown_task, message_task}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        shutdown_task.cancel()
        message_task.cancel()
    lifetime.record_shutdown_start(requests_left=gateway.pending_request_count)
    await gateway.retire(SHUTDOWN_IDLE_SECONDS)


async def _handle_supervisor_messages(
    reader: asyncio.StreamReader, gateway: RunningGateway
) -> None:
    while line := await reader.readline():
        message = json.loads(line)
        if message.get("retire"):
            await gateway.retire()
            return
        await gateway.listener.set_accepted_queues(message["queues"])
    log.error("parent_process_lost", reason="this worker shuts down after its requests in flight")


def main() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # only the supervisor handles it
    # Until the settings are read, for a crash before that.
    logs.configure_logging(**LOG_FIELDS)
    sys.exit(uvloop.run(run_worker(WorkerConfig.parse_json(sys.argv[1]))))


if __name__ == "__main__":
    main()
