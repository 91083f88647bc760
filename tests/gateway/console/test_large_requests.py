"""Large requests in progress, as the console shows them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.bench import large_batch_bodies
from tests.bench.large_batch_service import LargeBatchConnection
from tests.console import ConsoleClient, open_console_client
from tests.operator_commands import wait_until_async
from tests.running_gateway import KEY, GatewayUnderTest, open_gateway

PAYMENT_COUNT = 2000
BATCH_BODY = large_batch_bodies.build_create_body(PAYMENT_COUNT, 1)
BODY_SIZE_TEXT = f"{len(BATCH_BODY) / 1e6:.1f} MB"
WAIT_SECONDS = 60
"""Upper bound of every wait, in seconds."""


class HeldService:
    """A service that holds its answers to creates until it is released."""

    def __init__(self) -> None:
        self.url = ""
        self.was_requested = asyncio.Event()
        self._held_answers: list[Callable[[], None]] = []

    def hold(self, answer: Callable[[], None]) -> None:
        self._held_answers.append(answer)
        self.was_requested.set()

    def release(self) -> None:
        while self._held_answers:
            self._held_answers.pop()()


@asynccontextmanager
async def open_held_service() -> AsyncIterator[HeldService]:
    held_service = HeldService()

    class HeldConnection(LargeBatchConnection):
        counts = []  # noqa: RUF012 - each service has its own
        is_create = False

        def respond(self, request_head: bytes, body: bytes) -> bytes:
            self.is_create = request_head.startswith(b"POST /v1/batches ")
            return super().respond(request_head, body)

        def _send(self, answer: bytes) -> None:
            send_answer = partial(super()._send, answer)
            held_service.hold(send_answer) if self.is_create else send_answer()

    server = await asyncio.get_running_loop().create_server(HeldConnection, "127.0.0.1", 0)
    held_service.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield held_service
    finally:
        held_service.release()
        server.close()


async def read_progress_section(client: ConsoleClient) -> str:
    """Read the section of the overview on large requests, as text."""
    answer = await client.get("/")
    assert answer.status == 200, answer.text
    part = answer.text[answer.text.index('id="large">') + len('id="large">') :]
    part = part[: part.index("</section>")]
    assert "Royalties" not in part
    assert "R-BENCH" not in part
    assert KEY["api_key"] not in part
    return " ".join(re.sub("<[^>]*>", " ", part).split()).replace("\N{NO-BREAK SPACE}", " ")


def has_no_progress(client: ConsoleClient) -> Callable[[], Any]:
    async def is_empty() -> bool:
        return not await read_progress_section(client)

    return is_empty


def progress_contains(client: ConsoleClient, *phrases: str) -> Callable[[], Any]:
    async def contains_all() -> bool:
        page_text = await read_progress_section(client)
        return all(phrase in page_text for phrase in phrases)

    return contains_all


def start_batch_create(gateway: GatewayUnderTest) -> asyncio.Future[Any]:
    return asyncio.ensure_future(gateway.request("POST", "/v1/batches", data=BATCH_BODY))


async def test_large_request_is_listed_until_answered(tmp_path: Path) -> None:
    async with (
        open_held_service() as service,
        open_gateway(tmp_path, service.url, upstream={"timeout_seconds": WAIT_SECONDS}) as gateway,
        open_console_client(gateway.running.admin_url) as client,
    ):
        assert not await read_progress_section(client)
        creating_batch = start_batch_create(gateway)
        async with asyncio.timeout(WAIT_SECONDS):
            await service.was_requested.wait()
        page_text = await read_progress_section(client)
        assert "create_batch demo sandbox waiting for the service: " in page_text
        # As another worker of the same gateway asks for it.
        (shown,) = json.loads((await client.get("/requests/large")).text)
        assert (shown["operation"], shown["step"]) == ("create_batch", "calling_service")
        service.release()
        assert (await creating_batch).status == 200
        await wait_until_async(has_no_progress(client), WAIT_SECONDS)


async def test_request_is_listed_while_its_body_arrives_and_not_after_disconnect(
    tmp_path: Path,
) -> None:
    async with (
        open_held_service() as service,
        open_gateway(tmp_path, service.url) as gateway,
        open_console_client(gateway.running.admin_url) as client,
    ):
        _reader, writer = await asyncio.open_connection("127.0.0.1", gateway.running.port)
        request_head = (
            f"POST /v1/batches HTTP/1.1\r\nHost: gateway\r\nX-API-Key: {gateway.api_key}\r\n"
        )
        request_head += f"Content-Length: {len(BATCH_BODY)}\r\n\r\n"
        writer.write(request_head.encode() + BATCH_BODY[:200_000])
        await wait_until_async(
            progress_contains(
                client, "create_batch demo", f"receiving body: 0.2 MB of {BODY_SIZE_TEXT}"
            ),
            WAIT_SECONDS,
        )
        writer.transport.abort()
        await wait_until_async(has_no_progress(client), WAIT_SECONDS)


@pytest.mark.parametrize("size", [1, 200])
async def test_small_requests_are_not_listed(tmp_path: Path, size: int) -> None:
    async with (
        open_held_service() as service,
        open_gateway(tmp_path, service.url, upstream={"timeout_seconds": WAIT_SECONDS}) as gateway,
        open_console_client(gateway.running.admin_url) as client,
    ):
        data = large_batch_bodies.build_create_body(size, 1)
        creating_batch = asyncio.ensure_future(gateway.request("POST", "/v1/batches", data=data))
        async with asyncio.timeout(WAIT_SECONDS):
            await service.was_requested.wait()
        assert not await read_progress_section(client)
        service.release()
        await creating_batch
