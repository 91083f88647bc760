"""Forwards legacy requests to the legacy service; writes are recorded first and sent once.

The outcome of a write without an answer cannot be read from the legacy service. It stays in doubt,
is never sent again, and an operator resolves it. A client that did not receive its answer gets it
when it sends the request again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace

import structlog
from multidict import CIMultiDict

from gateway.http.decompression import DecompressedBodyTooLarge, DecompressionError, decompress_body
from gateway.http.responses import PassedResponse
from gateway.migration.inbound_request import InboundRequest, parse_fields
from gateway.observability import traces
from gateway.payloads import json_codec, stored_json
from gateway.payloads.stored_json import StoredText
from gateway.payloads.worker_thread import run_in_thread_if
from gateway.reads.recent_reads import RecentReads
from gateway.storage import StoreUnavailable
from gateway.storage.operations import (
    ANSWERED,
    DONE,
    FORWARDED_PREFIX,
    UNDONE,
    DuplicateOperationError,
    OperationRecord,
    OwnershipLostError,
)
from gateway.upstream import header_filter, instrumentation
from gateway.upstream.client import MAX_ANSWER_BYTES, UNANSWERED_STATUSES
from gateway.upstream.passthrough import PassthroughClient, PassthroughRequest
from gateway.upstream.send_attempt import Fence, ResponseLost
from gateway.upstream.spool import Spool
from gateway.writes import stored_responses
from gateway.writes.batch_routing import (
    BACKEND_KIND,
    LEGACY_MARK,
    BatchRoutedElsewhereError,
    BatchRouting,
)
from gateway.writes.call_sender import StartFence
from gateway.writes.executor import MIN_RETRY_AFTER_SECONDS
from gateway.writes.idempotency import POLL_SECONDS
from gateway.writes.idempotency_keys import KEY_REUSED
from gateway.writes.journal import Journal
from gateway.writes.operation_execution import OperationExecution
from gateway.writes.reconciler import WriteReconciler, evaluate_legacy_write_as_inconclusive
from gateway.writes.retry_matching import (
    RetryMatcher,
    is_blocking,
)
from mappings.effects import Call, CompareAndSet
from mappings.failures import Conflict, Failure, Invalid, Refused, Unknown, Unreachable

NOT_MODIFIED = 304
_SINGLE_BATCH_OPERATIONS = frozenset({"delete_batch", "generate_quote", "start_batch"})
"""They name only the batch, so that a 404 means that the batch does not exist."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ForwardedAnswer:
    """A response, and the write that ends when its client has received it."""

    response: PassedResponse
    pending_delivery: OperationRecord | None = None


class LegacySender:
    def __init__(self, passthrough: PassthroughClient) -> None:
        self._passthrough = passthrough

    def has_environment(self, environment: str) -> bool:
        """Whether the environment has a legacy address."""
        return self._passthrough.has_environment(environment)

    async def forward(self, inbound: InboundRequest) -> PassedResponse:
        """Sends a request once; raises Unreachable, and for a write Unknown."""
        with instrumentation.instrument_legacy_call(
            inbound.caller.key.environment, inbound.operation
        ) as call_recorder:
            response = await self._send_once(inbound)
            call_recorder.record_status(response.status)
            return response

    async def _send_once(self, inbound: InboundRequest) -> PassedResponse:
        caller, start_time = inbound.caller, asyncio.get_running_loop().time()
        caller.call_count += 1
        spool = Spool()
        # A copy: after a fallback or for a comparison, the same request is sent again.
        sent_headers = inbound.headers.copy()
        sent_headers.update(traces.build_trace_headers())
        try:
            await spool.append(inbound.body)
            passthrough_request = PassthroughRequest(
                caller.key.environment,
                inbound.operation.method,
                inbound.target,
                sent_headers,
                spool if spool.size else None,
                is_write=inbound.is_write,
            )
            async with self._passthrough.send(
                passthrough_request, _select_fence(inbound)
            ) as passthrough_response:
                headers = header_filter.filter_response_headers(passthrough_response.headers)
                body = await _decompress_body(
                    await _read_whole_body(passthrough_response.iter_chunks()), headers
                )
                status = passthrough_response.status
        except ResponseLost as lost:
            raise _build_lost_failure(inbound, str(lost)) from None
        finally:
            spool.close()
            caller.service_seconds += asyncio.get_running_loop().time() - start_time
        if 300 <= status < 400 and status != NOT_MODIFIED:
            # A redirect is not followed, because that would send the API key to another host.
            raise _build_lost_failure(inbound, f"status {status}, a redirect")
        # A proxy answered instead of the service, which may have executed the write.
        if inbound.is_write and status in UNANSWERED_STATUSES:
            raise _build_lost_failure(inbound, f"status {status}")
        return PassedResponse(status, headers, body)


async def _build_replayed_answer(first_try: OperationRecord) -> ForwardedAnswer | None:
    """Builds the answer of a first try again; None if it was translated."""
    if not first_try.is_forwarded:
        return None
    if first_try.response is not None and first_try.state in (DONE, ANSWERED):
        is_long = stored_json.is_large(first_try.response)
        response = await run_in_thread_if(is_long, _decode_stored_response, first_try.response)
        response.headers["Idempotent-Replayed"] = "true"
        return ForwardedAnswer(response, first_try)
    # Sending it again could pay twice.
    raise Unknown(
        "the outcome of its first try at the legacy service is unknown",
        retry_after=MIN_RETRY_AFTER_SECONDS,
    )


class ForwardedWrites:
    """Executes writes at the legacy service: recorded, sent once, and answered again for retries."""

    def __init__(
        self,
        sender: LegacySender,
        batch_routing: BatchRouting,
        journal: Journal,
        settling: WriteReconciler,
        recent_reads: RecentReads,
        *,
        retry_wait_seconds: float,
        joins_running: bool = True,
        replay_seconds: float = 0,
    ) -> None:
        self._retry_wait_seconds = retry_wait_seconds
        self._retries = RetryMatcher(
            journal, settling, joins_running=joins_running, replay_seconds=replay_seconds
        )
        self._joins_running = joins_running
        self._sender = sender
        self._batch_routing = batch_routing
        self._journal = journal
        self._settling = settling
        self._recent_reads = recent_reads

    async def execute_or_replay_write(self, inbound: InboundRequest) -> ForwardedAnswer | None:
        """Returns the answer to a write, or that of its first try.

        None for a retry of a write that was translated. Raises BatchRoutedElsewhereError.
        """
        arrived_at, _ = self._journal.find_receipt_time(inbound.caller.received_at)
        operation = self._journal.build_record(
            inbound.caller.key,
            inbound.operation,
            inbound.flow_request,
            inbound.caller.request_id,
            inbound.idempotency_key,
            received_at=arrived_at,
        )
        received_at = self._journal.monotonic()
        await self._journal.save_connection_resets_so_far()
        await self._settling.wait_for_saved_connection_resets(
            operation, received_at + self._retry_wait_seconds
        )
        while True:
            first_try, related_ids = await self._find_first_try_and_related_ids(
                operation, arrived_at
            )
            if first_try and self._retries.is_response_being_delivered(
                first_try, operation, received_at, None
            ):
                # Until it is known whether its client has the response, it may be the first of two.
                await asyncio.sleep(POLL_SECONDS)
                continue
            if first_try is not None and first_try.is_forwarded and first_try.response is None:
                first_try = await self._wait_for_first_try(first_try)
            if first_try is not None:
                return await _build_replayed_answer(first_try)
            # Another process may have begun the same request since the related operations were read.
            with suppress(DuplicateOperationError):
                return await self._execute(inbound, operation, related_ids)
            if self._journal.monotonic() > received_at + self._retry_wait_seconds:
                raise Unknown("its first try is still running", retry_after=MIN_RETRY_AFTER_SECONDS)

    async def _wait_for_first_try(self, first_try: OperationRecord) -> OperationRecord | None:
        """Waits for an identical request to end; None if it had no effect."""
        deadline = self._journal.monotonic() + self._retry_wait_seconds
        row: OperationRecord | None = first_try
        while row is not None and self._settling.is_operation_executing(row):
            if self._journal.monotonic() > deadline:
                raise Unknown("its first try is still running", retry_after=MIN_RETRY_AFTER_SECONDS)
            await asyncio.sleep(POLL_SECONDS)
            row = await self._journal.operations.find_operation(first_try.id)
        is_refused = row is not None and row.state == ANSWERED and row.response is None
        return None if row is None or row.state == UNDONE or is_refused else row

    async def _execute(
        self, inbound: InboundRequest, operation: OperationRecord, related_ids: frozenset[str]
    ) -> ForwardedAnswer:
        """Sends a write; raises DuplicateOperationError if an identical one is open.

        ``related_ids`` are open operations of which it is no retry.
        """
        inbound.caller.check_connected()
        execution = inbound.caller.execution = self._journal.start_execution(
            _build_forwarded_operation(operation), inbound.operation, inbound.flow_request
        )
        if self._joins_running and self._settling.has_other_instances:
            execution.unrelated_ids = related_ids
        try:
            call = _build_recorded_call(inbound, operation)
            # Recorded before it is sent: even if its outcome stays in doubt, further requests
            # about its batches must go to the legacy service.
            execution.routing_changes = await self._batch_routing.build_legacy_routing_marks(
                operation.tenant, inbound.batches, operation.id
            )
            await execution.save_write(call)
            await self._refuse_write_if_client_disconnected(inbound, execution, call)
            return ForwardedAnswer(
                await self._send_and_record(inbound, execution, call), execution.operation_record
            )
        except Conflict:
            raise BatchRoutedElsewhereError from None
        except OwnershipLostError:
            raise Unknown(
                "another process has taken the write over", retry_after=MIN_RETRY_AFTER_SECONDS
            ) from None
        finally:
            # Also after a failure: the write may have been executed nevertheless.
            if inbound.operation.path.startswith("/recipients"):
                self._recent_reads.invalidate(
                    operation.tenant, inbound.flow_request.ids.get("id", "")
                )
            self._journal.release(execution)

    async def _refuse_write_if_client_disconnected(
        self, inbound: InboundRequest, execution: OperationExecution, call: Call
    ) -> None:
        """Refuses a write whose client has disconnected.

        The client may have sent it to another instance again before that could see this one.
        """
        try:
            inbound.caller.check_connected()
        except Unknown:
            execution.record_response(
                call, Unreachable("not sent, because the client has disconnected")
            )
            await _save_outcome_if_possible(self._record_not_sent(inbound, execution))
            raise

    async def _send_and_record(
        self, inbound: InboundRequest, execution: OperationExecution, call: Call
    ) -> PassedResponse:
        try:
            response = await self._sender.forward(inbound)
        except Unknown as unknown:
            await _save_outcome_if_possible(
                execution.leave_in_doubt(f"passed on to the legacy service: {unknown}")
            )
            unknown.retry_after = unknown.retry_after or MIN_RETRY_AFTER_SECONDS
            raise
        except Unreachable as unreachable:
            execution.record_response(call, unreachable)
            await _save_outcome_if_possible(self._record_not_sent(inbound, execution))
            raise
        await _save_outcome_if_possible(self._record_response(inbound, execution, call, response))
        return response

    async def _record_not_sent(
        self, inbound: InboundRequest, execution: OperationExecution
    ) -> None:
        """Records that nothing was sent, and undoes the routing of its batches."""
        await execution.close(UNDONE)
        await self._batch_routing.revert_marks(
            execution.operation_record.tenant, inbound.batches, execution.operation_record.id
        )

    async def _record_response(
        self,
        inbound: InboundRequest,
        execution: OperationExecution,
        call: Call,
        response: PassedResponse,
    ) -> None:
        stored_response = await run_in_thread_if(
            len(response.body) > json_codec.LARGE_BYTES, _encode_stored_response, response
        )
        # Also a 5xx is the service's answer and ends the write (contract, section 7); those of proxies
        # were raised as Unknown before.
        if response.status >= 400:
            execution.record_response(call, Refused(response.status))
            # As for translated writes: any other error may not occur on the next try.
            is_permanent = response.status in (404, 406)
            is_stored = is_permanent and inbound.idempotency_key is not None
            await execution.close(
                ANSWERED if is_permanent else UNDONE, stored_response if is_stored else None
            )
            # The batch exists nowhere, so nothing needs its routing any more.
            if response.status == 404 and inbound.operation.name in _SINGLE_BATCH_OPERATIONS:
                await self._batch_routing.delete_legacy_routing_marks(
                    inbound.caller.key.tenant, inbound.batches
                )
            elif response.status < 500:
                await self._batch_routing.revert_marks(
                    execution.operation_record.tenant,
                    inbound.batches,
                    execution.operation_record.id,
                )
            return
        created_id = await run_in_thread_if(
            len(response.body) > json_codec.LARGE_BYTES, _parse_created_id, inbound, response.body
        )
        execution.record_response(call, {"id": created_id} if created_id else {})
        if inbound.operation.name == "create_batch":
            if created_id is None:
                log.error(
                    "forwarded_batch_not_recorded",
                    request_id=execution.operation_record.request_id,
                    reason="the response of the legacy service has no readable batch id",
                )
            else:
                # In the transaction that ends the write, so that a batch that the client knows
                # always has its routing recorded.
                await execution.compare_and_set(
                    CompareAndSet(BACKEND_KIND, created_id, LEGACY_MARK)
                )
        # Before the write is visible as done: from then on its response counts as on its way.
        self._journal.deliveries[execution.operation_record.id] = execution
        try:
            await execution.finish(stored_response)
        except BaseException:
            self._journal.deliveries.pop(execution.operation_record.id, None)
            raise
        if inbound.operation.name in ("delete_batch", "delete_batches"):
            await self._batch_routing.delete_legacy_routing_marks(
                inbound.caller.key.tenant, inbound.batches
            )

    # Retries

    async def _find_first_try_and_related_ids(
        self, operation: OperationRecord, arrived_at: float
    ) -> tuple[OperationRecord | None, frozenset[str]]:
        """Finds the first try of a write, and the ids of all related operations that are open.

        Raises Invalid, and Unknown if another write blocks it.
        """
        rows = await self._journal.operations.list_related_open(operation)
        await self._settling.load_leases_of_operations(rows)
        forwarded = _build_forwarded_operation(operation)
        related_ids = frozenset(row.id for row in rows)
        for row in [*rows, *self._journal.list_identical_running_records(operation, rows)]:
            if row.key_id == operation.key_id and None not in (
                row.idempotency,
                operation.idempotency,
            ):
                if row.idempotency == operation.idempotency and not operation.has_same_request(row):
                    raise Invalid(KEY_REUSED)
                if row.idempotency == operation.idempotency:
                    return row, related_ids
            elif self._retries.is_forwarded_retry(row, operation, arrived_at):
                return row, related_ids
            if is_blocking(row, forwarded) and not self._settling.is_operation_executing(row):
                await self._settling.reconcile_blocking_write(row)
        return None, related_ids


def _parse_created_id(inbound: InboundRequest, body: bytes) -> str | None:
    """Parses the id of a created object from a response."""
    for name in ("batch", "payment", "recipient"):
        if inbound.operation.name == f"create_{name}":
            created_id = (parse_fields(body).get(name) or {}).get("id")
            return created_id if isinstance(created_id, str) else None
    return None


def _select_fence(inbound: InboundRequest) -> Fence | None:
    # A read has no execution, and so no fence.
    execution = inbound.caller.execution
    if execution is None or inbound.operation.name != "start_batch":
        return execution
    # A start moves money, so its fence also requires that the client still waits.
    return StartFence(inbound.caller, execution)


def _build_forwarded_operation(operation: OperationRecord) -> OperationRecord:
    """Builds the record of a forwarded write; its operation name keeps it from being resumed."""
    return replace(operation, operation=f"{FORWARDED_PREFIX}{operation.operation}")


def _build_recorded_call(inbound: InboundRequest, operation: OperationRecord) -> Call:
    """Builds the recorded call of a write; the bytes sent are the client's own."""
    path = inbound.target.partition("?")[0].removeprefix("/v1").rstrip("/")
    return Call(
        inbound.operation.method,
        path,
        reconcile=evaluate_legacy_write_as_inconclusive,
        match_fields=[operation.fingerprint],
    )


def _encode_stored_response(response: PassedResponse) -> StoredText:
    body = response.body.decode("utf-8", "replace")
    headers = {
        name: response.headers[name] for name in ("Content-Type",) if name in response.headers
    }
    return stored_json.compress_if_large(
        stored_responses.encode_response_parts(response.status, body, headers)
    )


def _decode_stored_response(stored_response: StoredText) -> PassedResponse:
    status, body, headers = stored_responses.decode_response_parts(stored_response)
    response_headers: CIMultiDict[str] = CIMultiDict(headers)
    response_headers.setdefault("Content-Type", "application/json; charset=utf-8")
    return PassedResponse(status, response_headers, body.encode())


async def _save_outcome_if_possible(saving: Awaitable[None]) -> None:
    """Awaits the saving of an outcome; if that fails, the write stays in doubt.

    The client gets its response anyway.
    """
    try:
        await saving
    except StoreUnavailable as unavailable:
        log.error("database_unavailable", reason=str(unavailable))


async def _read_whole_body(chunks: AsyncGenerator[bytes]) -> bytes:
    """Reads a response body to its end; raises ResponseLost."""
    body = bytearray()
    async with aclosing(chunks):
        async for chunk in chunks:
            body += chunk
            if len(body) > MAX_ANSWER_BYTES:
                raise ResponseLost(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
    return bytes(body)


async def _decompress_body(body: bytes, headers: CIMultiDict[str]) -> bytes:
    """Decompresses a body that is compressed without having been requested, to parse its ids."""
    try:
        decoded_body = await decompress_body(
            body, headers.get("Content-Encoding", ""), MAX_ANSWER_BYTES
        )
    except (DecompressionError, DecompressedBodyTooLarge):
        return body
    if decoded_body is not body:  # otherwise its encoding is unknown here and passes to the client
        headers.popall("Content-Encoding", None)
    return decoded_body


def _build_lost_failure(inbound: InboundRequest, reason: str) -> Failure:
    return Unknown(reason) if inbound.is_write else Unreachable(reason)
