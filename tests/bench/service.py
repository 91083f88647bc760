"""``python -m tests.bench.service PORT [SECONDS]``: the service, as cheap as Python allows.

It responds at once, or after a delay. It checks no signature and stores nothing; its responses have the shapes of
real ones. It responds in the same way to legacy paths, which the pass-through contestants send.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import sys
import time
from email.utils import formatdate
from functools import lru_cache
from typing import cast

import uvloop

from tests.bench.workloads import (
    ACCOUNT_ANSWER,
    BATCH_ANSWERS,
    LIST_ANSWER,
    NEW_ANSWER,
    RECIPIENT_ANSWER,
    insert_number,
)

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_RECIPIENT = re.compile(rb"/v1/recipients/[^/? ]*?(\d{8})(?=[/? ])")
_HEAD = (
    b"HTTP/1.1 200 OK\r\nDate: %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)

_numbers = itertools.count(1)


@lru_cache(maxsize=1)
def _format_date(seconds: int) -> bytes:
    return formatdate(seconds, usegmt=True).encode()


def build_response(head: bytes, body: bytes) -> bytes:
    line = head.partition(b"\r\n")[0]
    if line.startswith(b"POST /v1/batches"):
        return insert_number(BATCH_ANSWERS[body.count(b'"recipient"')], next(_numbers))
    match = _RECIPIENT.search(line)
    if match is None:
        return LIST_ANSWER
    if line.startswith(b"POST"):
        return ACCOUNT_ANSWER
    recipient = NEW_ANSWER if b"NEW" in line else RECIPIENT_ANSWER
    return insert_number(recipient, int(match[1]))


class ServiceConnection(asyncio.Protocol):
    def __init__(self, delay_seconds: float = 0.0) -> None:
        self._delay_seconds = delay_seconds
        self._transport: asyncio.Transport
        self._data = bytearray()
        self._head = b""
        self._body_length = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        self._data += data
        while self._has_complete_request():
            response = self.respond(self._head, bytes(self._data[: self._body_length]))
            del self._data[: self._body_length]
            self._head = b""
            self._send(_HEAD % (_format_date(int(time.time())), len(response)) + response)

    def _send(self, response: bytes) -> None:
        if self._delay_seconds:
            asyncio.get_running_loop().call_later(
                self._delay_seconds, self._transport.write, response
            )
        else:
            self._transport.write(response)

    def respond(self, head: bytes, body: bytes) -> bytes:
        return build_response(head, body)

    def _has_complete_request(self) -> bool:
        if not self._head:
            head_end = self._data.find(b"\r\n\r\n")
            if head_end < 0:
                return False
            self._head = bytes(self._data[:head_end])
            del self._data[: head_end + 4]
            length = _LENGTH.search(self._head)
            self._body_length = int(length[1]) if length else 0
        return len(self._data) >= self._body_length


async def serve(port: int, delay_seconds: float = 0.0) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: ServiceConnection(delay_seconds), "127.0.0.1", port, backlog=512
    )
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), *map(float, sys.argv[2:])))
