"""Progress of large requests."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from gateway.http import progress
from gateway.http.bodies import PART, Body
from gateway.http.progress import MOST, RequestsInProgress, Seen, Whose, serialize_progress

NOW = datetime(2026, 3, 1, 10, tzinfo=UTC)
WHOSE = Whose("create_batch", "shop", "live")


async def of_a_request(under_way: RequestsInProgress, work: Any, *, ago: float = 0.0) -> Any:
    """Run work as the task of one request."""

    async def request() -> Any:
        under_way.watch(lambda: WHOSE, asyncio.get_running_loop().time() - ago)
        return await work()

    return await asyncio.ensure_future(request())


async def test_a_request_is_there_once_something_large_is_told_and_until_its_task_ends() -> None:
    under_way = RequestsInProgress(lambda: NOW)

    async def work() -> list[list[Seen]]:
        seen = [under_way.those()]
        progress.told("receiving_request", 3, 10)
        seen.append(under_way.those())
        # Concurrent reads run in their own tasks.
        await asyncio.gather(beside())
        return [*seen, under_way.those()]

    async def beside() -> None:
        progress.told("receiving_response", 7, 0)

    before, first, then = await of_a_request(under_way, work, ago=60)
    assert before == []
    ((one,), (other,)) = (first, then)
    assert (one.operation, one.merchant, one.environment) == WHOSE
    assert (one.step, one.done, one.total) == ("receiving_request", 3, 10)
    assert abs(one.began_at - (NOW - timedelta(seconds=60))) < timedelta(seconds=30)
    assert (other.step, other.done, other.total) == ("receiving_response", 7, 0)
    assert under_way.those() == []


async def test_what_a_request_leaves_behind_is_nobodys() -> None:
    under_way, over = RequestsInProgress(lambda: NOW), asyncio.Event()

    async def left() -> None:
        await over.wait()
        progress.told("receiving_response", 1, 1)

    async def work() -> asyncio.Task[None]:
        return asyncio.create_task(left())

    behind = await of_a_request(under_way, work)
    over.set()
    await behind
    assert under_way.those() == []


def test_nobodys_is_told_of_nobody() -> None:
    progress.told("receiving_request", 1, 2)


async def test_an_answer_tells_how_much_of_it_went() -> None:
    under_way = RequestsInProgress(lambda: NOW)

    class Writer:
        steps: list[tuple[str, int, int]] = []  # noqa: RUF012

        async def write(self, _part: bytes) -> None:
            self.steps += [(one.step, one.done, one.total) for one in under_way.those()]

    async def sent(*parts: bytes) -> list[tuple[str, int, int]]:
        writer: Any = Writer()
        writer.steps = []
        await of_a_request(under_way, lambda: Body(*parts).write(writer))
        return list(writer.steps)

    size = 2 * PART + 2
    whole = await sent(b"x" * (PART + 1), b"y" * (PART + 1))
    assert whole == [("sending_response", done, size) for done in (PART, PART + 1, 2 * PART + 1)]
    assert await sent(b"small") == []


async def test_others_are_served_between_the_parts_of_an_answer_that_is_taken_at_once() -> None:
    went: list[str] = []

    class Writer:
        async def write(self, _part: bytes) -> None:
            went.append("part")

    async def others() -> None:
        while True:
            went.append("others")
            await asyncio.sleep(0)

    writer: Any = Writer()
    serving = asyncio.ensure_future(others())
    await asyncio.sleep(0)
    await Body(b"x" * (3 * PART)).write(writer)
    serving.cancel()
    assert went == [*3 * ["others", "part"], "others"]


def test_what_is_written_for_others_is_read_by_them_and_nothing_else_is() -> None:
    seen = [Seen(*WHOSE, NOW, "calling_service", number, 100) for number in range(MOST + 5)]
    read = Seen.read(serialize_progress(seen))
    assert [one.done for one in read] == list(range(MOST))
    assert not any(one.here for one in read)
    assert read[0].began_at == NOW
    assert serialize_progress([]) == ""
    for odd in ("", "{}", '[{"size": 1}]', "[1]", "no", '[{"began_at": 5}]'):
        assert Seen.read(odd) == [], odd
