"""Executes flows: performs the steps that a flow yields. Nothing else calls the service for a flow.

It translates vocabulary both ways, turns each response of the service into a result or one of the
four errors (Refused, Unreachable, Unknown, NoSuchOperation), and sends it back into the flow at its
``yield``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Literal

import structlog

from gateway.admission.load import Load, Overloaded
from gateway.auth.keys import ApiKey
from gateway.config import settings
from gateway.http import progress
from gateway.http.request_paths import extract_recipient_id
from gateway.payloads import json_codec
from gateway.payloads.compressed_buffer import CompressedBuffer
from gateway.payloads.worker_thread import run_in_thread, run_in_thread_if
from gateway.reads.listing import Listing
from gateway.reads.recent_reads import Kept
from gateway.storage.ledger import Ledger
from gateway.storage.tenants import Tenant
from gateway.storage.undertakings import Write
from gateway.upstream import instrumentation
from gateway.upstream.call_targets import TargetBuilder
from gateway.upstream.client import MAX_ANSWER_BYTES, Reply, UpstreamClient
from gateway.upstream.optional_endpoints import OptionalEndpoints
from gateway.upstream.send_attempt import Fence
from gateway.writes.journal import OperationExecution
from gateway.writes.settler import Settler
from mappings import errors
from mappings.current import Endpoint, require_endpoint
from mappings.effects import (
    JSON,
    MAX_PARALLEL_CALLS,
    Absent,
    Answer,
    AwaitFacts,
    Call,
    CompareAndSet,
    Confirmed,
    Flow,
    InDoubtWrite,
    ListQuery,
    LoadFacts,
    OutcomeRule,
    Parallel,
    Step,
    Unreadable,
    Vocabulary,
    WriteOutcome,
)
from mappings.failures import (
    Conflict,
    Failure,
    Halted,
    Invalid,
    NoSuchOperation,
    Problem,
    Refused,
    Unknown,
    Unreachable,
)
from mappings.response_checks import has_expected_shape
from mappings.vocabulary import build_current_translator

MOST_COST = 8 * MAX_ANSWER_BYTES
"""Estimated bytes in memory. The service sends no answer with a value in every ten bytes; hostile
input does."""

SEEN_WITHIN = 5.0
"""Seconds for the reads right after a write without a response: its client is waiting."""

ASKS_AGAIN = 2
"""The least Retry-After, in seconds, of a write in doubt."""

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5
"""Seconds between two reads of object state that another request or process is about to change."""


log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class StartTurn:
    """The fence of a batch start, which is also refused when it is late or its client has disconnected."""

    caller: Caller
    course: OperationExecution

    @property
    def _may_be_sent(self) -> bool:
        is_gone = self.caller.is_gone or self.caller.has_left()
        return self.course.is_in_time and not is_gone

    @property
    def is_fenced(self) -> bool:
        return self.course.is_fenced and self._may_be_sent

    async def fence(self) -> None:
        if not self._may_be_sent:
            raise Unreachable("not sent: its client does not wait any more")
        await self.course.fence()


def _turn_of(call: Call, caller: Caller) -> Fence | None:
    if call.is_read or caller.course is None:
        return None
    return StartTurn(caller, caller.course) if call.only_while_client_waits else caller.course


@dataclass(slots=True)
class Caller:
    """The API key and client of the request being executed, and its cost so far."""

    key: ApiKey
    request_id: str
    calls: int = 0
    seconds: float = 0.0
    course: OperationExecution | None = None
    is_gone: bool = False
    began: float | None = None
    """When the request was received, by the event loop's clock."""
    has_left: Callable[[], bool] = bool
    """Whether the client's end of the connection is closed at this moment."""
    is_long: bool = False
    """Whether its bodies are so large that they are processed in a worker thread."""
    sends: Callable[[Call, OperationExecution | None], Awaitable[JSON]] | None = None
    """Sends the writes, if the client has signed them itself."""
    stamped: datetime | None = None
    """The timestamp of the client's own signature."""
    _places: asyncio.Semaphore | None = None

    @property
    def places(self) -> asyncio.Semaphore:
        """Limits the parallel reads of the request; created lazily, as most requests make none."""
        if self._places is None:
            self._places = asyncio.Semaphore(MAX_PARALLEL_CALLS)
        return self._places


class Player:
    """Runs a flow to its answer: reads, guarded writes, object state, and replay."""

    def __init__(
        self,
        upstream: UpstreamClient,
        ledger: Ledger,
        vocabulary: Vocabulary,
        inferred: OptionalEndpoints,
        *,
        kept: Kept,
        settler: Settler,
        listing: Listing | None = None,
        load: Load | None = None,
    ) -> None:
        self._upstream = upstream
        self._ledger = ledger
        self._spelling = build_current_translator(vocabulary)
        self._targets = TargetBuilder(vocabulary)
        self._inferred = inferred
        self._settler = settler
        self._listing = listing or Listing()
        self._load = load or Load(settings.Load())
        self._kept = kept

    async def play(
        self,
        flow: Flow,
        caller: Caller | None,
        problems: Sequence[Problem] = (),
        course: OperationExecution | None = None,
    ) -> Answer:
        """Runs a flow to its answer; raises a failure that the flow does not handle.

        No write is sent while there are ``problems`` with the client's request: the flow runs up to
        its first write, so that it can report more of them. A flow that writes needs an execution.

        Unknown is not raised inside the flow, because a write that may have been executed is
        reconciled and never compensated. The flow is replayed up to that write later.
        """
        answer: Answer | None
        if caller and course and course.is_long:
            caller.is_long = True
        is_long = caller is not None and caller.is_long
        step, answer = await run_in_thread(_advance, flow) if is_long else _advance(flow)
        while step is not None:
            if problems and isinstance(step, Call) and not step.is_read:
                raise Invalid(*problems)
            if caller is None:
                raise TypeError("an operation without a key can ask the service nothing")
            try:
                given = await self._played(step, caller, course)
                if course is not None or not isinstance(step, Call):
                    # Only stored values are measured here; a call measured its response when it arrived.
                    caller.is_long = (
                        caller.is_long or json_codec.has_rows(given) or _is_of_many(given)
                    )
            except Unknown:
                raise
            except Failure as failure:
                step, answer = await run_in_thread_if(caller.is_long, _thrown, flow, failure)
            else:
                is_long = caller.is_long
                step, answer = (
                    await run_in_thread(_advance, flow, given) if is_long else _advance(flow, given)
                )
        if answer is None or problems:
            raise Invalid(*problems)
        return answer

    async def _played(self, step: Step, caller: Caller, course: OperationExecution | None) -> Any:
        """Performs a step, or returns the recorded result while the execution is replaying."""
        if course is None:
            if isinstance(step, Call) and not step.is_read:
                raise TypeError("a write has to be entered in the journal")
            return await self._perform(step, caller)
        if course.replays:
            outcome = await run_in_thread_if(caller.is_long, course.replayed, step)
            if isinstance(outcome, Failure):
                raise outcome
            return outcome
        if isinstance(step, Call) and not step.is_read:
            return await self._write(step, caller, course)
        if isinstance(step, CompareAndSet):
            return await course.record(step)
        await course.catch_up()
        return await self._read(step, caller, course)

    async def _read(self, step: Step, caller: Caller, course: OperationExecution) -> Any:
        try:
            given = await self._perform(step, caller)
        except Failure as failure:
            if course.resumed and _may_pass(failure):
                # A failed read is no reason to undo earlier writes: the replay is retried later.
                raise Unknown("the service cannot be read") from None
            if course.resumed and course.writes and isinstance(step, AwaitFacts):
                raise Unknown("other changes are under way") from None
            course.note(step, failure)
            course.unread += [failure] if _may_pass(failure) else []
            raise
        course.note(step, given)
        if isinstance(step, Parallel):
            course.unread += [one for one in given if isinstance(one, Failure) and _may_pass(one)]
        return given

    # Writes

    async def _write(self, call: Call, caller: Caller, course: OperationExecution) -> JSON:
        """Sends a write once; it is in the journal before it leaves."""
        try:
            return await self._sent_or_settled(call, caller, course)
        except Unknown as unknown:
            course.in_doubt = call.in_doubt
            if unknown.retry_after is None:
                wait = self._settler.seconds_until_sure(course.one)
                unknown.retry_after = max(wait, ASKS_AGAIN)
            raise

    async def _sent_or_settled(
        self, call: Call, caller: Caller, course: OperationExecution
    ) -> JSON:
        if course.entered is not None:
            return await self._settled(call, course.entered, caller, course)
        environment = caller.key.environment
        if not _may_go_on(call, course):
            failure: Failure = Unreachable("not sent: its client does not wait any more")
        elif call.probe_ids is not None and (
            name := self._inferred.find_missing(call, environment)
        ):
            failure = NoSuchOperation(name)
        else:
            return await self._sent(call, caller, course)
        course.note(call, failure)
        raise failure

    async def _sent(self, call: Call, caller: Caller, course: OperationExecution) -> JSON:
        try:
            await course.enter(call, caller.stamped)
        except (Halted, Conflict) as failure:
            # Passed into the flow, which releases the locks that it took for the write.
            course.note(call, failure)
            raise
        try:
            return await self._outcome(call, caller, course)
        except Unknown as unknown:
            self._settler.left(course, unknown.age_seconds)
            raise

    async def _outcome(self, call: Call, caller: Caller, course: OperationExecution) -> JSON:
        try:
            given = await self._any_call(call, caller)
        except Unknown:
            verdict = await self._seen_at_once(call, caller, course)
            if verdict is None and call.is_cleanup:
                failed = Refused(500)
                course.told(call, failed)
                raise failed from None
            if verdict is None:
                raise
            await course.found(call, verdict)
            return verdict.body
        except Failure as failure:
            course.told(call, failure)
            raise
        course.told(call, given)
        return given

    async def _seen_at_once(
        self, call: Call, caller: Caller, course: OperationExecution
    ) -> Confirmed | None:
        """Reads once whether a write without a response was executed; None if that is not proven."""
        if call.reconcile is None or course.entered is None or caller.sends is not None:
            return None  # a signed request needs the service's own response, and there is none
        try:
            async with asyncio.timeout(SEEN_WITHIN):
                sending = await self._settler.sending(course, course.entered)
                verdict = await self._verdict(call.reconcile(sending), caller)
        except TimeoutError:
            return None
        return verdict if isinstance(verdict, Confirmed) else None

    async def _settled(
        self, call: Call, write: Write, caller: Caller, course: OperationExecution
    ) -> JSON:
        """Reconciles a write that was recorded before; raises Unknown if its outcome is still open."""

        async def read(settle: OutcomeRule, sending: InDoubtWrite) -> WriteOutcome:
            return await self._verdict(settle(sending), caller)

        verdict = await self._settler.find_out(call, write, course, read)
        if isinstance(verdict, Absent) and course.has_happened and _may_go_on(call, course):
            # Another write of the request was executed: it is completed rather than undone.
            return await self._sent(call, caller, course)
        # The service may have executed it long after it was sent, so reads cached since then are stale.
        self._forget(call, caller.key.tenant)
        await course.found(call, verdict)
        if isinstance(verdict, Confirmed):
            return verdict.body
        raise Unreachable("it was sent, and did not happen")

    async def _verdict(
        self, reading: Generator[Step, Any, WriteOutcome], caller: Caller
    ) -> WriteOutcome:
        """Runs the reads of an outcome rule; Unreadable if the service cannot be read."""
        verdict: WriteOutcome
        try:
            step, verdict = await run_in_thread_if(caller.is_long, _advance, reading)
            while step is not None:
                if isinstance(step, CompareAndSet) or (isinstance(step, Call) and not step.is_read):
                    raise TypeError("to find out is to read")
                try:
                    given = await self._perform(step, caller)
                except Failure as failure:
                    step, verdict = await run_in_thread_if(
                        caller.is_long, _thrown, reading, failure
                    )
                else:
                    step, verdict = await run_in_thread_if(caller.is_long, _advance, reading, given)
        except Failure as failure:
            why = f"status {failure.status}" if isinstance(failure, Refused) else str(failure)
            return Unreadable(f"the service could not be read ({why or type(failure).__name__})")
        return verdict

    async def _perform(self, step: Step, caller: Caller) -> Any:
        owner = caller.key.tenant
        match step:
            case Call():
                return await self._any_call(step, caller)
            case Parallel(calls):
                return await self.together(calls, caller)
            case ListQuery():
                return await self._listing.find(step, lambda one: self.call(one, caller), owner)
            case LoadFacts("legacy id", None, ids):
                return await self._ledger.legacy_ids(owner, ids or ())
            case LoadFacts(kind, str() as id_):
                return await self._ledger.recall(owner, kind, id_)
            case LoadFacts("abandoned"):
                return await self._ledger.abandoned(owner)
            case LoadFacts(kind, None, ids):
                return await self._ledger.recall_all(owner, kind, ids)
            case CompareAndSet():
                return await self._ledger.record_all(owner, [step])
            case AwaitFacts():
                return await self._awaited(step, owner)

    async def _awaited(self, step: AwaitFacts, owner: Tenant) -> Mapping[str, JSON]:
        loop, pause = asyncio.get_running_loop(), FIRST_PAUSE
        over = loop.time() + self._upstream.timeout_seconds
        while not step.condition(facts := await self._ledger.recall(owner, step.kind, step.id)):
            if loop.time() >= over:
                raise Conflict(step.kind)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
        return facts

    async def together(self, calls: Sequence[Call], caller: Caller) -> list[Any]:
        """Sends reads in parallel; a failed read has its Failure in place of a result."""

        async def one(call: Call) -> Any:
            if not call.is_read:
                raise TypeError("only reads are made together: of a write the order matters")
            async with caller.places:
                try:
                    return await self._any_call(call, caller)
                except Failure as failure:
                    return failure

        return await asyncio.gather(*map(one, calls))

    async def _any_call(self, call: Call, caller: Caller) -> JSON:
        if call.probe_ids is not None:
            make = partial(self.call, caller=caller)
            return await self._inferred.send_call(call, caller.key.environment, make)
        owner = caller.key.tenant
        if call.cache_seconds and (kept := self._kept.get(owner, call)) is not None:
            return kept
        asked_at = self._kept.count(owner)
        try:
            body = await self.call(call, caller)
        finally:
            self._forget(call, owner)
        if call.cache_seconds:
            self._kept.put(owner, call, body, asked_at)
        return body

    def _forget(self, call: Call, owner: Tenant) -> None:
        if not call.is_read and call.path.startswith("/recipients"):
            self._kept.forget(owner, extract_recipient_id(call.path))

    async def call(self, call: Call, caller: Caller) -> JSON:
        """Sends a call and returns the body of a 2xx response; raises Refused, Unreachable or Unknown."""
        if caller.sends is not None and not call.is_read:
            return await caller.sends(call, caller.course)
        endpoint = require_endpoint(call.method, call.path)
        reply = await self._send(call, endpoint, caller)
        is_long = len(reply.body) > json_codec.LARGE
        caller.is_long = caller.is_long or is_long
        _tell(caller, "receiving_response", call, reply.body)
        body = await self._read_long(call, caller, reply.body) if is_long else _readable(reply.body)
        if reply.status == 204 and call.method == "DELETE":
            body = {}  # deletes may be answered without a body (legacy document, section 4.3)
        if 200 <= reply.status < 300 and body is not None and body.get("ok") is not False:
            told = self._spelling.translate_to_neutral(endpoint.response_shape, body)
            if not has_expected_shape(endpoint, told):
                raise Unreachable("unreadable")
            return told
        if 200 <= reply.status < 300 and not (body and body.get("errors")):
            raise Unreachable("unreadable") if call.is_read else Unknown("unreadable")
        is_confirmed = call.probe_ids is not None and self._inferred.is_confirmed_with_reads(
            reply.status
        )
        if not (call.is_read or is_confirmed or _proves_refusal(reply.status, body)):
            raise Unknown(f"status {reply.status}")
        raise await run_in_thread_if(
            caller.is_long, self._refused, call, endpoint, reply, body or {}
        )

    async def _read_long(
        self, call: Call, caller: Caller, data: bytes | CompressedBuffer
    ) -> dict[str, JSON] | None:
        """Decodes a long response; None if it is not JSON or needs more memory than a request may use.

        A response that cannot be decoded in slices is charged to ``load.held_bytes`` meanwhile.
        """
        cost = await run_in_thread(json_codec.estimate_memory_bytes, data)
        if cost > MOST_COST:
            return None
        with suppress(json_codec.Unsliced):
            return _object(await run_in_thread(json_codec.loads_in_slices, data, json_codec.LONG))
        stay = self._load.stay(caller.key.tenant_name)
        try:
            if cost > stay.most_bytes:
                return None
            stay.hold(cost)
            return await run_in_thread(_readable, data)
        except Overloaded as overloaded:
            if call.is_read:
                raise
            raise Unknown(overloaded.why) from None
        finally:
            stay.end()

    async def _send(self, call: Call, endpoint: Endpoint, caller: Caller) -> Reply:
        body: bytes | CompressedBuffer | None = None
        if call.body is not None:
            own = self._spelling.translate_from_neutral(endpoint.body_shape, call.body)
            if not caller.is_long:
                body = json_codec.dumps(own)
            elif json_codec.has_rows(own):
                body = await run_in_thread(json_codec.dumps_compressed, own)
            else:
                body = await run_in_thread(json_codec.dumps, own)
            _tell(caller, "calling_service", call, body)
        began = asyncio.get_running_loop().time()
        caller.calls += 1
        with instrumentation.instrument_call(
            caller.key.environment, call.method, endpoint.path
        ) as told:
            try:
                reply = await self._upstream.send(
                    caller.key.environment,
                    caller.key.credentials,
                    call.method,
                    self._targets.build(call, endpoint),
                    body,
                    request_id=caller.request_id,
                    write=not call.is_read,
                    fence=_turn_of(call, caller),
                )
            finally:
                caller.seconds += asyncio.get_running_loop().time() - began
            told.record_status(reply.status)
        return reply

    def _refused(
        self, call: Call, endpoint: Endpoint, reply: Reply, body: Mapping[str, JSON]
    ) -> Refused:
        problems = [problem for one in _entries(body) if (problem := _problem(one))]
        status = reply.status
        if status < 400:
            # The service sends no 3xx; something between it and the gateway does.
            status = _status_of_codes(body) if status < 300 else 502
            if status == 404 and call.probe_ids is not None:
                status = 400  # only a real 404 may mean that the endpoint is missing
        return Refused(
            status,
            problems,
            field_map=self._sent_as(call, endpoint, problems),
            retry_after=_retry_after(reply),
        )

    def _sent_as(
        self, call: Call, endpoint: Endpoint, problems: Sequence[Problem]
    ) -> dict[str, str]:
        """The field map in the service's own field names, which its error messages use."""
        names = errors.select_mentioned_fields(call.field_map, problems)
        return {
            self._spelling.translate_field_path(endpoint.body_shape, name): field_
            for name, field_ in names.items()
        }


def _tell(
    caller: Caller,
    step: Literal["calling_service", "receiving_response"],
    call: Call,
    body: bytes | CompressedBuffer,
) -> None:
    """Logs and records the progress of large bodies; the many short reads of a large request are not."""
    if caller.is_long and (not call.is_read or len(body) > json_codec.LARGE):
        called = f"{call.method} {require_endpoint(call.method, call.path).path}"
        log.info(
            "large_payload_progress",
            request_id=caller.request_id,
            step=step,
            call=called,
            body_bytes=len(body),
        )
        progress.record_progress(step, len(body) if step == "receiving_response" else 0, len(body))


MANY = 1000
"""Objects in a loaded state above which they are processed in a worker thread."""


def _is_of_many(given: Any) -> bool:
    return isinstance(given, dict) and len(given) > MANY


def _advance(flow: Generator[Step, Any, Any], given: Any = None) -> tuple[Step | None, Any]:
    try:
        return flow.send(given), None
    except StopIteration as stop:
        return None, stop.value


def _thrown(flow: Generator[Step, Any, Any], failure: Failure) -> tuple[Step | None, Any]:
    try:
        return flow.throw(failure), None
    except StopIteration as stop:
        return None, stop.value


def _readable(data: bytes | CompressedBuffer) -> dict[str, JSON] | None:
    try:
        return _object(json_codec.read(data))
    except json_codec.Unreadable:
        return None


def _object(body: JSON) -> dict[str, JSON] | None:
    return body if isinstance(body, dict) else None


def _may_go_on(call: Call, course: OperationExecution) -> bool:
    """Whether a write may be sent. Without its client an operation is continued, but never started."""
    return course.attended or not (call.only_while_client_waits or not course.writes)


def _proves_refusal(status: int, body: Mapping[str, JSON] | None) -> bool:
    """Whether a response to a write proves that it was not executed (contract, section 7).

    A 4xx with the service's own error JSON does, and so does a 2xx with ``ok: false`` and error codes.
    A 5xx does not: it may come from a proxy that gave up while the service was still working.
    """
    if status < 300:
        return _status_of_codes(body or {}) < 500
    return 400 <= status < 500 and any(map(_problem, _entries(body or {})))


def _status_of_codes(body: Mapping[str, JSON]) -> int:
    """The status that the error codes of a 2xx with ``ok: false`` stand for; 500 if one has no code."""
    problems = [_problem(entry) for entry in _entries(body)]
    known = [problem for problem in problems if problem is not None]
    return errors.derive_refusal_status(known) if len(known) == len(problems) else 500


def _retry_after(reply: Reply) -> str | None:
    """The Retry-After of a response; None if it is not valid as a header value."""
    given = reply.headers.get("Retry-After", "")
    return given if given and given.isascii() and given.isprintable() else None


def _may_pass(failure: Failure) -> bool:
    """Whether a read that failed this way may succeed later."""
    if isinstance(failure, Refused):
        return failure.status >= 500 or failure.status == 429
    return isinstance(failure, Unreachable)


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
