"""Runs tasks at an interval while the gateway runs."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Self

import structlog

from gateway.observability import logs
from gateway.storage import StoreUnavailable

log = structlog.get_logger()


class PeriodicTask:
    """Runs a function every ``seconds`` inside its ``async with`` block.

    At the end it runs once more, unless ``runs_at_stop`` is false. It is never cancelled, so that a
    started database write finishes. An unavailable database is logged once, until it is available.
    """

    def __init__(
        self,
        name: str,
        seconds: float,
        run_once: Callable[[], Awaitable[None]],
        *,
        runs_at_stop: bool = True,
    ) -> None:
        self._name = name
        self._seconds = seconds
        self._run_once = run_once
        self._runs_at_stop = runs_at_stop
        self._is_healthy = True
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run_until_stopped(), name=self._name)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping.set()
        if self._task:
            await self._task

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    async def _run_until_stopped(self) -> None:
        while not self._stopping.is_set():
            # Not wait_for, which creates a task.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    await self._stopping.wait()
            if self._runs_at_stop or not self.is_stopping:
                await self._run_once_and_log_failure()

    async def _run_once_and_log_failure(self) -> None:
        try:
            await self._run_once()
        except StoreUnavailable as unavailable:
            if self._is_healthy:
                log.error("periodic_task_failed", task=self._name, reason=str(unavailable))
            self._is_healthy = False
        except Exception as error:  # noqa: BLE001 - the task must keep running
            log.error("periodic_task_failed", task=self._name, **logs.describe_exception(error))
        else:
            self._is_healthy = True
