"""``python -m tests.bench.big_service PORT COUNT``: the service behind, of one batch size."""

from __future__ import annotations

import asyncio
import re
import sys
from typing import ClassVar

import uvloop

from tests.bench import big_batch
from tests.bench.service import Connection, answer

_BATCH = re.compile(rb"GET /v1/batch/[^/ ]*?(\d{8})/summary")

SECOND = 2
"""The batch that is measured: the first one is small."""


class BigConnection(Connection):
    counts: ClassVar[list[int]] = []
    """How many payments each batch has, in the order in which they were made."""

    def answer(self, head: bytes, body: bytes) -> bytes:
        if head.startswith(b"POST /v1/batches "):
            self.counts.append(body.count(b'"recipient"'))
            return big_batch.made(self.counts[-1], len(self.counts))
        if found := _BATCH.match(head):
            return big_batch.summary(self.counts[int(found[1]) - 1], int(found[1]))
        return answer(head, body)


async def serve(port: int, count: int) -> None:
    big_batch.summary(count, SECOND)  # nobody is to wait until it is made up
    loop = asyncio.get_running_loop()
    server = await loop.create_server(BigConnection, "127.0.0.1", port, backlog=512)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
