"""How an older state is known that was put in the place of a newer one.

Every undertaking has a number, and the last one is kept in a file beside the key file, the *mark*:
a state that has not come so far has been restored. What happened since its backup was made it does
not know, and a batch that was edited, or started, since then would be started again. So nothing is
started on it until it was compared with the service (`payout-gateway reconcile`).

    generation  counts how often that was done: a mark of an earlier one says nothing any more
    restored    1 until it is done, for all who use the state
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
    """How far a state has come; a later one is greater."""

    generation: int
    number: int


NONE = Mark(0, 0)


class Standing(NamedTuple):
    mark: Mark
    restored: bool


async def standing(store: Store) -> Standing:
    """How far the state has come, and whether it is known to be a restored one."""
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
    """Has nothing started on the state from now on; False where that was so already."""
    async with store.write() as connection:
        await store.one_at_a_time(connection, RESTORED)
        found = await _standing(connection)
        # Whoever reconciles it need not be on the machine that has the mark.
        generation = max(found.mark.generation, mark.generation)
        await put_row(connection, counters, {"name": GENERATION}, {"value": generation})
        if found.restored:
            return False
        await put_row(connection, counters, {"name": RESTORED}, {"value": 1})
        await note(store, connection, what)
        return True


async def settle_restored(store: Store, mark: Mark) -> Mark:
    """The state was compared with the service: it counts as the latest one. Its new mark."""
    async with store.write() as connection:
        await store.one_at_a_time(connection, RESTORED)
        found = await _standing(connection)
        generation = max(found.mark.generation, mark.generation) + 1
        await put_row(connection, counters, {"name": GENERATION}, {"value": generation})
        await connection.execute(delete(counters).where(counters.c.name == RESTORED))
        await note(store, connection, RECONCILED)
        return Mark(generation, found.mark.number)


# The file


def read_mark(path: Path) -> Mark:
    """``NONE`` where there is no file; StoreUnavailable."""
    try:
        told = json.loads(path.read_text("ascii"))
        return Mark(int(told["generation"]), int(told["number"]))
    except FileNotFoundError:
        return NONE
    except OSError as error:
        raise _unreadable(path, error.strerror or type(error).__name__) from None
    except (ValueError, KeyError, TypeError):
        raise _unreadable(path, "it is not one") from None


def write_mark(path: Path, mark: Mark) -> None:
    """Keeps the greater of this mark and the one that the file has; OSError."""
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
        f"mark {path} cannot be read ({why})",
        means="nobody can say whether the state is the one that was used last",
        do="give the gateway's user the right to it, or remove it and run `payout-gateway reconcile`",
    )
