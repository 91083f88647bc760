"""The timeout context manager."""

from __future__ import annotations

import asyncio

import pytest

from gateway.http.timeouts import Timeout


async def test_timeout_cancels_and_raises_timeout_error() -> None:
    with pytest.raises(TimeoutError), Timeout(0):
        await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0, "no cancellation request remains"


async def test_work_finished_in_time_is_not_cancelled() -> None:
    with Timeout(1000):
        await asyncio.sleep(0)


async def test_timeout_can_be_extended_even_if_due() -> None:
    with Timeout(0) as timeout:
        timeout.extend(1000)
        for _ in range(10):
            await asyncio.sleep(0.001)
    timeout = Timeout(0)
    timeout.extend(0.001)
    with pytest.raises(TimeoutError), timeout:
        await asyncio.Event().wait()


async def test_external_cancellation_propagates() -> None:
    has_entered = asyncio.Event()

    async def enter_and_wait() -> None:
        with Timeout(1000):
            has_entered.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(enter_and_wait())
    await has_entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancellation_by_both_propagates() -> None:
    async def wait_long() -> None:
        task = asyncio.current_task()
        assert task is not None
        with Timeout(0):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                task.cancel()
                raise

    with pytest.raises(asyncio.CancelledError):
        await asyncio.ensure_future(wait_long())


async def test_other_error_propagates() -> None:
    with pytest.raises(KeyError), Timeout(1000):
        raise KeyError
