"""Listening sockets, bound here or inherited from the supervisor."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable, Sequence
from typing import Any

from aiohttp import web

from gateway.config.settings import ENVIRONMENT_PREFIX, Misconfigured

WAITING = 1024
"""Connections that the kernel queues until they are accepted."""

_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""An address of the host name is not available on this machine, such as an IPv6 address."""

Queue = Sequence[socket.socket]
"""A listening socket for each address of a host.

The kernel distributes the connections of a port among its queues.
"""


def bind_sockets(host: str, port: int, variable: str, queues: int = 1) -> list[Queue]:
    """Bind a port and return its queues; raises ConfigurationError.

    ``port`` 0 is any free port. ``variable`` is the setting of the port, for the error message.
    """
    shared = queues > 1 and hasattr(socket, "SO_REUSEPORT")
    made: list[Queue] = []
    try:
        if shared and port:
            # With SO_REUSEPORT alone, binding would succeed although another gateway has the port.
            _close(_queue(host, port, shared=False))
        for _ in range(queues if shared else 1):
            made.append(_queue(host, find_bound_port(made) if made else port, shared=shared))
    except OSError as error:
        for one in made:
            _close(one)
        why = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        told = f"cannot listen on {host} port {port}: {why}; {ENVIRONMENT_PREFIX}{variable} sets another"
        raise Misconfigured([told]) from None
    return made


def find_bound_port(queues: Sequence[Queue]) -> int:
    return int(queues[0][0].getsockname()[1])


class Listening:
    """Accepts connections from some queues of a port, for an aiohttp runner that is set up.

    It accepts from duplicates of the sockets, because aiohttp closes a socket when it stops a site.
    """

    def __init__(self, runner: web.BaseRunner, queues: Sequence[Queue]) -> None:
        self._runner = runner
        self._queues = queues
        self._sites: dict[int, list[web.SockSite]] = {}

    @property
    def port(self) -> int:
        return find_bound_port(self._queues)

    async def at(self, numbers: Iterable[int]) -> None:
        """Accept connections only from the queues with these numbers."""
        wanted = set(numbers)
        for number in wanted - self._sites.keys():
            self._sites[number] = [
                web.SockSite(self._runner, one.dup(), backlog=WAITING)
                for one in self._queues[number]
            ]
            for site in self._sites[number]:
                await site.start()
        for number in self._sites.keys() - wanted:
            for site in self._sites.pop(number):
                await site.stop()

    async def end(self) -> None:
        """Close this process's sockets; connections still queued are lost if no other has them."""
        await self.at(())
        for queue in self._queues:
            _close(queue)


def _queue(host: str, port: int, *, shared: bool) -> Queue:
    made: list[socket.socket] = []
    failed: OSError | None = None
    for family, address in _addresses(host, port):
        at = find_bound_port([made]) if made else port
        try:
            made.append(_listening(family, (address[0], at, *address[2:]), shared=shared))
        except OSError as error:
            if error.errno not in _NOT_HERE:
                _close(made)
                raise
            failed = error
    if failed and not made:
        raise failed
    return made


def _addresses(host: str, port: int) -> list[tuple[int, tuple[Any, ...]]]:
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _listening(family: int, address: tuple[Any, ...], *, shared: bool) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # IPv4 addresses have their own sockets, with which a dual-stack socket would conflict.
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.listen(WAITING)
    except OSError:
        made.close()
        raise
    return made


def _close(queue: Queue) -> None:
    for one in queue:
        one.close()
