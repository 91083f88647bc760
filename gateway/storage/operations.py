"""The journal as the database has it: requests that write, and each of their writes.

An *undertaking* is a request that writes, from its first change until its client has the answer:

    running    an instance plays its flow, or did until it was killed
    unsettled  a write was sent and not answered; it is being found out what became of it
    done       its flow is at its end, and its client has not got the answer
    answered   its client has the answer
    undone     nothing of it happened, or all of it was undone

Whoever plays one holds its ``turn``. Each durable point of a flow is one transaction, and is
refused to whoever has lost the turn: a process that was paused must not go on where another has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from datetime import datetime
from operator import attrgetter
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    func,
    or_,
    select,
    update,
)

from gateway.payloads.stored_json import StoredText
from gateway.storage import chunks
from gateway.storage import operation_statements as asks
from gateway.storage.audit_log import build_event_row, record_audit_event
from gateway.storage.encryption import EncryptionContext
from gateway.storage.id_rows import insert_legacy_ids
from gateway.storage.object_state import (
    ObjectStateStore,
    are_few_changes,
    are_long_changes,
    encode_long_changes,
)
from gateway.storage.operation_states import (
    ABSENT,
    ANSWERED,
    CONFIRMED,
    DONE,
    IN_DOUBT,
    MAY_EXIST,
    NO_ENDPOINT,
    OPEN,
    REFUSED,
    RUNNING,
    SENT,
    UNDONE,
    UNSENT,
    describe_operator_outcome,
)
from gateway.storage.statements import FEW, Asked, Rows, Steps, Transaction, changed, rows_of
from gateway.storage.store import Store
from gateway.storage.tables import journal, journal_steps, journal_subjects, writes
from gateway.storage.tenants import Tenant
from mappings.current import ID_PATTERN
from mappings.effects import CompareAndSet
from mappings.frozen import frozen_dataclass

__all__ = [
    "ABSENT",
    "ANSWERED",
    "CONFIRMED",
    "DONE",
    "FORWARDED_PREFIX",
    "IN_DOUBT",
    "MAY_EXIST",
    "NO_ENDPOINT",
    "OPEN",
    "OPERATOR_OUTCOMES",
    "REFUSED",
    "RUNNING",
    "SENT",
    "UNDONE",
    "UNSENT",
    "AlreadyClaimedError",
    "Checkpoint",
    "DuplicateOperationError",
    "OperationRecord",
    "OperationRepository",
    "OperatorOutcomes",
    "OwnershipLostError",
    "RestoreUncheckedError",
    "Write",
    "WritesFrozenError",
]

OPERATOR_OUTCOMES = (CONFIRMED, ABSENT)

FORWARDED_PREFIX = "forwarded "
"""How the operation begins of what went to the legacy service as it came: it has no flow here."""

OperatorOutcomes = tuple[tuple[int, str], ...]
"""Numbers of writes, and what an operator found out of each."""


class OwnershipLostError(Exception):
    """Another has the turn: the undertaking is played on elsewhere."""


class WritesFrozenError(Exception):
    """An operator stopped the writes of this merchant, environment, or everything."""


class RestoreUncheckedError(Exception):
    """The state is an older one that was restored; nothing is started until it was compared."""


class AlreadyClaimedError(Exception):
    """Another write made, or may be making, what this one was thought to have made."""


class DuplicateOperationError(Exception):
    """The key has used this Idempotency-Key before, or an identical request is open."""


@frozen_dataclass(frozen=True, slots=True)
class OperationRecord:
    """A row of the journal; ``asked`` and ``answer`` are opened."""

    id: str
    tenant: Tenant
    key_id: str
    key_name: str
    operation: str
    request_id: str
    fingerprint: str
    began_at: datetime
    idempotency: str | None = None
    state: str = RUNNING
    why: str | None = None
    instance: str = ""
    turn: int = 0
    deserted: bool = False
    asked: StoredText | None = field(default=None, repr=False)
    answer: StoredText | None = field(default=None, repr=False)
    ended_at: datetime | None = None
    object_ids: tuple[str, ...] = ()
    fingerprint_before_import: str = ""
    """The fingerprint that it would have if no id had been imported: its first try may be from before."""

    def has_same_request(self, other: OperationRecord) -> bool:
        """Whether the other, which was there before, may be its first try by what both ask for."""
        is_alike = other.fingerprint in (self.fingerprint, self.fingerprint_before_import)
        return is_alike and other.key_id == self.key_id

    @property
    def is_open(self) -> bool:
        return self.state in OPEN


@frozen_dataclass(frozen=True, slots=True)
class Write:
    """One call that may change something; ``number`` is that of its step in the flow."""

    number: int
    method: str
    path: str
    alike: str
    entered_at: datetime
    state: str = SENT
    status: int | None = None
    made: str | None = None
    told: str | None = None
    settled_at: datetime | None = None


@frozen_dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is made durable at once: all of it, or none."""

    is_first: bool = False
    refuses_if_frozen: bool = False
    refuses_if_restored: bool = False
    step_results: tuple[int, StoredText] | None = None
    """The number of the last step, and what the steps since the last point were given."""
    unrelated_ids: frozenset[str] | None = None
    """Open operations that may be identical to one that begins; None if any may."""
    resolved_writes: Sequence[Write] = ()
    new_write: Write | None = None
    object_changes: Sequence[CompareAndSet] = ()
    column_values: Mapping[str, Any] = field(default_factory=dict)
    """Columns of the journal: state, why, answer, deserted, idempotency."""
    object_ids: Sequence[str] = ()
    drops_payload: bool = False
    """Whether what is sealed is no longer needed."""
    has_chunks: bool = True
    """Whether any of that may be in pieces."""
    new_aliases: Mapping[str, str] = field(default_factory=dict)
    """What clients call objects from now on: legacy id to current id."""
    audit_action: str = ""
    """What an operator does with it."""


class OperationRepository:
    """Reads and writes the journal; every method raises StoreUnavailable."""

    def __init__(
        self,
        store: Store,
        ledger: ObjectStateStore,
        may_be_sending: Callable[[str, str], bool] = lambda _undertaking, _instance: True,
    ) -> None:
        """``may_be_sending`` says of a running undertaking and its instance whether it may be."""
        self._store = store
        self._ledger = ledger
        self._may_be_sending = may_be_sending

    async def save_checkpoint(self, one: OperationRecord, point: Checkpoint) -> None:
        """Makes a point durable.

        Raises Overtaken, Frozen, BeingChecked, AlreadyBegun, Conflict or Collision.
        """
        locks = self._ledger.list_locks(one.tenant, point.object_changes)
        if any(map(_is_claim, point.resolved_writes)):
            locks |= {f"claims {one.tenant}"}
        if point.is_first and point.unrelated_ids is not None:
            locks |= {f"begins {one.tenant} {one.key_id} {one.fingerprint}"}
        size = len(one.asked) if point.is_first and one.asked else 0
        size += len(point.step_results[1]) if point.step_results else 0
        size += len(point.column_values.get("answer") or "")
        is_long = size > _MAX_BRIEF_BYTES or are_long_changes(point.object_changes)
        brief = (
            not is_long and len(point.new_aliases) <= FEW and are_few_changes(point.object_changes)
        )
        if point.object_changes:
            point = replace(point, object_changes=await encode_long_changes(point.object_changes))
        await self._store.carried_out(
            Transaction(lambda: self._run_checkpoint(one, point), locks, brief, is_long)
        )

    def _run_checkpoint(self, one: OperationRecord, point: Checkpoint) -> Steps[None]:
        if point.refuses_if_frozen:
            yield from _refuse_frozen(one.tenant)
        if point.refuses_if_restored:
            yield from _refuse_restored()
        if point.is_first:
            yield from _refuse_identical(one, point.unrelated_ids)
            yield from self._insert_operation(one)
        else:
            yield from self._update_operation(one, point)
        for write in filter(_is_claim, point.resolved_writes):
            yield from self._check_claims(one, write)
        changes = yield from self._ledger.prepare_changes(one.tenant, point.object_changes)
        if point.drops_payload:
            changes += [asks.DELETE_STEPS.of({"its": one.id})]
            changes += [chunks.build_deletion(one.id)] if point.has_chunks else []
        elif point.step_results is not None:
            number, given = point.step_results
            sealed = yield from self._encrypt_text(one, "given", given)
            steps = {"undertaking": one.id, "number": number, "given": sealed}
            changes += [asks.UPSERT_STEPS.of(steps)]
        for write in point.resolved_writes:
            its = {"its": one.id, "its_number": write.number}
            changes += [asks.UPDATE_WRITE.of({**its, **_build_outcome_values(write)})]
        if point.new_write:
            changes += [asks.UPSERT_WRITE.of(_build_write_row(one, point.new_write))]
        changes += _build_object_rows(one, point)
        if point.audit_action:
            changes += [
                asks.INSERT_AUDIT_EVENT.of(
                    build_event_row(self._store, point.audit_action, one.tenant, about=one.id)
                )
            ]
        yield from changed(changes)
        yield from insert_legacy_ids(one.tenant, point.new_aliases, self._store.clock())

    def _check_claims(self, one: OperationRecord, write: Write) -> Steps[None]:
        """What was found of a write may be what another made, or is making at this moment.

        One that is entered after this has been committed is not sent before, and so was not seen.
        """
        its = {**one.tenant._asdict(), "its": one.id, "made": write.made, "alike": write.alike}
        if (yield asks.SELECT_CLAIM_OF_OTHERS.of(its)):
            raise AlreadyClaimedError
        rivals = yield asks.SELECT_RIVALS.of(its)
        if any(self._may_be_sending(id_, instance) for id_, instance in rivals):
            raise AlreadyClaimedError

    def _insert_operation(self, one: OperationRecord) -> Steps[None]:
        row = (
            dict(zip(asks.NEW_OPERATION_COLUMNS, _of_a_new_one(one), strict=True))
            | one.tenant._asdict()
        )
        row["asked"] = None
        if one.asked is not None:
            row["asked"] = yield from self._encrypt_text(one, "asked", one.asked)
        if not (yield asks.INSERT_OPERATION.of(row)):
            raise DuplicateOperationError

    def _update_operation(self, one: OperationRecord, point: Checkpoint) -> Steps[None]:
        named = dict(point.column_values) or {"turn": one.turn}
        if point.drops_payload:
            named["asked"] = None
        if named.get("answer") is not None:
            named["answer"] = yield from self._encrypt_text(one, "answer", named["answer"])
        if named.get("state") not in (None, *OPEN):
            named["ended_at"] = self._store.clock()
        mine = {"its": one.id, "its_turn": one.turn}
        if not (yield asks.build_fenced_update(tuple(sorted(named))).of({**named, **mine})):
            raise OwnershipLostError

    async def is_frozen(self, owner: Tenant) -> bool:
        """Whether an operator has stopped its writes; an empty merchant is in none but the wide ones."""
        return bool(
            await self._store.looked_up(
                Transaction(lambda: rows_of(asks.SELECT_FREEZE, owner._asdict()), is_brief=True)
            )
        )

    async def is_restore_unchecked(self) -> bool:
        """Whether the state is an older one that was restored: nothing may be started on it."""
        rows = await self._store.looked_up(
            Transaction(lambda: rows_of(asks.SELECT_RESTORED), is_brief=True)
        )
        return bool(rows and rows[0][0])

    async def take_over(self, one: OperationRecord, instance: str) -> OperationRecord | None:
        """Takes an open undertaking over; None where another did, or it is open no more."""
        mine = and_(journal.c.id == one.id, journal.c.turn == one.turn, journal.c.state.in_(OPEN))
        taken = update(journal).where(mine)
        async with self._store.write() as connection:
            done = await connection.execute(
                taken.values(turn=one.turn + 1, instance=instance, state=RUNNING)
            )
        if done.rowcount != 1:
            return None
        return replace(one, turn=one.turn + 1, instance=instance, state=RUNNING)

    async def mark_answered(self, ids: Sequence[str]) -> None:
        """Their clients have the answers: what is sealed goes, but for the answers themselves.

        Of those that are done, and no others: one that was taken again is still needed whole.
        """
        now = self._store.clock()
        those = [{"its": id_, "state": ANSWERED, "ended_at": now} for id_ in ids]

        def answered() -> Steps[None]:
            closed = yield asks.CLOSE_OPERATION.of(*those)
            if whole := [{"its": id_} for id_, asked in closed if asked is not None]:
                yield asks.CLEAR_REQUEST.of(*whole)
                yield asks.DELETE_STEPS.of(*whole)
                yield chunks.build_deletion(*(one["its"] for one in whole))

        work = Transaction(answered, is_brief=len(ids) <= FEW)
        await self._store.carried_out(work, within=DELIVERY_COMMIT_SECONDS)

    async def reopen(self, id_: str) -> None:
        """Its response was not read after all: the same request is a retry again."""

        def reopened() -> Steps[None]:
            yield asks.REOPEN_OPERATION.of({"its": id_})

        await self._store.carried_out(Transaction(reopened, is_brief=True))

    async def mark_client_disconnected(self, id_: str) -> None:
        async with self._store.write() as connection:
            gone = update(journal).where(journal.c.id == id_)
            await connection.execute(gone.values(deserted=True))

    # Reading

    async def list_related_open(self, one: OperationRecord) -> list[OperationRecord]:
        """What an undertaking has to mind: open ones that ask for the same, what is not settled of
        the objects that it names, and its own first try.

        Without what they were asked (see ``asked_of``); of the objects that they name only those
        that it names too, and the answers of those alone that may be answered again.
        """
        plain, sharing = (
            asks.SELECT_RELATED if one.idempotency is None else asks.SELECT_RELATED_OR_SAME_KEY
        )
        its = {
            **one.tenant._asdict(),
            "key_id": one.key_id,
            "fingerprint": one.fingerprint,
            "unimported": one.fingerprint_before_import,
            "idempotency": one.idempotency,
        }

        def looked_up() -> Steps[tuple[Rows, Rows]]:
            if not one.object_ids:
                return (yield plain.of(its)), ()
            rows = yield from sharing.rows(one.object_ids, its)
            named: list[Any] = []
            for subject in one.object_ids if rows else ():
                values = {**one.tenant._asdict(), "object": subject}
                named += yield from asks.SELECT_BY_OBJECT.rows([row[0] for row in rows], values)
            return rows, named

        brief = len(one.object_ids) <= FEW
        rows, named = await self._store.looked_up(Transaction(looked_up, is_brief=brief))
        subjects: dict[str, tuple[str, ...]] = {}
        for undertaking, subject in named:
            subjects[undertaking] = (*subjects.get(undertaking, ()), subject)
        found = {row[0]: row for row in rows}  # each slice of a long list finds the same requests
        those = [_parse_summary(row, subjects) for row in found.values()]
        return [await self._decrypt_answer(one) for one in those]

    async def list_delivering_instances(
        self, record: OperationRecord, since: datetime
    ) -> list[str]:
        """Other instances that deliver the response to an identical request, or have ``since`` then."""
        values = {
            **record.tenant._asdict(),
            "key_id": record.key_id,
            "fingerprint": record.fingerprint,
            "unimported": record.fingerprint_before_import,
            "instance": record.instance,
            "since": since,
        }

        def select_instances() -> Steps[Rows]:
            return (yield asks.SELECT_DELIVERING_INSTANCES.of(values))

        rows = await self._store.looked_up(Transaction(select_instances, is_brief=True))
        # Two different Idempotency-Keys mean two requests.
        return [
            instance for instance, key_digest in rows if None in (key_digest, record.idempotency)
        ]

    async def _decrypt_answer(self, one: OperationRecord) -> OperationRecord:
        """As it is read, its answer is sealed."""
        if one.answer is None:
            return one
        return replace(one, answer=await self._decrypt_text(one, "answer", one.answer))

    async def load_request(self, one: OperationRecord) -> StoredText | None:
        """What it was asked; None where nobody needs that any more."""
        if one.asked is not None:
            return one.asked
        async with self._store.read() as connection:
            sealed = await connection.scalar(select(journal.c.asked).where(journal.c.id == one.id))
        return await self._decrypt_text(one, "asked", sealed)

    async def list_unfinished(self) -> list[OperationRecord]:
        """Every undertaking that is running somewhere, or not settled."""
        return await self._list_where(asks.UNFINISHED)

    async def list_unfinished_without_requests(self) -> list[OperationRecord]:
        """The same, without what they were asked and the objects that they name."""
        rows = await self._store.looked_up(Transaction(lambda: rows_of(asks.SELECT_UNFINISHED)))
        return [await self._decrypt_answer(_parse_summary(row, {})) for row in rows]

    async def list_by_object(
        self, owner: Tenant | None, ids: Iterable[str]
    ) -> list[OperationRecord]:
        """Every undertaking that named one of these, or made it, the first first."""
        named = select(journal_subjects.c.undertaking).where(
            journal_subjects.c.object.in_(list(ids)),
            *(() if owner is None else (_is_of_tenant(journal_subjects, owner),)),
        )
        return await self._list_where(journal.c.id.in_(named))

    async def list_by_request(self, owner: Tenant | None, id_: str) -> list[OperationRecord]:
        """Those of a request's id, or whose own id begins so; a client may send an id twice."""
        named = journal.c.request_id == id_
        if re.fullmatch(r"[0-9a-f]{12,}", id_):
            named = or_(named, journal.c.id.startswith(id_))
        if owner is not None:
            named = and_(named, _is_of_tenant(journal, owner))
        return await self._list_where(named)

    async def find_operation(self, id_: str) -> OperationRecord | None:
        found = await self._list_where(journal.c.id == id_)
        return found[0] if found else None

    async def list_by_id_prefix(self, start: str) -> list[OperationRecord]:
        """Those whose ids begin so."""
        return await self._list_where(journal.c.id.startswith(start, autoescape=True))

    async def _list_where(self, wanted: ColumnElement[bool]) -> list[OperationRecord]:
        rows = select(journal).where(wanted).order_by(journal.c.began_at, journal.c.id)
        async with self._store.read() as connection:
            found = [_parse_record(row) for row in await connection.execute(rows)]
            named: dict[str, list[str]] = {}
            for some in _iterate_slices([one.id for one in found]):
                of = journal_subjects.c.undertaking.in_(some)
                for row in await connection.execute(select(journal_subjects).where(of)):
                    named.setdefault(row.undertaking, []).append(row.object)
        return [
            replace(
                await self._decrypt_answer(one),
                object_ids=tuple(named.get(one.id, ())),
                asked=await self._decrypt_text(one, "asked", one.asked),
            )
            for one in found
        ]

    async def load_step_results(self, one: OperationRecord) -> list[StoredText]:
        """What its steps were given, a text for each durable point, in order."""
        those = select(journal_steps).where(journal_steps.c.undertaking == one.id)
        async with self._store.read() as connection:
            rows = (await connection.execute(those.order_by(journal_steps.c.number))).all()
        found = [await self._decrypt_text(one, "given", row.given) for row in rows]
        return [text for text in found if text is not None]

    async def load_writes(self, *ids: str) -> dict[str, list[Write]]:
        """The writes of undertakings, by undertaking, in order."""
        found: dict[str, list[Write]] = {id_: [] for id_ in ids}
        async with self._store.read() as connection:
            for some in _iterate_slices(ids):
                those = select(writes).where(writes.c.undertaking.in_(some))
                for row in await connection.execute(those.order_by(writes.c.number)):
                    found[row.undertaking].append(_parse_write(row))
        return found

    async def load_claimed_ids(self, one: OperationRecord, since: datetime) -> set[str]:
        """The ids of what other writes of its owner made since."""
        made = select(writes.c.made).where(
            _is_of_tenant(writes, one.tenant),
            writes.c.entered_at >= since,
            writes.c.made.is_not(None),
            writes.c.undertaking != one.id,
        )
        async with self._store.read() as connection:
            return set(await connection.scalars(made))

    async def is_claimed(self, one: OperationRecord, made: str) -> bool:
        """Whether another write of its owner made this."""
        async with self._store.read() as connection:
            return bool(await connection.scalar(_build_claim_count_query(one, made)))

    async def list_rivals(self, one: OperationRecord, write: Write) -> list[OperationRecord]:
        """The other open undertakings with a write like this one that is not settled."""
        return await self._list_where(
            and_(
                asks.IS_OPEN_OPERATION,
                journal.c.id.in_(_build_identical_writes_query(one, write)),
                journal.c.state.in_((RUNNING, IN_DOUBT)),
            )
        )

    async def record_operator_outcome(
        self, one: OperationRecord, number: int, told: str, named: str
    ) -> bool:
        """Notes what an operator found out of a write, ``named`` so; False where it is settled already.

        Whoever settles undertakings takes it into account at its next look at what is open.
        """
        that = and_(writes.c.undertaking == one.id, writes.c.number == number)
        async with self._store.write() as connection:
            done = await connection.execute(
                update(writes).where(that, writes.c.state == SENT).values(told=told)
            )
            if done.rowcount == 1:
                what = describe_operator_outcome(named, told)
                await record_audit_event(self._store, connection, what, one.tenant, about=one.id)
        return done.rowcount == 1

    async def load_operator_outcomes(self, ids: Sequence[str]) -> dict[str, OperatorOutcomes]:
        """What operators found out of the writes of undertakings, by undertaking."""
        found: dict[str, OperatorOutcomes] = {}
        async with self._store.read() as connection:
            for some in _iterate_slices(ids):
                those = select(writes).where(
                    writes.c.undertaking.in_(some), writes.c.told.is_not(None)
                )
                for row in await connection.execute(those.order_by(writes.c.number)):
                    seen = found.get(row.undertaking, ())
                    found[row.undertaking] = (*seen, (row.number, row.told))
        return found

    async def expire(self, before: datetime, unread_before: datetime) -> None:
        """Closes what began ``before`` and no client will ask for again, and forgets its answer and key.

        Answers without a key go as soon as they were sent ``unread_before``.
        """
        late = journal.c.began_at < before
        async with self._store.read() as connection:
            done = await connection.scalars(
                select(journal.c.id).where(late, asks.IS_OPEN_OPERATION, asks.IS_DONE)
            )
            ids = list(done)
        await self.mark_answered(ids)
        named = and_(
            late, journal.c.idempotency.is_not(None), journal.c.state.in_((ANSWERED, UNDONE))
        )
        read = and_(asks.IS_UNREAD_ANSWER, journal.c.ended_at < unread_before)
        async with self._store.write() as connection:
            for kept in (named, read):
                its = select(asks.ANSWER_HOLDER_PREFIX + journal.c.id).where(kept)
                await connection.execute(chunks.build_deletion_of_selected(its))
                await connection.execute(
                    update(journal).where(kept).values(idempotency=None, answer=None)
                )

    # Sealing

    def _encrypt_text(self, one: OperationRecord, column: str, text: StoredText) -> Steps[str]:
        keys, holder = self._store.encryption, _build_holder_id(one, column)
        return chunks.encrypt_in_chunks(keys, text, _build_context(one, column), holder)

    async def _decrypt_text(
        self, one: OperationRecord, column: str, sealed: StoredText | None
    ) -> StoredText | None:
        """None, too, where it is needed no more."""
        if not isinstance(sealed, str):
            return sealed
        keys, place = self._store.encryption, _build_context(one, column)
        if not chunks.is_head(sealed):
            return keys.decrypt(sealed, place)
        holder = _build_holder_id(one, column)
        work = Transaction(lambda: chunks.decrypt_text(keys, sealed, place, holder), is_long=True)
        with suppress(chunks.ChunkMissing):
            return await self._store.looked_up(work)
        return None


DELIVERY_COMMIT_SECONDS = 0.05
"""Seconds in which it is noted that clients have their answers; nobody waits for that."""

_PATH_IDS = re.compile(rf"(?<=/){ID_PATTERN}(?=[/?]|$)")
"""In a path, where they are all of a step: `start-processing` has none in it."""

_MAX_BRIEF_BYTES = 256 * 1024
"""Bytes of text up to which it is put into the state as a part of a brief work."""


_of_a_new_one = attrgetter(*asks.NEW_OPERATION_COLUMNS)
_of_a_write = attrgetter(*asks.WRITE_COLUMNS)
_of_an_outcome = attrgetter(*asks.OUTCOME_COLUMNS)


def _refuse_frozen(owner: Tenant) -> Steps[None]:
    if (yield asks.SELECT_FREEZE.of(owner._asdict())):
        raise WritesFrozenError


def _refuse_identical(one: OperationRecord, not_first: frozenset[str] | None) -> Steps[None]:
    """Another process may have begun the same request since the open ones were read."""
    if not_first is None:
        return
    its = {**one.tenant._asdict(), "key_id": one.key_id, "fingerprint": one.fingerprint}
    for id_, idempotency in (yield asks.SELECT_IDENTICAL.of(its)):
        if id_ not in not_first and None in (idempotency, one.idempotency):
            raise DuplicateOperationError


def _refuse_restored() -> Steps[None]:
    rows = yield asks.SELECT_RESTORED.of({})
    if rows and rows[0][0]:
        raise RestoreUncheckedError


def _build_object_rows(one: OperationRecord, point: Checkpoint) -> list[Asked]:
    """The objects that it names, or made, and that it did not name before."""
    ids = [*(one.object_ids if point.is_first else ()), *point.object_ids]
    if point.new_write:
        ids += [id_ for id_ in _PATH_IDS.findall(point.new_write.path) if id_ not in one.object_ids]
    named = {"undertaking": one.id, **one.tenant._asdict()}
    rows = [{**named, "object": id_} for id_ in dict.fromkeys(ids)]
    return [asks.INSERT_OBJECTS.of(*rows)] if rows else []


def _is_claim(write: Write) -> bool:
    return write.state == CONFIRMED and write.made is not None


def _build_context(one: OperationRecord, column: str) -> EncryptionContext:
    return EncryptionContext(
        "journal", one.tenant.merchant, one.tenant.environment, f"{column} of {one.id}"
    )


def _build_holder_id(one: OperationRecord, column: str) -> str:
    """Whose pieces a column's are."""
    return f"{asks.ANSWER_HOLDER_PREFIX}{one.id}" if column == "answer" else one.id


def _parse_summary(row: Sequence[Any], subjects: Mapping[str, tuple[str, ...]]) -> OperationRecord:
    values = dict(zip(asks.SUMMARY_COLUMNS, row, strict=True))
    owner = Tenant(values.pop("merchant"), values.pop("environment"))
    return OperationRecord(tenant=owner, object_ids=subjects.get(values["id"], ()), **values)


def _build_identical_writes_query(one: OperationRecord, write: Write) -> Any:
    """The other undertakings with a write like this one that is not settled."""
    return select(writes.c.undertaking).where(
        _is_of_tenant(writes, one.tenant),
        writes.c.alike == write.alike,
        asks.IS_SENT_WRITE,
        writes.c.undertaking != one.id,
    )


def _build_write_row(one: OperationRecord, write: Write) -> Mapping[str, Any]:
    """Also one that did not happen, and is sent again."""
    values = dict(zip(asks.WRITE_COLUMNS, _of_a_write(write), strict=True)) | one.tenant._asdict()
    return {**values, "undertaking": one.id, "number": write.number}


def _build_outcome_values(write: Write) -> Mapping[str, Any]:
    return dict(zip(asks.OUTCOME_COLUMNS, _of_an_outcome(write), strict=True))


def _parse_record(row: Any) -> OperationRecord:
    values = dict(row._mapping)  # noqa: SLF001 - a public name
    owner = Tenant(values.pop("merchant"), values.pop("environment"))
    del values["number"]
    return OperationRecord(tenant=owner, **values)


def _parse_write(row: Any) -> Write:
    names = Write.__dataclass_fields__
    return Write(**{name: value for name, value in row._mapping.items() if name in names})  # noqa: SLF001


def _build_claim_count_query(one: OperationRecord, made: str) -> Select[int]:
    others = (
        _is_of_tenant(writes, one.tenant),
        writes.c.made == made,
        writes.c.undertaking != one.id,
    )
    return select(func.count()).where(*others)


def _is_of_tenant(table: Any, owner: Tenant) -> ColumnElement[bool]:
    return and_(table.c.merchant == owner.merchant, table.c.environment == owner.environment)


def _iterate_slices(those: Sequence[str]) -> Iterable[Sequence[str]]:
    return (those[start : start + 500] for start in range(0, len(those), 500))
