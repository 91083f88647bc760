"""Detects that the database was replaced by an older copy of itself.

Every operation has a number, and a file beside the key file holds the highest one as a high-water
mark: a database that has not reached the mark has been restored. It does not know of anything after
its backup, so a batch that was edited or started since then would be started again, and paid twice.
Nothing is started until `payout-gateway reconcile` has compared the database with the service.

    generation  number of reconciliations; marks of an earlier generation no longer apply
    restored    1 until the reconciliation is done, for every process that uses the database
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import Select, delete, func, or_, select

from gateway.storage.audit_log import note
from gateway.storage.errors import StoreUnavailable
from gateway.storage.ledger import put_row
from gateway.storage.statements import Statement, Steps, Transaction
from gateway.storage.tables import counters, journal

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from gateway.storage.store import Store

GENERATION, RESTORED = "generation", "restored"
NOTICED, RECONCILED = "noticed an older state", "reconciled a restored state"


class Mark(NamedTuple):
    """How far a database has come; a later mark compares greater."""

    generation: int
    number: int


NONE = Mark(0, 0)


class Standing(NamedTuple):
    mark: Mark
    restored: bool


async def standing(store: Store) -> Standing:
    """Loads how far the database has come, and whether it is known to be restored."""
    return await store.looked_up(Transaction(_looked_up))


def _looked_up() -> Steps[Standing]:
    counted, last = (yield _COUNTS.of({})), (yield _LAST.of({}))
    return _told(dict(counted), last[0][0])


async def _standing(connection: AsyncConnection) -> Standing:
    counted = {row.name: row.value for row in await connection.execute(_counts())}
    return _told(counted, await connection.scalar(_last()))


def _counts() -> Select[str, int]:
    of_these = or_(counters.c.name == GENERATION, counters.c.name == RESTORED)
    return select(counters.c.name, counters.c.value).where(of_these)


def _last() -> Select[int]:
    return select(func.max(journal.c.number))


_COUNTS, _LAST = Statement(lambda _kind: _counts()), Statement(lambda _kind: _last())


def _told(counts: Mapping[str, int], number: int | None) -> Standing:
    return Standing(Mark(counts.get(GENERATION, 0), number or 0), bool(counts.get(RESTORED)))


async def flag_restored(store: Store, mark: Mark, what: str = NOTICED) -> bool:
    """Blocks starts from now on, as the database is restored; False if they were blocked already."""
    async with store.write() as connection:
        await store.one_at_a_time(connection, RESTORED)
        found = await _standing(connection)
        # Stored in the database, as the reconciliation may run on a machine without the mark file.
        generation = max(found.mark.generation, mark.generation)
        await put_row(connection, counters, {"name": GENERATION}, {"value": generation})
        if found.restored:
            return False
        await put_row(connection, counters, {"name": RESTORED}, {"value": 1})
        await note(store, connection, what)
        return True


async def settle_restored(store: Store, mark: Mark) -> Mark:
    """Allows starts again, after the reconciliation; returns the new mark."""
    async with store.write() as connection:
        await store.one_at_a_time(connection, RESTORED)
        found = await _standing(connection)
        generation = max(found.mark.generation, mark.generation) + 1
        await put_row(connection, counters, {"name": GENERATION}, {"value": generation})
        await connection.execute(delete(counters).where(counters.c.name == RESTORED))
        await note(store, connection, RECONCILED)
        return Mark(generation, found.mark.number)


# The mark file


def read_mark(path: Path) -> Mark:
    """Reads the mark file; ``NO_MARK`` if there is none. Raises StoreUnavailable."""
    try:
        told = json.loads(path.read_text("ascii"))
        return Mark(int(told["generation"]), int(told["number"]))
    except FileNotFoundError:
        return NONE
    except OSError as error:
        raise _unreadable(path, error.strerror or type(error).__name__) from None
    except (ValueError, KeyError, TypeError):
        raise _unreadable(path, "it is not a mark file") from None


def write_mark(path: Path, mark: Mark) -> None:
    """Writes the greater of this mark and the one in the file; raises OSError."""
    with contextlib.suppress(StoreUnavailable):
        mark = max(mark, read_mark(path))
    descriptor, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(mark._asdict(), file)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _unreadable(path: Path, why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"mark file {path} cannot be read ({why})",
        means="it is unknown whether the database is the one that was used last",
        do="give the gateway's user read permission, or delete it and run `payout-gateway reconcile`",
    )
