"""What the ledger and the journal have to say of a signed write, before it leaves and after.

Signed writes on batches take the same transitions as legacy ones. A batch that was abandoned (its
legacy clients go on with another in its place) is not changed and not started by anybody. A start
is an undertaking like any other: entered before it leaves, and settled where no answer came. Changes
of what a batch holds, and its quotes, are counted in and out, so that a legacy edit reads it without
any under way. The transaction that counts one in, or enters a start, checks that no edit has
superseded the batch. An operator's freeze keeps all of them from leaving.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, Protocol, TypeVar

from gateway.auth.keys import ApiKey
from gateway.auth.signing import Credentials
from gateway.http.request_paths import names_in
from gateway.http.responses import LegacyResponse
from gateway.storage import Ledger, StoreUnavailable, Tenant
from gateway.storage.undertakings import OperationRepository
from gateway.upstream.send_attempt import Turn
from gateway.writes.once import IdempotencyGuard, Wanted
from gateway.writes.player import FIRST_PAUSE, Caller
from mappings import drafts, errors
from mappings.batch_bodies import SIGNED_ADDS
from mappings.grammar import (
    JSON,
    Answer,
    Call,
    Conflict,
    Failure,
    Halted,
    Invalid,
    Record,
    Refused,
    Request,
    Unknown,
    Unreachable,
)
from mappings.starts import START

_START = "start-processing"
_QUOTE = "generate-quote"
"""Which changes nothing of what a batch holds."""

_WAITED_FOR = ("editing", "deleting")
"""Phases that may end with the service's batch superseded."""

LONGEST_PAUSE = 0.2
"""Seconds between two looks at an edit that is waited for: many may wait for one."""

COUNTED_WITHIN = 1.0
"""Seconds for which an answer waits until it is written down that its change is over."""


class WrongStatus(Exception):
    """The ledger knows that this batch may not be changed so, now or ever; nothing was sent."""


class HasStatus(Protocol):
    """An answer whose head is there."""

    @property
    def status(self) -> int: ...


Its = TypeVar("Its", bound=HasStatus)

Send = Callable[[Turn | None], Awaitable[Its]]
"""Sends the write as its client signed it, as long as the turn is its own."""


@dataclass(frozen=True, slots=True)
class Written:
    """A signed write that is about to leave; ``owner`` and ``pair`` are None where its key is not
    held here. ``stamp`` is its client's, in seconds since 1970.
    """

    owner: Tenant | None
    pair: Credentials | None
    environment: str
    target: str
    stamp: int
    request_id: str
    payment: Mapping[str, JSON] | None = None
    """That it adds to a batch."""


class Transitions:
    def __init__(
        self,
        ledger: Ledger,
        rows: OperationRepository,
        once: IdempotencyGuard,
        now: Callable[[], datetime],
        patience: float,
    ) -> None:
        """``patience`` is in seconds: for how long a change waits for an edit of the batch."""
        self._ledger = ledger
        self._rows = rows
        self._once = once
        self._now = now
        self._patience = patience
        self._counting: set[asyncio.Future[None]] = set()

    async def send(self, written: Written, send: Send[Its]) -> Its:
        """The service's answer.

        Raises WrongStatus, StoreUnavailable, and the Failure that kept it from leaving or from
        being answered.
        """
        await self._refuse_frozen(written.owner or Tenant("", written.environment))
        batch, action = _on_batch(written.target)
        if batch is None:
            return await send(None)
        if written.owner is None or written.pair is None:
            if await self._ledger.is_anyones(written.environment, "alias", batch, "abandoned"):
                raise WrongStatus
            if action == _START and await self._rows.is_being_checked():
                raise Halted(errors.BEING_CHECKED)
            return await send(None)
        if action != _START:
            return await self._change(written, written.owner, batch, action, send)
        alias = await self._ledger.recall(written.owner, "alias", batch)
        first = str(alias.get("id") or batch)
        asked = Request(self._now(), written.request_id, {"id": batch, "batch": first})
        key = _key(written.owner, written.pair)
        return await Start(Wanted(START, asked, Caller(key, written.request_id)), send).made(
            self._once, written.stamp
        )

    async def _refuse_frozen(self, owner: Tenant) -> None:
        if await self._rows.is_frozen(owner):
            raise Halted(errors.FROZEN, retry_after=errors.FROZEN_SECONDS)

    async def _change(
        self, written: Written, owner: Tenant, batch: str, action: str, send: Send[Its]
    ) -> Its:
        """A change or quote of a batch: a legacy edit of it waits until that is there to be read."""
        name = os.urandom(8).hex()
        first = await self._counted_in(owner, batch, name)
        is_lost = True  # also where whoever sends it is cancelled, at the end of this process
        added: list[Record] = []
        try:
            passed = await send(None)
            is_lost = passed.status >= 500
            if written.payment is not None and 200 <= passed.status < 300:
                added = [Record(SIGNED_ADDS, first, {name: written.payment})]
        except Failure as failure:
            is_lost = isinstance(failure, Unknown)
            raise
        finally:
            # One without an answer may come there as long as its stamp is good; a quote changes nothing.
            lost = self._now() if is_lost and action != _QUOTE else None
            its = drafts.remove_signed_change(name, lost)
            await self._counted_out(owner, Record(drafts.SIGNED, first, its, also=added))
        return passed

    async def _counted_in(self, owner: Tenant, batch: str, name: str) -> str:
        """Waits for an edit that is under way; the id by which the ledger knows the batch.

        That nothing has superseded it is checked in the transaction that counts the change in: an edit
        that begins later waits for it.
        """
        loop, pause = asyncio.get_running_loop(), FIRST_PAUSE
        over = loop.time() + self._patience
        while loop.time() < over:
            alias = await self._ledger.recall(owner, "alias", batch)
            if alias.get("abandoned"):
                raise WrongStatus
            first = str(alias.get("id") or batch)
            facts = await self._ledger.recall(owner, "batch", first)
            signed = await self._ledger.recall(owner, drafts.SIGNED, first)
            # What is added here is claimed by no write: one in doubt could be taken for it.
            if facts.get("phase") in _WAITED_FOR or facts.get(drafts.ADDS):
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                await self._refuse_frozen(owner)  # meanwhile
                continue
            one_more = drafts.add_signed_change(signed, name, self._now())
            seen = Record("batch", first, {}, find=drafts.build_batch_condition(facts))
            still = Record("alias", batch, {}, find={"abandoned": None, "id": alias.get("id")})
            with suppress(Conflict):
                its = Record(drafts.SIGNED, first, one_more, also=(seen, still))
                await self._ledger.record_all(owner, [its])
                return first
        raise Unreachable("other changes of the batch are under way", retry_after=1)

    async def _counted_out(self, owner: Tenant, its: Record) -> None:
        """Before the answer goes on, but where the state hangs: who waits in vain for the answer to what
        was added asks for it once more.
        """
        counting = asyncio.ensure_future(self._count_out(owner, its))
        self._counting.add(counting)
        counting.add_done_callback(self._counting.discard)
        await asyncio.wait([counting], timeout=COUNTED_WITHIN)

    async def _count_out(self, owner: Tenant, its: Record) -> None:
        """What cannot be written down now is over by itself."""
        with suppress(StoreUnavailable):
            await self._ledger.record_all(owner, [its])


ADD = "payments"


def is_add(method: str, target: str) -> bool:
    """Whether a write adds a payment to a batch."""
    batch, action = _on_batch(target)
    return method == "POST" and batch is not None and action == ADD


def extract_added_payment(body: JSON) -> dict[str, JSON] | None:
    """Whom a payment that is added pays, and how much; None if that is not told."""
    recipient = body.get("recipient") if isinstance(body, dict) else None
    id_ = recipient.get("id") if isinstance(recipient, dict) else None
    if not isinstance(id_, str):
        return None
    named = {name: str(body[name]) for name in _AMOUNTS if body.get(name) is not None}
    return {"recipient": {"id": id_}, **named}


_AMOUNTS = ("amount", "currency", "sourceAmount", "targetAmount", "targetCurrency")


def _on_batch(target: str) -> tuple[str | None, str]:
    """The batch that a write is on, and what it is to do with it."""
    names = names_in(target)
    if len(names) < 2 or names[0].lower() not in ("batches", "batch"):
        return None, ""
    return names[1], "/".join(names[2:]).lower()


def _key(owner: Tenant, pair: Credentials) -> ApiKey:
    """What stands for an API key in the journal."""
    return ApiKey(f"signed {owner.merchant}", "signed", "", *owner, pair, None, ())


class Start(Generic[Its]):
    """A start that its client signed, made as any other: entered, sent once, and settled."""

    def __init__(self, wanted: Wanted, send: Send[Its]) -> None:
        self._wanted = wanted
        self._send = send
        self._passed: Its | None = None
        self._failure: Failure | None = None

    async def made(self, once: IdempotencyGuard, stamp: int) -> Its:
        caller = self._wanted.caller
        caller.sends, caller.stamped = self._sent, datetime.fromtimestamp(stamp, UTC)
        try:
            _, one = await once.answer(self._wanted, self._say, self._refuse)
        except Failure as failure:
            # The service's own words go first: what is open is the journal's to find out.
            if self._passed is None:
                raise self._of_the_face(failure) from None
        else:
            if one is not None:
                once.delivered(one)
        if self._passed is None:
            # Without a failure it is a retry of one that happened.
            raise self._of_the_face(self._failure)
        return self._passed

    async def _sent(self, _call: Call, turn: Turn | None) -> JSON:
        """In the place of the player's own sending."""
        passed = self._passed = await self._send(turn)
        if 200 <= passed.status < 300:
            return {}
        if not 400 <= passed.status < 500:
            raise Unknown(f"status {passed.status}")
        raise Refused(passed.status)

    async def _say(self, answer: Answer) -> LegacyResponse:
        return LegacyResponse(200, answer.body)

    async def _refuse(self, failure: Failure) -> LegacyResponse:
        self._failure = failure
        return LegacyResponse(500, {})

    def _of_the_face(self, failure: Failure | None) -> Exception:
        return WrongStatus() if failure is None or isinstance(failure, Invalid) else failure
