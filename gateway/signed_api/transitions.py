"""Coordinates signed writes on batches with legacy writes.

- A superseded batch, which its legacy clients have replaced, is neither changed nor started.
- A start is recorded as an operation before it is sent, and reconciled if it has no answer.
- Changes and quotes of a batch are registered while they are in flight, so that a legacy edit
  can wait for them. The transaction that registers one, or records a start, checks that the batch
  has not been superseded.
- A freeze stops all of them.
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
"""Does not change the batch, so an unanswered quote leaves nothing in doubt."""

_WAITED_FOR = ("editing", "deleting")
"""Phases that may end with the batch superseded; a signed change waits for their end."""

LONGEST_PAUSE = 0.2
"""Longest pause between two checks of an edit; bounds the load of many waiting requests."""

COUNTED_WITHIN = 1.0
"""Seconds for which a response waits until its change is unregistered."""


class WrongStatus(Exception):
    """The recorded state of the batch does not allow the write; nothing was sent."""


class HasStatus(Protocol):
    """A response whose status is known."""

    @property
    def status(self) -> int: ...


Response = TypeVar("Response", bound=HasStatus)

Send = Callable[[Turn | None], Awaitable[Response]]
"""Sends the write as its client signed it, unless the fence refuses."""


@dataclass(frozen=True, slots=True)
class Written:
    """A signed write to send.

    ``tenant`` and ``credentials`` are None for an unknown access key. ``stamp`` is the client's
    timestamp, in seconds since 1970.
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
        """``edit_wait_seconds`` is how long a change waits for an edit of its batch."""
        self._ledger = ledger
        self._rows = rows
        self._once = once
        self._now = now
        self._patience = patience
        self._counting: set[asyncio.Future[None]] = set()

    async def send(self, written: Written, send: Send[Response]) -> Response:
        """Sends a write and returns the service's response.

        Raises WrongBatchStatus, StoreUnavailable, and the Failure because of which the write was
        not sent or not answered.
        """
        await self._refuse_frozen(written.owner or Tenant("", written.environment))
        batch, action = _on_batch(written.target)
        if batch is None:
            return await send(None)
        if written.owner is None or written.pair is None:
            # The tenant is unknown, so any tenant's record of the batch counts.
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
        self,
        written: Written,
        owner: Tenant,
        batch: str,
        action: str,
        send: Send[Response],
    ) -> Response:
        """Sends a change or quote of a batch, registered so that a legacy edit waits for it."""
        name = os.urandom(8).hex()
        first = await self._counted_in(owner, batch, name)
        is_lost = True  # also if this task is cancelled at shutdown
        added: list[Record] = []
        try:
            passed = await send(None)
            # After a 5xx the service may still have executed it.
            is_lost = passed.status >= 500
            if written.payment is not None and 200 <= passed.status < 300:
                added = [Record(SIGNED_ADDS, first, {name: written.payment})]
        except Failure as failure:
            is_lost = isinstance(failure, Unknown)
            raise
        finally:
            # An unanswered change may still take effect while its timestamp is valid. A quote
            # changes nothing.
            lost = self._now() if is_lost and action != _QUOTE else None
            its = drafts.remove_signed_change(name, lost)
            await self._counted_out(owner, Record(drafts.SIGNED, first, its, also=added))
        return passed

    async def _counted_in(self, owner: Tenant, batch: str, name: str) -> str:
        """Waits for a running edit, registers the change, and returns the batch's recorded id.

        The transaction that registers the change checks that the batch has not been superseded;
        an edit that starts later waits for the change.
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
                # Backs off, because many requests may wait for one edit.
                pause = min(pause * 2, LONGEST_PAUSE)
                await self._refuse_frozen(owner)  # an operator may freeze it while this waits
                continue
            one_more = drafts.add_signed_change(signed, name, self._now())
            seen = Record("batch", first, {}, find=drafts.build_batch_condition(facts))
            still = Record("alias", batch, {}, find={"abandoned": None, "id": alias.get("id")})
            with suppress(Conflict):
                its = Record(drafts.SIGNED, first, one_more, also=(seen, still))
                await self._ledger.record_all(owner, [its])
                return first
        raise Unreachable("other changes of the batch are in progress", retry_after=1)

    async def _counted_out(self, owner: Tenant, its: Record) -> None:
        """Unregisters a change before its response is sent on.

        Waits for a bounded time: a client that waits too long for its response sends the change again.
        """
        counting = asyncio.ensure_future(self._count_out(owner, its))
        self._counting.add(counting)
        counting.add_done_callback(self._counting.discard)
        await asyncio.wait([counting], timeout=COUNTED_WITHIN)

    async def _count_out(self, owner: Tenant, its: Record) -> None:
        # A change that stays registered expires.
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
    """Returns the batch that a write names, or None, and the action on it."""
    names = names_in(target)
    if len(names) < 2 or names[0].lower() not in ("batches", "batch"):
        return None, ""
    return names[1], "/".join(names[2:]).lower()


def _key(owner: Tenant, pair: Credentials) -> ApiKey:
    """Builds the key under which signed starts of a tenant are recorded."""
    return ApiKey(f"signed {owner.merchant}", "signed", "", *owner, pair, None, ())


class Start(Generic[Response]):
    """A client-signed start, executed like a legacy one: recorded, sent once, reconciled."""

    def __init__(self, wanted: Wanted, send: Send[Response]) -> None:
        self._wanted = wanted
        self._send = send
        self._passed: Response | None = None
        self._failure: Failure | None = None

    async def made(self, once: IdempotencyGuard, stamp: int) -> Response:
        caller = self._wanted.caller
        caller.sends, caller.stamped = self._sent, datetime.fromtimestamp(stamp, UTC)
        try:
            _, one = await once.answer(self._wanted, self._say, self._refuse)
        except Failure as failure:
            # A response of the service takes precedence; reconciliation resolves the rest.
            if self._passed is None:
                raise self._of_the_face(failure) from None
        else:
            if one is not None:
                once.delivered(one)
        if self._passed is None:
            # No response and no failure: a retry of a start that has already happened.
            raise self._of_the_face(self._failure)
        return self._passed

    async def _sent(self, _call: Call, turn: Turn | None) -> JSON:
        """Sends the call with the client's signature, in place of the player's signed call."""
        passed = self._passed = await self._send(turn)
        # The recorded answer of a start has no content; the client gets the service's own
        # response.
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
