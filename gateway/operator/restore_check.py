"""Sees that the state is not an older one than the one used before (``store/marks.py``)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Self

import structlog

from gateway.storage import Store
from gateway.storage.periodic_tasks import PeriodicTask
from gateway.storage.restore_marks import NONE, Mark, flag_restored, read_mark, standing, write_mark

LOOK_SECONDS = 1.0

HAPPENED = "the state is an older one that was restored"
MEANS = (
    "what was done since it was saved is not known here, so no batch is started: one that was "
    "edited or started since would be paid twice"
)
DO = "run `payout-gateway reconcile`, and look at what it finds"

log = structlog.get_logger()


async def is_older(store: Store, path: Path) -> bool:
    """Whether nothing may be started on the state until it is reconciled; StoreUnavailable."""
    # In this order: a gateway that runs goes on with both.
    mark = await asyncio.to_thread(read_mark, path)
    found = await standing(store)
    return found.restored or found.mark < mark


class Guard:
    """``async with`` it: it looks before anything else does, and once a second from then on."""

    def __init__(self, store: Store, path: Path) -> None:
        self._store = store
        self._path = path
        self._known = NONE
        self._written = NONE
        self._is_restored = False
        self._may_write = True
        self._rounds = PeriodicTask("restore_check", LOOK_SECONDS, self.look)

    async def __aenter__(self) -> Self:
        self._known = self._written = await asyncio.to_thread(read_mark, self._path)
        await self.look()
        await self._rounds.__aenter__()
        return self

    async def __aexit__(self, *end: object) -> None:
        await self._rounds.__aexit__(*end)

    async def look(self) -> None:
        """Takes note of how far the state has come, or that it was put back."""
        found = await standing(self._store)
        if found.mark < self._known and not found.restored:
            await flag_restored(self._store, self._known)
        if found.restored or found.mark < self._known:
            self._tell()
            return
        self._is_restored, self._known = False, found.mark
        if self._known > self._written:
            await self._write(self._known)

    def _tell(self) -> None:
        if not self._is_restored:
            log.error(
                "database_restored",
                database=self._store.where,
                reason=f"{HAPPENED}; {MEANS}",
                hint=DO,
            )
        self._is_restored = True

    async def _write(self, mark: Mark) -> None:
        try:
            await asyncio.to_thread(write_mark, self._path, mark)
        except OSError as error:
            self._complain(error)
            return
        self._written, self._may_write = mark, True

    def _complain(self, error: OSError) -> None:
        if self._may_write:
            log.warning(
                "restore_mark_not_written",
                reason=f"{error.strerror}; a restored database would not be detected here",
                **{"file.path": str(self._path)},
                hint="give the gateway's user the right to write there, or name another place in "
                "state.mark_file",
            )
        self._may_write = False
