"""Forwards legacy requests to the legacy service; writes are recorded first and sent once.

The outcome of a write without an answer cannot be read from the legacy service. It stays in doubt,
is never sent again, and an operator resolves it. A client that did not receive its answer gets it
when it sends the request again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import structlog
from multidict import CIMultiDict

from gateway.http.decompression import NotInflated, TooLarge, decompress_body
from gateway.http.responses import PassedResponse
from gateway.observability import traces
from gateway.payloads import json_codec, stored_json
from gateway.payloads.stored_json import Text
from gateway.payloads.worker_thread import run_in_thread_if
from gateway.reads.recent_reads import Kept
from gateway.storage import StoreUnavailable
from gateway.storage.undertakings import (
    ANSWERED,
    DONE,
    PASSED_ON,
    RUNNING,
    UNDONE,
    UNSETTLED,
    AlreadyBegun,
    OperationRecord,
    Overtaken,
)
from gateway.upstream import header_filter, instrumentation
from gateway.upstream.client import ANSWER_BYTES, NO_ANSWER
from gateway.upstream.passthrough import PassthroughClient, PassthroughRequest
from gateway.upstream.send_attempt import ResponseLost, Turn
from gateway.upstream.spool import Spool
from gateway.writes import endings
from gateway.writes.batch_routing import BEGUN, LEGACY, BatchRouting, DecidedOtherwise
from gateway.writes.journal import Journal, OperationExecution
from gateway.writes.once import A_DAY, LOOKS_AGAIN, OTHER_BODY, refuse_deserted
from gateway.writes.player import ASKS_AGAIN, Caller, StartTurn
from gateway.writes.settling import Settling, never_read
from mappings.errors import OTHER_IN_DOUBT
from mappings.grammar import (
    JSON,
    Call,
    Conflict,
    Failure,
    Halted,
    Invalid,
    Operation,
    Record,
    Refused,
    Request,
    Unknown,
    Unreachable,
)

MOST_BYTES = 2 * ANSWER_BYTES
"""Memory for the values of a body that is parsed only for its ids (``estimate_memory_bytes``)."""

NOT_MODIFIED = 304
_OF_THE_BATCH_ALONE = frozenset({"delete_batch", "generate_quote", "start_batch"})
"""They name only the batch, so that a 404 means that the batch does not exist."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class InboundRequest:
    """A legacy request as it was received; ``target`` starts with /v1, ``ids`` are from its path.

    ``flow_request`` is its translation, by which retries are recognized. ``log_fields`` are added
    to the access log. ``batches`` are the batch ids that it names, in the client's spelling.
    """

    operation: Operation
    caller: Caller
    ids: Mapping[str, str]
    asked: Request
    target: str
    headers: CIMultiDict[str]
    body: bytes = field(repr=False)
    idempotency: str | None
    told: dict[str, Any]
    batches: Sequence[str]

    @property
    def writes(self) -> bool:
        return self.operation.method != "GET"


async def named_batches(
    operation: Operation, ids: Mapping[str, str], asked: Request, body: bytes
) -> Sequence[str]:
    """Lists the batches that a request names, in the client's spelling."""
    if not operation.path.startswith("/batches"):
        return []
    if ids:
        return [*ids.values()][:1]
    if operation.name != "delete_batches":
        return []
    sent = await run_in_thread_if(len(body) > json_codec.LARGE, _object, body)
    named = (sent or asked.body or {}).get("ids")
    return [one for one in named if isinstance(one, str)] if isinstance(named, list) else []


@dataclass(frozen=True, slots=True)
class Sent:
    """A response, and the write that ends when its client has received it."""

    carried: PassedResponse
    over: OperationRecord | None = None


class Sender:
    def __init__(self, passing: PassthroughClient) -> None:
        self._passing = passing

    def has(self, environment: str) -> bool:
        """Whether the environment has a legacy address."""
        return self._passing.has(environment)

    async def sent(self, came: InboundRequest) -> PassedResponse:
        """Sends a request once; raises Unreachable, and for a write Unknown."""
        with instrumentation.instrument_legacy_call(
            came.caller.key.environment, came.operation
        ) as told:
            carried = await self._sent(came)
            told.answered(carried.status)
            return carried

    async def _sent(self, came: InboundRequest) -> PassedResponse:
        caller, began = came.caller, asyncio.get_running_loop().time()
        caller.calls += 1
        spool = Spool()
        # A copy: after a fallback or for a comparison, the same request is sent again.
        sent_headers = came.headers.copy()
        sent_headers.update(traces.build_trace_headers())
        try:
            await spool.add(came.body)
            passage = PassthroughRequest(
                caller.key.environment,
                came.operation.method,
                came.target,
                sent_headers,
                spool if spool.size else None,
                write=came.writes,
            )
            async with self._passing.sent(passage, _turn(came)) as passed:
                headers = header_filter.filter_response_headers(passed.headers)
                body = await _plain(await _whole(passed.parts()), headers)
                status = passed.status
        except ResponseLost as lost:
            raise _lost(came, str(lost)) from None
        finally:
            spool.close()
            caller.seconds += asyncio.get_running_loop().time() - began
        if 300 <= status < 400 and status != NOT_MODIFIED:
            # A redirect is not followed, because that would send the API key to another host.
            raise _lost(came, f"status {status}, a redirect")
        # A proxy answered instead of the service, which may have executed the write.
        if came.writes and status in NO_ANSWER:
            raise Unknown(f"status {status}")
        return PassedResponse(status, headers, body)


class Writes:
    """Executes writes at the legacy service: recorded, sent once, and answered again for retries."""

    def __init__(
        self,
        sender: Sender,
        begun: BatchRouting,
        journal: Journal,
        settling: Settling,
        kept: Kept,
        *,
        patience: float,
        joins_running: bool = True,
    ) -> None:
        self._patience = patience
        self._joins_running = joins_running
        self._sender = sender
        self._begun = begun
        self._journal = journal
        self._settling = settling
        self._looked_up = kept

    async def answer(self, came: InboundRequest) -> Sent | None:
        """Returns the answer to a write, or that of its first try.

        None for a retry of a write that was translated. Raises DecidedOtherwise.
        """
        one = self._journal.undertaking(
            came.caller.key,
            came.operation,
            came.asked,
            came.caller.request_id,
            came.idempotency,
        )
        first = await self._first(one)
        if first is not None and first.operation.startswith(PASSED_ON) and first.answer is None:
            first = await self._outcome_of(first)
        if first is None:
            return await self._written(came, one)
        if not first.operation.startswith(PASSED_ON):
            return None
        if first.answer is not None and first.state in (DONE, ANSWERED):
            is_long = stored_json.is_long(first.answer)
            carried = await run_in_thread_if(is_long, _carried, first.answer)
            carried.headers["Idempotent-Replayed"] = "true"
            return Sent(carried, first)
        # Sending it again could pay twice.
        raise Unknown("the outcome of its first try at the legacy service is unknown")

    async def _outcome_of(self, first: OperationRecord) -> OperationRecord | None:
        """Waits for an identical request to end; None if it had no effect."""
        until = self._journal.monotonic() + self._patience
        row: OperationRecord | None = first
        while row is not None and self._settling.is_played(row):
            if self._journal.monotonic() > until:
                raise Unknown("its first try is still running", retry_after=ASKS_AGAIN)
            await asyncio.sleep(LOOKS_AGAIN)
            row = await self._journal.rows.read(first.id)
        is_refused = row is not None and row.state == ANSWERED and row.answer is None
        return None if row is None or row.state == UNDONE or is_refused else row

    async def _written(self, came: InboundRequest, one: OperationRecord) -> Sent:
        refuse_deserted(came.caller)
        course = came.caller.course = self._journal.course(
            _passed_on(one), came.operation, came.asked
        )
        try:
            call = _call(came, one)
            # Recorded before it is sent: even if its outcome stays in doubt, further requests
            # about its batches must go to the legacy service.
            course.placing = await self._begun.marks(one.owner, came.batches, one.id)
            await course.enter(call)
            await self._refuse_deserted(came, course, call)
            return Sent(await self._outcome(came, course, call), course.one)
        except Conflict:
            raise DecidedOtherwise from None
        except AlreadyBegun:
            raise Unknown("its first try is still running", retry_after=ASKS_AGAIN) from None
        except Overtaken:
            raise Unknown("another process has taken the write over") from None
        finally:
            if came.operation.path.startswith("/recipients"):
                self._looked_up.forget(one.owner, came.asked.ids.get("id", ""))
            self._journal.leave(course)

    async def _refuse_deserted(
        self, came: InboundRequest, course: OperationExecution, call: Call
    ) -> None:
        """Refuses a write whose client has disconnected.

        The client may have sent it to another instance again before that could see this one.
        """
        try:
            refuse_deserted(came.caller)
        except Unknown:
            course.told(call, Unreachable("not sent, because the client has disconnected"))
            await _kept(self._undone(came, course))
            raise

    async def _outcome(
        self, came: InboundRequest, course: OperationExecution, call: Call
    ) -> PassedResponse:
        try:
            carried = await self._sender.sent(came)
        except Unknown as unknown:
            await _kept(course.leave(f"passed on to the legacy service: {unknown}"))
            raise
        except Unreachable as unreachable:
            course.told(call, unreachable)
            await _kept(self._undone(came, course))
            raise
        await _kept(self._answered(came, course, call, carried))
        return carried

    async def _undone(self, came: InboundRequest, course: OperationExecution) -> None:
        """Records that nothing was sent, and undoes the routing of its batches."""
        await course.close(UNDONE)
        await self._begun.take_back(course.one.owner, came.batches, course.one.id)

    async def _answered(
        self, came: InboundRequest, course: OperationExecution, call: Call, carried: PassedResponse
    ) -> None:
        text = await run_in_thread_if(len(carried.body) > json_codec.LARGE, _text, carried)
        if carried.status >= 400:
            course.told(call, Refused(carried.status))
            # As for translated writes: any other error may not occur on the next try.
            lasts = carried.status in (404, 406)
            keeps = lasts and came.idempotency is not None
            await course.close(ANSWERED if lasts else UNDONE, text if keeps else None)
            if carried.status == 404 and came.operation.name in _OF_THE_BATCH_ALONE:
                await self._begun.unmark(came.caller.key.owner, came.batches)
            elif carried.status < 500:
                await self._begun.take_back(course.one.owner, came.batches, course.one.id)
            return
        made = await run_in_thread_if(
            len(carried.body) > json_codec.LARGE, _made, came, carried.body
        )
        course.told(call, {"id": made} if made else {})
        if came.operation.name == "create_batch":
            if made is None:
                log.error(
                    "forwarded_batch_not_recorded",
                    request_id=course.one.request_id,
                    reason="the response of the legacy service has no readable batch id",
                )
            else:
                # In the transaction that ends the write, so that a batch that the client knows
                # always has its routing recorded.
                await course.record(Record(BEGUN, made, LEGACY))
        # Before the write is visible as done: from then on its response counts as on its way.
        self._journal.delivering[course.one.id] = course
        try:
            await course.finish(text)
        except BaseException:
            self._journal.delivering.pop(course.one.id, None)
            raise
        if came.operation.name in ("delete_batch", "delete_batches"):
            await self._begun.unmark(came.caller.key.owner, came.batches)

    # Retries

    async def _first(self, one: OperationRecord) -> OperationRecord | None:
        """Finds the first try of a write; raises Invalid, and Unknown if another write blocks it."""
        rows = await self._journal.rows.open_ones(one)
        await self._settling.know_instances(rows)
        for row in [*rows, *self._journal.unseen(one, rows)]:
            if row.key_id == one.key_id and None not in (row.idempotency, one.idempotency):
                if row.idempotency == one.idempotency and not one.asks_for_the_same(row):
                    raise Invalid(OTHER_BODY)
                if row.idempotency == one.idempotency:
                    return row
            elif self._is_try_of_the_same(row, one):
                return row
            if row.state in (RUNNING, UNSETTLED) and set(row.subjects) & set(one.subjects):
                await self._settles(row)
        return None

    def _is_try_of_the_same(self, row: OperationRecord, one: OperationRecord) -> bool:
        if not one.asks_for_the_same(row):
            return False
        if not row.is_open or row.began_at < one.began_at - A_DAY:
            return False
        if self._journal.is_delivered(row):
            return False
        if not row.operation.startswith(PASSED_ON):
            return True  # whether it counts as a retry is decided by the translated path
        is_running = row.state == RUNNING and self._settling.is_played(row)
        return self._joins_running or not is_running or self._journal.is_away(row)

    async def _settles(self, row: OperationRecord) -> None:
        if not self._settling.is_played(row) and not await self._settling.settle(row):
            wait = max(self._settling.seconds_until_sure(row), ASKS_AGAIN)
            raise Halted(OTHER_IN_DOUBT, retry_after=wait)


def _object(data: bytes) -> dict[str, JSON]:
    """Parses a body's fields; empty if it is not a JSON object or would take too much memory."""
    try:
        body = json_codec.read(data, json_codec.LONG, MOST_BYTES)
    except json_codec.Unreadable:
        return {}
    return body if isinstance(body, dict) else {}


def _made(came: InboundRequest, body: bytes) -> str | None:
    """Parses the id of a created object from a response."""
    for name in ("batch", "payment", "recipient"):
        if came.operation.name == f"create_{name}":
            made = (_object(body).get(name) or {}).get("id")
            return made if isinstance(made, str) else None
    return None


def _turn(came: InboundRequest) -> Turn | None:
    course = came.caller.course
    if course is None or came.operation.name != "start_batch":
        return course
    # A start moves money, so its fence also requires that the client still waits.
    return StartTurn(came.caller, course)


def _passed_on(one: OperationRecord) -> OperationRecord:
    """Builds the record of a forwarded write; its operation name keeps it from being resumed."""
    return replace(one, operation=f"{PASSED_ON}{one.operation}")


def _call(came: InboundRequest, one: OperationRecord) -> Call:
    """Builds the recorded call of a write; the bytes sent are the client's own."""
    path = came.target.partition("?")[0].removeprefix("/v1").rstrip("/")
    return Call(came.operation.method, path, settle=never_read, known_by=[one.fingerprint])


def _text(carried: PassedResponse) -> Text:
    body = carried.body.decode("utf-8", "replace")
    named = {name: carried.headers[name] for name in ("Content-Type",) if name in carried.headers}
    return stored_json.compress_if_large(endings.worded(carried.status, body, named))


def _carried(text: Text) -> PassedResponse:
    status, body, headers = endings.words(text)
    given: CIMultiDict[str] = CIMultiDict(headers)
    given.setdefault("Content-Type", "application/json; charset=utf-8")
    return PassedResponse(status, given, body.encode())


async def _kept(keeping: Awaitable[None]) -> None:
    """Awaits the saving of an outcome; if that fails, the write stays in doubt.

    The client gets its response anyway.
    """
    try:
        await keeping
    except StoreUnavailable as unavailable:
        log.error("database_unavailable", reason=str(unavailable))


async def _whole(parts: AsyncGenerator[bytes]) -> bytes:
    """Reads a response body to its end; raises ResponseLost."""
    whole = bytearray()
    async with aclosing(parts):
        async for part in parts:
            whole += part
            if len(whole) > ANSWER_BYTES:
                raise ResponseLost(f"an answer of more than {ANSWER_BYTES} bytes")
    return bytes(whole)


async def _plain(body: bytes, headers: CIMultiDict[str]) -> bytes:
    """Decompresses a body that is compressed without having been requested, to parse its ids."""
    try:
        plain = await decompress_body(body, headers.get("Content-Encoding", ""), ANSWER_BYTES)
    except (NotInflated, TooLarge):
        return body
    if plain is not body:  # otherwise its encoding is unknown here and passes to the client
        headers.popall("Content-Encoding", None)
    return plain


def _lost(came: InboundRequest, why: str) -> Failure:
    return Unknown(why) if came.writes else Unreachable(why)
