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

from gateway.payloads.stored_json import Text
from gateway.storage import chunks
from gateway.storage import journal_asks as asks
from gateway.storage.audit_log import act_row, note
from gateway.storage.database import FEW, Transaction
from gateway.storage.encryption import Place
from gateway.storage.id_rows import insert_ids
from gateway.storage.journal_states import (
    ANSWERED,
    DID_NOT,
    DONE,
    HAPPENED,
    MAY_EXIST,
    NO_PATH,
    OPEN,
    REFUSED,
    RUNNING,
    SENT,
    UNDONE,
    UNSENT,
    UNSETTLED,
    told_of,
)
from gateway.storage.ledger import Ledger, ready
from gateway.storage.sql import AnyOf, Parameters
from gateway.storage.store import Store
from gateway.storage.tables import journal, journal_steps, journal_subjects, writes
from gateway.storage.tenants import Tenant
from mappings.current import ID_PATTERN
from mappings.effects import CompareAndSet
from mappings.frozen import frozen_dataclass

__all__ = [
    "ANSWERED",
    "DID_NOT",
    "DONE",
    "HAPPENED",
    "MAY_EXIST",
    "NO_PATH",
    "OPEN",
    "PASSED_ON",
    "REFUSED",
    "RUNNING",
    "SENT",
    "TOLD",
    "UNDONE",
    "UNSENT",
    "UNSETTLED",
    "AlreadyBegun",
    "AlreadyClaimed",
    "BeingChecked",
    "Frozen",
    "OperationRecord",
    "OperationRepository",
    "Overtaken",
    "Point",
    "Told",
    "Write",
]

TOLD = (HAPPENED, DID_NOT)

PASSED_ON = "forwarded "
"""How the operation begins of what went to the legacy service as it came: it has no flow here."""

Told = tuple[tuple[int, str], ...]
"""Numbers of writes, and what an operator found out of each."""


class Overtaken(Exception):
    """Another has the turn: the undertaking is played on elsewhere."""


class Frozen(Exception):
    """An operator stopped the writes of this merchant, environment, or everything."""


class BeingChecked(Exception):
    """The state is an older one that was restored; nothing is started until it was compared."""


class AlreadyClaimed(Exception):
    """Another write made, or may be making, what this one was thought to have made."""


class AlreadyBegun(Exception):
    """The key has used this Idempotency-Key before, or an identical request is open."""


@frozen_dataclass(frozen=True, slots=True)
class OperationRecord:
    """A row of the journal; ``asked`` and ``answer`` are opened."""

    id: str
    owner: Tenant
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
    asked: Text | None = field(default=None, repr=False)
    answer: Text | None = field(default=None, repr=False)
    ended_at: datetime | None = None
    subjects: tuple[str, ...] = ()
    unimported: str = ""
    """The fingerprint that it would have if no id had been imported: its first try may be from before."""

    def asks_for_the_same(self, other: OperationRecord) -> bool:
        """Whether the other, which was there before, may be its first try by what both ask for."""
        is_alike = other.fingerprint in (self.fingerprint, self.unimported)
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
class Point:
    """What is made durable at once: all of it, or none."""

    begins: bool = False
    minds_freezes: bool = False
    minds_restores: bool = False
    steps: tuple[int, Text] | None = None
    """The number of the last step, and what the steps since the last point were given."""
    not_first: frozenset[str] | None = None
    """Open operations that may be identical to one that begins; None if any may."""
    settled: Sequence[Write] = ()
    enters: Write | None = None
    records: Sequence[CompareAndSet] = ()
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Columns of the journal: state, why, answer, deserted, idempotency."""
    made: Sequence[str] = ()
    drops: bool = False
    """Whether what is sealed is no longer needed."""
    has_pieces: bool = True
    """Whether any of that may be in pieces."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What clients call objects from now on: legacy id to current id."""
    act: str = ""
    """What an operator does with it."""


class OperationRepository:
    """Reads and writes the journal; every method raises StoreUnavailable."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        may_be_sending: Callable[[str, str], bool] = lambda _undertaking, _instance: True,
    ) -> None:
        """``may_be_sending`` says of a running undertaking and its instance whether it may be."""
        self._store = store
        self._ledger = ledger
        self._may_be_sending = may_be_sending

    async def keep(self, one: OperationRecord, point: Point) -> None:
        """Makes a point durable.

        Raises Overtaken, Frozen, BeingChecked, AlreadyBegun, Conflict or Collision.
        """
        locks = self._ledger.locks(one.owner, point.records)
        if any(map(_may_be_anothers, point.settled)):
            locks |= {f"claims {one.owner}"}
        if point.begins and point.not_first is not None:
            locks |= {f"begins {one.owner} {one.key_id} {one.fingerprint}"}
        if point.records:
            point = replace(point, records=await ready(point.records))

        async def keep(tx: Transaction) -> None:
            await tx.lock(*locks)
            await self._keep(tx, one, point)

        await self._store.write(keep)

    async def _keep(self, tx: Transaction, one: OperationRecord, point: Point) -> None:
        if point.minds_freezes:
            await _refuse_frozen(tx, one.owner)
        if point.minds_restores:
            await _refuse_restored(tx)
        if point.begins:
            await _refuse_identical(tx, one, point.not_first)
            await self._begin(tx, one)
        else:
            await self._fence(tx, one, point)
        for write in filter(_may_be_anothers, point.settled):
            await self._claim(tx, one, write)
        await self._ledger.merge(tx, one.owner, point.records)
        await self._change(tx, one, point)
        await insert_ids(tx, one.owner, point.names, self._store.clock())

    async def _change(self, tx: Transaction, one: OperationRecord, point: Point) -> None:
        """The steps, writes and objects of an operation that may be changed."""
        if point.drops:
            await tx.execute(asks.DROP_STEPS, {"its": one.id})
            if point.has_pieces:
                await chunks.drop(tx, one.id)
        elif point.steps is not None:
            number, given = point.steps
            sealed = await self._put(tx, one, "given", given)
            steps = {"undertaking": one.id, "number": number, "given": sealed}
            await tx.execute(asks.PUT_STEPS, steps)
        for write in point.settled:
            its = {"its": one.id, "its_number": write.number}
            await tx.execute(asks.SETTLED, {**its, **_outcome(write)})
        if point.enters:
            await tx.execute(asks.ENTER, _entered(one, point.enters))
        if named := _named(one, point):
            await tx.execute(asks.NAME, *named)
        if point.act:
            await tx.execute(asks.ACT, act_row(self._store, point.act, one.owner, about=one.id))

    async def _claim(self, tx: Transaction, one: OperationRecord, write: Write) -> None:
        """What was found of a write may be what another made, or is making at this moment.

        One that is entered after this has been committed is not sent before, and so was not seen.
        """
        its = {**one.owner._asdict(), "its": one.id, "made": write.made, "alike": write.alike}
        if await tx.fetch(asks.MADE_BY_OTHERS, its):
            raise AlreadyClaimed
        rivals = await tx.fetch(asks.RIVALS, its)
        if any(self._may_be_sending(id_, instance) for id_, instance in rivals):
            raise AlreadyClaimed

    async def _begin(self, tx: Transaction, one: OperationRecord) -> None:
        row = dict(zip(asks.OF_A_NEW_ONE, _of_a_new_one(one), strict=True)) | one.owner._asdict()
        row["asked"] = None
        if one.asked is not None:
            row["asked"] = await self._put(tx, one, "asked", one.asked)
        if not await tx.fetch(asks.BEGIN, row):
            raise AlreadyBegun

    async def _fence(self, tx: Transaction, one: OperationRecord, point: Point) -> None:
        named = dict(point.changes) or {"turn": one.turn}
        if point.drops:
            named["asked"] = None
        if named.get("answer") is not None:
            named["answer"] = await self._put(tx, one, "answer", named["answer"])
        if named.get("state") not in (None, *OPEN):
            named["ended_at"] = self._store.clock()
        mine = {"its": one.id, "its_turn": one.turn}
        if not await tx.fetch(asks.fencing(tuple(sorted(named))), {**named, **mine}):
            raise Overtaken

    async def is_frozen(self, owner: Tenant) -> bool:
        """Whether an operator has stopped its writes; an empty merchant is in none but the wide ones."""
        return await self._store.read(lambda tx: _is_frozen(tx, owner), is_brief=True)

    async def is_being_checked(self) -> bool:
        """Whether the state is an older one that was restored: nothing may be started on it."""
        return await self._store.read(_is_restored, is_brief=True)

    async def take(self, one: OperationRecord, instance: str) -> OperationRecord | None:
        """Takes an open undertaking over; None where another did, or it is open no more."""
        mine = and_(journal.c.id == one.id, journal.c.turn == one.turn, journal.c.state.in_(OPEN))
        taken = update(journal).where(mine)
        taken = taken.values(turn=one.turn + 1, instance=instance, state=RUNNING)
        if await self._store.write(lambda tx: tx.execute(taken)) != 1:
            return None
        return replace(one, turn=one.turn + 1, instance=instance, state=RUNNING)

    async def answered(self, ids: Sequence[str]) -> None:
        """Their clients have the answers: what is sealed goes, but for the answers themselves.

        Of those that are done, and no others: one that was taken again is still needed whole.
        """
        if not ids:
            return
        ended = {"ids": sorted(ids), "state": ANSWERED, "ended_at": self._store.clock()}

        async def close(tx: Transaction) -> None:
            closed = await tx.fetch(asks.CLOSE, ended)
            if whole := [{"its": row.id} for row in closed if row.asked is not None]:
                await tx.execute(asks.DROP_ASKED, *whole)
                await tx.execute(asks.DROP_STEPS, *whole)
                await chunks.drop(tx, *(one["its"] for one in whole))

        await self._store.write(close)

    async def reopen(self, id_: str) -> None:
        """Its response was not read after all: the same request is a retry again."""
        await self._store.write(lambda tx: tx.execute(asks.REOPEN, {"its": id_}))

    async def desert(self, id_: str) -> None:
        gone = update(journal).where(journal.c.id == id_).values(deserted=True)
        await self._store.write(lambda tx: tx.execute(gone))

    # Reading

    async def open_ones(self, one: OperationRecord) -> list[OperationRecord]:
        """What an undertaking has to mind: open ones that ask for the same, what is not settled of
        the objects that it names, and its own first try.

        Without what they were asked (see ``asked_of``); of the objects that they name only those
        that it names too, and the answers of those alone that may be answered again.
        """
        plain, sharing = asks.OPEN_ONES if one.idempotency is None else asks.OPEN_ONES_OR_NAMED
        its = {
            **one.owner._asdict(),
            "key_id": one.key_id,
            "fingerprint": one.fingerprint,
            "unimported": one.unimported,
            "idempotency": one.idempotency,
        }

        async def load(tx: Transaction) -> tuple[Sequence[Any], Sequence[Any]]:
            if not one.subjects:
                return await tx.fetch(plain, its), ()
            rows = await tx.fetch(sharing, {**its, "objects": sorted(one.subjects)})
            named: list[Any] = []
            for subject in one.subjects if rows else ():
                values = {"object": subject, "undertakings": [row.id for row in rows]}
                named += await tx.fetch(asks.THAT_NAME, {**one.owner._asdict(), **values})
            return rows, named

        rows, named = await self._store.read(load, is_brief=len(one.subjects) <= FEW)
        subjects: dict[str, tuple[str, ...]] = {}
        for undertaking, subject in named:
            subjects[undertaking] = (*subjects.get(undertaking, ()), subject)
        return [await self._with_answer(_of_a_row(row, subjects)) for row in rows]

    async def _with_answer(self, one: OperationRecord) -> OperationRecord:
        """As it is read, its answer is sealed."""
        if one.answer is None:
            return one
        return replace(one, answer=await self._opened(one, "answer", one.answer))

    async def asked_of(self, one: OperationRecord) -> Text | None:
        """What it was asked; None where nobody needs that any more."""
        if one.asked is not None:
            return one.asked
        those = select(journal.c.asked).where(journal.c.id == one.id)
        sealed = await self._store.read(lambda tx: tx.fetch_value(those))
        return await self._opened(one, "asked", sealed)

    async def unfinished(self) -> list[OperationRecord]:
        """Every undertaking that is running somewhere, or not settled."""
        return await self._those(asks.UNFINISHED)

    async def left_open(self) -> list[OperationRecord]:
        """The same, without what they were asked and the objects that they name."""
        rows = await self._store.read(lambda tx: tx.fetch(asks.LEFT_OPEN))
        return [await self._with_answer(_of_a_row(row, {})) for row in rows]

    async def of_object(self, owner: Tenant | None, ids: Iterable[str]) -> list[OperationRecord]:
        """Every undertaking that named one of these, or made it, the first first."""
        named = select(journal_subjects.c.undertaking).where(
            journal_subjects.c.object.in_(list(ids)),
            *(() if owner is None else (_owned(journal_subjects, owner),)),
        )
        return await self._those(journal.c.id.in_(named))

    async def of_request(self, owner: Tenant | None, id_: str) -> list[OperationRecord]:
        """Those of a request's id, or whose own id begins so; a client may send an id twice."""
        named = journal.c.request_id == id_
        if re.fullmatch(r"[0-9a-f]{12,}", id_):
            named = or_(named, journal.c.id.startswith(id_))
        if owner is not None:
            named = and_(named, _owned(journal, owner))
        return await self._those(named)

    async def read(self, id_: str) -> OperationRecord | None:
        found = await self._those(journal.c.id == id_)
        return found[0] if found else None

    async def begun_with(self, start: str) -> list[OperationRecord]:
        """Those whose ids begin so."""
        return await self._those(journal.c.id.startswith(start, autoescape=True))

    async def _those(self, wanted: ColumnElement[bool]) -> list[OperationRecord]:
        rows = select(journal).where(wanted).order_by(journal.c.began_at, journal.c.id)
        subjects = select(journal_subjects).where(AnyOf(journal_subjects.c.undertaking, "ids"))

        async def load(tx: Transaction) -> tuple[Sequence[Any], Sequence[Any]]:
            found = await tx.fetch(rows)
            ids = [row.id for row in found]
            return found, await tx.fetch(subjects, {"ids": ids}) if ids else ()

        loaded, subject_rows = await self._store.read(load)
        found = [_undertaken(row) for row in loaded]
        named: dict[str, list[str]] = {}
        for row in subject_rows:
            named.setdefault(row.undertaking, []).append(row.object)
        return [
            replace(
                await self._with_answer(one),
                subjects=tuple(named.get(one.id, ())),
                asked=await self._opened(one, "asked", one.asked),
            )
            for one in found
        ]

    async def given(self, one: OperationRecord) -> list[Text]:
        """What its steps were given, a text for each durable point, in order."""
        those = select(journal_steps).where(journal_steps.c.undertaking == one.id)
        those = those.order_by(journal_steps.c.number)
        rows = await self._store.read(lambda tx: tx.fetch(those))
        found = [await self._opened(one, "given", row.given) for row in rows]
        return [text for text in found if text is not None]

    async def writes_of(self, *ids: str) -> dict[str, list[Write]]:
        """The writes of undertakings, by undertaking, in order."""
        found: dict[str, list[Write]] = {id_: [] for id_ in ids}
        those = select(writes).where(AnyOf(writes.c.undertaking, "ids")).order_by(writes.c.number)
        values = {"ids": sorted(found)}
        for row in await self._store.read(lambda tx: tx.fetch(those, values)) if ids else ():
            found[row.undertaking].append(_write(row))
        return found

    async def claimed(self, one: OperationRecord, since: datetime) -> set[str]:
        """The ids of what other writes of its owner made since."""
        made = select(writes.c.made).where(
            _owned(writes, one.owner),
            writes.c.entered_at >= since,
            writes.c.made.is_not(None),
            writes.c.undertaking != one.id,
        )
        return {row.made for row in await self._store.read(lambda tx: tx.fetch(made))}

    async def is_claimed(self, one: OperationRecord, made: str) -> bool:
        """Whether another write of its owner made this."""
        those = _others_made(one, made)
        return bool(await self._store.read(lambda tx: tx.fetch_value(those)))

    async def rivals(self, one: OperationRecord, write: Write) -> list[OperationRecord]:
        """The other open undertakings with a write like this one that is not settled."""
        return await self._those(
            and_(
                asks.AN_OPEN,
                journal.c.id.in_(_alike(one, write)),
                journal.c.state.in_((RUNNING, UNSETTLED)),
            )
        )

    async def tell(self, one: OperationRecord, number: int, told: str, named: str) -> bool:
        """Notes what an operator found out of a write, ``named`` so; False where it is settled already.

        Whoever settles undertakings takes it into account at its next look at what is open.
        """
        that = and_(writes.c.undertaking == one.id, writes.c.number == number)
        finding = update(writes).where(that, writes.c.state == SENT).values(told=told)

        async def tell(tx: Transaction) -> bool:
            if await tx.execute(finding) != 1:
                return False
            await note(self._store, tx, told_of(named, told), one.owner, about=one.id)
            return True

        return await self._store.write(tell)

    async def told(self, ids: Sequence[str]) -> dict[str, Told]:
        """What operators found out of the writes of undertakings, by undertaking."""
        found: dict[str, Told] = {}
        those = select(writes).where(AnyOf(writes.c.undertaking, "ids"), writes.c.told.is_not(None))
        those, values = those.order_by(writes.c.number), {"ids": list(ids)}
        for row in await self._store.read(lambda tx: tx.fetch(those, values)) if ids else ():
            seen = found.get(row.undertaking, ())
            found[row.undertaking] = (*seen, (row.number, row.told))
        return found

    async def expire(self, before: datetime, unread_before: datetime) -> None:
        """Closes what began ``before`` and no client will ask for again, and forgets its answer and key.

        Answers without a key go as soon as they were sent ``unread_before``.
        """
        late = journal.c.began_at < before
        done = select(journal.c.id).where(late, asks.AN_OPEN, asks.IS_DONE)
        await self.answered([row.id for row in await self._store.read(lambda tx: tx.fetch(done))])
        named = and_(
            late, journal.c.idempotency.is_not(None), journal.c.state.in_((ANSWERED, UNDONE))
        )
        read = and_(asks.KEPT_BRIEFLY, journal.c.ended_at < unread_before)

        async def forget(tx: Transaction) -> None:
            for kept in (named, read):
                its = select(asks.OF_ANSWERS + journal.c.id).where(kept)
                await tx.execute(chunks.dropping(its))
                await tx.execute(update(journal).where(kept).values(idempotency=None, answer=None))

        await self._store.write(forget)

    # Sealing

    async def _put(self, tx: Transaction, one: OperationRecord, column: str, text: Text) -> str:
        keys, holder = self._store.encryption, _holder(one, column)
        return await chunks.put(tx, keys, text, _place(one, column), holder)

    async def _opened(self, one: OperationRecord, column: str, sealed: Text | None) -> Text | None:
        """None, too, where it is needed no more."""
        if not isinstance(sealed, str):
            return sealed
        keys, place = self._store.encryption, _place(one, column)
        if not chunks.is_head(sealed):
            return keys.unseal(sealed, place)
        holder = _holder(one, column)
        with suppress(chunks.ChunkMissing):
            return await self._store.read(lambda tx: chunks.whole(tx, keys, sealed, place, holder))
        return None


_IDS = re.compile(rf"(?<=/){ID_PATTERN}(?=[/?]|$)")
"""In a path, where they are all of a step: `start-processing` has none in it."""

_of_a_new_one = attrgetter(*asks.OF_A_NEW_ONE)
_of_a_write = attrgetter(*asks.OF_A_WRITE)
_of_an_outcome = attrgetter(*asks.OF_AN_OUTCOME)


async def _is_frozen(tx: Transaction, owner: Tenant) -> bool:
    return bool(await tx.fetch(asks.FROZEN, owner._asdict()))


async def _is_restored(tx: Transaction) -> bool:
    return bool(await tx.fetch_value(asks.IS_RESTORED))


async def _refuse_frozen(tx: Transaction, owner: Tenant) -> None:
    if await _is_frozen(tx, owner):
        raise Frozen


async def _refuse_identical(
    tx: Transaction, one: OperationRecord, not_first: frozenset[str] | None
) -> None:
    """Another process may have begun the same request since the open ones were read."""
    if not_first is None:
        return
    its = {**one.owner._asdict(), "key_id": one.key_id, "fingerprint": one.fingerprint}
    for id_, idempotency in await tx.fetch(asks.IDENTICAL, its):
        if id_ not in not_first and None in (idempotency, one.idempotency):
            raise AlreadyBegun


async def _refuse_restored(tx: Transaction) -> None:
    if await _is_restored(tx):
        raise BeingChecked


def _named(one: OperationRecord, point: Point) -> list[Parameters]:
    """The objects that it names, or made, and that it did not name before."""
    ids = [*(one.subjects if point.begins else ()), *point.made]
    if point.enters:
        ids += [id_ for id_ in _IDS.findall(point.enters.path) if id_ not in one.subjects]
    named = {"undertaking": one.id, **one.owner._asdict()}
    return [{**named, "object": id_} for id_ in dict.fromkeys(ids)]


def _may_be_anothers(write: Write) -> bool:
    return write.state == HAPPENED and write.made is not None


def _place(one: OperationRecord, column: str) -> Place:
    return Place("journal", one.owner.merchant, one.owner.environment, f"{column} of {one.id}")


def _holder(one: OperationRecord, column: str) -> str:
    """Whose pieces a column's are."""
    return f"{asks.OF_ANSWERS}{one.id}" if column == "answer" else one.id


def _of_a_row(row: Sequence[Any], subjects: Mapping[str, tuple[str, ...]]) -> OperationRecord:
    values = dict(zip(asks.SHOWN, row, strict=True))
    owner = Tenant(values.pop("merchant"), values.pop("environment"))
    return OperationRecord(owner=owner, subjects=subjects.get(values["id"], ()), **values)


def _alike(one: OperationRecord, write: Write) -> Any:
    """The other undertakings with a write like this one that is not settled."""
    return select(writes.c.undertaking).where(
        _owned(writes, one.owner),
        writes.c.alike == write.alike,
        asks.A_SENT,
        writes.c.undertaking != one.id,
    )


def _entered(one: OperationRecord, write: Write) -> Mapping[str, Any]:
    """Also one that did not happen, and is sent again."""
    values = dict(zip(asks.OF_A_WRITE, _of_a_write(write), strict=True)) | one.owner._asdict()
    return {**values, "undertaking": one.id, "number": write.number}


def _outcome(write: Write) -> Mapping[str, Any]:
    return dict(zip(asks.OF_AN_OUTCOME, _of_an_outcome(write), strict=True))


def _undertaken(row: Any) -> OperationRecord:
    values = row._asdict()
    owner = Tenant(values.pop("merchant"), values.pop("environment"))
    del values["number"]
    return OperationRecord(owner=owner, **values)


def _write(row: Any) -> Write:
    names = Write.__dataclass_fields__
    return Write(**{name: value for name, value in row._asdict().items() if name in names})


def _others_made(one: OperationRecord, made: str) -> Select[int]:
    others = (_owned(writes, one.owner), writes.c.made == made, writes.c.undertaking != one.id)
    return select(func.count()).where(*others)


def _owned(table: Any, owner: Tenant) -> ColumnElement[bool]:
    return and_(table.c.merchant == owner.merchant, table.c.environment == owner.environment)
