"""The player: performs what a flow yields, and nothing else does.

It spells the vocabulary's words both ways, turns what the service answers into an answer or one
of the four errors, and hands each back to the flow at its ``yield``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from gateway import wire
from gateway.inferred import InferredOperations
from gateway.kept import Kept
from gateway.keys import Key
from gateway.listing import Listing
from gateway.store.ledger import Ledger
from gateway.upstream import Reply, Upstream
from mappings.current import BALANCE, SUMMARY, Endpoint, endpoint_of
from mappings.grammar import (
    JSON,
    Answer,
    Call,
    Failure,
    Find,
    Flow,
    Invalid,
    Problem,
    Recall,
    Record,
    Refused,
    Step,
    Together,
    Unknown,
    Unreachable,
    Vocabulary,
)
from mappings.spelling import of_current

SIDE_BY_SIDE = 8
"""How many reads of one request are under way at a time."""


@dataclass(slots=True)
class Caller:
    """Whose request is being played, and what it has cost so far."""

    key: Key
    request_id: str
    calls: int = 0
    seconds: float = 0.0
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SIDE_BY_SIDE))


class Player:
    def __init__(
        self,
        upstream: Upstream,
        ledger: Ledger,
        vocabulary: Vocabulary,
        inferred: InferredOperations,
    ) -> None:
        self._upstream = upstream
        self._ledger = ledger
        self._spelling = of_current(vocabulary)
        self._paths = {
            SUMMARY: vocabulary.current_summary_path,
            BALANCE: vocabulary.current_balance_path,
        }
        self._inferred = inferred
        self._listing = Listing()
        self._kept = Kept()

    async def play(
        self, flow: Flow, caller: Caller | None, problems: Sequence[Problem] = ()
    ) -> Answer:
        """Plays a flow to its answer; raises the failure that it did not deal with.

        Nothing is written while there are ``problems`` with what the client sent: a flow that has
        more to say about it says so before its first write.
        """
        step, answer = _advance(flow)
        while step is not None:
            if problems and isinstance(step, Call) and not step.reads:
                raise Invalid(*problems)
            if caller is None:
                raise TypeError("an operation without a key can ask the service nothing")
            try:
                given = await self._perform(step, caller)
            except Failure as failure:
                step, answer = _thrown(flow, failure)
            else:
                step, answer = _advance(flow, given)
        if answer is None or problems:
            raise Invalid(*problems)
        return answer

    async def _perform(self, step: Step, caller: Caller) -> Any:
        owner = caller.key.owner
        match step:
            case Call():
                return await self._any_call(step, caller)
            case Together(calls):
                return await self.together(calls, caller)
            case Find():
                return await self._listing.find(step, lambda one: self.call(one, caller), owner)
            case Recall("legacy id"):
                return await self._ledger.legacy_ids(owner)
            case Recall(kind, str() as id_):
                return await self._ledger.recall(owner, kind, id_)
            case Recall(kind):
                return await self._ledger.recall_all(owner, kind)
            case Record():
                return await self._ledger.record_all(owner, [step, *step.also])

    async def together(self, calls: Sequence[Call], caller: Caller) -> list[Any]:
        """Reads, side by side; what failed stands in its place."""

        async def one(call: Call) -> Any:
            if not call.reads:
                raise TypeError("only reads are made together: of a write the order matters")
            async with caller.places:
                try:
                    return await self._any_call(call, caller)
                except Failure as failure:
                    return failure

        return await asyncio.gather(*map(one, calls))

    async def _any_call(self, call: Call, caller: Caller) -> JSON:
        if call.witness is not None:
            make = partial(self.call, caller=caller)
            return await self._inferred.call(call, caller.key.environment, make)
        owner = caller.key.owner
        if call.keeps and (kept := self._kept.get(owner, call)) is not None:
            return kept
        asked_at = self._kept.count(owner)
        try:
            body = await self.call(call, caller)
        finally:
            if not call.reads and call.path.startswith("/recipients"):
                self._kept.forget(owner)
        if call.keeps:
            self._kept.put(owner, call, body, asked_at)
        return body

    async def call(self, call: Call, caller: Caller) -> JSON:
        """The body of a 2xx answer; raises Refused, Unreachable or Unknown."""
        endpoint = endpoint_of(call.method, call.path)
        reply = await self._send(call, endpoint, caller)
        body = _readable(reply.body)
        if 200 <= reply.status < 300 and body is not None and body.get("ok") is not False:
            return self._spelling.inward(endpoint.gives, body)
        if 200 <= reply.status < 300 and not (body and body.get("errors")):
            raise Unreachable("unreadable") if call.reads else Unknown("unreadable")
        raise self._refused(call, endpoint, reply, body or {})

    async def _send(self, call: Call, endpoint: Endpoint, caller: Caller) -> Reply:
        body = None
        if call.body is not None:
            body = wire.write(self._spelling.outward(endpoint.takes, call.body))
        query = self._spelling.outward(endpoint.query, dict(call.query))
        began = asyncio.get_running_loop().time()
        caller.calls += 1
        try:
            return await self._upstream.send(
                caller.key.environment,
                caller.key.pair,
                call.method,
                self._target(endpoint, call, query),
                body,
                request_id=caller.request_id,
                write=not call.reads,
            )
        finally:
            caller.seconds += asyncio.get_running_loop().time() - began

    def _target(self, endpoint: Endpoint, call: Call, query: Mapping[str, str]) -> str:
        """The request target: percent-encoded, as it is sent and as it is signed."""
        path = f"/v1{call.path}"
        if own := self._paths.get(endpoint.path):
            found = endpoint.pattern.fullmatch(call.path)
            path = own.format(**(found.groupdict() if found else {}))
        return path + (f"?{urlencode(query, quote_via=quote)}" if query else "")

    def _refused(
        self, call: Call, endpoint: Endpoint, reply: Reply, body: Mapping[str, JSON]
    ) -> Refused:
        status = reply.status
        if status < 400:
            # A 2xx that says no is a refusal by its code; a 3xx is no answer of the service.
            status = 400 if status < 300 else 502
        return Refused(
            status,
            [problem for one in _entries(body) if (problem := _problem(one))],
            sent_as=self._sent_as(call, endpoint),
            retry_after=reply.headers.get("Retry-After"),
        )

    def _sent_as(self, call: Call, endpoint: Endpoint) -> dict[str, str]:
        """The names as this service spells them: refusals use its own words for fields."""
        return {
            self._spelling.field(endpoint.takes, name): field_
            for name, field_ in call.sent_as.items()
        }


def _advance(flow: Flow, given: Any = None) -> tuple[Step | None, Answer | None]:
    try:
        return flow.send(given), None
    except StopIteration as stop:
        return None, stop.value


def _thrown(flow: Flow, failure: Failure) -> tuple[Step | None, Answer | None]:
    try:
        return flow.throw(failure), None
    except StopIteration as stop:
        return None, stop.value


def _readable(data: bytes) -> dict[str, JSON] | None:
    try:
        body = wire.read(data)
    except wire.Unreadable:
        return None
    return body if isinstance(body, dict) else None


def _entries(body: Mapping[str, JSON]) -> list[JSON]:
    errors = body.get("errors")
    return errors if isinstance(errors, list) else []


def _problem(entry: JSON) -> Problem | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("code"), str):
        return None
    message, named = entry.get("message"), entry.get("field")
    return Problem(
        entry["code"],
        message if isinstance(message, str) else "",
        named if isinstance(named, str) else None,
    )
