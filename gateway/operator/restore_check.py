"""Detects that the state was replaced by an older copy, such as a restored backup.

The high-water mark of the state is also kept in a file outside it (``storage/restore_detection.py``).
"""

import asyncio
from pathlib import Path
from typing import Self

import structlog

from gateway.storage import Store
from gateway.storage.periodic_tasks import PeriodicTask
from gateway.storage.restore_detection import (
    NO_MARK,
    HighWaterMark,
    load_restore_state,
    read_high_water_mark_file,
    set_restored_flag,
    write_high_water_mark_if_greater,
)

CHECK_INTERVAL_SECONDS = 1.0

RESTORED_MESSAGE = "the state was restored from an older copy"
RESTORED_CONSEQUENCE = (
    "the gateway does not know what happened after the copy was made, so it starts no batch: one "
    "that was edited or started since then could be paid twice"
)
RESTORED_ADVICE = "run `payout-gateway reconcile` and check its findings"

log = structlog.get_logger()


async def is_restored(store: Store, path: Path) -> bool:
    """Whether the state was restored and not yet reconciled, so that no batch may be started.

    Raises StoreUnavailable.
    """
    # The file first: a running gateway advances both, and the state must not look older.
    mark = await asyncio.to_thread(read_high_water_mark_file, path)
    position = await load_restore_state(store)
    return position.is_restored or position.mark < mark


class RestoreDetector(PeriodicTask):
    """Checks for a restored state on ``__aenter__``, and once a second until ``__aexit__``."""

    def __init__(self, store: Store, path: Path) -> None:
        super().__init__("restore_check", CHECK_INTERVAL_SECONDS, self.advance_mark_or_flag_restore)
        self._store = store
        self._path = path
        self._known_mark = NO_MARK
        self._written_mark = NO_MARK
        self._is_restored = False
        self._was_write_ok = True

    async def __aenter__(self) -> Self:
        self._known_mark = self._written_mark = await asyncio.to_thread(
            read_high_water_mark_file, self._path
        )
        # Before anything is served: the first request may be the start of a batch.
        await self.advance_mark_or_flag_restore()
        return await super().__aenter__()

    async def advance_mark_or_flag_restore(self) -> None:
        """Advances the high-water mark, or flags the state as restored if it is behind the mark."""
        position = await load_restore_state(self._store)
        # Stored in the state, so that every other process on it stops starting batches too.
        if position.mark < self._known_mark and not position.is_restored:
            await set_restored_flag(self._store, self._known_mark)
        if position.is_restored or position.mark < self._known_mark:
            # Once per restore, not once per second.
            if not self._is_restored:
                log.error(
                    "database_restored",
                    database=self._store.database.location,
                    reason=f"{RESTORED_MESSAGE}; {RESTORED_CONSEQUENCE}",
                    hint=RESTORED_ADVICE,
                )
            self._is_restored = True
            return
        self._is_restored, self._known_mark = False, position.mark
        # Only when it advanced: an idle gateway does not write to disk.
        if self._known_mark > self._written_mark:
            await self._write_mark_file(self._known_mark)

    async def _write_mark_file(self, mark: HighWaterMark) -> None:
        try:
            await asyncio.to_thread(write_high_water_mark_if_greater, self._path, mark)
        except OSError as error:
            if self._was_write_ok:
                log.warning(
                    "restore_mark_not_written",
                    reason=f"{error.strerror}; this machine will not notice if an older copy of the "
                    "database is restored",
                    **{"file.path": str(self._path)},
                    hint="free space on its disk if that is full; otherwise give the gateway's user "
                    "write permission on the file, or set state.mark_file to another path",
                )
            self._was_write_ok = False
        else:
            self._written_mark, self._was_write_ok = mark, True
