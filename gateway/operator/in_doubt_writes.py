"""Lists writes in doubt with advice for operators, and records an operator's verdict."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from gateway.observability.plurals import pluralize
from gateway.payloads import stored_json
from gateway.storage import Ledger, Store
from gateway.storage.heartbeats import WATCHED_SECONDS, beats
from gateway.storage.id_rows import current_ids, legacy_ids
from gateway.storage.journal_states import in_words
from gateway.storage.tenants import Tenant
from gateway.storage.undertakings import (
    DID_NOT,
    HAPPENED,
    PASSED_ON,
    RUNNING,
    SENT,
    TOLD,
    OperationRecord,
    OperationRepository,
)
from gateway.storage.undertakings import UNSETTLED as LEFT
from gateway.storage.undertakings import Write as Row
from mappings.current import ID, Endpoint, find_endpoint

SHOWN = 12
"""Characters of an operation's id that identify it."""

SURE_AFTER = timedelta(seconds=35)
"""After this time a write that cannot be seen did not happen: the service refuses requests that
were signed more than 30 seconds ago.
"""


@dataclass(frozen=True, slots=True)
class Unsettled:
    """A write that was sent and not answered, or the last write of an operation that cannot
    continue.

    ``object`` is the legacy id of the object that it changes, None for a create.
    """

    one: OperationRecord
    write: Row
    object: str | None
    to_do: str

    @property
    def id(self) -> str:
        return write_id(self.one, self.write)

    @property
    def is_open(self) -> bool:
        return self.write.state == SENT

    @property
    def why(self) -> str:
        return self.one.why or "the process that sent it ended before the answer came"


class NotSettled(Exception):
    """An operator's verdict is not accepted. The message is one line."""


def write_id(one: OperationRecord, write: Row) -> str:
    return f"{one.id[:SHOWN]}.{write.number}"


# Listing


async def load_in_doubt_writes(
    store: Store, watched: float = WATCHED_SECONDS, pause: float = 0.25, only: str | None = None
) -> list[Unsettled]:
    """Every write in doubt, or those of one operation (``operation_id``), oldest first. Raises
    StoreUnavailable.

    An operation that a process may be executing is watched until it ends or its owner is seen to be
    gone.
    """
    rows = OperationRepository(store, Ledger(store))
    open_ones = {one.id: one for one in await rows.unfinished() if only in (None, one.id)}
    left = await _left(store, rows, open_ones, watched, pause)
    # Read after the watch: an owner may have recorded an outcome meanwhile.
    its = await rows.writes_of(*left)
    found = [(one, write) for one in left.values() if (write := _in_question(one, its[one.id]))]
    names = await _names(store, found)
    return [
        Unsettled(one, write, names[one.id], advise_operator(one, write))
        for one, write in sorted(found, key=lambda both: both[1].entered_at)
    ]


async def _left(
    store: Store,
    rows: OperationRepository,
    those: Mapping[str, OperationRecord],
    watched: float,
    pause: float,
) -> dict[str, OperationRecord]:
    """The operations that no process executes."""
    left = {id_: one for id_, one in those.items() if _was_left(one)}
    played = {id_: one for id_, one in those.items() if id_ not in left}
    first, until = await beats(store), asyncio.get_running_loop().time() + watched
    while played := await _with_a_write(rows, played):
        now = await beats(store)
        is_over = asyncio.get_running_loop().time() >= until
        for id_, one in list(played.items()):
            fresh = await rows.read(id_)
            # Its owner ended it or handed it over: it is in doubt only if the new row says so.
            if fresh is None or fresh.turn != one.turn or fresh.state != one.state:
                del played[id_]
                left |= {id_: fresh} if fresh is not None and _was_left(fresh) else {}
            # The owner has no heartbeat row (it ended), or its heartbeat has not advanced for the
            # whole time (it was killed).
            elif one.instance not in now or is_over:
                left[id_] = played.pop(id_)
            # The heartbeat advanced: the owner is alive and will record the outcome.
            elif now[one.instance] != first.get(one.instance):
                del played[id_]
        if played:
            await asyncio.sleep(pause)
    return left


def _was_left(one: OperationRecord) -> bool:
    """Whether the operation is in doubt; a process that tries to resolve it sets RUNNING but keeps
    ``why``.
    """
    return one.state == LEFT or (one.state == RUNNING and one.why is not None)


async def _with_a_write(
    rows: OperationRepository, those: Mapping[str, OperationRecord]
) -> dict[str, OperationRecord]:
    its = await rows.writes_of(*those)
    return {
        id_: one for id_, one in those.items() if any(write.state == SENT for write in its[id_])
    }


def _in_question(one: OperationRecord, its: Sequence[Row]) -> Row | None:
    """The first write that was not answered; if all were, the last write of an operation in doubt."""
    sent = [write for write in its if write.state == SENT]
    return next(iter(sent or (its[-1:] if _was_left(one) else [])), None)


async def _names(
    store: Store, those: Sequence[tuple[OperationRecord, Row]]
) -> dict[str, str | None]:
    """The legacy id of each write's object, by operation id."""
    found: dict[str, str | None] = {}
    for one, write in those:
        found[one.id] = None
        if named := _object(write):
            id_ = await resolve_first_id(store, one.owner, named)
            found[one.id] = (await legacy_ids(store, one.owner, [id_])).get(id_, id_)
    return found


async def resolve_first_id(store: Store, owner: Tenant, id_: str) -> str:
    """The original id of an object, given any id that it got when its draft was submitted."""
    return str((await Ledger(store).recall(owner, "alias", id_)).get("id", id_))


def _object(write: Row) -> str | None:
    endpoint = _endpoint(write)
    found = endpoint.pattern.fullmatch(write.path) if endpoint else _NAMED.search(write.path)
    return found.groupdict().get("id") if found else None


_NAMED = re.compile(f"/(?P<id>{ID})")


def _endpoint(write: Row) -> Endpoint | None:
    """The endpoint of a write; None for a path that only the legacy service has."""
    try:
        return find_endpoint(write.method, write.path)
    except LookupError:
        return None


# Advice

CREATES = {
    "/recipients": ("R", "a recipient that was created at about {since}"),
    "/recipients/{id}/accounts": ("A", "an account added to recipient {id} at about {since}"),
    "/batches": ("B", "a batch{of} that was created at about {since}"),
    "/batches/{id}/payments": ("P", "a payment added to batch {id} at about {since}"),
}
"""By the path of a POST: the id prefix of the object that it creates, and what to look for."""

CHANGES = {
    "PATCH /recipients/{id}": "recipient {id} was changed at about {since}",
    "DELETE /recipients/{id}": "recipient {id} is archived",
    "DELETE /recipients": "the recipients{ids} are archived",
    "PATCH /recipients/{id}/accounts/{account}": "account {account} of recipient {id} was changed "
    "at about {since} (which gives it another id)",
    "DELETE /recipients/{id}/accounts/{account}": "account {account} of recipient {id} is gone",
    "POST /batches/{id}/generate-quote": "batch {id} was quoted at about {since}",
    "POST /batches/{id}/start-processing": "batch {id} is being processed, or was",
    "PATCH /batches/{id}": "the payments of batch {id} were changed at about {since}",
    "DELETE /batches/{id}": "batch {id} is gone",
    "PATCH /batches/{id}/payments/{payment}": "payment {payment} of batch {id} was changed at "
    "about {since}",
    "DELETE /batches/{id}/payments/{payment}": "payment {payment} of batch {id} is gone",
}


def created_id_prefix(write: Row) -> str | None:
    """The id prefix of the object that a write creates; None if it creates nothing."""
    endpoint = _endpoint(write)
    path = endpoint.path if endpoint and write.method == "POST" else ""
    return CREATES[path][0] if path in CREATES else None


def advise_operator(one: OperationRecord, write: Row) -> str:
    """Advice for an operator who has access to the service's dashboard."""
    id_ = write_id(one, write)
    if write.state != SENT:
        return (
            "nothing if the service cannot be read: the gateway continues as soon as it can. "
            "If the request cannot be continued, complete by hand the steps that `payout-gateway "
            "trace` "
            f"shows as missing, then run `payout-gateway writes close {id_}`"
        )
    if not write.told:
        return _look(one, write)
    if write.told not in TOLD and write.told in (one.why or ""):
        return f"the recorded outcome cannot be right: {_look(one, write)}"
    return (
        "nothing: a running gateway continues from the recorded outcome; if it has to read "
        "the service, "
        f"as soon as it can. If the recorded outcome is wrong, {_look(one, write)}"
    )


def _look(one: OperationRecord, write: Row) -> str:
    id_ = write_id(one, write)
    told, where = _sought(one, write), "the service's dashboard"
    if one.operation.startswith(PASSED_ON):
        # The gateway cannot read what a forwarded write did.
        where = "the legacy service, which it was forwarded to,"
    settle = f"`payout-gateway writes settle {id_}"
    if prefix := created_id_prefix(write):
        return (
            f"look in {where} for {told}; if it is there, run {settle} --made {prefix}-…` "
            f"with its id, otherwise {settle} --did-not-happen`"
        )
    return (
        f"check in {where} whether {told}; if so, run {settle} --happened`, otherwise "
        f"{settle} --did-not-happen`"
    )


def _sought(one: OperationRecord, write: Row) -> str:
    if (endpoint := _endpoint(write)) is None:
        at = f"{write.entered_at:%Y-%m-%d %H:%M:%S} UTC"
        return f"{write.method} {write.path} was carried out at about {at}"
    found = endpoint.pattern.fullmatch(write.path)
    words = (
        CREATES[endpoint.path][1]
        if created_id_prefix(write)
        else CHANGES[f"{write.method} {endpoint.path}"]
    )
    asked = (stored_json.value(one.asked) if one.asked else {}).get("body") or {}
    return words.format(
        since=f"{write.entered_at:%Y-%m-%d %H:%M:%S} UTC",
        of=_of(asked) if one.operation == "create_batch" else "",
        ids=f" {', '.join(asked['ids'])}" if asked.get("ids") else "",
        **(found.groupdict() if found else {}),
    )


def _of(asked: Mapping[str, object]) -> str:
    payments = asked.get("payments")
    if not isinstance(payments, list) or not payments:
        return ""
    return f" of {pluralize(len(payments), 'payment')}"


# Verdicts


@dataclass(frozen=True, slots=True)
class Word:
    """An operator's verdict: ``--made ID``, or if that is None, ``--happened`` or
    ``--did-not-happen``.
    """

    happened: bool
    made: str | None = None

    @property
    def told(self) -> str:
        return self.made or (HAPPENED if self.happened else DID_NOT)


async def find_in_doubt_write(store: Store, named: str) -> tuple[OperationRecord, Row]:
    """The write with this id, as `writes unsettled` shows it. Raises WriteCommandRefused."""
    begin, _, number = named.partition(".")
    rows = OperationRepository(store, Ledger(store))
    found = [
        (one, write)
        for one in (await rows.begun_with(begin) if len(begin) >= SHOWN else [])
        for write in (await rows.writes_of(one.id))[one.id]
        if str(write.number) == number
    ]
    # A prefix that matches two operations must not pick one of them.
    if len(found) != 1:
        raise NotSettled(f"there is no write {named}; `writes unsettled` lists the writes in doubt")
    return found[0]


async def record_operator_verdict(store: Store, named: str, word: Word) -> Unsettled:
    """Stores an operator's verdict on a write. Raises WriteCommandRefused."""
    one, write = await find_in_doubt_write(store, named)
    if write.state != SENT:
        raise NotSettled(f"the outcome of {named} is already known: {in_words(write.state)}")
    check_operator_verdict(write, word)
    id_ = write_id(one, write)
    left = {each.id: each for each in await load_in_doubt_writes(store, only=one.id)}
    if (unsettled := left.get(id_)) is None:
        raise NotSettled(f"{named} is in progress; wait for its answer")
    # A verdict that it did not happen allows a retry to send the payment again. Until the service
    # rejects the request as too old, it may still be carried out.
    if not (word.happened or word.made) and (early := _early(store, write)):
        raise NotSettled(
            f"{named} was sent a moment ago and may still be carried out; check again in {early} s"
        )
    if word.made:
        word = Word(happened=True, made=await _free(store, one, word.made))
    # A compare-and-set: a gateway may have found the outcome while the operator was looking.
    if not await OperationRepository(store, Ledger(store)).tell(one, write.number, word.told, id_):
        raise NotSettled(f"the outcome of {named} became known meanwhile; see `writes unsettled`")
    return unsettled


def check_operator_verdict(write: Row, word: Word) -> None:
    """Raises WriteCommandRefused if the verdict does not fit the kind of write."""
    prefix = created_id_prefix(write)
    # Without the id, clients could not be answered with the object that was created.
    if prefix and word.happened and not word.made:
        raise NotSettled(f"this write creates an object; give its id with --made {prefix}-…")
    if word.made and not prefix:
        raise NotSettled("this write creates no object; use --happened or --did-not-happen")
    if word.made and not re.fullmatch(f"{prefix}-[A-Za-z0-9]+", word.made):
        raise NotSettled(
            f"the id after --made must be {prefix}- followed by letters and digits; copy it "
            "from the "
            "service's dashboard"
        )


def _early(store: Store, write: Row) -> int:
    """Seconds until a write that cannot be seen surely did not happen."""
    left: timedelta = write.entered_at + SURE_AFTER - store.clock()
    return max(0, int(left.total_seconds()) + 1) if left > timedelta() else 0


async def _free(store: Store, one: OperationRecord, named: str) -> str:
    """The service's id of the created object. Raises WriteCommandRefused if the object is known
    otherwise.
    """
    # The operator may have copied the legacy id from an answer.
    made = (await current_ids(store, one.owner, [named])).get(named, named)
    ledger = Ledger(store)
    # Two writes with the same result would hide that one of them is still unknown.
    if await OperationRepository(store, ledger).is_claimed(one, made):
        raise NotSettled(f"{named} was created by another write; check the id")
    for kind in ("batch", "recipient", "alias"):
        if await ledger.recall(one.owner, kind, made):
            raise NotSettled(f"{named} is already known as another object; check the id")
    return made
