"""``python -m tests.bench.large_batch_service PORT COUNT MEMOS``: the service for one batch size."""

from __future__ import annotations

import asyncio
import re
import sys
from typing import ClassVar, cast

import uvloop

from tests.bench import large_batch_bodies
from tests.bench.service import ServiceConnection, build_response

_BATCH = re.compile(rb"GET /v1/batch/[^/ ]*?(\d{8})/summary")

_BATCH_PAYMENT_ID = re.compile(rb"BIGBATCH(\d{8})")
_REMOVES = b'"remove_payments":[{'
_MISSING = b'{"ok":false,"errors":[{"code":"not_found","message":"Not found."}]}'

SECOND = 2
"""The measured batch; the first one is small."""


class LargeBatchConnection(ServiceConnection):
    counts: ClassVar[list[int]] = []
    """Payments per batch, in the order of creation."""
    memos: ClassVar[large_batch_bodies.Memos] = "alike"

    def respond(self, head: bytes, body: bytes) -> bytes:
        if head.startswith(b"POST /v1/batches "):
            self.counts.append(body.count(b'"recipient"'))
            return large_batch_bodies.build_create_response(self.counts[-1], len(self.counts))
        if head.startswith(b"PATCH /v1/batches/"):
            return self.apply_change(head, body)
        if match := _BATCH.match(head):
            number = int(match[1])
            return large_batch_bodies.build_summary(self.counts[number - 1], number, self.memos)
        return build_response(head, body)

    def _send(self, response: bytes) -> None:
        is_missing = response.endswith(_MISSING)
        super()._send(response.replace(b"200 OK", b"404 No", 1) if is_missing else response)

    def apply_change(self, head: bytes, body: bytes) -> bytes:
        """Payments can be added and changed, not removed."""
        if _REMOVES in body:
            return _MISSING
        number = int(_BATCH_PAYMENT_ID.findall(head)[0])
        self.counts[number - 1] += body.count(b'"recipient"')
        return b'{"ok":true,"object":"updated"}'


async def serve(port: int, count: int, memos: large_batch_bodies.Memos) -> None:
    LargeBatchConnection.memos = memos
    large_batch_bodies.build_summary(count, SECOND, memos)  # build it before the first request
    loop = asyncio.get_running_loop()
    server = await loop.create_server(LargeBatchConnection, "127.0.0.1", port, backlog=512)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(
        serve(int(sys.argv[1]), int(sys.argv[2]), cast("large_batch_bodies.Memos", sys.argv[3]))
    )
