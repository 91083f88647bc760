"""Executes flows: performs the steps that a flow yields. Nothing else calls the service for a flow.

The result of each step, or its failure, is sent back into the flow at its ``yield``.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from types import CoroutineType
from typing import Any

from gateway.admission.load import LoadShedder
from gateway.http.request_paths import extract_recipient_id
from gateway.payloads import json_codec
from gateway.payloads.worker_thread import run_in_thread, run_in_thread_if
from gateway.reads.listing import ListReader
from gateway.reads.recent_pages import RecentPages
from gateway.storage.object_state import ObjectStateStore
from gateway.storage.operation_records import Write
from gateway.storage.tenants import Tenant
from gateway.upstream.client import UpstreamClient
from gateway.upstream.optional_endpoints import OptionalEndpoints
from gateway.writes.call_sender import CallSender
from gateway.writes.operation_execution import OperationExecution
from gateway.writes.outcome_policy import UNREADABLE_REASON, OutcomePolicy
from gateway.writes.states import REFUSED, UNSENT
from gateway.writes.write_request import Caller
from mappings import errors
from mappings.effects import (
    JSON,
    Absent,
    Answer,
    AwaitFacts,
    Call,
    CompareAndSet,
    Confirmed,
    Flow,
    Inconclusive,
    ListQuery,
    LoadFacts,
    MayExist,
    Parallel,
    Step,
    Unreadable,
    Vocabulary,
    WriteOutcome,
)
from mappings.failures import (
    ClientDisconnected,
    Conflict,
    Failure,
    Halted,
    Invalid,
    NoSuchOperation,
    PossiblyExecuted,
    Problem,
    Refused,
    UndoPending,
    UndoRefused,
    Unknown,
    Unreachable,
    is_retryable_read_failure,
)

READ_BACK_SECONDS = 5.0
"""Time limit, in seconds, of the reads right after a write without a response: its client waits."""

MIN_RETRY_AFTER_SECONDS = 2
"""The minimum ``Retry-After`` of a write in doubt, in seconds."""

MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.02, 0.5
"""Seconds between two reads of object state that another request or process is about to change."""


class FlowExecutor:
    """Runs a flow to its answer: reads, guarded writes, object state, and replay."""

    def __init__(
        self,
        upstream: UpstreamClient,
        object_state: ObjectStateStore,
        vocabulary: Vocabulary,
        optional_endpoints: OptionalEndpoints,
        *,
        policy: OutcomePolicy,
        listing: ListReader,
        load: LoadShedder | None = None,
    ) -> None:
        self._upstream = upstream
        self._object_state = object_state
        self._optional_endpoints = optional_endpoints
        self._policy = policy
        self._listing = listing
        self._call_sender = CallSender(upstream, vocabulary, optional_endpoints, load)
        self._recent_pages = RecentPages(policy.monotonic)
        self.expedite_operations: Callable[[Iterable[str]], object] = list
        """Makes the next reading of operations in doubt due, for which a request waits."""

    async def execute(
        self,
        flow: Flow,
        caller: Caller | None,
        problems: Sequence[Problem] = (),
        execution: OperationExecution | None = None,
    ) -> Answer:
        """Runs a flow to its answer; raises a failure that the flow does not handle.

        No write is sent while there are ``problems`` with the client's request: the flow runs up to
        its first write, so that it can report more of them. A flow that writes needs an execution.

        Unknown is not raised inside the flow, because a write that may have been executed is
        reconciled and never compensated. The flow is replayed up to that write later.
        """
        answer: Answer | None
        is_long = caller is not None and caller.is_long
        if caller and execution and execution.is_long:
            is_long = caller.is_long = True
        step, answer = await run_in_thread(_resume_flow, flow) if is_long else _resume_flow(flow)
        while step is not None:
            if caller is None:
                raise TypeError("an operation without an API key cannot call the service")
            result = self._start_step(step, caller, problems, execution)
            try:
                if isinstance(result, CoroutineType):
                    result = await result
                # A call measured its response when it arrived; this measures stored values.
                if result and not isinstance(step, Call):
                    caller.is_long = caller.is_long or _is_long_value(result)
            # Not raised in the flow, which would undo a write that may have been executed.
            except Unknown:
                raise
            except Failure as failure:
                step, answer = await run_in_thread_if(
                    caller.is_long, _resume_flow, flow, None, failure
                )
            else:
                step, answer = (
                    await run_in_thread(_resume_flow, flow, result)
                    if caller.is_long
                    else _resume_flow(flow, result)
                )
        # A flow that ends without a write has not reported the problems yet.
        if answer is None or problems:
            raise Invalid(*problems)
        return answer

    def _start_step(
        self,
        step: Step,
        caller: Caller,
        problems: Sequence[Problem],
        execution: OperationExecution | None,
    ) -> Any:
        """Returns the result of a step, or a coroutine that waits for it."""
        is_write = isinstance(step, Call) and not step.is_read
        if is_write and (problems or execution is None):
            raise Invalid(*problems) if problems else TypeError("a write needs an execution")
        if execution is not None:
            execution.is_long = caller.is_long
            if execution.recorded_steps and execution.is_replaying:
                return self._replay_step(step, caller, execution)
            if isinstance(step, CompareAndSet):
                return execution.compare_and_set(step)
            if isinstance(step, Call) and not step.is_read:
                return self._perform_write(step, caller, execution)
        # A read must see the changes that the flow made before it, which are saved first.
        if isinstance(step, LoadFacts) and not (execution and execution.pending_changes):
            facts = self._object_state.load_now(caller.key.tenant, step.kind, step.id)
            if facts is not None:
                if execution is not None:
                    execution.record_step(step, facts)
                return facts
        if execution is None:
            return self._perform_step(step, caller)
        return self._perform_and_record_read(step, caller, execution)

    async def _replay_step(self, step: Step, caller: Caller, execution: OperationExecution) -> Any:
        """Returns the recorded result of a step, or raises its failure."""
        outcome = await run_in_thread_if(caller.is_long, execution.replay_step, step)
        caller.is_long = caller.is_long or _is_long_value(outcome)
        if isinstance(outcome, Failure):
            raise outcome
        return outcome

    async def _perform_and_record_read(
        self, step: Step, caller: Caller, execution: OperationExecution
    ) -> Any:
        if execution.pending_changes or (execution.is_unseen and not isinstance(step, LoadFacts)):
            await execution.save()
        try:
            result = await self._perform_step(step, caller)
        except Failure as failure:
            if execution.is_resumed and is_retryable_read_failure(failure):
                # A failed read is no reason to undo earlier writes: the replay is retried later.
                raise Unknown("the service cannot be read") from None
            if execution.is_resumed and execution.writes and isinstance(step, AwaitFacts):
                raise Unknown("other changes of the same object are in progress") from None
            execution.record_step(step, failure)
            execution.failed_reads += [failure] if is_retryable_read_failure(failure) else []
            raise
        execution.record_step(step, result)
        if isinstance(step, Parallel):
            execution.failed_reads += filter(is_retryable_read_failure, result)
        return result

    # Writes

    async def _perform_write(
        self, call: Call, caller: Caller, execution: OperationExecution
    ) -> JSON:
        """Records a write in the journal and sends it once.

        Raises Unknown if its outcome is open.
        """
        try:
            # An earlier execution recorded this write and may have sent it.
            if (write := execution.current_write) is not None and write.state != UNSENT:
                return await self._reconcile_write(call, write, caller, execution)
            if failure := self._find_reason_not_to_send(call, caller, execution):
                execution.record_step(call, failure)
                raise failure
            return await self._save_and_send_write(call, caller, execution)
        except Unknown as unknown:
            if isinstance(unknown, UndoRefused) and unknown.is_final and execution.write_in_doubt:
                execution.record_write_state(REFUSED, unknown.status)
            if call.undo_of:
                raise UndoPending(call.undo_of, str(unknown)) from None
            execution.in_doubt_change = call.in_doubt
            # A retry before this time could not learn more than this attempt did.
            if unknown.retry_after is None:
                retry_after = self._policy.seconds_until_conclusive(execution.operation_record)
                unknown.retry_after = max(retry_after, MIN_RETRY_AFTER_SECONDS)
            raise

    def _find_reason_not_to_send(
        self, call: Call, caller: Caller, execution: OperationExecution
    ) -> Failure | None:
        if not _can_send_write(call, execution):
            return Unreachable("not sent: the client no longer waits for the response")
        if call.probe_ids is not None and (
            missing_endpoint := self._optional_endpoints.find_missing_operation_name(
                call, caller.key.environment
            )
        ):
            return NoSuchOperation(missing_endpoint)
        return None

    async def _save_and_send_write(
        self, call: Call, caller: Caller, execution: OperationExecution
    ) -> JSON:
        try:
            await execution.save_write(call, caller.stamped_at)
        except (Halted, Conflict) as failure:
            if isinstance(failure, Halted) and _is_pausable(call, execution):
                raise _build_unsent_failure(failure) from None
            # Passed into the flow, which releases the locks that it took for the write.
            execution.record_step(call, failure)
            raise
        try:
            # The client may have sent its request to another process before that could see this one.
            if caller.is_disconnected and len(execution.writes) == 1 and not execution.is_resumed:
                raise ClientDisconnected
            try:
                body = await self._send_call(call, caller)
            # Also after a failure: a write without a response may have been executed.
            finally:
                self._record_changed_recipient(call, caller.key.tenant)
        except Unknown as unknown:
            self._policy.record_unanswered_write(execution, unknown.age_seconds)
            outcome = await self._confirm_write_by_reading(call, caller, execution)
            # No client waits for a cleanup: it counts as refused; what it leaves over is listed.
            if outcome is None and call.is_cleanup:
                refused = Refused(500)
                execution.record_response(call, refused)
                raise refused from None
            if outcome is None:
                raise
            execution.is_long = caller.is_long  # the reads have shown it
            await execution.record_reconciled_outcome(call, outcome)
            return outcome.body
        except Failure as failure:
            # What is not undone yet must stay recorded.
            if call.undo_of and isinstance(failure, Refused) and failure.status != 404:
                raise UndoRefused(failure.status) from None
            # Nothing is undone, because the retry or the reconciler sends the rest.
            is_sent_later = (
                _is_pausable(call, execution)
                if isinstance(failure, Halted)
                else _is_completion(call, execution) and not call.is_cleanup
            )
            if isinstance(failure, Unreachable) and is_sent_later:
                execution.record_write_state(UNSENT)
                raise _build_unsent_failure(failure) from None
            execution.record_response(call, failure)
            raise
        execution.record_response(call, body)
        return body

    async def _confirm_write_by_reading(
        self, call: Call, caller: Caller, execution: OperationExecution
    ) -> Confirmed | None:
        """Reads once whether a write without a response was executed.

        Returns None if that is not proven.
        """
        write = execution.current_write
        if call.reconcile is None or write is None or caller.send_write is not None:
            return None  # its client needs the service's own response, and there is none
        try:
            async with asyncio.timeout(READ_BACK_SECONDS):
                in_doubt_write = await self._policy.build_in_doubt_write(execution, write)
                outcome = await self._evaluate_outcome_rule(caller, call.reconcile(in_doubt_write))
        # No proof in time: the write is in doubt, and the reconciler goes on reading.
        except TimeoutError:
            return None
        if isinstance(outcome, Absent):
            self._policy.record_reading(execution.operation_record)
        return outcome if isinstance(outcome, Confirmed) else None

    async def _reconcile_write(
        self, call: Call, write: Write, caller: Caller, execution: OperationExecution
    ) -> JSON:
        """Reconciles a write that was recorded before.

        Raises Unknown if its outcome is still open.
        """
        if call.undo_of and write.state == REFUSED:
            raise UndoRefused(write.status)
        read_outcome = partial(self._evaluate_outcome_rule, caller)
        outcome = await self._policy.determine_outcome(call, write, execution, read_outcome)
        if (
            isinstance(outcome, Absent)
            # What may exist stays recorded: the second attempt would replace its row.
            and not isinstance(outcome, MayExist)
            and execution.has_executed_write
            and _can_send_write(call, execution)
        ):
            # Another write of the request was executed: it is completed rather than undone.
            return await self._save_and_send_write(call, caller, execution)
        execution.is_long = caller.is_long  # the reads have shown it
        # The service may have executed it at any time since, so that a cached list may be stale.
        self._record_changed_recipient(call, caller.key.tenant)
        await execution.record_reconciled_outcome(call, outcome)
        if isinstance(outcome, Confirmed):
            return outcome.body
        if isinstance(outcome, MayExist):
            raise PossiblyExecuted("the write was sent, and may have been executed")
        raise Unreachable("the write was sent, but not executed")

    async def _evaluate_outcome_rule(
        self,
        caller: Caller,
        steps: Generator[Step, Any, WriteOutcome],
        max_age_seconds: float = 0.0,
    ) -> WriteOutcome:
        """Runs the reads of an outcome rule; Unreadable if the service cannot be read.

        The list of batches may have been read for another write, ``max_age_seconds`` ago.
        """
        outcome: WriteOutcome
        try:
            step, outcome = await run_in_thread_if(caller.is_long, _resume_flow, steps)
            while step is not None:
                if isinstance(step, CompareAndSet) or (isinstance(step, Call) and not step.is_read):
                    raise TypeError("an outcome rule may only read")
                result = failed_read = None
                try:
                    result = await self._read_for_outcome_rule(step, caller, max_age_seconds)
                except Failure as failure:
                    failed_read = failure
                step, outcome = await run_in_thread_if(
                    caller.is_long, _resume_flow, steps, result, failed_read
                )
        except Failure as failure:
            status = failure.status if isinstance(failure, Refused) else None
            reason = f"status {status}" if status else str(failure)
            # Credentials that are refused may be replaced, and say nothing about the object.
            is_unread = status in (401, 403) or is_retryable_read_failure(failure)
            unread = Unreadable if is_unread else Inconclusive
            return unread(f"{UNREADABLE_REASON} ({reason or type(failure).__name__})")
        return outcome

    def _read_for_outcome_rule(
        self, step: Step, caller: Caller, max_age_seconds: float
    ) -> Awaitable[Any]:
        read = partial(self._perform_step, step, caller)
        if not (isinstance(step, Call) and step.path == "/batches"):
            return read()
        return self._recent_pages.read(caller.key.tenant, step, max_age_seconds, read)

    def _perform_step(self, step: Step, caller: Caller) -> Awaitable[Any]:
        """Starts a step, whose result is awaited."""
        if isinstance(step, Call):
            # Most: their endpoint cannot be missing.
            if step.probe_ids is None:
                return self._call_sender.send(step, caller)
            return self._send_call(step, caller)
        tenant = caller.key.tenant
        if isinstance(step, LoadFacts):
            return self._object_state.load_facts(tenant, step)
        if isinstance(step, Parallel):
            return self.call_reads_in_parallel(step.calls, caller)
        if isinstance(step, ListQuery):
            return self._listing.query(
                step, lambda call: self._call_sender.send(call, caller), tenant
            )
        if isinstance(step, AwaitFacts):
            return self._wait_for_facts(step, caller)
        return self._object_state.compare_and_set_all(tenant, [step])

    async def _wait_for_facts(self, step: AwaitFacts, caller: Caller) -> Mapping[str, JSON]:
        loop, pause_seconds = asyncio.get_running_loop(), MIN_POLL_SECONDS
        tenant, started_at = caller.key.tenant, loop.time()
        # A request that has changed nothing yet waits no longer than for one call, however often
        # others come first. Once it has, it must be finished.
        if caller.received_at is not None and not (
            caller.execution and caller.execution.has_executed_write
        ):
            started_at = min(started_at, caller.received_at)
        deadline = started_at + self._upstream.timeout_seconds
        load = LoadFacts(step.kind, step.id)
        facts: Mapping[str, JSON]
        if step.kind == "being created":
            self.expedite_operations(await self._object_state.load_facts(tenant, load))
        while not step.condition(facts := await self._object_state.load_facts(tenant, load)):
            if loop.time() >= deadline:
                raise Conflict(step.kind)
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(pause_seconds * 2, MAX_POLL_SECONDS)
        return facts

    async def call_reads_in_parallel(self, calls: Sequence[Call], caller: Caller) -> list[Any]:
        """Sends reads in parallel; a failed read has its Failure in place of a result."""

        async def call_or_failure(call: Call) -> Any:
            if not call.is_read:
                raise TypeError("only reads may run in parallel: the order of writes matters")
            async with caller.parallel_read_semaphore, self._call_sender.find_read_slots(caller):
                try:
                    return await self._send_call(call, caller)
                except Failure as failure:
                    return failure

        return await asyncio.gather(*map(call_or_failure, calls))

    def _send_call(self, call: Call, caller: Caller) -> Awaitable[JSON]:
        if call.probe_ids is not None:
            send_call = partial(self._call_sender.send, caller=caller)
            return self._optional_endpoints.send_call_unless_missing(
                call, caller.key.environment, send_call
            )
        return self._call_sender.send(call, caller)

    def _record_changed_recipient(self, call: Call, tenant: Tenant) -> None:
        if call.path.startswith("/recipients/"):
            self._listing.caches.record_changed_recipient(tenant, extract_recipient_id(call.path))


MANY_OBJECTS = 1000
"""Objects in a loaded state above which they are processed in a worker thread."""


def _is_long_value(value: Any) -> bool:
    return json_codec.has_rows(value) or (isinstance(value, dict) and len(value) > MANY_OBJECTS)


def _resume_flow(
    flow: Generator[Step, Any, Any], result: Any = None, failure: Failure | None = None
) -> tuple[Step | None, Any]:
    """Returns the next step; at the end of the flow None, and what the flow returned."""
    try:
        return flow.send(result) if failure is None else flow.throw(failure), None
    except StopIteration as stop:
        return None, stop.value


def _build_unsent_failure(failure: Unreachable) -> Unknown:
    """Builds the failure of a request of which a part was done, and the next write is sent later."""
    if isinstance(failure, Halted):
        problem = errors.WRITES_PAUSED
        return Unknown(problem.message, retry_after=failure.retry_after, problem=problem)
    return Unknown(str(failure), retry_after=MIN_RETRY_AFTER_SECONDS)


def _can_send_write(call: Call, execution: OperationExecution) -> bool:
    """Whether a write may be sent now. A retry sends the rest; before a start it reads all again."""
    is_resumed_start = call.only_while_client_waits and execution.is_resumed
    return not is_resumed_start and (execution.is_client_waiting or _is_completion(call, execution))


def _is_pausable(call: Call, execution: OperationExecution) -> bool:
    """Whether the rest of a request is executed later, if its writes are frozen."""
    return execution.has_executed_write and not call.only_while_client_waits


def _is_completion(call: Call, execution: OperationExecution) -> bool:
    """Whether a write completes a recipient, which the gateway itself does (contract, section 7)."""
    return execution.has_executed_write and call.path.startswith("/recipients/")
