"""Detects whether a client has received a response.

Until the client's machine has acknowledged every byte of the response, it may have disconnected,
and the same request sent again is a retry rather than a new request.
"""

import asyncio
import fcntl
import select
import socket
import struct
import termios

from gateway.http.request import HttpRequest

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.001, 0.05
"""Pause between two checks; doubles from the first to the maximum."""

_NO_UNACKNOWLEDGED_BYTES = struct.pack("i", 0)
"""Result of the ``TIOCOUTQ`` ioctl if every byte has been acknowledged."""

_TCP_INFO_BYTES, _LAST_BYTES_OFFSET = 56, 52
"""The part of Linux's ``struct tcp_info`` up to ``tcpi_last_data_recv``, and its position."""


async def wait_for_tcp_acknowledgement(
    transport: asyncio.Transport | None, underlying_transport: asyncio.Transport | None = None
) -> bool:
    """Waits for the acknowledgement of all written bytes; False if the connection ends first.

    Call it after ``is_acknowledged`` has returned False.
    ``underlying_transport`` is the TCP transport below TLS, which may hold unsent bytes too.
    """
    pause = FIRST_PAUSE_SECONDS
    while transport is not None and not transport.is_closing():
        await asyncio.sleep(pause)
        if is_acknowledged(transport, underlying_transport):
            return True
        # Most clients acknowledge within milliseconds; a slow one must not keep the loop busy.
        pause = min(pause * 2, MAX_PAUSE_SECONDS)
    return False


def is_client_disconnected(request: HttpRequest) -> bool:
    """Whether the client has closed its side, even if the event loop has not seen that yet.

    After a suspended process resumes, its code runs before the loop reads events of that time.
    """
    transport = request.transport
    connection = transport.get_extra_info("socket") if transport is not None else None
    if connection is None or connection.fileno() < 0:
        return True
    poll = select.poll()
    # The peer has closed its side, even if there is unread data.
    poll.register(connection.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


def find_seconds_since_last_bytes(transport: asyncio.Transport | None) -> float:
    """Returns the seconds since the kernel received the connection's last bytes; 0.0 if unknown.

    They may have waited in the kernel while this process was stopped or busy.
    """
    connection = transport.get_extra_info("socket") if transport is not None else None
    if connection is None or connection.fileno() < 0 or not hasattr(socket, "TCP_INFO"):
        return 0.0
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:  # not TCP
        return 0.0
    (milliseconds,) = struct.unpack_from("I", info, _LAST_BYTES_OFFSET)
    return float(milliseconds) / 1000


def is_acknowledged(
    transport: asyncio.Transport | None, underlying_transport: asyncio.Transport | None = None
) -> bool:
    """Whether all written bytes are acknowledged; False if the socket is already closed.

    A client that closes its side right after the response has acknowledged it. The kernel can
    tell that only while this side's socket is open.
    """
    # Bytes that are still in this process cannot have been acknowledged; the kernel does not know
    # them.
    if transport is None or transport.get_write_buffer_size():
        return False
    if underlying_transport is not None and underlying_transport.get_write_buffer_size():
        return False
    connection = transport.get_extra_info("socket")
    if connection is None:
        return not transport.is_closing()
    if connection.fileno() < 0:
        return False
    try:
        return (
            fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, _NO_UNACKNOWLEDGED_BYTES)
            == _NO_UNACKNOWLEDGED_BYTES
        )
    except OSError:  # TIOCOUTQ is not supported by every system and socket type
        return not transport.is_closing()
