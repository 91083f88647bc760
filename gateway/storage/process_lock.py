"""One gateway at a time on an SQLite state: a second one would take over what the first is doing."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.storage.errors import StoreUnavailable


@contextmanager
def alone_with(file: Path) -> Iterator[None]:
    """Holds the state's lock; StoreUnavailable where another has it.

    The system gives it back when the process ends, however it ends. Commands do not take it.
    """
    lock = file.with_name(f"{file.name}.lock")
    with lock.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreUnavailable(
                f"another gateway serves on the state {file}",
                means="two on one SQLite file would carry out requests twice",
                do="end the other one first, or use PostgreSQL for several",
            ) from None
        yield
