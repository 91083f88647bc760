"""Progress of large requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from multidict import CIMultiDict

from gateway.http import progress
from gateway.http.progress import (
    LargeRequestsInProgress,
    RequestLabels,
    RequestProgress,
)
from gateway.http.request import HeaderFields, HttpRequest
from gateway.http.responses import CHUNK_BYTES, HttpResponse

NOW = datetime(2026, 3, 1, 10, tzinfo=UTC)
REQUEST_OWNER = RequestLabels("create_batch", "shop", "live")


@dataclass
class ObservedRequest:
    start_time: float

    def build_progress_labels(self) -> RequestLabels:
        return REQUEST_OWNER


async def run_as_request(
    requests_in_progress: LargeRequestsInProgress, request_work: Any, *, age_seconds: float = 0.0
) -> Any:
    """Run work as the task of one request."""

    async def run() -> Any:
        request = HttpRequest("GET", "/", HeaderFields(CIMultiDict()))
        observed = ObservedRequest(asyncio.get_running_loop().time() - age_seconds)
        requests_in_progress.track_request(request, observed)
        try:
            return await request_work()
        finally:
            assert request.on_end is not None
            request.on_end()

    return await asyncio.ensure_future(run())


async def test_request_is_listed_from_first_large_step_to_end_of_task() -> None:
    requests_in_progress = LargeRequestsInProgress(lambda: NOW)

    async def run_steps() -> list[list[RequestProgress]]:
        listings = [requests_in_progress.list_running_requests()]
        progress.record_current_request_progress("receiving_request", 3, 10)
        listings.append(requests_in_progress.list_running_requests())
        # Concurrent reads run in their own tasks.
        await asyncio.gather(run_parallel_step())
        return [*listings, requests_in_progress.list_running_requests()]

    async def run_parallel_step() -> None:
        progress.record_current_request_progress("receiving_response", 7, 0)

    initial_listing, first, later_listing = await run_as_request(
        requests_in_progress, run_steps, age_seconds=60
    )
    assert initial_listing == []
    ((first_progress,), (later_progress,)) = (first, later_listing)
    assert (
        first_progress.operation,
        first_progress.merchant,
        first_progress.environment,
    ) == REQUEST_OWNER
    assert (first_progress.step, first_progress.done, first_progress.total) == (
        "receiving_request",
        3,
        10,
    )
    assert abs(first_progress.began_at - (NOW - timedelta(seconds=60))) < timedelta(seconds=30)
    assert (later_progress.step, later_progress.done, later_progress.total) == (
        "receiving_response",
        7,
        0,
    )
    assert requests_in_progress.list_running_requests() == []


async def test_task_that_outlives_its_request_is_not_listed() -> None:
    requests_in_progress, may_end = LargeRequestsInProgress(lambda: NOW), asyncio.Event()

    async def outlive_request() -> None:
        await may_end.wait()
        progress.record_current_request_progress("receiving_response", 1, 1)

    async def start_task() -> asyncio.Task[None]:
        return asyncio.create_task(outlive_request())

    remaining_task = await run_as_request(requests_in_progress, start_task)
    may_end.set()
    await remaining_task
    assert requests_in_progress.list_running_requests() == []


def test_progress_without_a_request_is_ignored() -> None:
    progress.record_current_request_progress("receiving_request", 1, 2)


class FakeConnection:
    """Calls back for each part that is written."""

    transport = tcp_transport = None
    is_retiring = is_writing_paused = False

    def __init__(self, on_write: Callable[[], None]) -> None:
        self._on_write = on_write

    def write(self, _data: bytes | memoryview) -> None:
        self._on_write()

    async def drain(self) -> None: ...


async def send_parts(on_write: Callable[[], None], *parts: bytes) -> None:
    request = HttpRequest("GET", "/", HeaderFields(CIMultiDict()))
    connection: Any = FakeConnection(on_write)
    request.connection = connection
    await HttpResponse(200, {}, *parts).send(request)


async def test_progress_of_an_answer_is_recorded() -> None:
    requests_in_progress = LargeRequestsInProgress(lambda: NOW)
    steps: list[tuple[str, int, int]] = []

    def record_steps() -> None:
        running_requests = requests_in_progress.list_running_requests()
        steps.extend((running.step, running.done, running.total) for running in running_requests)

    async def send_and_list_progress(*parts: bytes) -> list[tuple[str, int, int]]:
        steps.clear()
        await run_as_request(requests_in_progress, lambda: send_parts(record_steps, *parts))
        return list(steps)

    size = 2 * CHUNK_BYTES + 2
    progress = await send_and_list_progress(b"x" * (CHUNK_BYTES + 1), b"y" * (CHUNK_BYTES + 1))
    assert progress == [
        ("sending_response", sent_size, size)
        for sent_size in (CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES + 1)
    ]
    assert await send_and_list_progress(b"small") == []


async def test_event_loop_runs_between_chunks_of_large_answer() -> None:
    events: list[str] = []

    async def run_beside() -> None:
        while True:
            events.append("others")
            await asyncio.sleep(0)

    background_task = asyncio.ensure_future(run_beside())
    await asyncio.sleep(0)
    await send_parts(lambda: events.append("part"), b"x" * (3 * CHUNK_BYTES))
    background_task.cancel()
    # The first part is the head.
    assert events == ["others", "part", *3 * ["part", "others"]]
