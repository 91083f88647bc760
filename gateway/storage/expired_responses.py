"""Deletes the responses that no client will ask for again."""

from collections.abc import Sequence
from datetime import datetime
from functools import partial

from sqlalchemy import ColumnElement, bindparam, literal_column, null, or_, select, text, update

from gateway.storage.chunks import delete_chunks
from gateway.storage.database import Transaction
from gateway.storage.operation_statements import ANSWER_HOLDER_PREFIX
from gateway.storage.sql import AnyOf, Statement
from gateway.storage.store import Store
from gateway.storage.tables import (
    EXPIRING_ANSWER_CONDITION,
    EXPIRING_KEY_CONDITION,
    operations,
)
from gateway.writes import states

_ROWS: ColumnElement[int] = literal_column("1000")
"""Of one transaction, for which all others wait on SQLite: about 20 ms."""

_IS_ENDED = or_(operations.c.state == states.ANSWERED, operations.c.state == states.UNDONE)
_SELECT_WITH_KEY, _SELECT_WITHOUT_KEY = (
    Statement(
        select(operations.c.id)
        # Both in the words of an index.
        .where(text(condition), time < bindparam("before", type_=time.type), _IS_ENDED)
        .order_by(time)
        .limit(_ROWS)
    )
    for condition, time in (
        (EXPIRING_KEY_CONDITION, operations.c.started_at),
        (EXPIRING_ANSWER_CONDITION, operations.c.ended_at),
    )
)
_CLEAR = Statement(
    update(operations)
    .where(
        AnyOf(operations.c.id, "ids"),
        _IS_ENDED,
        # Another process may just have cleared them.
        or_(operations.c.idempotency.is_not(None), operations.c.response.is_not(None)),
    )
    .values(idempotency=null(), response=null())
    .returning(operations.c.id)
)


async def clear_expired_responses(
    store: Store, started_before: datetime, ended_before: datetime
) -> None:
    """Deletes the oldest expired responses, at most 1,000 of either kind.

    Those with an Idempotency-Key, which is deleted too, expire by the start of their operation;
    others, which are kept in case a client has not read them, by its end.
    """
    for query, before in (
        (_SELECT_WITH_KEY, started_before),
        (_SELECT_WITHOUT_KEY, ended_before),
    ):
        if rows := await store.fetch(query, {"before": before}):
            await store.write(partial(_clear_responses, [row.id for row in rows]))


async def _clear_responses(ids: Sequence[str], tx: Transaction) -> None:
    # An operation that was reopened meanwhile keeps its response.
    rows = await tx.fetch(_CLEAR, {"ids": ids})
    await delete_chunks(tx, *(f"{ANSWER_HOLDER_PREFIX}{row.id}" for row in rows))
