"""A pool of worker processes that restarts workers that exit."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress

import structlog

from gateway.server.workers.worker_process import (
    WorkerProcess,
    WorkerStartError,
    describe_exit_code,
)

STABLE_WORKER_SECONDS = 10
"""A worker that ran this long is restarted immediately, others after a growing delay."""

MIN_RESTART_DELAY_SECONDS = 0.5
MAX_RESTART_DELAY_SECONDS = 30

log = structlog.get_logger()

StartWorker = Callable[[Sequence[int]], Awaitable[WorkerProcess]]
"""Starts a worker that accepts connections from the queues with these numbers."""


class WorkerSlot:
    """A place in the pool: its worker, which is replaced when it exits.

    ``queues`` are the numbers of the queues that it accepts from; ``on_change`` is called when its
    worker starts or stops accepting.
    """

    def __init__(
        self, start_worker: StartWorker, queues: Sequence[int], on_change: Callable[[], None]
    ) -> None:
        self.queues = queues
        self._start_worker = start_worker
        self._on_change = on_change
        self._restart_delay = 0.0
        self._stop_requested = asyncio.Event()
        self.worker: WorkerProcess | None = None

    async def start_worker(self) -> None:
        """Starts a worker and waits until it accepts connections; raises WorkerStartError."""
        self.worker = await self._start_worker(self.queues)
        if self._stop_requested.is_set():
            # The stop came while the process was being created, and could not signal it.
            self.worker.send_signal()
        await self.worker.wait_until_accepting()

    def stop_restarting(self) -> WorkerProcess | None:
        """Stops restarting; returns the current worker, if any."""
        self._stop_requested.set()
        return self.worker

    async def supervise(self) -> None:
        """Restarts the worker whenever it exits, until ``stop_restarting``."""
        while self.worker:
            started_at = time.monotonic()
            exit_code = await self.worker.wait_for_exit()
            if self._stop_requested.is_set():
                return
            self._on_change()
            self._log_exit_and_set_restart_delay(exit_code, time.monotonic() - started_at)
            await self._restart_worker()

    def _log_exit_and_set_restart_delay(self, exit_code: int, uptime_seconds: float) -> None:
        self._restart_delay = (
            0.0 if uptime_seconds >= STABLE_WORKER_SECONDS else self._calculate_restart_delay()
        )
        log.error(
            "worker_exited",
            worker_pid=self.worker and self.worker.pid,
            reason=describe_exit_code(exit_code),
            requests_in_flight="lost" if exit_code else "finished",
            restart_delay_seconds=self._restart_delay,
        )

    async def _restart_worker(self) -> None:
        while not await self._wait_for_stop(self._restart_delay):
            try:
                await self.start_worker()
            except Exception as error:  # noqa: BLE001 - the slot must be filled after any error
                self._restart_delay = self._calculate_restart_delay()
                reason = str(error) if isinstance(error, WorkerStartError) else type(error).__name__
                log.error(
                    "worker_start_failed", reason=reason, restart_delay_seconds=self._restart_delay
                )
            else:
                self._on_change()
                log.info("worker_started", worker_pid=self.worker and self.worker.pid)
                return

    async def _wait_for_stop(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop_requested.wait(), seconds)
        return self._stop_requested.is_set()

    def _calculate_restart_delay(self) -> float:
        return min(
            MAX_RESTART_DELAY_SECONDS, max(MIN_RESTART_DELAY_SECONDS, 2 * self._restart_delay)
        )


class WorkerPool:
    """The workers of one configuration, and the queues that they share."""

    def __init__(self, worker_count: int, queue_count: int, start_worker: StartWorker) -> None:
        self._slots = [
            WorkerSlot(start_worker, queue_numbers, self._reassign_vacant_queues)
            for queue_numbers in assign_queues(worker_count, queue_count)
        ]
        self._supervisor_tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Waits until all workers accept connections.

        If one does not start, stop all and raise WorkerStartError.
        """
        # All or nothing: a rolling restart keeps the old workers unless every new one accepts.
        start_tasks = [asyncio.ensure_future(slot.start_worker()) for slot in self._slots]
        try:
            await asyncio.gather(*start_tasks)
        except BaseException:
            for task in start_tasks:
                task.cancel()
            await asyncio.gather(*start_tasks, return_exceptions=True)
            self.stop_with_signal()
            await self.wait_for_exit()
            raise
        self._supervisor_tasks = [asyncio.ensure_future(slot.supervise()) for slot in self._slots]

    def iter_accepting_workers(self) -> Iterator[WorkerProcess]:
        """Yields the workers that accept connections."""
        for slot in self._slots:
            if slot.worker and slot.worker.is_accepting:
                yield slot.worker

    def _reassign_vacant_queues(self) -> None:
        """Lets the other workers accept from the queues of a slot without a worker."""
        vacant_queues = {
            number
            for slot in self._slots
            if not (slot.worker and slot.worker.is_accepting)
            for number in slot.queues
        }
        for slot in self._slots:
            if slot.worker and slot.worker.is_accepting:
                slot.worker.assign_queues(vacant_queues.union(slot.queues))

    def retire(self) -> None:
        for worker in self._stop_restarting_and_iter_workers():
            worker.retire()

    def stop_with_signal(self, signal_number: signal.Signals = signal.SIGTERM) -> None:
        for worker in self._stop_restarting_and_iter_workers():
            worker.send_signal(signal_number)

    async def wait_for_exit(self) -> None:
        """Waits until the workers that were retired or signalled have exited."""
        # Awaited first, because a restart that has begun may still add a worker.
        await asyncio.gather(*self._supervisor_tasks, return_exceptions=True)
        for worker in self._stop_restarting_and_iter_workers():
            await worker.wait_for_exit()

    def _stop_restarting_and_iter_workers(self) -> Iterator[WorkerProcess]:
        for slot in self._slots:
            if worker := slot.stop_restarting():
                yield worker


def assign_queues(worker_count: int, queue_count: int) -> list[list[int]]:
    """Returns the queue numbers of each worker; every queue has a worker, evenly distributed."""
    if worker_count > queue_count:
        # There may be fewer queues than workers: queues are bound at the start, before a restart
        # with more workers, and there is only one without SO_REUSEPORT.
        return [[worker_number % queue_count] for worker_number in range(worker_count)]
    return [
        list(range(worker_number, queue_count, worker_count))
        for worker_number in range(worker_count)
    ]
