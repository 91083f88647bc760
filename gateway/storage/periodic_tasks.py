"""Tasks that run at an interval while the gateway runs."""

from __future__ import annotations

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
        goes: Callable[[], Awaitable[None]],
        *,
        at_its_end: bool = True,
    ) -> None:
        self._name = name
        self._seconds = seconds
        self._goes = goes
        self._at_its_end = at_its_end
        self._is_well = True
        self._ending = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._go_on(), name=self._name)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ending.set()
        if self._task:
            await self._task

    @property
    def is_ending(self) -> bool:
        return self._ending.is_set()

    async def _go_on(self) -> None:
        while not self._ending.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), self._seconds)
            if self._at_its_end or not self.is_ending:
                await self._go()

    async def _go(self) -> None:
        try:
            await self._goes()
        except StoreUnavailable as unavailable:
            if self._is_well:
                log.error("periodic_task_failed", task=self._name, reason=str(unavailable))
            self._is_well = False
        except Exception as error:  # noqa: BLE001 - the task must keep running
            log.error("periodic_task_failed", task=self._name, **logs.describe_exception(error))
        else:
            self._is_well = True
