"""SQL statements of the journal, compiled once per dialect."""

from functools import cache
from typing import Any

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Table,
    Text,
    and_,
    bindparam,
    delete,
    exists,
    func,
    literal_column,
    not_,
    null,
    or_,
    select,
    text,
    union,
    union_all,
    update,
)

from gateway.storage.operation_records import Write
from gateway.storage.restore_detection import RESTORED
from gateway.storage.sql import (
    AnyOf,
    Statement,
    build_insert_if_absent_statement,
    build_upsert_statement,
)
from gateway.storage.state_tables import RECIPIENT_LOCK_KIND, STATE_TABLES, signed_changes
from gateway.storage.tables import (
    HAS_IDEMPOTENCY_KEY_CONDITION,
    IS_OPEN,
    UNREAD_ANSWER_CONDITION,
    UNSEEN_BATCH_CONDITION,
    counters,
    freezes,
    operation_objects,
    operation_steps,
    operations,
    upstream_writes,
)
from gateway.writes import states
from mappings.forwarded_writes import ROUTING_KIND
from mappings.signed_writes import CHANGE

IS_OPEN_OPERATION = text(IS_OPEN.replace("state", "operations.state"))
IS_UNREAD_ANSWER = text(UNREAD_ANSWER_CONDITION)
"""Conditions in the exact text of the partial indexes: otherwise a database would read the whole
table, which only grows."""

TENANT_COLUMNS = ("merchant", "environment")
SUMMARY_COLUMNS = tuple(
    column.name for column in operations.c if column.name not in ("request", "number", "repetition")
)


def _is_in_state(state: str, table: Table = operations) -> ColumnElement[bool]:
    """Compares with a constant: for a parameter, SQLite would plan the query anew each time."""
    return table.c.state == literal_column(f"'{state}'")


IS_DONE = _is_in_state(states.DONE)
IS_SENT_WRITE = _is_in_state(states.SENT, upstream_writes)
"""Has no index of its own: a sent write is found by its operation, which is open."""
UNFINISHED = and_(IS_OPEN_OPERATION, operations.c.state != literal_column(f"'{states.DONE}'"))


def build_tenant_condition(table: Table) -> ColumnElement[bool]:
    return and_(*(table.c[name] == bindparam(name) for name in TENANT_COLUMNS))


HAS_ANY_IDEMPOTENCY_KEY = text(HAS_IDEMPOTENCY_KEY_CONDITION)
HAS_IDEMPOTENCY_KEY = and_(
    operations.c.key_id == bindparam("key_id"), operations.c.idempotency == bindparam("idempotency")
)
HAS_FINGERPRINT = operations.c.fingerprint == bindparam("fingerprint")


def _build_related_operations_query(names_object: ColumnElement[bool]) -> Any:
    """Builds a query for the operations that matter to a new one, which may name objects.

    They are open ones with the same request, unfinished ones that name one of its objects, and one
    with its Idempotency-Key; some more than once.
    """
    # Not with EXISTS, for which PostgreSQL would read all operations that ever named the object.
    named = (
        select(operation_objects.c.operation_id)
        .where(
            build_tenant_condition(operation_objects),
            names_object,
            operation_objects.c.operation_id == operations.c.id,
        )
        .limit(literal_column("1"))
        .scalar_subquery()
    )
    concerns = or_(HAS_FINGERPRINT, and_(UNFINISHED, named.is_not(None)))
    alternatives = (and_(IS_OPEN_OPERATION, concerns), *_build_overlap_conditions())
    conditions = [and_(build_tenant_condition(operations), each) for each in alternatives]
    summary = select(*(operations.c[name] for name in SUMMARY_COLUMNS))
    # Each in a query of its own, for which the databases surely choose its index.
    return union_all(*(summary.where(each) for each in (*conditions, HAS_IDEMPOTENCY_KEY)))


def _build_overlap_conditions(
    has_fingerprint: ColumnElement[bool] = HAS_FINGERPRINT, since: str = "repeats_since"
) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """Builds conditions for operations with the same request that were closed since a time.

    Each in the words of an index.
    """
    has_overlapped = and_(
        has_fingerprint,
        _is_in_state(states.ANSWERED),
        operations.c.ended_at >= bindparam(since, type_=operations.c.ended_at.type),
    )
    return and_(IS_UNREAD_ANSWER, has_overlapped), and_(HAS_ANY_IDEMPOTENCY_KEY, has_overlapped)


SELECT_RELATED = Statement(
    _build_related_operations_query(AnyOf(operation_objects.c.object_id, "objects"))
)
SELECT_RELATED_BY_ONE_OBJECT = Statement(
    _build_related_operations_query(operation_objects.c.object_id == bindparam("object_id"))
)
"""For a list of objects, SQLite builds a table each time."""

SELECT_DELIVERING_INSTANCES = Statement(
    union(
        *(
            select(operations.c.instance, operations.c.idempotency).where(
                build_tenant_condition(operations),
                condition,
                operations.c.key_id == bindparam("key_id"),
                operations.c.instance != bindparam("instance"),
            )
            for condition in (
                and_(
                    IS_OPEN_OPERATION,
                    HAS_FINGERPRINT,
                    IS_DONE,
                    operations.c.is_client_disconnected.is_(False),
                ),
                *_build_overlap_conditions(since="since"),
            )
        )
    )
)
SELECT_UNFINISHED = Statement(
    select(*(operations.c[name] for name in SUMMARY_COLUMNS))
    .where(UNFINISHED)
    .order_by(operations.c.started_at, operations.c.id)
)
SELECT_BY_OBJECT = Statement(
    select(operation_objects.c.operation_id, operation_objects.c.object_id).where(
        build_tenant_condition(operation_objects),
        AnyOf(operation_objects.c.object_id, "objects"),
        AnyOf(operation_objects.c.operation_id, "operation_ids"),
    )
)
SELECT_FREEZES = Statement(select(freezes.c.merchant, freezes.c.environment))
SELECT_RESTORED = Statement(select(counters.c.value).where(counters.c.name == RESTORED))


_INSERTED_COLUMNS = (
    "request",
    # These are set when it ends, or is in doubt.
    *(name for name in SUMMARY_COLUMNS if name not in ("reason", "response", "ended_at")),
)
_IS_NOT_FROZEN = ~exists().where(
    # An empty name stands for all. Not with OR, for which SQLite would build a table each time.
    *(
        func.coalesce(func.nullif(column, literal_column("''")), name) == name
        for column in (freezes.c.merchant, freezes.c.environment)
        for name in (bindparam(column.name, type_=column.type),)
    )
)
"""In the statement that records a write, so that none is recorded after a freeze was confirmed."""


@cache
def build_operation_insert(refuses_if_frozen: bool, refuses_identical: bool) -> Statement:
    """Builds an insert, of nothing during a freeze or if another process has begun the same request.

    Nor if the Idempotency-Key is used; without failing the transaction.
    """
    if not (refuses_if_frozen or refuses_identical):
        return Statement(
            lambda kind: kind.insert(operations).on_conflict_do_nothing().inline(),
            _INSERTED_COLUMNS,
        )
    conditions = [_IS_NOT_FROZEN] if refuses_if_frozen else []
    values: list[ColumnElement[Any]] = [
        bindparam(name, type_=operations.c[name].type) for name in _INSERTED_COLUMNS
    ]
    columns = [*_INSERTED_COLUMNS]
    if refuses_identical:
        conditions += (~condition for condition in _build_identical_operation_conditions())
        # Of two that are inserted at the same moment, both have the same number.
        columns.append("repetition")
        last_repetition = select(func.max(operations.c.repetition)).where(
            operations.c.key_id == bindparam("key_id"), HAS_FINGERPRINT
        )
        values.append(func.coalesce(last_repetition.scalar_subquery(), literal_column("0")) + 1)
    row = select(*values).where(*conditions)
    return Statement(
        lambda kind: (
            kind.insert(operations).from_select(columns, row).on_conflict_do_nothing().inline()
        )
    )


def _build_identical_operation_conditions() -> list[ColumnElement[bool]]:
    """Builds conditions for the same request, begun since ``unrelated_ids`` were read.

    Each in the words of an index.
    """
    has_fingerprint = AnyOf(operations.c.fingerprint, "fingerprints")
    overlaps = _build_overlap_conditions(has_fingerprint)
    return [
        exists().where(
            build_tenant_condition(operations),
            condition,
            operations.c.key_id == bindparam("key_id"),
            not_(AnyOf(operations.c.id, "unrelated_ids")),
            # Two different Idempotency-Keys mean two requests.
            or_(
                operations.c.idempotency.is_(None),
                bindparam("idempotency", type_=operations.c.idempotency.type).is_(None),
            ),
        )
        for condition in (and_(IS_OPEN_OPERATION, has_fingerprint), *overlaps)
    ]


@cache
def build_fenced_update(
    columns: tuple[str, ...], new_state: str | None, refuses_if_frozen: bool = False
) -> Statement:
    """Builds the update of an operation by its owner; with the state None it stays running."""
    sources = states.list_source_states(states.OPERATION_TRANSITIONS, new_state or "")
    is_allowed = and_(
        operations.c.id == bindparam("operation_id"),
        operations.c.fence == bindparam("expected_fence"),
        or_(*(_is_in_state(source) for source in sources or (states.RUNNING,))),
        *((_IS_NOT_FROZEN,) if refuses_if_frozen else ()),
    )
    return Statement(update(operations).where(is_allowed), columns)


UPSERT_STEPS = build_upsert_statement(operation_steps, ("results",))
DELETE_STEPS = Statement(
    delete(operation_steps).where(operation_steps.c.operation_id == bindparam("operation_id"))
)
ANSWER_HOLDER_PREFIX = "answer "
"""Prefix of the holder of a response's chunks, which may be stored longer than other texts."""
_ARE_DONE = and_(AnyOf(operations.c.id, "ids"), IS_DONE)
_HAS_NO_REQUEST = operations.c.request.is_(None)


def _build_closing_update(*conditions: ColumnElement[bool]) -> Any:
    return (
        update(operations)
        .where(*conditions)
        .values(
            state=states.ANSWERED,
            request=null(),
            # Usually known since its response was written.
            ended_at=func.coalesce(
                operations.c.ended_at, bindparam("closed_at", type_=operations.c.ended_at.type)
            ),
        )
    )


CLOSE_WITHOUT_REQUEST = Statement(_build_closing_update(_ARE_DONE, _HAS_NO_REQUEST))
CLOSE_ONE_WITHOUT_REQUEST = Statement(
    _build_closing_update(operations.c.id == bindparam("operation_id"), IS_DONE, _HAS_NO_REQUEST)
)
SELECT_DONE = Statement(
    # Locked: one that is taken over before it is closed needs its texts.
    select(operations.c.id).where(_ARE_DONE).order_by(operations.c.id).with_for_update()
)
CLOSE = Statement(_build_closing_update(_ARE_DONE))
"""The response stays for a while, because a connection reset may yet show that its client has not
read it."""

RECORD_REPLAY = Statement(
    update(operations)
    .where(
        operations.c.id == bindparam("operation_id"),
        or_(IS_DONE, _is_in_state(states.ANSWERED)),
    )
    # The client of this response is connected: its delivery is reported again, by the instance
    # that sends it.
    .values(is_client_disconnected=False),
    ["ended_at", "instance"],
)
REOPEN_OPERATION = Statement(
    update(operations)
    .where(
        operations.c.id == bindparam("operation_id"),
        _is_in_state(states.ANSWERED),
        operations.c.response.is_not(None),
    )
    # Marked as disconnected, so that a retry does not wait for another report of its delivery.
    .values(state=states.DONE, ended_at=None, is_client_disconnected=True)
)

INSERT_OBJECTS = build_insert_if_absent_statement(
    operation_objects, (*TENANT_COLUMNS, "object_id", "operation_id")
)
_, *_WRITE_COLUMNS = Write.__struct_fields__  # the first is in the key
UPSERT_WRITE = build_upsert_statement(
    upstream_writes,
    (*TENANT_COLUMNS, *_WRITE_COLUMNS),
    # Signed or sent again; one that happened, or may have, changes nothing.
    condition=or_(*(_is_in_state(each, upstream_writes) for each in (states.SENT, states.UNSENT))),
)
UPDATE_WRITE = Statement(
    update(upstream_writes).where(
        upstream_writes.c.operation_id == bindparam("operation_id"),
        upstream_writes.c.number == bindparam("number"),
        # Its outcome is recorded once; the same one again changes nothing.
        IS_SENT_WRITE,
    ),
    ("state", "status", "object_id", "resolved_at", "changed_at"),
)
_created = operation_objects.alias("created")
_DELETES_WHOLE_BATCH = exists().where(
    upstream_writes.c.operation_id == operations.c.id,
    upstream_writes.c.method == literal_column("'DELETE'"),
    ~upstream_writes.c.path.like(literal_column("'/batches/%/%'")),
)
SELECT_OVERWRITING = Statement(
    # Operations that ended after ``since``, or have not ended, and name an object or one that
    # ``operation_id`` created: one that its request does not name.
    select(operations.c.id, operations.c.idempotency)
    .join(operation_objects, operation_objects.c.operation_id == operations.c.id)
    .where(
        build_tenant_condition(operation_objects),
        or_(
            operation_objects.c.object_id == bindparam("object_id"),
            operation_objects.c.object_id.in_(
                select(_created.c.object_id).where(
                    _created.c.operation_id == bindparam("operation_id"),
                    not_(AnyOf(_created.c.object_id, "named_ids")),
                )
            ),
        ),
        # The other changes that clients sign leave a batch in place.
        or_(
            operations.c.operation != literal_column(f"'{CHANGE.name}'"),
            not_(bindparam("is_of_created_batch", type_=Boolean)),
            _DELETES_WHOLE_BATCH,
        ),
        AnyOf(operations.c.operation, "names"),
        operations.c.fingerprint != bindparam("fingerprint"),
        ~_is_in_state(states.UNDONE),
        or_(
            operations.c.ended_at.is_(None),
            operations.c.ended_at > bindparam("since", type_=operations.c.ended_at.type),
        ),
    )
    # One without a key, which was not refused, decides it alone.
    .order_by(operations.c.idempotency.is_not(None))
    .limit(100)
)
# What a signed request changes of a recipient is not known.
_SIGNED_CHANGE_SINCE = select(
    literal_column("'/recipients/'", Text).concat(signed_changes.c.id),
    null(),
    signed_changes.c.updated_at,
    null().label("changed_at"),
).where(
    build_tenant_condition(signed_changes),
    signed_changes.c.id == bindparam("object_id"),
    signed_changes.c.updated_at > bindparam("since"),
)
SELECT_SIGNED_CHANGE = Statement(_SIGNED_CHANGE_SINCE)
SELECT_CLAIM_OF_OTHERS = Statement(
    select(upstream_writes.c.operation_id)
    .where(
        upstream_writes.c.operation_id.in_(
            select(operation_objects.c.operation_id).where(
                build_tenant_condition(operation_objects),
                operation_objects.c.object_id == bindparam("object_id"),
                operation_objects.c.operation_id != bindparam("operation_id"),
            )
        ),
        upstream_writes.c.object_id == bindparam("object_id"),
    )
    .limit(1)
)


def _build_unseen_batches_query() -> Any:
    """Builds a query for the batches that may exist, and those whose ``POST /batches`` is open.

    It returns none if ``object_id`` is known to be another.
    """
    known_writes = upstream_writes.alias()
    is_known = exists().where(
        build_tenant_condition(operation_objects),
        operation_objects.c.object_id == bindparam("object_id"),
        known_writes.c.operation_id == operation_objects.c.operation_id,
        known_writes.c.object_id == operation_objects.c.object_id,
    )
    columns = [upstream_writes.c[name] for name in ("operation_id", "recorded_at", "state")]
    creations = select(*columns).where(
        # Not the writes' columns, whose index has all of a merchant's writes.
        build_tenant_condition(operations),
        operations.c.id == upstream_writes.c.operation_id,
        # A signed write is for its client to look for, who may also start what it has created.
        operations.c.operation != literal_column(f"'{CHANGE.name}'"),
        ~is_known,
    )
    return union_all(
        creations.where(text(f"upstream_writes.{UNSEEN_BATCH_CONDITION}")),
        creations.where(
            UNFINISHED,
            IS_SENT_WRITE,
            upstream_writes.c.method == literal_column("'POST'"),
            upstream_writes.c.path == literal_column("'/batches'"),
        ),
    )


_EXECUTED_STATES = (states.ANSWERED, states.CONFIRMED)
SELECT_CHANGES_SINCE = Statement(
    union_all(
        select(
            *(
                upstream_writes.c[name]
                for name in ("path", "object_id", "recorded_at", "changed_at")
            )
        ).where(
            build_tenant_condition(operation_objects),
            operation_objects.c.object_id == bindparam("object_id"),
            operations.c.id == operation_objects.c.operation_id,
            # A recipient that was just created shows no earlier value, but may lack its accounts.
            or_(
                operations.c.operation != "create_recipient",
                upstream_writes.c.path.contains("/accounts"),
            ),
            upstream_writes.c.operation_id == operations.c.id,
            or_(*(_is_in_state(each, upstream_writes) for each in _EXECUTED_STATES)),
            upstream_writes.c.resolved_at > bindparam("since"),
        ),
        _SIGNED_CHANGE_SINCE,
    ).order_by("recorded_at")
)
SELECT_UNSEEN_BATCHES = Statement(_build_unseen_batches_query())
SELECT_RIVALS = Statement(
    select(operations.c.id, operations.c.instance).where(
        build_tenant_condition(operations),
        IS_OPEN_OPERATION,
        _is_in_state(states.RUNNING),
        operations.c.id != bindparam("operation_id"),
        exists().where(
            upstream_writes.c.operation_id == operations.c.id,
            upstream_writes.c.call_digest == bindparam("call_digest"),
            IS_SENT_WRITE,
        ),
    )
)
_batch_services = STATE_TABLES[ROUTING_KIND].table
DELETE_ROUTING_MARKS = Statement(
    # A mark that another operation uses too names no operation.
    delete(_batch_services).where(
        build_tenant_condition(_batch_services),
        _batch_services.c.id.in_(
            select(operation_objects.c.object_id).where(
                operation_objects.c.operation_id == bindparam("operation_id")
            )
        ),
        _batch_services.c.operation_id == bindparam("operation_id"),
    )
)
_recipient_locks = STATE_TABLES[RECIPIENT_LOCK_KIND].table


_holder: ColumnElement[str] = literal_column(f"{_recipient_locks.name}.operation_id")
TAKE_RECIPIENT_LOCK = build_upsert_statement(
    _recipient_locks,
    ("operation_id", "updated_at"),
    # Of a closed or deleted holder the row is left over. One that took the lock after this statement
    # began does not count as finished, because it cannot be seen.
    condition=or_(
        exists().where(operations.c.id == _holder, not_(UNFINISHED)),
        _holder == bindparam("former_holder", None, type_=Text),
    ),
)
"""Takes the lock of a recipient if it is free, or its holder has finished or is ``former_holder``."""
