"""Listening sockets: of the only process, or of workers that share a port."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from gateway.config.environment_variables import ENVIRONMENT_PREFIX
from gateway.config.settings import ConfigurationError, Settings

ACCEPT_BACKLOG = 1024
"""Connections that the kernel queues until they are accepted."""

_ADDRESS_UNAVAILABLE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""An address of the host name is not available on this machine, such as an IPv6 address."""


@dataclass(frozen=True, slots=True)
class WorkerPorts:
    """Where one of several workers listens: a port that it shares, and a Unix socket for pages."""

    port: int
    admin_socket: Path


def bind_sockets(
    host: str, port: int, variable: str, *, is_shared: bool = False
) -> list[socket.socket]:
    """Binds a socket for each address of a host; raises ConfigurationError.

    ``port`` 0 is any free port. ``variable`` is the setting of the port, for the error message.
    Other sockets can be bound to a shared port.
    """
    sockets: list[socket.socket] = []
    unavailable_error: OSError | None = None
    try:
        for family, address in _resolve_addresses(host, port):
            # IPv4 and IPv6 get the same port, also if the kernel selects it.
            bound_port = find_bound_port(sockets) if sockets else port
            try:
                sockets.append(
                    _bind_socket(
                        family, (address[0], bound_port, *address[2:]), is_shared=is_shared
                    )
                )
            except OSError as error:
                if error.errno not in _ADDRESS_UNAVAILABLE:
                    raise
                unavailable_error = error
        if unavailable_error and not sockets:
            raise unavailable_error
    except OSError as error:
        _close_sockets(sockets)
        reason = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        # Another port helps if this one is taken or privileged; otherwise the host is wrong.
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            variable = variable.replace("PORT", "HOST")
        problem = f"cannot listen on {host} port {port}: {reason}; {ENVIRONMENT_PREFIX}{variable} sets another"
        raise ConfigurationError([problem]) from None
    return sockets


def reserve_port(host: str, port: int, variable: str) -> list[socket.socket]:
    """Binds sockets that share their port with those of workers; raises ConfigurationError."""
    if port:
        # A shared port could be bound although another gateway listens there.
        _close_sockets(bind_sockets(host, port, variable))
    return bind_sockets(host, port, variable, is_shared=True)


def find_bound_port(sockets: Sequence[socket.socket]) -> int:
    return int(sockets[0].getsockname()[1])


CreateProtocol = Callable[[], asyncio.Protocol]
"""Creates the protocol of a new connection."""


class Listener:
    """Accepts connections from bound sockets; an async context manager."""

    def __init__(self, create_protocol: CreateProtocol, sockets: Sequence[socket.socket]) -> None:
        self._create_protocol = create_protocol
        self._sockets = sockets
        self._servers: list[asyncio.Server] = []
        self.port = find_bound_port(sockets)

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for bound_socket in self._sockets:
            self._servers.append(
                await loop.create_server(
                    self._create_protocol, sock=bound_socket, backlog=ACCEPT_BACKLOG
                )
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the sockets; connections that were not accepted are lost."""
        for server in self._servers:
            server.close()
        _close_sockets(self._sockets)


async def start_client_listener(
    stack: AsyncExitStack,
    settings: Settings,
    create_protocol: CreateProtocol,
    worker_ports: WorkerPorts | None,
) -> Listener:
    host, port = settings.server.host, worker_ports.port if worker_ports else settings.server.port
    sockets = bind_sockets(host, port, "SERVER__PORT", is_shared=worker_ports is not None)
    return await stack.enter_async_context(Listener(create_protocol, sockets))


async def start_admin_listener(
    stack: AsyncExitStack,
    settings: Settings,
    create_protocol: CreateProtocol,
    worker_ports: WorkerPorts | None,
) -> int:
    """Starts accepting requests for the admin pages; returns the port."""
    server = settings.server
    if worker_ports:
        unix_server = await asyncio.get_running_loop().create_unix_server(
            create_protocol, str(worker_ports.admin_socket)
        )
        stack.callback(unix_server.close)
        return server.admin_port
    sockets = bind_sockets(server.admin_host, server.admin_port, "SERVER__ADMIN_PORT")
    return (await stack.enter_async_context(Listener(create_protocol, sockets))).port


def _resolve_addresses(host: str, port: int) -> list[tuple[int, tuple[Any, ...]]]:
    address_infos = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    # Duplicates are removed: /etc/hosts often lists a name twice, and the second bind would fail.
    return list(dict.fromkeys((family, address) for family, _, _, _, address in address_infos))


def _bind_socket(family: int, address: tuple[Any, ...], *, is_shared: bool) -> socket.socket:
    new_socket = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Otherwise a restart fails while connections of the previous process are in TIME_WAIT.
        new_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            new_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # IPv4 addresses have their own sockets, with which a dual-stack socket would conflict.
        if family == socket.AF_INET6:
            new_socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        new_socket.bind(address)
    except OSError:
        new_socket.close()
        raise
    return new_socket


def _close_sockets(sockets: Sequence[socket.socket]) -> None:
    for bound_socket in sockets:
        bound_socket.close()
