"""Work in a thread: it has its caller's context, always finishes, and does not block the loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from contextlib import suppress

import pytest

from gateway.payloads.worker_thread import run_in_thread, run_in_thread_if

context_value: contextvars.ContextVar[str] = contextvars.ContextVar("whose")


async def test_event_loop_continues_during_thread_work() -> None:
    may_finish = threading.Event()
    thread_work = asyncio.ensure_future(run_in_thread(may_finish.wait, timeout=30))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not thread_work.done()
    may_finish.set()  # set by the event loop: impossible if the loop were blocked
    assert await thread_work


async def test_thread_work_has_context_of_its_caller() -> None:
    context_value.set("the request's")
    assert await run_in_thread(context_value.get) == "the request's"


async def test_thread_work_error_is_raised_to_caller() -> None:
    with pytest.raises(ValueError, match="odd"):
        await run_in_thread(int, "odd")


async def test_thread_work_finishes_after_caller_is_cancelled() -> None:
    has_started, may_finish, has_finished = threading.Event(), threading.Event(), threading.Event()

    def wait_until_allowed() -> None:
        has_started.set()
        may_finish.wait(30)
        has_finished.set()

    thread_work = asyncio.ensure_future(run_in_thread(wait_until_allowed))
    while not has_started.is_set():  # noqa: ASYNC110 - it is set in another thread
        await asyncio.sleep(0.001)
    thread_work.cancel()
    with suppress(asyncio.CancelledError):
        await thread_work
    assert not has_finished.is_set()
    may_finish.set()
    assert await run_in_thread(has_finished.is_set)


async def test_only_long_work_runs_in_another_thread() -> None:
    loop_thread = threading.get_ident()
    assert await run_in_thread_if(False, threading.get_ident) == loop_thread
    assert await run_in_thread_if(True, threading.get_ident) != loop_thread
