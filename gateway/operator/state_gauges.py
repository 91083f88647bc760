"""Figures of the state, for the metrics and the console."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, ScalarSelect, and_, func, select, text

from gateway.storage import Store
from gateway.storage.database import Transaction
from gateway.storage.operation_statements import IS_OPEN_OPERATION, IS_SENT_WRITE
from gateway.storage.restore_detection import RESTORED
from gateway.storage.state_tables import IS_SUPERSEDED, id_redirects
from gateway.storage.tables import (
    UNSEEN_BATCH_CONDITION,
    api_keys,
    counters,
    freezes,
    operations,
    upstream_writes,
)
from gateway.writes.states import DONE, IN_DOUBT, RUNNING

IN_FLIGHT_PERIOD = timedelta(seconds=60)
"""A write that was sent longer ago is no longer in flight."""

STARTED_PERIOD = timedelta(days=1)
"""How long a superseded batch counts as started: long enough for an alert, which then ends."""


@dataclass(frozen=True, slots=True)
class StateGauges:
    """Figures of the state.

    ``in_doubt_writes``: writes sent more than a minute ago whose outcome is unknown, or after which the
    operation could not continue; the oldest was sent ``in_doubt_seconds`` ago. ``in_doubt_operations``
    also counts the newer ones that are known to be in doubt, as the list of them does. ``keys``: keys
    that are not revoked, by environment. ``is_restored``: no batch is started until the state is reconciled.
    """

    in_doubt_writes: int
    in_doubt_seconds: float
    in_doubt_operations: int
    open_operations: int
    superseded_batches: int
    started_superseded_batches: int
    freezes: int
    keys: Mapping[str, int]
    is_restored: bool


async def load_state_gauges(store: Store) -> StateGauges:
    """Reads the gauges from the state with a few cheap queries. Raises StoreUnavailable."""
    now = store.clock()
    open_operations = select(
        operations.c.state,
        operations.c.reason,
        _build_time_query(func.min, IS_SENT_WRITE).label("sent_at"),
        _build_time_query(func.max).label("last_at"),
    ).where(IS_OPEN_OPERATION)
    # The exact conditions of the partial indexes: with others, a database scans the whole table.
    is_started = and_(
        id_redirects.c.started_at.is_not(None), id_redirects.c.updated_at > now - STARTED_PERIOD
    )
    superseded_counts = (
        select(func.count(), func.count().filter(is_started))
        .select_from(id_redirects)
        .where(text(IS_SUPERSEDED))
    )
    unseen_count = (
        select(func.count()).select_from(upstream_writes).where(text(UNSEEN_BATCH_CONDITION))
    )
    freeze_count = select(func.count()).select_from(freezes)
    keys_by_environment = select(api_keys.c.environment, func.count()).where(
        api_keys.c.revoked_at.is_(None)
    )
    restored_flag = select(counters.c.value).where(counters.c.name == RESTORED)

    async def load(tx: Transaction) -> StateGauges:
        rows, late_at = await tx.fetch(open_operations), now - IN_FLIGHT_PERIOD
        # Newer writes are usually still in flight. An operation in doubt has a reason until it
        # ends, also while it is being resolved, or after all its writes were answered.
        times = [row.sent_at or (row.last_at if row.reason else None) for row in rows]
        late = [at for at in times if at and at < late_at]
        in_doubt = [
            row
            for row in rows
            if row.state == IN_DOUBT
            or (row.state == RUNNING and (row.reason or (row.sent_at and row.sent_at < late_at)))
        ]
        ((superseded_count, started_count),) = await tx.fetch(superseded_counts)
        environments = await tx.fetch(keys_by_environment.group_by(api_keys.c.environment))
        return StateGauges(
            len(late),
            (now - min(late)).total_seconds() if late else 0,
            len(in_doubt),
            # Of the others only the delivery of the response is open, for up to a day.
            sum(row.state != DONE for row in rows),
            superseded_count + await tx.fetch_value(unseen_count),
            started_count,
            await tx.fetch_value(freeze_count),
            {row[0]: row[1] for row in environments},
            bool(await tx.fetch_value(restored_flag)),
        )

    return await store.read(load)


def _build_time_query(choose: Any, *conditions: ColumnElement[bool]) -> ScalarSelect[Any]:
    """Builds a query for the time of one of an operation's writes; a join would scan all writes."""
    time = choose(upstream_writes.c.recorded_at, type_=upstream_writes.c.recorded_at.type)
    is_of_operation = upstream_writes.c.operation_id == operations.c.id
    return select(time).where(is_of_operation, *conditions).correlate(operations).scalar_subquery()
