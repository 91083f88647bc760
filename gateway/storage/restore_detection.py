"""Detects that the database was replaced by an older copy of itself.

Every operation has a number, and a file beside the key file holds the highest one as a high-water
mark: a database that has not reached the mark has been restored. It does not know of anything after
its backup, so a batch that was edited or started since then would be started again, and paid twice.
Nothing is started until `payout-gateway reconcile` has compared the database with the service.

    generation  number of reconciliations; marks of an earlier generation no longer apply
    restored    1 until the reconciliation is done, for every process that uses the database
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Text, delete, func, literal_column, or_, select, union_all

from gateway.storage.audit_log import record_audit_event
from gateway.storage.database import Transaction
from gateway.storage.errors import StoreUnavailable
from gateway.storage.sql import Statement, build_upsert_statement
from gateway.storage.store import Store
from gateway.storage.tables import counters, operations

GENERATION, RESTORED = "generation", "restored"
RESTORE_NOTICED, RESTORE_RECONCILED = "noticed an older state", "reconciled a restored state"


class HighWaterMark(NamedTuple):
    """The progress of a database; a later mark compares greater."""

    generation: int
    number: int


NO_MARK = HighWaterMark(0, 0)


class RestoreState(NamedTuple):
    mark: HighWaterMark
    is_restored: bool


async def load_restore_state(store: Store) -> RestoreState:
    """Loads the mark of the database, and whether it is known to be restored."""
    rows = store.database.fetch_now(_SELECT_STATE, {})
    return await store.read(_load_restore_state) if rows is None else _build_restore_state(rows)


async def _load_restore_state(tx: Transaction) -> RestoreState:
    return _build_restore_state(await tx.fetch(_SELECT_STATE))


_SELECT_STATE = Statement(
    union_all(
        select(counters.c.name, counters.c.value).where(
            or_(counters.c.name == GENERATION, counters.c.name == RESTORED)
        ),
        select(literal_column("'number'", Text), func.max(operations.c.number)),
    )
)
_UPSERT_COUNTER = build_upsert_statement(counters, ("value",))


def _build_restore_state(rows: Iterable[tuple[str, int | None]]) -> RestoreState:
    values = dict(rows)
    return RestoreState(
        # Operations of the first versions have negative numbers.
        HighWaterMark(values.get(GENERATION) or 0, max(values["number"] or 0, 0)),
        bool(values.get(RESTORED)),
    )


async def set_restored_flag(
    store: Store, mark: HighWaterMark, audit_text: str = RESTORE_NOTICED
) -> bool:
    """Blocks starts because the database is restored; False if they were blocked already."""

    async def insert_flag(tx: Transaction) -> bool:
        await tx.lock(RESTORED)
        restore_state = await _load_restore_state(tx)
        # Stored in the database, as the reconciliation may run on a machine without the mark file.
        generation = max(restore_state.mark.generation, mark.generation)
        await tx.execute(_UPSERT_COUNTER, {"name": GENERATION, "value": generation})
        if restore_state.is_restored:
            return False
        await tx.execute(_UPSERT_COUNTER, {"name": RESTORED, "value": 1})
        await record_audit_event(store, tx, audit_text)
        return True

    return await store.write(insert_flag)


async def clear_restored_flag(store: Store, mark: HighWaterMark) -> HighWaterMark:
    """Allows starts again, after the reconciliation; returns the new mark."""

    async def delete_flag(tx: Transaction) -> HighWaterMark:
        await tx.lock(RESTORED)
        restore_state = await _load_restore_state(tx)
        generation = max(restore_state.mark.generation, mark.generation) + 1
        await tx.execute(_UPSERT_COUNTER, {"name": GENERATION, "value": generation})
        await tx.execute(delete(counters).where(counters.c.name == RESTORED))
        await record_audit_event(store, tx, RESTORE_RECONCILED)
        return HighWaterMark(generation, restore_state.mark.number)

    return await store.write(delete_flag)


# The mark file


def read_high_water_mark_file(path: Path) -> HighWaterMark:
    """Reads the mark file; ``NO_MARK`` if there is none. Raises StoreUnavailable."""
    try:
        fields = json.loads(path.read_text("ascii"))
        return HighWaterMark(int(fields["generation"]), int(fields["number"]))
    except FileNotFoundError:
        return NO_MARK
    except OSError as error:
        raise _build_unreadable_error(path, error.strerror or type(error).__name__) from None
    except (ValueError, KeyError, TypeError):
        raise _build_unreadable_error(path, "it is not a mark file") from None


def write_high_water_mark_if_greater(path: Path, mark: HighWaterMark) -> None:
    """Writes the greater of this mark and the one in the file; raises OSError."""
    # A file that cannot be read is replaced.
    with contextlib.suppress(StoreUnavailable):
        mark = max(mark, read_high_water_mark_file(path))
    # Renamed when it is complete, because a crash must not leave half a mark.
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


def _build_unreadable_error(path: Path, reason: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"mark file {path} cannot be read ({reason})",
        means="it is unknown whether the database is the one that was used last",
        do="give the gateway's user read permission, or delete it and run "
        "`payout-gateway reconcile`",
    )
