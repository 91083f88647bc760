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
from tests.bench import big_batch
from tests.bench.big_service import BigConnection
from tests.console import Visitor, visiting
from tests.gateway.store.conftest import database, postgres  # noqa: F401 - fixtures
from tests.house import KEY, House, open_house
from tests.operating import eventually

COUNT = 2000
BODY = big_batch.body(COUNT, 1)
MB = f"{len(BODY) / 1e6:.1f} MB"
WAIT = 60
"""Seconds; a bound for what never comes."""


class Slow:
    """A service that holds its answers to creates until it is released."""

    def __init__(self) -> None:
        self.url = ""
        self.asked = asyncio.Event()
        self._held: list[Callable[[], None]] = []

    def hold(self, answer: Callable[[], None]) -> None:
        self._held.append(answer)
        self.asked.set()

    def let_go(self) -> None:
        while self._held:
            self._held.pop()()


@asynccontextmanager
async def slow_service() -> AsyncIterator[Slow]:
    slow = Slow()

    class Here(BigConnection):
        counts = []  # noqa: RUF012 - each service has its own
        creates = False

        def answer(self, head: bytes, body: bytes) -> bytes:
            self.creates = head.startswith(b"POST /v1/batches ")
            return super().answer(head, body)

        def _say(self, answered: bytes) -> None:
            say = partial(super()._say, answered)
            slow.hold(say) if self.creates else say()

    server = await asyncio.get_running_loop().create_server(Here, "127.0.0.1", 0)
    slow.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield slow
    finally:
        slow.let_go()
        server.close()


async def under_way(visitor: Visitor) -> str:
    """Read the section of the overview on large requests, as text."""
    answer = await visitor.get("/")
    assert answer.status == 200, answer.text
    part = answer.text[answer.text.index('id="large"') :]
    part = part[: part.index("</section>")]
    assert "Royalties" not in part
    assert "R-BENCH" not in part
    assert KEY["api_key"] not in part
    return " ".join(re.sub("<[^>]*>", " ", part).split()).replace("\N{NO-BREAK SPACE}", " ")


def says(visitor: Visitor, *words: str) -> Callable[[], Any]:
    async def does() -> bool:
        said = await under_way(visitor)
        return all(word in said for word in words)

    return does


def creating(house: House) -> asyncio.Future[Any]:
    return asyncio.ensure_future(house.ask("POST", "/v1/batches", data=BODY))


async def test_a_large_request_is_shown_until_it_is_answered(tmp_path: Path) -> None:
    async with (
        slow_service() as service,
        open_house(tmp_path, service.url, upstream={"timeout_seconds": WAIT}) as house,
        visiting(house.running.admin_url) as visitor,
    ):
        assert "None." in await under_way(visitor)
        made = creating(house)
        async with asyncio.timeout(WAIT):
            await service.asked.wait()
        said = await under_way(visitor)
        assert "create_batch demo sandbox waiting for the service: " in said
        assert "another worker" not in said
        assert "None." not in said
        service.let_go()
        assert (await made).status == 200
        await eventually(says(visitor, "None."), WAIT)


async def test_it_is_shown_while_its_body_comes_and_not_when_its_client_went(
    tmp_path: Path,
) -> None:
    async with (
        slow_service() as service,
        open_house(tmp_path, service.url) as house,
        visiting(house.running.admin_url) as visitor,
    ):
        _reader, writer = await asyncio.open_connection("127.0.0.1", house.running.port)
        head = f"POST /v1/batches HTTP/1.1\r\nHost: gateway\r\nX-API-Key: {house.api_key}\r\n"
        head += f"Content-Length: {len(BODY)}\r\n\r\n"
        writer.write(head.encode() + BODY[:200_000])
        await eventually(
            says(visitor, "create_batch demo", f"receiving body: 0.2 MB of {MB}"), WAIT
        )
        writer.transport.abort()
        await eventually(says(visitor, "None."), WAIT)


async def test_those_of_another_process_are_shown_as_such(
    tmp_path: Path,
    postgres: State,  # noqa: F811
) -> None:
    where = {"url": postgres.url, "encryption_key_file": postgres.encryption_key_file}
    more: Any = {"state": where, "upstream": {"timeout_seconds": WAIT}}
    async with (
        slow_service() as service,
        open_house(tmp_path, service.url, gone_seconds=2, **more) as house,
        open_house(tmp_path, service.url, gone_seconds=2, **more) as other,
        visiting(other.running.admin_url) as visitor,
    ):
        made = creating(house)
        async with asyncio.timeout(WAIT):
            await service.asked.wait()
        await eventually(
            says(visitor, "create_batch in another worker, some seconds ago demo sandbox"), WAIT
        )
        service.let_go()
        assert (await made).status == 200
        await eventually(says(visitor, "None."), WAIT)


@pytest.mark.parametrize("size", [1, 200])
async def test_what_is_small_is_not_shown(tmp_path: Path, size: int) -> None:
    async with (
        slow_service() as service,
        open_house(tmp_path, service.url, upstream={"timeout_seconds": WAIT}) as house,
        visiting(house.running.admin_url) as visitor,
    ):
        data = big_batch.body(size, 1)
        made = asyncio.ensure_future(house.ask("POST", "/v1/batches", data=data))
        async with asyncio.timeout(WAIT):
            await service.asked.wait()
        assert "None." in await under_way(visitor)
        service.let_go()
        await made
