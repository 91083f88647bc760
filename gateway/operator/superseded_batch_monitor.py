"""Checks periodically whether a superseded batch was started outside the gateway."""

from __future__ import annotations

import asyncio
from typing import Self

import structlog

from gateway.observability import logs
from gateway.operator.ledger_reconciliation import Finding, Reconciler
from gateway.storage import StoreUnavailable

log = structlog.get_logger()


class SupersededBatchMonitor:
    """A background task that checks every ``seconds`` seconds; 0 disables it."""

    def __init__(self, reconciler: Reconciler, seconds: float) -> None:
        self._reconciler = reconciler
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._seconds:
            self._task = asyncio.create_task(self._run_checks(), name="watch")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task:
            # It only reads, so that nothing is left half done.
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run_checks(self) -> None:
        while True:
            try:
                for finding in await self._reconciler.check_superseded_batches():
                    _log_started_superseded_batch(finding)
            except StoreUnavailable as unavailable:
                log.error("abandoned_batch_check_failed", reason=str(unavailable))
            except Exception as error:  # noqa: BLE001 - the next check may succeed
                log.error("abandoned_batch_check_failed", **logs.describe_exception(error))
            await asyncio.sleep(self._seconds)


def _log_started_superseded_batch(finding: Finding) -> None:
    log.error(
        "abandoned_batch_started",
        merchant=finding.owner.merchant,
        environment=finding.owner.environment,
        batch=finding.upstream or finding.id,
        reason=f"{finding.description}; a recipient may be paid twice, or paid an amount that was withdrawn",
        hint=finding.advice,
    )
