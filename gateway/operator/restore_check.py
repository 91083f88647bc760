"""Detects that the state was replaced by an older copy, such as a restored backup.

The high-water mark of the state is also kept in a file outside it (``storage/restore_marks.py``).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Self

import structlog

from gateway.storage import Store
from gateway.storage.periodic_tasks import PeriodicTask
from gateway.storage.restore_marks import NONE, Mark, flag_restored, read_mark, standing, write_mark

LOOK_SECONDS = 1.0

HAPPENED = "the state was restored from an older copy"
MEANS = (
    "the gateway does not know what happened after the copy was made, so it starts no batch: one "
    "that was edited or started since then could be paid twice"
)
DO = "run `payout-gateway reconcile` and check its findings"

log = structlog.get_logger()


async def is_older(store: Store, path: Path) -> bool:
    """Whether the state was restored and not yet reconciled, so that no batch may be started.

    Raises StoreUnavailable.
    """
    # The file first: a running gateway advances both, and the state must not look older.
    mark = await asyncio.to_thread(read_mark, path)
    found = await standing(store)
    return found.restored or found.mark < mark


class Guard:
    """Checks for a restored state on ``__aenter__``, and once a second until ``__aexit__``."""

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
        """Advances the high-water mark, or flags the state as restored if it is behind the mark."""
        found = await standing(self._store)
        # Stored in the state, so that every other process on it stops starting batches too.
        if found.mark < self._known and not found.restored:
            await flag_restored(self._store, self._known)
        if found.restored or found.mark < self._known:
            self._tell()
            return
        self._is_restored, self._known = False, found.mark
        # Only when it advanced: an idle gateway does not write to disk.
        if self._known > self._written:
            await self._write(self._known)

    def _tell(self) -> None:
        if not self._is_restored:
            # Once per restore, not once per second.
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
                reason=f"{error.strerror}; this machine will not notice if an older copy of the "
                "database is restored",
                **{"file.path": str(self._path)},
                hint="give the gateway's user write permission on the file, or set "
                "state.mark_file to another path",
            )
        self._may_write = False
