"""Executes each request that writes once, however often the client sends it and whatever fails.

A request is compared with the open operations of its merchant (contract of the translation, "Writes
whose outcome is unknown"):

- an identical request of the same API key, first sent within a day and not delivered, is the first
  attempt: its outcome is determined and its response returned; the request is sent to the service
  only if the first attempt was not executed;
- a write in doubt on the same object is reconciled first;
- requests with the same ``Idempotency-Key`` are one request, also after it was answered.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import structlog
from msgspec import structs

from gateway.http.request_reader import generate_hex_id
from gateway.http.responses import LegacyResponse
from gateway.payloads.worker_thread import run_in_thread
from gateway.storage import StoreUnavailable
from gateway.storage.operation_records import (
    DuplicateOperationError,
    OperationRecord,
    OwnershipLostError,
)
from gateway.writes import stored_responses
from gateway.writes.batch_routing import BatchRoutedElsewhereError
from gateway.writes.executor import MIN_RETRY_AFTER_SECONDS, FlowExecutor
from gateway.writes.journal import Journal
from gateway.writes.operation_execution import OperationExecution
from gateway.writes.recipient_locks import RecipientLocks
from gateway.writes.reconciler import WriteReconciler
from gateway.writes.retry_matching import (
    RetryMatcher,
    WaitState,
    check_first_attempt,
    is_blocking,
    is_temporary_refusal,
)
from gateway.writes.states import ANSWERED, DONE, RUNNING, UNDONE
from gateway.writes.write_request import Caller, RenderAnswer, WriteRequest
from mappings.effects import Operation
from mappings.failures import ClientDisconnected, Failure, UndoPending, Unknown

POLL_SECONDS = 0.2
"""Seconds between two checks of an operation that a request waits for."""
RenderFailure = Callable[[Failure], Awaitable[LegacyResponse | None]]
"""Builds the response to a refused request; None if the caller wants the failure raised instead."""
RecordedResponse = tuple[LegacyResponse, OperationRecord | None]
"""A response, and the operation that is closed as soon as its client has received it."""

log = structlog.get_logger()


class IdempotencyGuard:
    """Decides whether a request is new, a retry, or must wait, and executes it once."""

    def __init__(
        self,
        journal: Journal,
        executor: FlowExecutor,
        reconciler: WriteReconciler,
        wait_seconds: float,
        *,
        joins_running: bool = True,
    ) -> None:
        """Creates a guard; a request waits ``wait_seconds`` for an identical one (``[writes]``)."""
        self._retries = RetryMatcher(journal, reconciler, joins_running=joins_running)
        self._recipient_locks = RecipientLocks(journal, reconciler)
        self._journal = journal
        self.deliveries = journal.deliveries
        self.executor = executor
        self.reconciler = reconciler
        self._wait_seconds = wait_seconds

    async def answer(
        self,
        write_request: WriteRequest,
        render_answer: RenderAnswer,
        render_failure: RenderFailure,
    ) -> RecordedResponse:
        """Returns the response, and the operation that is closed once the client has received it.

        The operation counts as being delivered until ``deliveries.end`` is called. Raises
        BatchRoutedElsewhereError, FirstAttemptTranslatedError, or a Failure.
        """
        received_at = self._journal.find_receipt_time(write_request.caller.received_at)
        wait_state = WaitState(self._journal.monotonic() + self._wait_seconds, received_at)
        try:
            # Repeated if the first attempt was not executed: this request takes its place.
            while True:
                execution = await self._find_or_start_execution(
                    write_request, wait_state, render_answer
                )
                if not isinstance(execution, OperationExecution):
                    # A replay that nobody receives must not make the next request its copy.
                    write_request.caller.check_connected()
                    await self._record_replay(write_request, *execution)
                    return execution
                try:
                    await self._recipient_locks.acquire_recipient_lock(
                        execution, wait_state.deadline
                    )
                    response = await self._execute(
                        execution, write_request, render_answer, render_failure
                    )
                # Another process has saved the same request: it is looked for again.
                except DuplicateOperationError:
                    wait_state.record = execution.operation_record
                    continue
                # Another process has taken it over, after a pause of this one, and ends it.
                except OwnershipLostError:
                    response = None
                except StoreUnavailable as unavailable:
                    if not execution.writes:
                        raise
                    log.error("database_unavailable", reason=str(unavailable))
                    raise Unknown(
                        "the database cannot be used", retry_after=MIN_RETRY_AFTER_SECONDS
                    ) from None
                finally:
                    self._journal.release(execution)
                record = execution.operation_record
                if response is not None:
                    return response, record if execution.is_saved else None
                if record.is_forwarded:
                    await self.reconciler.save_unsaved_forwarded_outcomes(record.tenant)
                wait_state.first_attempt = record
                # A seed of its own: what the first attempt registered in its name was seen by others.
                request = structs.replace(write_request.request, seed=generate_hex_id())
                write_request = structs.replace(write_request, request=request)
        except OwnershipLostError:
            raise Unknown(
                "another process has taken the operation over", retry_after=MIN_RETRY_AFTER_SECONDS
            ) from None

    async def _execute(
        self,
        execution: OperationExecution,
        write_request: WriteRequest,
        render_answer: RenderAnswer,
        render_failure: RenderFailure,
    ) -> LegacyResponse | None:
        """Runs the flow; returns None if a resumed first attempt turns out not to be executed."""
        write_request.caller.execution = execution
        execution.is_client_disconnected = (
            execution.is_client_disconnected or write_request.caller.is_disconnected
        )
        try:
            flow = write_request.operation.flow(execution.request)
            answer = await self.executor.execute(
                flow, write_request.caller, write_request.problems, execution
            )
        except UndoPending as pending:
            return await self._answer_refusal(execution, pending.refusal, render_failure, pending)
        except Unknown as unknown:
            await self._leave_in_doubt(execution, unknown)
            raise
        # Nothing was sent: the caller routes the request to the other service.
        except BatchRoutedElsewhereError:
            await execution.close(UNDONE)
            raise
        except Failure as failure:
            # After an executed write a failed read must not end the operation: it is replayed.
            if execution.is_failed_read(failure) and (
                execution.has_executed_write or execution.is_resumed
            ):
                unread = Unknown("the write was executed, but a later read failed")
                await self._leave_in_doubt(execution, unread)
                raise unread from None
            if execution.is_resumed:
                await execution.close(UNDONE)
                return None
            return await self._answer_refusal(execution, failure, render_failure)
        response = await render_answer(answer)
        await self._finish(execution, response, write_request.caller)
        # Not before: what a process that was paused has done may belong to another one by now.
        execution.final_response = response
        # The first attempt's process had ended: this is its response, and nothing was done twice.
        return stored_responses.add_replayed_header(response) if execution.is_resumed else response

    async def _answer_refusal(
        self,
        execution: OperationExecution,
        failure: Failure,
        render_failure: RenderFailure,
        pending: UndoPending | None = None,
    ) -> LegacyResponse:
        """Ends a refused operation, or leaves its undo to the reconciler; returns the response."""
        response, stored = await render_failure(failure), None
        # A refusal that may pass is not stored: the Idempotency-Key would repeat it for a day.
        is_final = execution.operation_record.idempotency and not is_temporary_refusal(failure)
        if is_final and response and response.status in (404, 406):
            stored = await stored_responses.encode_response(response)
        if pending is None:
            await execution.close(UNDONE if stored is None else ANSWERED, stored)
        else:
            # It was answered: without a stored response, the same request is a new one.
            unmatched = {"idempotency": None, "fingerprint": "", "repetition": None}
            answered = {"response": stored} if stored else unmatched
            await execution.leave_in_doubt(str(pending), **answered)
        if response is None:
            raise failure
        return response

    async def _finish(
        self, execution: OperationExecution, response: LegacyResponse, caller: Caller
    ) -> None:
        """Records the response of a successful operation, which is delivered next."""
        # Registered before the commit shows others that it is done: its delivery has begun.
        if execution.is_saved:
            self.deliveries.pending[execution.operation_record.id] = execution
        try:
            is_read = execution.operation.method == "GET"
            # A long response is rebuilt from the steps, unless it has an Idempotency-Key.
            is_stored = not is_read and (
                execution.operation_record.idempotency is not None
                or not response.is_long
                or execution.operation_record.is_forwarded
                or self._journal.replay_seconds > 0
            )
            stored = await stored_responses.encode_response(response) if is_stored else None
            if execution.operation_record.is_forwarded:
                execution.response = stored
            # The client of an earlier attempt may have left; this one's delivery is reported.
            await execution.finish(stored, is_client_disconnected=caller.is_disconnected)
        except BaseException:
            self.deliveries.end(execution.operation_record)
            raise

    async def _record_replay(
        self,
        write_request: WriteRequest,
        response: LegacyResponse,
        first_attempt: OperationRecord | None,
    ) -> None:
        """Records that a response is replayed; stores it for its Idempotency-Key if it is not yet."""
        if first_attempt is None:
            return
        await self._journal.record_replay(first_attempt)
        if write_request.idempotency_key and response.is_long and first_attempt.response is None:
            stored = await stored_responses.encode_response(response)
            await self._journal.operations.add_response(first_attempt, stored)

    async def _leave_in_doubt(self, execution: OperationExecution, unknown: Unknown) -> None:
        # What the retry reads may be readable again.
        if unknown.retry_after is None:
            unknown.retry_after = MIN_RETRY_AFTER_SECONDS
        try:
            await execution.leave_in_doubt(str(unknown))
        except StoreUnavailable as unavailable:
            # Its state stays running although nothing executes it; the sweep reconciles that too.
            log.error("database_unavailable", reason=str(unavailable))

    # Retry or new operation

    async def _find_or_start_execution(
        self, write_request: WriteRequest, wait_state: WaitState, render_answer: RenderAnswer
    ) -> OperationExecution | RecordedResponse:
        """Returns a new or resumed execution to run, or the response of a first attempt."""
        record = wait_state.record or await self._build_record_after_connection_resets(
            write_request, wait_state
        )
        wait_state.record = None
        unexecuted_id: str | None = None
        confirmed_ids: set[str] = set()
        while True:
            id_ = wait_state.first_attempt_id
            # Found out again each time: a deletion in doubt may turn out not to have happened.
            overwritten_ids: set[str] = set()
            rows, first_attempt = await self._retries.find_first_attempt(
                record, write_request, wait_state, overwritten_ids
            )
            if first_attempt is None and id_ != unexecuted_id:
                if recorded := await self._find_first_attempt_response(
                    wait_state, write_request, render_answer
                ):
                    return recorded
                # Another retry may have taken its place meanwhile, so the rows are read again.
                unexecuted_id = id_
                continue
            if first_attempt is None:
                is_blocked = rows and await self._reconcile_related(
                    record, rows, wait_state, overwritten_ids, confirmed_ids
                )
                # A deletion may have been refused since, before the rows were read.
                is_confirmed = not is_blocked and overwritten_ids <= confirmed_ids
                confirmed_ids = set() if is_blocked else overwritten_ids
                if is_confirmed and (
                    execution := await self._start_execution(
                        record, write_request, wait_state, rows
                    )
                ):
                    return execution
                continue
            check_first_attempt(first_attempt, record, write_request)
            if not await self._join_first_attempt(first_attempt, record, wait_state):
                continue
            is_executing = self.reconciler.is_operation_executing(first_attempt)
            # What the legacy service executes can only be waited for.
            if not (is_executing and first_attempt.is_forwarded) and (
                response := await stored_responses.load_first_attempt_response(
                    first_attempt, write_request, render_answer, self._journal.operations
                )
            ):
                return stored_responses.add_replayed_header(response), first_attempt
            wait_state.first_attempt = first_attempt
            if not is_executing and (
                execution := await self._take_over_or_close(first_attempt, write_request.operation)
            ):
                return execution
            execution = await self._wait_briefly(first_attempt.id, wait_state.deadline)
            wait_state.execution = execution or wait_state.execution
            if recorded := self._find_response_in_memory(execution):
                return recorded

    async def _take_over_or_close(
        self, first_attempt: OperationRecord, operation: Operation
    ) -> OperationExecution | None:
        """Takes over a first attempt, or closes it if it has done nothing.

        Its retry is then checked like a new request: the mode of its key, a freeze or a lock may
        have changed since.
        """
        execution = await self.reconciler.take_over(first_attempt, operation)
        if execution is None or execution.writes:
            return execution
        is_closed = True
        try:
            is_closed = await self.reconciler.close_unsent_operation(execution)
        finally:
            if is_closed:
                self._journal.release(execution)
        return None if is_closed else execution

    async def _join_first_attempt(
        self, first_attempt: OperationRecord, record: OperationRecord, wait_state: WaitState
    ) -> bool:
        """Gives a first attempt without an Idempotency-Key that of its retry.

        From then on, a request with another key is another one. Returns False if the first attempt
        may have changed, and has to be looked for again.
        """
        # Until its delivery is reported, it is open whether this request is a retry of it.
        if self._retries.is_response_being_delivered(first_attempt, record, wait_state):
            await self._wait_briefly(first_attempt.id, wait_state.deadline)
            return False
        if (key_digest := record.idempotency) is None or first_attempt.idempotency is not None:
            return True
        execution = self._journal.executions.get(first_attempt.id)
        if execution is None or execution.is_saved:
            await self._journal.operations.add_idempotency_key(first_attempt, key_digest)
        # Also in memory, where it is read when the operation ends.
        if execution is not None and execution.operation_record.idempotency is None:
            execution.operation_record = structs.replace(
                execution.operation_record, idempotency=key_digest
            )
        return False

    async def _build_record_after_connection_resets(
        self, write_request: WriteRequest, wait_state: WaitState
    ) -> OperationRecord:
        """Builds the record, after other processes have saved the resets that they know of."""
        caller = write_request.caller
        build_record = partial(
            self._journal.build_record,
            caller.key,
            write_request.operation,
            write_request.request,
            caller.request_id,
            write_request.idempotency_key,
            received_at=wait_state.received_at[0],
        )
        record = await run_in_thread(build_record) if caller.is_long else build_record()
        if self.reconciler.has_other_instances and write_request.operation.method != "GET":
            await self.reconciler.wait_for_saved_connection_resets(record, wait_state.deadline)
        return record

    async def _start_execution(
        self,
        record: OperationRecord,
        write_request: WriteRequest,
        wait_state: WaitState,
        rows: list[OperationRecord],
    ) -> OperationExecution | None:
        # It may have waited long for others; its client may be gone and have retried elsewhere.
        write_request.caller.check_connected()
        execution = self._journal.start_execution(
            record,
            write_request.operation,
            write_request.forwarded_request or write_request.request,
            wait_state.received_at,
        )
        execution.is_long = write_request.caller.is_long
        execution.is_unseen = self.reconciler.has_other_instances
        may_be_duplicate = execution.is_unseen and self._retries.joins_identical(wait_state)
        if may_be_duplicate and write_request.operation.method != "GET":
            execution.unrelated_ids = frozenset(row.id for row in rows)
        # If the first attempt was not executed, this is the second, and other retries join it.
        execution.is_client_disconnected = wait_state.first_attempt is not None
        try:
            if write_request.routing_checks is not None:
                execution.routing_changes = await write_request.routing_checks(record.id)
            # Otherwise with its first change, or before its first call.
            if write_request.idempotency_key or self._recipient_locks.is_needed(execution):
                await self._save_before_first_step(execution, write_request)
        except BaseException as error:
            self._journal.release(execution)
            # Another process has saved the same request: the caller looks for it again.
            if isinstance(error, DuplicateOperationError):
                return None
            raise
        return execution

    async def _save_before_first_step(
        self, execution: OperationExecution, write_request: WriteRequest
    ) -> None:
        await execution.save(self._recipient_locks.find_lock_to_take(execution))
        try:
            # The client may have retried at another instance before that could see this operation.
            write_request.caller.check_connected()
        except ClientDisconnected:
            await execution.close(UNDONE)
            raise

    async def _wait_briefly(self, operation_id: str, deadline: float) -> OperationExecution | None:
        """Waits briefly for an operation to end; returns its execution if it runs in this process."""
        if self._journal.monotonic() > deadline:
            raise Unknown("the first attempt is still running", retry_after=MIN_RETRY_AFTER_SECONDS)
        execution = self._journal.executions.get(operation_id)
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                await (execution.ended.wait() if execution else asyncio.sleep(POLL_SECONDS))
        return execution

    def _find_response_in_memory(
        self, execution: OperationExecution | None
    ) -> RecordedResponse | None:
        """Returns the response of a first attempt that ended here; None if it has none."""
        if execution is None or execution.final_response is None or not execution.ended.is_set():
            return None
        response = stored_responses.add_replayed_header(execution.final_response)
        return response, execution.operation_record

    async def _find_first_attempt_response(
        self, wait_state: WaitState, write_request: WriteRequest, render_answer: RenderAnswer
    ) -> RecordedResponse | None:
        """Returns the response of a closed first attempt; raises Unknown if it was deleted."""
        if wait_state.first_attempt is None:
            return None
        if recorded := self._find_response_in_memory(wait_state.execution):
            return recorded
        row = await self._journal.operations.find_operation(wait_state.first_attempt.id)
        if row is not None and row.state in (DONE, ANSWERED):
            if response := await stored_responses.load_first_attempt_response(
                row, write_request, render_answer, self._journal.operations
            ):
                return stored_responses.add_replayed_header(response), row
            raise Unknown("the identical request sent at the same time was answered")
        return None

    async def _reconcile_related(
        self,
        record: OperationRecord,
        rows: list[OperationRecord],
        wait_state: WaitState,
        overwritten_ids: set[str],
        confirmed_ids: set[str],
    ) -> bool:
        """Reconciles, or waits for, an operation on the same objects; False if there is none.

        With ``overwritten_ids``, also for one that runs normally: its outcome decides whether the
        request is a retry.
        """
        waits_for_running = bool(overwritten_ids)
        # Once they are confirmed, nothing is awaited: a copy of the request would be missed.
        if not (record.object_ids or overwritten_ids <= confirmed_ids):
            # A creation names nothing: a deletion names what its first attempt has created.
            record, rows = await self._retries.load_rows_of_created_objects(record, overwritten_ids)
        for row in rows:
            if not is_blocking(row, record, waits_for_signed=waits_for_running):
                continue
            if not self.reconciler.is_operation_executing(row):
                await self.reconciler.reconcile_blocking_write(row)
                return True
            is_interrupted = row.state != RUNNING or row.fence or self._retries.is_resumed(row)
            if is_interrupted or waits_for_running:
                if self._journal.monotonic() > wait_state.deadline:
                    raise self.reconciler.build_in_doubt_error(row)
                await self._wait_briefly(row.id, wait_state.deadline)
                return True
        return False
