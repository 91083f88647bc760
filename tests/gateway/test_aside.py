"""Work in a thread: it has its caller's context, always finishes, and does not block the loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from contextlib import suppress

import pytest

from gateway.payloads.worker_thread import run_in_thread, run_in_thread_if

whose: contextvars.ContextVar[str] = contextvars.ContextVar("whose")


async def test_the_loop_goes_on_while_it_is_done() -> None:
    may_end = threading.Event()
    working = asyncio.ensure_future(run_in_thread(may_end.wait, timeout=30))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not working.done()
    may_end.set()  # set by the event loop: impossible if the loop were blocked
    assert await working


async def test_it_has_the_context_of_whoever_asked() -> None:
    whose.set("the request's")
    assert await run_in_thread(whose.get) == "the request's"


async def test_what_it_raises_is_raised() -> None:
    with pytest.raises(ValueError, match="odd"):
        await run_in_thread(int, "odd")


async def test_it_is_done_to_its_end_where_nobody_waits_any_more() -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(30)
        ended.set()

    working = asyncio.ensure_future(run_in_thread(work))
    while not begun.is_set():  # noqa: ASYNC110 - it is set in another thread
        await asyncio.sleep(0.001)
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working
    assert not ended.is_set()
    may_end.set()
    assert await run_in_thread(ended.is_set)


async def test_only_what_is_long_leaves_the_loop_s_thread() -> None:
    here = threading.get_ident()
    assert await run_in_thread_if(False, threading.get_ident) == here
    assert await run_in_thread_if(True, threading.get_ident) != here
