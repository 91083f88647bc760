"""Whether a client has got what was written to its connection.

A client may go away while its answer is on the way: until its machine has acknowledged every byte,
the same request sent again is a retry, and not another request.
"""

from __future__ import annotations

import asyncio
import fcntl
import select
import struct
import termios

from aiohttp import web

FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.05
"""Seconds between two looks."""

_NOTHING = struct.pack("i", 0)
"""How many bytes are left to be acknowledged, as the system tells it."""


async def wait_until_acknowledged(
    transport: asyncio.Transport | None, beneath: asyncio.Transport | None = None
) -> bool:
    """Waits until all that was written was acknowledged; False where the connection ends before.

    ``beneath`` is what carries the transport where that speaks TLS: some may still be there.
    """
    pause = FIRST_PAUSE
    while transport is not None and not is_acknowledged(transport, beneath):
        if transport.is_closing():
            return False
        await asyncio.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE)
    return transport is not None


def is_client_disconnected(request: web.BaseRequest) -> bool:
    """Whether the client's end of the connection is closed, also if the loop has not read that yet.

    A process that was paused goes on where it was, before it hears of what happened meanwhile.
    """
    transport = request.transport
    connection = transport.get_extra_info("socket") if transport is not None else None
    if connection is None or connection.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


def is_acknowledged(
    transport: asyncio.Transport | None, beneath: asyncio.Transport | None = None
) -> bool:
    """Whether all that was written was; not of a connection whose socket is closed.

    A client that closes its side as soon as it has its answer has acknowledged it: that can be seen
    as long as this side's socket is open.
    """
    if transport is None or transport.get_write_buffer_size():
        return False
    if beneath is not None and beneath.get_write_buffer_size():
        return False
    connection = transport.get_extra_info("socket")
    if connection is None:
        return not transport.is_closing()
    if connection.fileno() < 0:
        return False
    try:
        return fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, _NOTHING) == _NOTHING
    except OSError:  # not every system, or kind of socket, can tell
        return not transport.is_closing()
