"""A pool of worker processes that restarts workers that exit."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress

import structlog

from gateway.server.workers.worker import Child, NotStarted, describe_exit_code

STABLE_SECONDS = 10
"""A worker that ran this long is restarted immediately, others after a growing delay."""

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30

log = structlog.get_logger()

Start = Callable[[Sequence[int]], Awaitable[Child]]
"""Starts a worker that accepts connections from the queues with these numbers."""


class Post:
    """A place in the pool: its worker, which is replaced when it exits.

    ``queues`` are the numbers of the queues that it accepts from; ``on_change`` is called when its
    worker starts or stops accepting.
    """

    def __init__(self, start: Start, queues: Sequence[int], changed: Callable[[], None]) -> None:
        self.queues = queues
        self._start = start
        self._changed = changed
        self._pause = 0.0
        self._given_up = asyncio.Event()
        self.child: Child | None = None

    async def fill(self) -> None:
        """Start a worker and wait until it accepts connections; raises WorkerStartError."""
        self.child = await self._start(self.queues)
        if self._given_up.is_set():
            self.child.end()
        await self.child.until_it_accepts()

    def give_up(self) -> Child | None:
        """Stop restarting; return the current worker, if any."""
        self._given_up.set()
        return self.child

    async def keep(self) -> None:
        """Restart the worker whenever it exits, until ``stop_restarting``."""
        while self.child:
            since = time.monotonic()
            code = await self.child.gone()
            if self._given_up.is_set():
                return
            self._changed()
            self._tell(code, time.monotonic() - since)
            await self._refill()

    def _tell(self, code: int, seconds: float) -> None:
        self._pause = 0.0 if seconds >= STABLE_SECONDS else self._next_pause()
        log.error(
            "worker_exited",
            worker_pid=self.child and self.child.pid,
            reason=describe_exit_code(code),
            requests_in_flight="lost" if code else "finished",
            restart_delay_seconds=self._pause,
        )

    async def _refill(self) -> None:
        while not await self._given_up_within(self._pause):
            try:
                await self.fill()
            except Exception as error:  # noqa: BLE001 - the slot must be filled after any error
                self._pause = self._next_pause()
                why = str(error) if isinstance(error, NotStarted) else type(error).__name__
                log.error("worker_start_failed", reason=why, restart_delay_seconds=self._pause)
            else:
                self._changed()
                log.info("worker_started", worker_pid=self.child and self.child.pid)
                return

    async def _given_up_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._given_up.wait(), seconds)
        return self._given_up.is_set()

    def _next_pause(self) -> float:
        return min(LONGEST_PAUSE_SECONDS, max(FIRST_PAUSE_SECONDS, 2 * self._pause))


class Crew:
    """The workers of one configuration, and the queues that they share."""

    def __init__(self, count: int, queues: int, start: Start) -> None:
        self._posts = [Post(start, one, self._spread) for one in assign_queues(count, queues)]
        self._keeping: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Wait until all workers accept connections.

        If one does not start, stop all and raise WorkerStartError.
        """
        # All or nothing: a rolling restart keeps the old workers unless every new one accepts.
        filling = [asyncio.ensure_future(post.fill()) for post in self._posts]
        try:
            await asyncio.gather(*filling)
        except BaseException:
            for one in filling:
                one.cancel()
            await asyncio.gather(*filling, return_exceptions=True)
            self.end()
            await self.gone()
            raise
        self._keeping = [asyncio.ensure_future(post.keep()) for post in self._posts]

    def children(self) -> Iterator[Child]:
        """Yield the workers that accept connections."""
        for post in self._posts:
            if post.child and post.child.accepts:
                yield post.child

    def _spread(self) -> None:
        """Let the other workers accept from the queues of a slot without a worker."""
        vacant = {
            number
            for post in self._posts
            if not (post.child and post.child.accepts)
            for number in post.queues
        }
        for post in self._posts:
            if post.child and post.child.accepts:
                post.child.take_from(vacant.union(post.queues))

    def retire(self) -> None:
        for child in self._given_up():
            child.retire()

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        for child in self._given_up():
            child.end(number)

    async def gone(self) -> None:
        """Wait until the workers that were retired or signalled have exited."""
        await asyncio.gather(*self._keeping, return_exceptions=True)
        for child in self._given_up():
            await child.gone()

    def _given_up(self) -> Iterator[Child]:
        for post in self._posts:
            if child := post.give_up():
                yield child


def assign_queues(count: int, queues: int) -> list[list[int]]:
    """Return the queue numbers of each worker; every queue has a worker, evenly distributed."""
    if count > queues:
        return [[number % queues] for number in range(count)]
    return [list(range(number, queues, count)) for number in range(count)]
