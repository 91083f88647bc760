"""Allows one gateway for each SQLite file.

A second one would take over the operations that the first one is executing.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.storage.errors import StoreUnavailable


@contextmanager
def hold_process_lock(state_file: Path) -> Iterator[None]:
    """Holds the lock of an SQLite file; raises StoreUnavailable if another process has it.

    The operating system releases it when the process ends, even by a crash. Commands do not take
    it.
    """
    lock_path = state_file.with_name(f"{state_file.name}.lock")
    # The file is never deleted: two processes could otherwise lock two files of that name.
    with lock_path.open("w") as lock_file:
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreUnavailable(
                f"another gateway serves the database {state_file}",
                means="two gateways on one SQLite file would execute requests twice",
                do="stop the other one first, or use PostgreSQL for several instances",
            ) from None
        yield
