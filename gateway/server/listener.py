"""Listening sockets, bound here or inherited from the supervisor."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.config.settings import ENVIRONMENT_PREFIX, ConfigurationError, Settings

ACCEPT_BACKLOG = 1024
"""Connections that the kernel queues until they are accepted."""

_ADDRESS_UNAVAILABLE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""An address of the host name is not available on this machine, such as an IPv6 address."""

AcceptQueue = Sequence[socket.socket]
"""A listening socket for each address of a host.

The kernel distributes the connections of a port among its queues.
"""


@dataclass(frozen=True, slots=True)
class InheritedSockets:
    """The sockets that a worker inherits from the supervisor.

    It accepts clients from some of the port's queues, and the supervisor's admin requests at a Unix
    socket.
    """

    accept_queues: Sequence[AcceptQueue]
    queue_numbers: Sequence[int]
    admin_socket: Path


def bind_accept_queues(
    host: str, port: int, variable: str, queue_count: int = 1
) -> list[AcceptQueue]:
    """Binds a port and returns its queues; raises ConfigurationError.

    ``port`` 0 is any free port. ``variable`` is the setting of the port, for the error message.
    """
    uses_reuseport = queue_count > 1 and hasattr(socket, "SO_REUSEPORT")
    bound_queues: list[AcceptQueue] = []
    try:
        if uses_reuseport and port:
            # With SO_REUSEPORT alone, binding would succeed although another gateway has the port.
            _close_queue(_open_accept_queue(host, port, uses_reuseport=False))
        for _ in range(queue_count if uses_reuseport else 1):
            bound_queues.append(
                _open_accept_queue(
                    host,
                    # All queues need the port that the kernel selected for the first one.
                    find_bound_port(bound_queues) if bound_queues else port,
                    uses_reuseport=uses_reuseport,
                )
            )
    except OSError as error:
        for queue in bound_queues:
            _close_queue(queue)
        reason = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        problem = f"cannot listen on {host} port {port}: {reason}; {ENVIRONMENT_PREFIX}{variable} sets another"
        raise ConfigurationError([problem]) from None
    return bound_queues


def find_bound_port(queues: Sequence[AcceptQueue]) -> int:
    return int(queues[0][0].getsockname()[1])


CreateProtocol = Callable[[], asyncio.Protocol]
"""Creates the protocol of a new connection."""


class Listener:
    """Accepts connections from some queues of a port.

    It accepts from duplicates of the sockets, because the event loop closes a socket when it stops
    accepting from it.
    """

    def __init__(self, create_protocol: CreateProtocol, queues: Sequence[AcceptQueue]) -> None:
        self._create_protocol = create_protocol
        self._queues = queues
        self._servers: dict[int, list[asyncio.Server]] = {}

    @property
    def port(self) -> int:
        return find_bound_port(self._queues)

    async def set_accepted_queues(self, numbers: Iterable[int]) -> None:
        """Accepts connections only from the queues with these numbers."""
        wanted_numbers = set(numbers)
        # New queues first, so that there is no moment in which nothing is accepted.
        loop = asyncio.get_running_loop()
        for number in wanted_numbers - self._servers.keys():
            self._servers[number] = [
                await loop.create_server(
                    self._create_protocol, sock=listening_socket.dup(), backlog=ACCEPT_BACKLOG
                )
                for listening_socket in self._queues[number]
            ]
        for number in self._servers.keys() - wanted_numbers:
            for server in self._servers.pop(number):
                server.close()

    async def close(self) -> None:
        """Closes this process's sockets; connections still queued are lost if no other has them."""
        await self.set_accepted_queues(())
        for queue in self._queues:
            _close_queue(queue)


async def start_client_listener(
    stack: AsyncExitStack,
    settings: Settings,
    create_protocol: CreateProtocol,
    inherited_sockets: InheritedSockets | None,
) -> Listener:
    """Starts accepting client connections, from the inherited sockets or from newly bound ones."""
    server = settings.server
    queues = (
        inherited_sockets.accept_queues
        if inherited_sockets
        else bind_accept_queues(server.host, server.port, "SERVER__PORT")
    )
    listener = Listener(create_protocol, queues)
    stack.push_async_callback(listener.close)
    await listener.set_accepted_queues(
        inherited_sockets.queue_numbers if inherited_sockets else [0]
    )
    return listener


async def start_admin_listener(
    stack: AsyncExitStack,
    settings: Settings,
    create_protocol: CreateProtocol,
    inherited_sockets: InheritedSockets | None,
) -> int:
    server = settings.server
    if inherited_sockets:
        unix_server = await asyncio.get_running_loop().create_unix_server(
            create_protocol, str(inherited_sockets.admin_socket)
        )
        stack.callback(unix_server.close)
        return server.admin_port
    listener = Listener(
        create_protocol,
        bind_accept_queues(server.admin_host, server.admin_port, "SERVER__ADMIN_PORT"),
    )
    stack.push_async_callback(listener.close)
    await listener.set_accepted_queues([0])
    return listener.port


def _open_accept_queue(host: str, port: int, *, uses_reuseport: bool) -> AcceptQueue:
    sockets: list[socket.socket] = []
    last_error: OSError | None = None
    for family, address in _resolve_addresses(host, port):
        # IPv4 and IPv6 get the same port, also if the kernel selects it.
        bound_port = find_bound_port([sockets]) if sockets else port
        try:
            sockets.append(
                _open_listening_socket(
                    family, (address[0], bound_port, *address[2:]), uses_reuseport=uses_reuseport
                )
            )
        except OSError as error:
            if error.errno not in _ADDRESS_UNAVAILABLE:
                _close_queue(sockets)
                raise
            last_error = error
    if last_error and not sockets:
        raise last_error
    return sockets


def _resolve_addresses(host: str, port: int) -> list[tuple[int, tuple[Any, ...]]]:
    address_infos = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    # Duplicates are removed: /etc/hosts often lists a name twice, and the second bind would fail.
    return list(dict.fromkeys((family, address) for family, _, _, _, address in address_infos))


def _open_listening_socket(
    family: int, address: tuple[Any, ...], *, uses_reuseport: bool
) -> socket.socket:
    listening_socket = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Otherwise a restart fails while connections of the previous process are in TIME_WAIT.
        listening_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if uses_reuseport:
            listening_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # IPv4 addresses have their own sockets, with which a dual-stack socket would conflict.
        if family == socket.AF_INET6:
            listening_socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening_socket.bind(address)
        listening_socket.listen(ACCEPT_BACKLOG)
    except OSError:
        listening_socket.close()
        raise
    return listening_socket


def _close_queue(queue: AcceptQueue) -> None:
    for listening_socket in queue:
        listening_socket.close()
