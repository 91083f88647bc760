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

from gateway.storage import journal_states as states
from gateway.storage.restore_marks import RESTORED
from gateway.storage.sql import AnyOf, Statement, insert_new, upsert
from gateway.storage.tables import (
    IS_KEPT_BRIEFLY,
    IS_OPEN,
    IS_SENT,
    acts,
    counters,
    freezes,
    journal,
    journal_numbers,
    journal_steps,
    journal_subjects,
    writes,
)

AN_OPEN = text(f"journal.{IS_OPEN}")
A_SENT = text(f"writes.{IS_SENT}")
KEPT_BRIEFLY = text(IS_KEPT_BRIEFLY)
"""In the words of the indexes: with others a database reads the whole table, and those only grow."""


OWN = ("merchant", "environment")
OF_A_NEW_ONE = (
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
SHOWN = tuple(column.name for column in journal.c if column.name not in ("asked", "number"))

IS_DONE = journal.c.state == states.DONE
UNFINISHED = and_(
    AN_OPEN, or_(journal.c.state == states.RUNNING, journal.c.state == states.UNSETTLED)
)
FREEZES = and_(
    or_(freezes.c.merchant == "", freezes.c.merchant == bindparam("merchant")),
    or_(freezes.c.environment == "", freezes.c.environment == bindparam("environment")),
)


def owned_by(table: Table) -> ColumnElement[bool]:
    return and_(*(table.c[name] == bindparam(name) for name in OWN))


IS_NAMED = and_(
    journal.c.key_id == bindparam("key_id"), journal.c.idempotency == bindparam("idempotency")
)


def of_concern(*besides: ColumnElement[bool], shares: ColumnElement[bool] | None = None) -> Any:
    """What is open and the same request, or is not settled and ``shares`` an object with it."""
    its = journal.c.fingerprint
    same = its.in_([bindparam(name, type_=its.type) for name in ("fingerprint", "unimported")])
    concerns = same if shares is None else or_(same, and_(UNFINISHED, shares))
    shown = select(*(journal.c[name] for name in SHOWN)).order_by(journal.c.began_at, journal.c.id)
    return shown.where(or_(and_(owned_by(journal), AN_OPEN, concerns), *besides))


def sharing(*besides: ColumnElement[bool]) -> Any:
    """The same, of an undertaking that names objects: those are ``objects``."""
    named = select(journal_subjects.c.undertaking).where(
        owned_by(journal_subjects),
        AnyOf(journal_subjects.c.object, "objects"),
        journal_subjects.c.undertaking == journal.c.id,
    )
    return of_concern(*besides, shares=named.exists())


OPEN_ONES = Statement(lambda _kind: of_concern()), Statement(lambda _kind: sharing())
OPEN_ONES_OR_NAMED = (
    Statement(lambda _kind: of_concern(IS_NAMED)),
    Statement(lambda _kind: sharing(IS_NAMED)),
)
"""For undertakings that name no object, and for those that do."""

IDENTICAL = Statement(
    lambda _kind: select(journal.c.id, journal.c.idempotency).where(
        owned_by(journal),
        AN_OPEN,
        journal.c.key_id == bindparam("key_id"),
        journal.c.fingerprint == bindparam("fingerprint"),
    )
)
LEFT_OPEN = Statement(
    lambda _kind: (
        select(*(journal.c[name] for name in SHOWN))
        .where(UNFINISHED)
        .order_by(journal.c.began_at, journal.c.id)
    )
)
THAT_NAME = Statement(
    lambda _kind: select(journal_subjects.c.undertaking, journal_subjects.c.object).where(
        owned_by(journal_subjects),
        journal_subjects.c.object == bindparam("object"),
        AnyOf(journal_subjects.c.undertaking, "undertakings"),
    )
)
FROZEN = Statement(lambda _kind: select(freezes.c.merchant).where(FREEZES).limit(1))
IS_RESTORED = Statement(lambda _kind: select(counters.c.value).where(counters.c.name == RESTORED))


def next_number(kind: ModuleType) -> Any:
    if kind is postgresql:
        return journal_numbers.next_value()
    # One writes at a time.
    return select(func.coalesce(func.max(journal.c.number), 0) + 1).scalar_subquery()


BEGIN = Statement(
    lambda kind: (
        kind.insert(journal)
        .values(number=next_number(kind))
        .on_conflict_do_nothing()
        .returning(journal.c.id)
    ),
    (*OF_A_NEW_ONE, *OWN, "asked"),
)


@cache
def fencing(sets: tuple[str, ...]) -> Statement:
    mine = and_(journal.c.id == bindparam("its"), journal.c.turn == bindparam("its_turn"))
    return Statement(lambda _kind: update(journal).where(mine).returning(journal.c.id), sets)


PUT_STEPS = upsert(journal_steps, ("undertaking", "number"), ("given",))
DROP_STEPS = Statement(
    lambda _kind: delete(journal_steps).where(journal_steps.c.undertaking == bindparam("its"))
)
OF_ANSWERS = "answer "
"""How it begins whose the pieces of an answer are: it may be kept for longer than the rest."""
CLOSE = Statement(
    lambda _kind: (
        update(journal)
        .where(AnyOf(journal.c.id, "ids"), IS_DONE)
        .returning(journal.c.id, journal.c.asked)
    ),
    ("state", "ended_at"),
)
"""Gives what it was asked if that is still there. Its response stays for a minute: the connection may
yet be reset, which says that its client has not read it."""

REOPEN = Statement(
    lambda _kind: (
        update(journal)
        .where(
            journal.c.id == bindparam("its"),
            journal.c.state == states.ANSWERED,
            journal.c.answer.is_not(None),
        )
        .values(state=states.DONE, ended_at=None)
    )
)

DROP_ASKED = Statement(
    lambda _kind: update(journal).where(journal.c.id == bindparam("its")).values(asked=None)
)
NAME = insert_new(journal_subjects, (*OWN, "object", "undertaking"))
OF_A_WRITE = (
    *("method", "path", "alike", "state", "entered_at", "status", "made", "told"),
    "settled_at",
)
ENTER = upsert(writes, ("undertaking", "number"), (*OWN, *OF_A_WRITE))
OF_AN_OUTCOME = ("state", "status", "made", "settled_at")
SETTLED = Statement(
    lambda _kind: update(writes).where(
        writes.c.undertaking == bindparam("its"), writes.c.number == bindparam("its_number")
    ),
    OF_AN_OUTCOME,
)
MADE_BY_OTHERS = Statement(
    lambda _kind: (
        select(writes.c.undertaking)
        .where(
            writes.c.undertaking.in_(
                select(journal_subjects.c.undertaking).where(
                    owned_by(journal_subjects),
                    journal_subjects.c.object == bindparam("made"),
                    journal_subjects.c.undertaking != bindparam("its"),
                )
            ),
            writes.c.made == bindparam("made"),
        )
        .limit(1)
    )
)
RIVALS = Statement(
    lambda _kind: select(journal.c.id, journal.c.instance).where(
        journal.c.id.in_(
            select(writes.c.undertaking).where(
                owned_by(writes),
                writes.c.alike == bindparam("alike"),
                A_SENT,
                writes.c.undertaking != bindparam("its"),
            )
        ),
        journal.c.state == states.RUNNING,
    )
)
ACT = Statement(lambda kind: kind.insert(acts), tuple(column.name for column in acts.c))
