"""Decides which requests are retries (contract of the translation, section 7: Retries)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from msgspec import structs

from gateway.storage.operation_records import OperationRecord
from gateway.writes.journal import Journal
from gateway.writes.operation_execution import OperationExecution
from gateway.writes.reconciler import WriteReconciler
from gateway.writes.states import ANSWERED, DONE, IN_DOUBT, RUNNING
from gateway.writes.write_request import WriteRequest
from mappings.effects import Operation, Request
from mappings.failures import Failure, Halted, Invalid, Problem
from mappings.forwarded_writes import FORWARDED_PREFIX
from mappings.lazy_sequences import iterate_field
from mappings.signed_writes import BLOCKED_BY_SIGNED_CHANGES, CHANGE

RETRY_WINDOW = timedelta(hours=24)
"""Age of an operation from which an identical request is a new one."""
DELIVERY_REPORT_SECONDS = 1.0
"""Seconds within which the process that sends a response records its delivery for others."""


KEY_REUSED = Problem(
    "invalid_field", "This Idempotency-Key was used with another request.", "Idempotency-Key"
)


_RECIPIENT_CHANGES = ("update_recipient", "create_payout_method", "update_payout_method")
_AMOUNT_CHANGES = ("update_batch", "update_payment")
_CREATIONS = ("create_recipient", "create_batch", "create_payment")
_REMOVALS = ("delete_payment", "update_batch")
"""Of a PATCH of a batch, only the payments that it removes are among the objects it names."""
_OVERWRITING_OPERATIONS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(_RECIPIENT_CHANGES, _RECIPIENT_CHANGES),
    **dict.fromkeys(_AMOUNT_CHANGES, (*_AMOUNT_CHANGES, CHANGE.name)),
    "generate_quote": [*_AMOUNT_CHANGES, "create_payment", "delete_payment", CHANGE.name],
    "create_recipient": ["delete_recipient", "delete_recipients"],
    "create_batch": ["delete_batch", "delete_batches", CHANGE.name],
    "create_payment": (*_REMOVALS, CHANGE.name),
}
"""The operations that change what an operation has set or quoted, or delete what it has created: after
one of them, its response says nothing about an identical request, which is executed again."""


class FirstAttemptTranslatedError(Exception):
    """The request to forward is a retry of one that was translated; nothing was sent."""


@dataclass(slots=True)
class WaitState:
    """How long a request waits for other operations, and the first attempt it belongs to."""

    deadline: float
    """When waiting ends, by the monotonic clock."""
    received_at: tuple[float, float]
    """When the request was received, by the monotonic and the wall clock."""
    first_attempt: OperationRecord | None = None
    """The operation of which the request is a retry."""
    execution: OperationExecution | None = None
    """The execution of the first attempt, if it runs in this process."""
    record: OperationRecord | None = None
    """Its own record, which could not be saved because a copy of the request was."""

    @property
    def first_attempt_id(self) -> str | None:
        return None if self.first_attempt is None else self.first_attempt.id


class RetryMatcher:
    """Compares a request with the operations that are related to it."""

    def __init__(
        self, journal: Journal, reconciler: WriteReconciler, *, joins_running: bool
    ) -> None:
        self._journal = journal
        self._reconciler = reconciler
        self._joins_running = joins_running

    def joins_identical(self, wait_state: WaitState) -> bool:
        """Whether identical requests are one, also those that come while another runs.

        With ``identical_in_flight = "separate"``, only retries of one first attempt, of which one
        takes its place.
        """
        return self._joins_running or wait_state.first_attempt is not None

    def is_resumed(self, row: OperationRecord) -> bool:
        """Whether this process continues an operation that was interrupted."""
        execution = self._journal.executions.get(row.id)
        return execution is not None and execution.is_resumed

    async def find_first_attempt(
        self,
        record: OperationRecord,
        write_request: WriteRequest,
        wait_state: WaitState,
        overwritten_ids: set[str],
    ) -> tuple[list[OperationRecord], OperationRecord | None]:
        """Loads the related operations, and finds the one of which a request is a retry.

        ``overwritten_ids`` collects the operations whose outcome others have overwritten before the
        request came.
        """
        operation = write_request.operation
        kept_ids: set[str] = set()
        while True:
            rows = await self._load_related_records(record)
            if not rows:
                return rows, None
            candidates = (row for row in rows if row.id not in overwritten_ids)
            first_attempt = next(
                (row for row in candidates if self.is_retry(row, record, operation, wait_state)),
                None,
            )
            if (
                first_attempt is None
                or first_attempt.id == wait_state.first_attempt_id
                or first_attempt.id in kept_ids
                or self._has_ended_after(first_attempt, record, wait_state)
            ):
                return rows, first_attempt
            is_overwritten = await self._is_overwritten(
                first_attempt, record, write_request.request
            )
            (overwritten_ids if is_overwritten else kept_ids).add(first_attempt.id)
            # The rows are read again: meanwhile a copy of the request may have been started, or the
            # first attempt's client may have received the response.

    async def _load_related_records(self, record: OperationRecord) -> list[OperationRecord]:
        """Loads the related operations: first the one with the same Idempotency-Key, then those
        that no process is executing.
        """
        checked_ids: set[str] = set()
        if self._journal.deliveries.reset_ids:
            await self._journal.deliveries.save_deliveries_and_resets()
        while True:
            read_at = self._journal.monotonic()
            rows, unhandled_ids = await self._journal.operations.list_related_open(record), set()
            if rows:
                await self._reconciler.load_leases_of_operations(rows)
                own_rows = filter(self._reconciler.is_own, rows)
                unhandled_ids = {
                    row.id for row in own_rows if not self._journal.is_handled_by_this_process(row)
                }
            if unhandled_ids <= checked_ids and not self._journal.has_identical_ended_since(
                record, read_at
            ):
                break
            # A row may have been closed, or inserted and closed, while it was read.
            checked_ids = unhandled_ids
        rows.sort(key=self._reconciler.is_operation_executing)
        rows += self._journal.list_identical_running_records(record, rows)
        if record.idempotency is not None:
            rows.sort(key=lambda row: not _has_same_idempotency_key(row, record))
        return rows

    async def load_rows_of_created_objects(
        self, record: OperationRecord, operation_ids: Iterable[str]
    ) -> tuple[OperationRecord, list[OperationRecord]]:
        """Loads the operations on what others have created, and ``record`` as if it named that."""
        operations = self._journal.operations
        found = [await operations.find_operation(id_) for id_ in operation_ids]
        object_ids = tuple(id_ for row in found if row for id_ in row.object_ids)
        record = structs.replace(record, object_ids=object_ids)
        return record, await self._load_related_records(record)

    def _has_ended_after(
        self, row: OperationRecord, record: OperationRecord, wait_state: WaitState
    ) -> bool:
        """Whether an operation runs, or ended after the request came, which is a copy of it then."""
        if row.state not in (DONE, ANSWERED):
            return True
        # With ``replay_seconds``, the row has no time until its response is delivered.
        if row.ended_at is not None:
            return row.ended_at >= record.started_at
        ended_at = self._journal.ended_at.get(row.id)
        return ended_at is not None and ended_at >= wait_state.received_at[0]

    async def _is_overwritten(
        self, row: OperationRecord, record: OperationRecord, request: Request
    ) -> bool:
        """Whether another request has overwritten the outcome of ``row``, which had ended before."""
        if _has_same_idempotency_key(row, record):
            return False
        name = row.operation.removeprefix(FORWARDED_PREFIX)
        names, body = _OVERWRITING_OPERATIONS.get(name), request.body
        changes_payments = name == "update_batch" and isinstance(body, Mapping)
        is_creation = name in _CREATIONS
        if changes_payments and not all(iterate_field(body.get("payments") or (), "id")):
            # The payments of a draft that it added, which must not be added again unless deleted.
            names, is_creation = _REMOVALS, True
        elif changes_payments and body.get("remove_payments"):
            return False  # nor must those that it removed be removed again
        if names is None:
            return False
        # The object that it creates is in its writes; what its path names is not enough. Of a payment
        # the batch, because a PATCH of that changes payments, too.
        object_id = "" if is_creation else next(iter(request.ids.values()))
        names = [*names, *(FORWARDED_PREFIX + each for each in names)]
        return await self._journal.operations.is_overwritten(
            row, object_id, names, record.object_ids
        )

    def is_retry(
        self,
        row: OperationRecord,
        record: OperationRecord,
        operation: Operation,
        wait_state: WaitState,
    ) -> bool:
        """Whether the request is a retry of ``row``: by its Idempotency-Key, or identical and open.

        An open connection of the first attempt proves nothing: a load balancer may hold it after
        the client has left (contract, section 7).
        """
        if _has_same_idempotency_key(row, record):
            return True
        # Two different keys say that the client means two requests.
        is_possible = record.has_same_request(row) and None in (row.idempotency, record.idempotency)
        if operation.method == "GET" or not is_possible:
            return False
        if self._has_ended_since(row, record, wait_state):
            return True
        if not row.is_open or row.started_at < self._journal.compute_time_before(RETRY_WINDOW):
            return False
        if not self._journal.replay_seconds and self._journal.deliveries.is_delivered(row):
            return False
        if self._joins_running or row.id == wait_state.first_attempt_id:
            return True
        # A takeover (fence > 0) means that the first attempt's process has ended, so its client has
        # no response.
        is_running = (
            row.state == RUNNING and not row.fence and self._reconciler.is_operation_executing(row)
        )
        return not is_running or self._journal.is_client_disconnected(row) or self.is_resumed(row)

    def is_response_being_delivered(
        self, row: OperationRecord, record: OperationRecord, wait_state: WaitState
    ) -> bool:
        """Whether another process is about to record that the response was delivered, or was not."""
        if self._journal.replay_seconds:
            return False  # the request is a retry in either case
        if self._journal.monotonic() - wait_state.received_at[0] > DELIVERY_REPORT_SECONDS:
            return False  # the first client does not read its response; this one waits
        is_joined = _has_same_idempotency_key(row, record) or row.id == wait_state.first_attempt_id
        if not is_joined and self._journal.deliveries.is_acknowledgement_pending(row):
            return True
        # A process that is gone reports nothing any more.
        is_reported = row.is_client_disconnected or not self._reconciler.is_owned_by_other(row)
        return row.state == DONE and not is_joined and not is_reported

    def _has_ended_since(
        self, row: OperationRecord, record: OperationRecord, wait_state: WaitState
    ) -> bool:
        """Whether ``row``, the same request, ended shortly before ``record`` came, or after.

        Before: at most ``replay_seconds``. After: its head may have come long before its body, or
        this process may have been paused or busy. The two are one, even if the response was
        delivered since: its client cannot have had it when it sent the second.
        """
        if row.state not in (DONE, ANSWERED):
            return False
        since, arrived_at = record.repeats_since, record.started_at
        if since and row.ended_at and since < row.ended_at <= arrived_at:
            return True
        # Requests that came meanwhile are separate then; with ``replay_seconds`` only until it ended.
        if not (self.joins_identical(wait_state) or self._journal.replay_seconds):
            return False
        # ``row.ended_at`` is its delivery with ``replay_seconds``, which may be after the arrival.
        ended_at = self._journal.ended_at.get(row.id)
        earliest_end = wait_state.received_at[0] - self._journal.replay_seconds
        if ended_at is not None and ended_at >= earliest_end:
            return True
        # By the monotonic clock only, if no other process may have replayed its response since: a
        # clock that is set back, perhaps before a restart, must not make a retry of a request.
        if not self._reconciler.has_other_instances:
            return False
        return row.ended_at is not None and row.ended_at >= arrived_at


def _has_same_idempotency_key(row: OperationRecord, record: OperationRecord) -> bool:
    """Whether both have the same Idempotency-Key, from the same API key."""
    key = (record.key_id, record.idempotency)
    return record.idempotency is not None and (row.key_id, row.idempotency) == key


def check_first_attempt(
    first_attempt: OperationRecord, record: OperationRecord, write_request: WriteRequest
) -> None:
    """Raises Invalid or FirstAttemptTranslatedError if its response cannot answer the request."""
    if not record.has_same_request(first_attempt):
        # The other request's response would confirm what this client did not ask for.
        raise Invalid(KEY_REUSED)
    if write_request.forwarded_request is not None and not first_attempt.is_forwarded:
        raise FirstAttemptTranslatedError


def is_blocking(
    row: OperationRecord, record: OperationRecord, *, waits_for_signed: bool = False
) -> bool:
    """Whether a request has to wait for ``row``: it is unfinished and names one of its objects.

    With ``waits_for_signed``, also one that otherwise waits for no signed change.
    """
    waits_for_signed = waits_for_signed or record.operation in BLOCKED_BY_SIGNED_CHANGES
    return (
        row.state in (RUNNING, IN_DOUBT)
        and record.operation != CHANGE.name
        and (row.operation != CHANGE.name or waits_for_signed)
        and bool(set(row.object_ids) & set(record.object_ids))
        and not _can_run_concurrently(row, record)
    )


def _can_run_concurrently(row: OperationRecord, record: OperationRecord) -> bool:
    """Whether both add a payment at the same service, and different ones.

    See the contract, section 7: Blocking.
    """
    are_adds = (
        row.operation == record.operation
        and row.operation.removeprefix(FORWARDED_PREFIX) == "create_payment"
    )
    return are_adds and row.fingerprint not in record.fingerprints


def is_temporary_refusal(failure: Failure) -> bool:
    """Whether a refusal may differ on a later attempt, so that it is not stored for the key.

    The status of an object changes, a quote is renewed, and a failure or limit of the gateway
    passes.
    """
    problems = getattr(failure, "problems", ())
    return isinstance(failure, Halted) or any(
        problem.code in ("invalid_status", "expired_quote") for problem in problems
    )
