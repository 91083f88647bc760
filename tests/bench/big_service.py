"""``python -m tests.bench.big_service PORT COUNT``: the service behind, of one batch size."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Collection
from typing import ClassVar

import uvloop

from tests.bench import big_batch
from tests.bench.service import Connection, answer

_BATCH = re.compile(rb"GET /v1/batch/[^/ ]*?(\d{8})/summary")

SECOND, THIRD = 2, 3
"""The batches that are measured: the first one is small."""


class BigConnection(Connection):
    counts: ClassVar[list[int]] = []
    """How many payments each batch has, in the order in which they were made."""
    barely: ClassVar[Collection[int]] = {THIRD}
    """The batches of which a create is told no more than the id."""

    def answer(self, head: bytes, body: bytes) -> bytes:
        if head.startswith(b"POST /v1/batches "):
            self.counts.append(body.count(b'"recipient"'))
            number = len(self.counts)
            if number in self.barely:
                return big_batch.made_barely(number)
            return big_batch.made(self.counts[-1], number)
        if found := _BATCH.match(head):
            return big_batch.summary(self.counts[int(found[1]) - 1], int(found[1]))
        return answer(head, body)


async def serve(port: int, count: int) -> None:
    for number in (SECOND, THIRD):  # nobody is to wait until it is made up
        big_batch.summary(count, number)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(BigConnection, "127.0.0.1", port, backlog=512)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
