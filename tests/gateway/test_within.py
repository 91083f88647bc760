"""The timeout context manager."""

from __future__ import annotations

import asyncio

import pytest

from gateway.http.timeouts import Timeout


async def test_what_takes_too_long_is_cancelled_and_told_so() -> None:
    with pytest.raises(TimeoutError), Timeout(0):
        await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0, "no cancellation request remains"


async def test_what_is_done_in_time_is_not() -> None:
    with Timeout(1000):
        await asyncio.sleep(0)


async def test_it_may_be_given_more_time_also_where_it_would_be_up() -> None:
    with Timeout(0) as within:
        within.extend(1000)
        for _ in range(10):
            await asyncio.sleep(0.001)
    within = Timeout(0)
    within.extend(0.001)
    with pytest.raises(TimeoutError), within:
        await asyncio.Event().wait()


async def test_what_somebody_else_cancels_is_cancelled() -> None:
    entered = asyncio.Event()

    async def waits() -> None:
        with Timeout(1000):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(waits())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_is_cancelled_by_both_is_cancelled() -> None:
    async def waits() -> None:
        task = asyncio.current_task()
        assert task is not None
        with Timeout(0):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                task.cancel()
                raise

    with pytest.raises(asyncio.CancelledError):
        await asyncio.ensure_future(waits())


async def test_an_error_of_its_own_passes() -> None:
    with pytest.raises(KeyError), Timeout(1000):
        raise KeyError
