"""What is asked of the journal by works; each statement is put into a database's words once."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Table,
    and_,
    bindparam,
    delete,
    func,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql

from gateway.storage import operation_states as states
from gateway.storage.restore_detection import RESTORED
from gateway.storage.sql import AnyOf, Statement, insert_new, upsert
from gateway.storage.tables import (
    HAS_IDEMPOTENCY_KEY_CONDITION,
    IS_OPEN,
    IS_SENT,
    UNREAD_ANSWER_CONDITION,
    acts,
    counters,
    freezes,
    journal,
    journal_numbers,
    journal_steps,
    journal_subjects,
    writes,
)

IS_OPEN_OPERATION = text(f"journal.{IS_OPEN}")
IS_SENT_WRITE = text(f"writes.{IS_SENT}")
IS_UNREAD_ANSWER = text(UNREAD_ANSWER_CONDITION)
"""In the words of the indexes: with others a database reads the whole table, and those only grow."""


TENANT_COLUMNS = ("merchant", "environment")
NEW_OPERATION_COLUMNS = (
    "id",
    "key_id",
    "key_name",
    "operation",
    "request_id",
    "fingerprint",
    "idempotency",
    "state",
    "instance",
    "turn",
    "deserted",
    "began_at",
)
SUMMARY_COLUMNS = tuple(
    column.name for column in journal.c if column.name not in ("asked", "number")
)

IS_DONE = journal.c.state == states.DONE
UNFINISHED = and_(
    IS_OPEN_OPERATION, or_(journal.c.state == states.RUNNING, journal.c.state == states.IN_DOUBT)
)
IS_FREEZE_OF_TENANT = and_(
    or_(freezes.c.merchant == "", freezes.c.merchant == bindparam("merchant")),
    or_(freezes.c.environment == "", freezes.c.environment == bindparam("environment")),
)


def is_of_tenant(table: Table) -> ColumnElement[bool]:
    return and_(*(table.c[name] == bindparam(name) for name in TENANT_COLUMNS))


HAS_ANY_IDEMPOTENCY_KEY = text(HAS_IDEMPOTENCY_KEY_CONDITION)
HAS_IDEMPOTENCY_KEY = and_(
    journal.c.key_id == bindparam("key_id"), journal.c.idempotency == bindparam("idempotency")
)


def _has_same_request() -> ColumnElement[bool]:
    fingerprint = journal.c.fingerprint
    names = ("fingerprint", "unimported")
    return fingerprint.in_([bindparam(name, type_=fingerprint.type) for name in names])


def build_related_query(
    *besides: ColumnElement[bool], shares: ColumnElement[bool] | None = None
) -> Any:
    """What is open and the same request, or is not settled and ``shares`` an object with it."""
    same = _has_same_request()
    concerns = same if shares is None else or_(same, and_(UNFINISHED, shares))
    shown = select(*(journal.c[name] for name in SUMMARY_COLUMNS)).order_by(
        journal.c.began_at, journal.c.id
    )
    return shown.where(or_(and_(is_of_tenant(journal), IS_OPEN_OPERATION, concerns), *besides))


def build_related_query_by_objects(*besides: ColumnElement[bool]) -> Any:
    """The same, of an undertaking that names objects: those are ``objects``."""
    named = select(journal_subjects.c.undertaking).where(
        is_of_tenant(journal_subjects),
        AnyOf(journal_subjects.c.object, "objects"),
        journal_subjects.c.undertaking == journal.c.id,
    )
    return build_related_query(*besides, shares=named.exists())


SELECT_RELATED = (
    Statement(lambda _kind: build_related_query()),
    Statement(lambda _kind: build_related_query_by_objects()),
)
SELECT_RELATED_OR_SAME_KEY = (
    Statement(lambda _kind: build_related_query(HAS_IDEMPOTENCY_KEY)),
    Statement(lambda _kind: build_related_query_by_objects(HAS_IDEMPOTENCY_KEY)),
)
"""For undertakings that name no object, and for those that do."""

SELECT_IDENTICAL = Statement(
    lambda _kind: select(journal.c.id, journal.c.idempotency).where(
        is_of_tenant(journal),
        IS_OPEN_OPERATION,
        journal.c.key_id == bindparam("key_id"),
        journal.c.fingerprint == bindparam("fingerprint"),
    )
)
SELECT_DELIVERING_INSTANCES = Statement(
    lambda _kind: (
        select(journal.c.instance, journal.c.idempotency)
        .distinct()
        .where(
            is_of_tenant(journal),
            # Each in the words of an index.
            or_(
                and_(IS_UNREAD_ANSWER, _has_same_request()),
                and_(
                    HAS_ANY_IDEMPOTENCY_KEY,
                    _has_same_request(),
                    journal.c.state == states.ANSWERED,
                ),
                and_(
                    IS_OPEN_OPERATION,
                    _has_same_request(),
                    IS_DONE,
                    journal.c.deserted.is_(False),
                ),
            ),
            journal.c.key_id == bindparam("key_id"),
            journal.c.instance != bindparam("instance"),
            or_(journal.c.ended_at.is_(None), journal.c.ended_at > bindparam("since")),
        )
    )
)
SELECT_UNFINISHED = Statement(
    lambda _kind: (
        select(*(journal.c[name] for name in SUMMARY_COLUMNS))
        .where(UNFINISHED)
        .order_by(journal.c.began_at, journal.c.id)
    )
)
SELECT_BY_OBJECT = Statement(
    lambda _kind: select(journal_subjects.c.undertaking, journal_subjects.c.object).where(
        is_of_tenant(journal_subjects),
        journal_subjects.c.object == bindparam("object"),
        AnyOf(journal_subjects.c.undertaking, "undertakings"),
    )
)
SELECT_FREEZE = Statement(
    lambda _kind: select(freezes.c.merchant).where(IS_FREEZE_OF_TENANT).limit(1)
)
SELECT_RESTORED = Statement(
    lambda _kind: select(counters.c.value).where(counters.c.name == RESTORED)
)


def build_next_number(kind: ModuleType) -> Any:
    if kind is postgresql:
        return journal_numbers.next_value()
    # One writes at a time.
    return select(func.coalesce(func.max(journal.c.number), 0) + 1).scalar_subquery()


INSERT_OPERATION = Statement(
    lambda kind: (
        kind.insert(journal)
        .values(number=build_next_number(kind))
        .on_conflict_do_nothing()
        .returning(journal.c.id)
    ),
    (*NEW_OPERATION_COLUMNS, *TENANT_COLUMNS, "asked"),
)


@cache
def build_fenced_update(sets: tuple[str, ...]) -> Statement:
    mine = and_(
        journal.c.id == bindparam("operation_id"), journal.c.turn == bindparam("expected_turn")
    )
    return Statement(lambda _kind: update(journal).where(mine).returning(journal.c.id), sets)


UPSERT_STEPS = upsert(journal_steps, ("undertaking", "number"), ("given",))
DELETE_STEPS = Statement(
    lambda _kind: delete(journal_steps).where(
        journal_steps.c.undertaking == bindparam("operation_id")
    )
)
ANSWER_HOLDER_PREFIX = "answer "
"""How it begins whose the pieces of an answer are: it may be kept for longer than the rest."""
CLOSE_OPERATIONS = Statement(
    lambda _kind: (
        update(journal)
        .where(AnyOf(journal.c.id, "ids"), IS_DONE)
        .returning(journal.c.id, journal.c.asked)
    ),
    ("state", "ended_at"),
)
"""Gives what it was asked if that is still there. Its response stays for a minute: the connection may
yet be reset, which says that its client has not read it."""

REOPEN_OPERATION = Statement(
    lambda _kind: (
        update(journal)
        .where(
            journal.c.id == bindparam("operation_id"),
            journal.c.state == states.ANSWERED,
            journal.c.answer.is_not(None),
        )
        # Marked as disconnected, so that a retry does not wait for another report of its delivery.
        .values(state=states.DONE, ended_at=None, deserted=True)
    )
)

CLEAR_REQUEST = Statement(
    lambda _kind: (
        update(journal).where(journal.c.id == bindparam("operation_id")).values(asked=None)
    )
)
INSERT_OBJECTS = insert_new(journal_subjects, (*TENANT_COLUMNS, "object", "undertaking"))
WRITE_COLUMNS = (
    *("method", "path", "alike", "state", "entered_at", "status", "made", "told"),
    "settled_at",
)
UPSERT_WRITE = upsert(writes, ("undertaking", "number"), (*TENANT_COLUMNS, *WRITE_COLUMNS))
OUTCOME_COLUMNS = ("state", "status", "made", "settled_at")
UPDATE_WRITE = Statement(
    lambda _kind: update(writes).where(
        writes.c.undertaking == bindparam("operation_id"),
        writes.c.number == bindparam("write_number"),
    ),
    OUTCOME_COLUMNS,
)
SELECT_CLAIM_OF_OTHERS = Statement(
    lambda _kind: (
        select(writes.c.undertaking)
        .where(
            writes.c.undertaking.in_(
                select(journal_subjects.c.undertaking).where(
                    is_of_tenant(journal_subjects),
                    journal_subjects.c.object == bindparam("made"),
                    journal_subjects.c.undertaking != bindparam("operation_id"),
                )
            ),
            writes.c.made == bindparam("made"),
        )
        .limit(1)
    )
)
SELECT_RIVALS = Statement(
    lambda _kind: select(journal.c.id, journal.c.instance).where(
        journal.c.id.in_(
            select(writes.c.undertaking).where(
                is_of_tenant(writes),
                writes.c.alike == bindparam("alike"),
                IS_SENT_WRITE,
                writes.c.undertaking != bindparam("operation_id"),
            )
        ),
        journal.c.state == states.RUNNING,
    )
)
INSERT_AUDIT_EVENT = Statement(
    lambda kind: kind.insert(acts), tuple(column.name for column in acts.c)
)
