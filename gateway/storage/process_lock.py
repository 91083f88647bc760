"""Allows one gateway for each SQLite file: a second one would take over the operations of the first."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.storage.errors import StoreUnavailable


@contextmanager
def alone_with(file: Path) -> Iterator[None]:
    """Holds the lock of an SQLite file; raises StoreUnavailable if another process has it.

    The operating system releases it when the process ends, even by a crash. Commands do not take it.
    """
    lock = file.with_name(f"{file.name}.lock")
    with lock.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreUnavailable(
                f"another gateway serves the database {file}",
                means="two gateways on one SQLite file would execute requests twice",
                do="stop the other one first, or use PostgreSQL for several instances",
            ) from None
        yield
