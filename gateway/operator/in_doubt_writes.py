"""Writes of unknown outcome as an operator sees them, and what an operator found out of one."""

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
"""So much of an undertaking's id is enough to name it."""

SURE_AFTER = timedelta(seconds=35)
"""After so long what cannot be seen did not happen: the service refuses stamps of 30 seconds."""


@dataclass(frozen=True, slots=True)
class Unsettled:
    """A write that was sent and not answered, or the last one of what cannot be carried on.

    ``object`` is the id by which clients know what it is about, None for a create.
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
        return self.one.why or "whoever sent it was cut off"


class NotSettled(Exception):
    """Why what an operator says of a write is not taken; one line."""


def write_id(one: OperationRecord, write: Row) -> str:
    return f"{one.id[:SHOWN]}.{write.number}"


# Which they are


async def load_in_doubt_writes(
    store: Store, watched: float = WATCHED_SECONDS, pause: float = 0.25, only: str | None = None
) -> list[Unsettled]:
    """Every one, or those of one undertaking, the first first; StoreUnavailable.

    What somebody may be playing at this moment is watched until it is done, or seen to be nobody's.
    """
    rows = OperationRepository(store, Ledger(store))
    open_ones = {one.id: one for one in await rows.unfinished() if only in (None, one.id)}
    left = await _left(store, rows, open_ones, watched, pause)
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
    """Those that nobody plays."""
    left = {id_: one for id_, one in those.items() if _was_left(one)}
    played = {id_: one for id_, one in those.items() if id_ not in left}
    first, until = await beats(store), asyncio.get_running_loop().time() + watched
    while played := await _with_a_write(rows, played):
        now = await beats(store)
        is_over = asyncio.get_running_loop().time() >= until
        for id_, one in list(played.items()):
            fresh = await rows.read(id_)
            if fresh is None or fresh.turn != one.turn or fresh.state != one.state:
                del played[id_]
                left |= {id_: fresh} if fresh is not None and _was_left(fresh) else {}
            elif one.instance not in now or is_over:
                left[id_] = played.pop(id_)
            elif now[one.instance] != first.get(one.instance):
                del played[id_]
        if played:
            await asyncio.sleep(pause)
    return left


def _was_left(one: OperationRecord) -> bool:
    """Whether it was found unsettled once: being looked at, it still is."""
    return one.state == LEFT or (one.state == RUNNING and one.why is not None)


async def _with_a_write(
    rows: OperationRepository, those: Mapping[str, OperationRecord]
) -> dict[str, OperationRecord]:
    its = await rows.writes_of(*those)
    return {
        id_: one for id_, one in those.items() if any(write.state == SENT for write in its[id_])
    }


def _in_question(one: OperationRecord, its: Sequence[Row]) -> Row | None:
    """The write that was not answered, or where all were, the last."""
    sent = [write for write in its if write.state == SENT]
    return next(iter(sent or (its[-1:] if _was_left(one) else [])), None)


async def _names(
    store: Store, those: Sequence[tuple[OperationRecord, Row]]
) -> dict[str, str | None]:
    """What clients call the object of each, by the undertaking's id."""
    found: dict[str, str | None] = {}
    for one, write in those:
        found[one.id] = None
        if named := _object(write):
            id_ = await resolve_first_id(store, one.owner, named)
            found[one.id] = (await legacy_ids(store, one.owner, [id_])).get(id_, id_)
    return found


async def resolve_first_id(store: Store, owner: Tenant, id_: str) -> str:
    """The id that an object had first, by any that it was given when a draft was made real."""
    return str((await Ledger(store).recall(owner, "alias", id_)).get("id", id_))


def _object(write: Row) -> str | None:
    endpoint = _endpoint(write)
    found = endpoint.pattern.fullmatch(write.path) if endpoint else _NAMED.search(write.path)
    return found.groupdict().get("id") if found else None


_NAMED = re.compile(f"/(?P<id>{ID})")


def _endpoint(write: Row) -> Endpoint | None:
    """None of what only the legacy service has."""
    try:
        return find_endpoint(write.method, write.path)
    except LookupError:
        return None


# What to do about one

CREATES = {
    "/recipients": ("R", "a recipient that was made at about {since}"),
    "/recipients/{id}/accounts": ("A", "an account added to recipient {id} at about {since}"),
    "/batches": ("B", "a batch{of} that was made at about {since}"),
    "/batches/{id}/payments": ("P", "a payment added to batch {id} at about {since}"),
}
"""By the path that is POSTed to: how the id begins of what it makes, and what to look for."""

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
    """How the id begins of what a write makes; None for one that makes nothing."""
    endpoint = _endpoint(write)
    path = endpoint.path if endpoint and write.method == "POST" else ""
    return CREATES[path][0] if path in CREATES else None


def advise_operator(one: OperationRecord, write: Row) -> str:
    """In words for an operator who may look into the service's dashboard."""
    id_ = write_id(one, write)
    if write.state != SENT:
        return (
            "nothing where the service cannot be read: it goes on by itself as soon as it can. "
            f"Where it cannot be carried on, finish by hand what `payout-gateway trace` shows to "
            f"be missing, and then `payout-gateway writes close {id_}`"
        )
    if not write.told:
        return _look(one, write)
    if write.told not in TOLD and write.told in (one.why or ""):
        return f"what was found out cannot be so: {_look(one, write)}"
    return (
        "nothing: a running gateway goes on from what was found out, where it has to read the "
        f"service as soon as it can. If that was wrong, {_look(one, write)}"
    )


def _look(one: OperationRecord, write: Row) -> str:
    id_ = write_id(one, write)
    told, where = _sought(one, write), "the service's dashboard"
    if one.operation.startswith(PASSED_ON):
        where = "the legacy service, which it was forwarded to,"
    settle = f"`payout-gateway writes settle {id_}"
    if prefix := created_id_prefix(write):
        return (
            f"look in {where} for {told}; is it there, {settle} --made {prefix}-…` "
            f"with its id, is it not, {settle} --did-not-happen`"
        )
    return (
        f"look in {where} whether {told}; if so, {settle} --happened`, if not, "
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


# What an operator found out


@dataclass(frozen=True, slots=True)
class Word:
    """``--made ID``, or where that is None ``--happened`` or ``--did-not-happen``."""

    happened: bool
    made: str | None = None

    @property
    def told(self) -> str:
        return self.made or (HAPPENED if self.happened else DID_NOT)


async def find_in_doubt_write(store: Store, named: str) -> tuple[OperationRecord, Row]:
    """The write that an id of the list names; raises NotSettled."""
    begin, _, number = named.partition(".")
    rows = OperationRepository(store, Ledger(store))
    found = [
        (one, write)
        for one in (await rows.begun_with(begin) if len(begin) >= SHOWN else [])
        for write in (await rows.writes_of(one.id))[one.id]
        if str(write.number) == number
    ]
    if len(found) != 1:
        raise NotSettled(f"there is no write {named}; `writes unsettled` lists those to settle")
    return found[0]


async def record_operator_verdict(store: Store, named: str, word: Word) -> Unsettled:
    """Notes what an operator found out of a write; raises NotSettled."""
    one, write = await find_in_doubt_write(store, named)
    if write.state != SENT:
        raise NotSettled(f"{named} is settled already: {in_words(write.state)}")
    check_operator_verdict(write, word)
    id_ = write_id(one, write)
    left = {each.id: each for each in await load_in_doubt_writes(store, only=one.id)}
    if (unsettled := left.get(id_)) is None:
        raise NotSettled(f"{named} is being carried out at this moment; wait for its answer")
    if not (word.happened or word.made) and (early := _early(store, write)):
        raise NotSettled(
            f"{named} was sent a moment ago and may still be carried out; look again in {early} s"
        )
    if word.made:
        word = Word(happened=True, made=await _free(store, one, word.made))
    if not await OperationRepository(store, Ledger(store)).tell(one, write.number, word.told, id_):
        raise NotSettled(f"{named} has been settled meanwhile")
    return unsettled


def check_operator_verdict(write: Row, word: Word) -> None:
    """What cannot be said of a write of its kind."""
    prefix = created_id_prefix(write)
    if prefix and word.happened and not word.made:
        raise NotSettled(f"it made something: say what, with --made {prefix}-…")
    if word.made and not prefix:
        raise NotSettled("it makes nothing: say --happened or --did-not-happen")
    if word.made and not re.fullmatch(f"{prefix}-[A-Za-z0-9]+", word.made):
        raise NotSettled(
            f"the id of what it made begins with {prefix}-, and has letters and digits after that; "
            "copy it from where it was found"
        )


def _early(store: Store, write: Row) -> int:
    """Seconds until what is not seen of it did not happen."""
    left: timedelta = write.entered_at + SURE_AFTER - store.clock()
    return max(0, int(left.total_seconds()) + 1) if left > timedelta() else 0


async def _free(store: Store, one: OperationRecord, named: str) -> str:
    """The service's id of what was made; raises NotSettled where it is known to be another's."""
    made = (await current_ids(store, one.owner, [named])).get(named, named)
    ledger = Ledger(store)
    if await OperationRepository(store, ledger).is_claimed(one, made):
        raise NotSettled(f"{named} was made by another write")
    for kind in ("batch", "recipient", "alias"):
        if await ledger.recall(one.owner, kind, made):
            raise NotSettled(f"{named} is known already, as something else")
    return made
