"""Listening sockets: of the only process, or of workers that share a port."""

import asyncio
import errno
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from gateway.config.environment_variables import ENVIRONMENT_PREFIX
from gateway.config.settings import ConfigurationError, Settings

ACCEPT_BACKLOG = 1024
"""Connections that the kernel queues until they are accepted."""

CreateProtocol = Callable[[], asyncio.Protocol]
"""Creates the protocol of a new connection."""


@dataclass(frozen=True, slots=True)
class WorkerPorts:
    """Where one of several workers listens: a port that it shares, and a Unix socket for pages."""

    port: int
    admin_socket: Path


async def open_port(
    create_protocol: CreateProtocol,
    host: str,
    port: int,
    variable: str,
    *,
    is_shared: bool = False,
    accepts: bool = True,
) -> asyncio.Server:
    """Binds a port at each address of a host, and accepts connections; raises ConfigurationError.

    ``port`` 0 is any free port. ``variable`` is the setting of the port, for the error message.
    Other processes can open a shared port too.
    """
    try:
        return await asyncio.get_running_loop().create_server(
            create_protocol,
            host,
            port,
            backlog=ACCEPT_BACKLOG,
            reuse_port=is_shared or None,
            start_serving=accepts,
        )
    except OSError as error:
        # Not the library's text, which repeats the address. A host name has a code of its own.
        reason = os.strerror(error.errno or 0) if (error.errno or 0) > 0 else error.strerror
        if error.errno == errno.EADDRINUSE:
            reason = "it is in use"
        # Another port helps if this one is taken or privileged; otherwise the host is wrong.
        elif error.errno != errno.EACCES:
            variable = variable.replace("PORT", "HOST")
        problem = f"cannot listen on {host} port {port}: {reason}; {ENVIRONMENT_PREFIX}{variable} sets another"
        raise ConfigurationError([problem]) from None


async def reserve_port(host: str, port: int, variable: str) -> asyncio.Server:
    """Binds a port that workers share, without accepting connections; raises ConfigurationError."""
    if port:
        # A shared port could be bound although another gateway listens there.
        (await open_port(asyncio.Protocol, host, port, variable, accepts=False)).close()
    return await open_port(asyncio.Protocol, host, port, variable, is_shared=True, accepts=False)


def find_bound_port(server: asyncio.Server) -> int:
    return int(server.sockets[0].getsockname()[1])


async def start_client_listener(
    stack: AsyncExitStack,
    settings: Settings,
    create_protocol: CreateProtocol,
    worker_ports: WorkerPorts | None,
) -> asyncio.Server:
    host, port = settings.server.host, worker_ports.port if worker_ports else settings.server.port
    is_shared = worker_ports is not None
    server = await open_port(create_protocol, host, port, "SERVER__PORT", is_shared=is_shared)
    stack.callback(server.close)
    return server


async def start_admin_listener(
    stack: AsyncExitStack,
    settings: Settings,
    create_protocol: CreateProtocol,
    worker_ports: WorkerPorts | None,
) -> int:
    """Starts accepting requests for the admin pages; returns the port."""
    host, port = settings.server.admin_host, settings.server.admin_port
    if worker_ports:
        loop, path = asyncio.get_running_loop(), str(worker_ports.admin_socket)
        stack.callback((await loop.create_unix_server(create_protocol, path)).close)
        return port
    server = await open_port(create_protocol, host, port, "SERVER__ADMIN_PORT")
    stack.callback(server.close)
    return find_bound_port(server)
