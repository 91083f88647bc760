"""Progress of large requests."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from gateway.http import progress
from gateway.http.progress import (
    MAX_SHARED_REQUESTS,
    RequestLabels,
    RequestProgress,
    RequestsInProgress,
    serialize_progress,
)
from gateway.http.response_body import CHUNK_BYTES, BufferedPayload

NOW = datetime(2026, 3, 1, 10, tzinfo=UTC)
REQUEST_OWNER = RequestLabels("create_batch", "shop", "live")


async def run_as_request(under_way: RequestsInProgress, work: Any, *, ago: float = 0.0) -> Any:
    """Run work as the task of one request."""

    async def request() -> Any:
        under_way.track_current_task(lambda: REQUEST_OWNER, asyncio.get_running_loop().time() - ago)
        return await work()

    return await asyncio.ensure_future(request())


async def test_request_is_listed_from_first_large_step_to_end_of_task() -> None:
    under_way = RequestsInProgress(lambda: NOW)

    async def work() -> list[list[RequestProgress]]:
        seen = [under_way.list_progress()]
        progress.record_progress("receiving_request", 3, 10)
        seen.append(under_way.list_progress())
        # Concurrent reads run in their own tasks.
        await asyncio.gather(beside())
        return [*seen, under_way.list_progress()]

    async def beside() -> None:
        progress.record_progress("receiving_response", 7, 0)

    before, first, then = await run_as_request(under_way, work, ago=60)
    assert before == []
    ((one,), (other,)) = (first, then)
    assert (one.operation, one.merchant, one.environment) == REQUEST_OWNER
    assert (one.step, one.done, one.total) == ("receiving_request", 3, 10)
    assert abs(one.began_at - (NOW - timedelta(seconds=60))) < timedelta(seconds=30)
    assert (other.step, other.done, other.total) == ("receiving_response", 7, 0)
    assert under_way.list_progress() == []


async def test_task_that_outlives_its_request_is_not_listed() -> None:
    under_way, over = RequestsInProgress(lambda: NOW), asyncio.Event()

    async def left() -> None:
        await over.wait()
        progress.record_progress("receiving_response", 1, 1)

    async def work() -> asyncio.Task[None]:
        return asyncio.create_task(left())

    behind = await run_as_request(under_way, work)
    over.set()
    await behind
    assert under_way.list_progress() == []


def test_progress_without_a_request_is_ignored() -> None:
    progress.record_progress("receiving_request", 1, 2)


async def test_progress_of_an_answer_is_recorded() -> None:
    under_way = RequestsInProgress(lambda: NOW)

    class Writer:
        steps: list[tuple[str, int, int]] = []  # noqa: RUF012

        async def write(self, _part: bytes) -> None:
            self.steps += [
                (listed_item.step, listed_item.done, listed_item.total)
                for listed_item in under_way.list_progress()
            ]

    async def sent(*parts: bytes) -> list[tuple[str, int, int]]:
        writer: Any = Writer()
        writer.steps = []
        await run_as_request(under_way, lambda: BufferedPayload(*parts).write(writer))
        return list(writer.steps)

    size = 2 * CHUNK_BYTES + 2
    whole = await sent(b"x" * (CHUNK_BYTES + 1), b"y" * (CHUNK_BYTES + 1))
    assert whole == [
        ("sending_response", done, size)
        for done in (CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES + 1)
    ]
    assert await sent(b"small") == []


async def test_event_loop_runs_between_chunks_of_large_answer() -> None:
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
    await BufferedPayload(b"x" * (3 * CHUNK_BYTES)).write(writer)
    serving.cancel()
    assert went == [*3 * ["others", "part"], "others"]


def test_shared_progress_is_read_by_other_processes_and_bounded() -> None:
    seen = [
        RequestProgress(*REQUEST_OWNER, NOW, "calling_service", number, 100)
        for number in range(MAX_SHARED_REQUESTS + 5)
    ]
    read = RequestProgress.parse_list(serialize_progress(seen))
    assert [one.done for one in read] == list(range(MAX_SHARED_REQUESTS))
    assert not any(one.here for one in read)
    assert read[0].began_at == NOW
    assert serialize_progress([]) == ""
    for odd in ("", "{}", '[{"size": 1}]', "[1]", "no", '[{"began_at": 5}]'):
        assert RequestProgress.parse_list(odd) == [], odd
