"""Large requests in progress, as the console shows them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.config.settings import State
from tests.bench import large_batch_bodies
from tests.bench.large_batch_service import LargeBatchConnection
from tests.console import ConsoleClient, open_console_client
from tests.gateway.storage.conftest import database, postgres  # noqa: F401 - fixtures
from tests.operator_commands import wait_until_async
from tests.running_gateway import KEY, GatewayUnderTest, open_gateway

PAYMENT_COUNT = 2000
BATCH_BODY = large_batch_bodies.build_create_body(PAYMENT_COUNT, 1)
BODY_SIZE_TEXT = f"{len(BATCH_BODY) / 1e6:.1f} MB"
WAIT_SECONDS = 60
"""Seconds; a bound for what never comes."""


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
    slow = HeldService()

    class Here(LargeBatchConnection):
        counts = []  # noqa: RUF012 - each service has its own
        creates = False

        def answer(self, head: bytes, body: bytes) -> bytes:
            self.creates = head.startswith(b"POST /v1/batches ")
            return super().answer(head, body)

        def _send(self, answered: bytes) -> None:
            say = partial(super()._send, answered)
            slow.hold(say) if self.creates else say()

    server = await asyncio.get_running_loop().create_server(Here, "127.0.0.1", 0)
    slow.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield slow
    finally:
        slow.release()
        server.close()


async def read_progress_section(visitor: ConsoleClient) -> str:
    """Read the section of the overview on large requests, as text."""
    answer = await visitor.get("/")
    assert answer.status == 200, answer.text
    part = answer.text[answer.text.index('id="large"') :]
    part = part[: part.index("</section>")]
    assert "Royalties" not in part
    assert "R-BENCH" not in part
    assert KEY["api_key"] not in part
    return " ".join(re.sub("<[^>]*>", " ", part).split()).replace("\N{NO-BREAK SPACE}", " ")


def progress_contains(visitor: ConsoleClient, *words: str) -> Callable[[], Any]:
    async def contains_all() -> bool:
        page_text = await read_progress_section(visitor)
        return all(word in page_text for word in words)

    return contains_all


def start_batch_create(gateway: GatewayUnderTest) -> asyncio.Future[Any]:
    return asyncio.ensure_future(gateway.request("POST", "/v1/batches", data=BATCH_BODY))


async def test_large_request_is_listed_until_answered(tmp_path: Path) -> None:
    async with (
        open_held_service() as service,
        open_gateway(tmp_path, service.url, upstream={"timeout_seconds": WAIT_SECONDS}) as gateway,
        open_console_client(gateway.running.admin_url) as visitor,
    ):
        assert "None." in await read_progress_section(visitor)
        creating_batch = start_batch_create(gateway)
        async with asyncio.timeout(WAIT_SECONDS):
            await service.was_requested.wait()
        page_text = await read_progress_section(visitor)
        assert "create_batch demo sandbox waiting for the service: " in page_text
        assert "another worker" not in page_text
        assert "None." not in page_text
        service.release()
        assert (await creating_batch).status == 200
        await wait_until_async(progress_contains(visitor, "None."), WAIT_SECONDS)


async def test_request_is_listed_while_its_body_arrives_and_not_after_disconnect(
    tmp_path: Path,
) -> None:
    async with (
        open_held_service() as service,
        open_gateway(tmp_path, service.url) as gateway,
        open_console_client(gateway.running.admin_url) as visitor,
    ):
        _reader, writer = await asyncio.open_connection("127.0.0.1", gateway.running.port)
        head = f"POST /v1/batches HTTP/1.1\r\nHost: gateway\r\nX-API-Key: {gateway.api_key}\r\n"
        head += f"Content-Length: {len(BATCH_BODY)}\r\n\r\n"
        writer.write(head.encode() + BATCH_BODY[:200_000])
        await wait_until_async(
            progress_contains(
                visitor, "create_batch demo", f"receiving body: 0.2 MB of {BODY_SIZE_TEXT}"
            ),
            WAIT_SECONDS,
        )
        writer.transport.abort()
        await wait_until_async(progress_contains(visitor, "None."), WAIT_SECONDS)


async def test_requests_of_another_process_are_marked(
    tmp_path: Path,
    postgres: State,  # noqa: F811
) -> None:
    where = {"url": postgres.url, "encryption_key_file": postgres.encryption_key_file}
    more: Any = {"state": where, "upstream": {"timeout_seconds": WAIT_SECONDS}}
    async with (
        open_held_service() as service,
        open_gateway(tmp_path, service.url, lease_seconds=2, **more) as gateway,
        open_gateway(tmp_path, service.url, lease_seconds=2, **more) as other,
        open_console_client(other.running.admin_url) as visitor,
    ):
        creating_batch = start_batch_create(gateway)
        async with asyncio.timeout(WAIT_SECONDS):
            await service.was_requested.wait()
        await wait_until_async(
            progress_contains(
                visitor, "create_batch in another worker, some seconds ago demo sandbox"
            ),
            WAIT_SECONDS,
        )
        service.release()
        assert (await creating_batch).status == 200
        await wait_until_async(progress_contains(visitor, "None."), WAIT_SECONDS)


@pytest.mark.parametrize("size", [1, 200])
async def test_small_requests_are_not_listed(tmp_path: Path, size: int) -> None:
    async with (
        open_held_service() as service,
        open_gateway(tmp_path, service.url, upstream={"timeout_seconds": WAIT_SECONDS}) as gateway,
        open_console_client(gateway.running.admin_url) as visitor,
    ):
        data = large_batch_bodies.build_create_body(size, 1)
        creating_batch = asyncio.ensure_future(gateway.request("POST", "/v1/batches", data=data))
        async with asyncio.timeout(WAIT_SECONDS):
            await service.was_requested.wait()
        assert "None." in await read_progress_section(visitor)
        service.release()
        await creating_batch
