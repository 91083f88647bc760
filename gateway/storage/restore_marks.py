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

from sqlalchemy import delete, func, or_, select

from gateway.storage.audit_log import note
from gateway.storage.errors import StoreUnavailable
from gateway.storage.sql import Statement, upsert
from gateway.storage.tables import counters, journal

if TYPE_CHECKING:
    from gateway.storage.database import Transaction
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
    return await store.read(_standing)


async def _standing(tx: Transaction) -> Standing:
    return _told(dict(await tx.fetch(_COUNTS)), await tx.fetch_value(_LAST))


_COUNTS = Statement(
    lambda _kind: select(counters.c.name, counters.c.value).where(
        or_(counters.c.name == GENERATION, counters.c.name == RESTORED)
    )
)
_LAST = Statement(lambda _kind: select(func.max(journal.c.number)))
_PUT = upsert(counters, ("name",), ("value",))


def _told(counts: Mapping[str, int], number: int | None) -> Standing:
    return Standing(Mark(counts.get(GENERATION, 0), number or 0), bool(counts.get(RESTORED)))


async def flag_restored(store: Store, mark: Mark, what: str = NOTICED) -> bool:
    """Has nothing started on the state from now on; False where that was so already."""

    async def flag(tx: Transaction) -> bool:
        await tx.lock(RESTORED)
        found = await _standing(tx)
        # Whoever reconciles it need not be on the machine that has the mark.
        generation = max(found.mark.generation, mark.generation)
        await tx.execute(_PUT, {"name": GENERATION, "value": generation})
        if found.restored:
            return False
        await tx.execute(_PUT, {"name": RESTORED, "value": 1})
        await note(store, tx, what)
        return True

    return await store.write(flag)


async def settle_restored(store: Store, mark: Mark) -> Mark:
    """The state was compared with the service: it counts as the latest one. Its new mark."""

    async def settle(tx: Transaction) -> Mark:
        await tx.lock(RESTORED)
        found = await _standing(tx)
        generation = max(found.mark.generation, mark.generation) + 1
        await tx.execute(_PUT, {"name": GENERATION, "value": generation})
        await tx.execute(delete(counters).where(counters.c.name == RESTORED))
        await note(store, tx, RECONCILED)
        return Mark(generation, found.mark.number)

    return await store.write(settle)


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
