"""Looks now and then whether somebody started an abandoned batch elsewhere."""

from __future__ import annotations

import asyncio
from typing import Self

import structlog

from gateway.observability import logs
from gateway.operator.ledger_reconciliation import Finding, Reconciler
from gateway.storage import StoreUnavailable

log = structlog.get_logger()


class Watch:
    """``async with`` it; by ``seconds`` 0 it does nothing."""

    def __init__(self, reconciler: Reconciler, seconds: float) -> None:
        self._reconciler = reconciler
        self._seconds = seconds
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._seconds:
            self._watching = asyncio.create_task(self._watch(), name="watch")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watching:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            try:
                for found in await self._reconciler.abandoned():
                    _tell(found)
            except StoreUnavailable as unavailable:
                log.error("abandoned_batch_check_failed", reason=str(unavailable))
            except Exception as error:  # noqa: BLE001 - it looks again the next time
                log.error("abandoned_batch_check_failed", **logs.describe_exception(error))
            await asyncio.sleep(self._seconds)


def _tell(found: Finding) -> None:
    log.error(
        "abandoned_batch_started",
        merchant=found.owner.merchant,
        environment=found.owner.environment,
        batch=found.upstream or found.id,
        reason=f"{found.says}; a payment may be made twice, or after it was withdrawn",
        hint=found.do,
    )
