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
from gateway.http.request_paths import parse_path_parts
from gateway.http.responses import LegacyResponse
from gateway.storage import ObjectStateStore, StoreUnavailable, Tenant
from gateway.storage.operations import OperationRepository
from gateway.upstream.send_attempt import Fence
from gateway.writes.caller import Caller
from gateway.writes.executor import MIN_POLL_SECONDS
from gateway.writes.idempotency import IdempotencyGuard, WriteRequest
from mappings import batch_locks, errors
from mappings.batch_bodies import SIGNED_ADDS
from mappings.effects import JSON, Answer, Call, CompareAndSet, Request
from mappings.failures import Conflict, Failure, Halted, Invalid, Refused, Unknown, Unreachable
from mappings.signed_start import START

_START_ACTION = "start-processing"
_QUOTE_ACTION = "generate-quote"
"""Does not change the batch, so an unanswered quote leaves nothing in doubt."""

_BUSY_PHASES = ("editing", "deleting")
"""Phases that may end with the batch superseded; a signed change waits for their end."""

MAX_PAUSE_SECONDS = 0.2
"""Longest pause between two checks of an edit; bounds the load of many waiting requests."""

UNREGISTER_TIMEOUT_SECONDS = 1.0
"""Seconds for which a response waits until its change is unregistered."""


class WrongBatchStatus(Exception):
    """The recorded state of the batch does not allow the write; nothing was sent."""


class HasStatus(Protocol):
    """A response whose status is known."""

    @property
    def status(self) -> int: ...


Response = TypeVar("Response", bound=HasStatus)

Send = Callable[[Fence | None], Awaitable[Response]]
"""Sends the write as its client signed it, unless the fence refuses."""


@dataclass(frozen=True, slots=True)
class SignedWrite:
    """A signed write to send.

    ``tenant`` and ``credentials`` are None for an unknown access key. ``stamp`` is the client's
    timestamp, in seconds since 1970.
    """

    tenant: Tenant | None
    credentials: Credentials | None
    environment: str
    target: str
    stamp: int
    request_id: str
    payment: Mapping[str, JSON] | None = None
    """The payment that the write adds to a batch, if it does."""


class SignedWriteGuard:
    def __init__(
        self,
        object_state: ObjectStateStore,
        operations: OperationRepository,
        idempotency_guard: IdempotencyGuard,
        now: Callable[[], datetime],
        edit_wait_seconds: float,
    ) -> None:
        """A change waits at most ``edit_wait_seconds`` for an edit of its batch."""
        self._object_state = object_state
        self._operations = operations
        self._idempotency_guard = idempotency_guard
        self._now = now
        self._edit_wait_seconds = edit_wait_seconds
        self._unregister_tasks: set[asyncio.Future[None]] = set()

    async def send_write(self, write: SignedWrite, send: Send[Response]) -> Response:
        """Sends a write and returns the service's response.

        Raises WrongBatchStatus, StoreUnavailable, and the Failure because of which the write was
        not sent or not answered.
        """
        await self._check_not_frozen(write.tenant or Tenant("", write.environment))
        batch, action = _split_batch_and_action(write.target)
        if batch is None:
            return await send(None)
        if write.tenant is None or write.credentials is None:
            # The tenant is unknown, so any tenant's record of the batch counts.
            if await self._object_state.is_batch_superseded_for_any_tenant(
                write.environment, batch
            ):
                raise WrongBatchStatus
            if action == _START_ACTION and await self._operations.is_restore_unchecked():
                raise Halted(errors.RESTORE_CHECK_PENDING)
            return await send(None)
        if action != _START_ACTION:
            return await self._send_change(write, write.tenant, batch, action, send)
        alias = await self._object_state.load(write.tenant, "alias", batch)
        first_batch = str(alias.get("id") or batch)
        flow_request = Request(self._now(), write.request_id, {"id": batch, "batch": first_batch})
        key = _build_api_key_for_starts(write.tenant, write.credentials)
        return await SignedStart(
            WriteRequest(START, flow_request, Caller(key, write.request_id)), send
        ).run(self._idempotency_guard, write.stamp)

    async def _check_not_frozen(self, tenant: Tenant) -> None:
        if await self._operations.is_frozen(tenant):
            raise Halted(errors.WRITES_FROZEN, retry_after=errors.FREEZE_RETRY_AFTER_SECONDS)

    async def _send_change(
        self,
        write: SignedWrite,
        tenant: Tenant,
        batch: str,
        action: str,
        send: Send[Response],
    ) -> Response:
        """Sends a change or quote of a batch, registered so that a legacy edit waits for it."""
        change_id = os.urandom(8).hex()
        first_batch = await self._register_change(tenant, batch, change_id)
        is_in_doubt = True  # also if this task is cancelled at shutdown
        payment_records: list[CompareAndSet] = []
        try:
            response = await send(None)
            # After a 5xx the service may still have executed it.
            is_in_doubt = response.status >= 500
            if write.payment is not None and 200 <= response.status < 300:
                # Recorded, so that the check before a start does not report the payment as a
                # stranger's.
                payment_records = [
                    CompareAndSet(SIGNED_ADDS, first_batch, {change_id: write.payment})
                ]
        except Failure as failure:
            is_in_doubt = isinstance(failure, Unknown)
            raise
        finally:
            # An unanswered change may still take effect while its timestamp is valid. A quote
            # changes nothing.
            lost_at = self._now() if is_in_doubt and action != _QUOTE_ACTION else None
            remaining_changes = batch_locks.build_signed_change_removal_facts(change_id, lost_at)
            await self._unregister_change(
                tenant,
                CompareAndSet(
                    batch_locks.SIGNED_CHANGES_KIND,
                    first_batch,
                    remaining_changes,
                    linked=payment_records,
                ),
            )
        return response

    async def _register_change(self, tenant: Tenant, batch: str, change_id: str) -> str:
        """Waits for a running edit, registers the change, and returns the batch's recorded id.

        The transaction that registers the change checks that the batch has not been superseded;
        an edit that starts later waits for the change.
        """
        loop, pause = asyncio.get_running_loop(), MIN_POLL_SECONDS
        deadline = loop.time() + self._edit_wait_seconds
        while loop.time() < deadline:
            alias = await self._object_state.load(tenant, "alias", batch)
            if alias.get("abandoned"):
                raise WrongBatchStatus
            first_batch = str(alias.get("id") or batch)
            facts = await self._object_state.load(tenant, "batch", first_batch)
            signed_changes = await self._object_state.load(
                tenant, batch_locks.SIGNED_CHANGES_KIND, first_batch
            )
            # No write claims the payment that this change may add, and reconciliation could
            # attribute it to an add in doubt.
            if facts.get("phase") in _BUSY_PHASES or facts.get(batch_locks.ADDS):
                await asyncio.sleep(pause)
                # Backs off, because many requests may wait for one edit.
                pause = min(pause * 2, MAX_PAUSE_SECONDS)
                await self._check_not_frozen(tenant)  # an operator may freeze it while this waits
                continue
            updated_changes = batch_locks.build_signed_change_facts(
                signed_changes, change_id, self._now()
            )
            batch_check = CompareAndSet(
                "batch",
                first_batch,
                {},
                expected=batch_locks.build_unchanged_batch_condition(facts),
            )
            alias_check = CompareAndSet(
                "alias", batch, {}, expected={"abandoned": None, "id": alias.get("id")}
            )
            with suppress(Conflict):
                record = CompareAndSet(
                    batch_locks.SIGNED_CHANGES_KIND,
                    first_batch,
                    updated_changes,
                    linked=(batch_check, alias_check),
                )
                await self._object_state.compare_and_set_all(tenant, [record])
                return first_batch
        raise Unreachable("other changes of the batch are in progress", retry_after=1)

    async def _unregister_change(self, tenant: Tenant, changes: CompareAndSet) -> None:
        """Unregisters a change before its response is sent on.

        Waits for a bounded time: a client that waits too long for its response sends the change
        again.
        """
        task = asyncio.ensure_future(self._save_signed_changes(tenant, changes))
        self._unregister_tasks.add(task)
        task.add_done_callback(self._unregister_tasks.discard)
        await asyncio.wait([task], timeout=UNREGISTER_TIMEOUT_SECONDS)

    async def _save_signed_changes(self, tenant: Tenant, changes: CompareAndSet) -> None:
        # A change that remains registered expires.
        with suppress(StoreUnavailable):
            await self._object_state.compare_and_set_all(tenant, [changes])


_ADD_ACTION = "payments"


def is_payment_addition(method: str, target: str) -> bool:
    """Whether a write adds a payment to a batch."""
    batch, action = _split_batch_and_action(target)
    return method == "POST" and batch is not None and action == _ADD_ACTION


def extract_recipient_and_amounts(body: JSON) -> dict[str, JSON] | None:
    """Returns the recipient and amounts of an added payment; None if it names no recipient."""
    recipient = body.get("recipient") if isinstance(body, dict) else None
    id_ = recipient.get("id") if isinstance(recipient, dict) else None
    if not isinstance(id_, str):
        return None
    # Amounts become text, and are compared with the service's by value.
    amounts = {name: str(body[name]) for name in _AMOUNT_FIELDS if body.get(name) is not None}
    return {"recipient": {"id": id_}, **amounts}


_AMOUNT_FIELDS = ("amount", "currency", "sourceAmount", "targetAmount", "targetCurrency")


def _split_batch_and_action(target: str) -> tuple[str | None, str]:
    """Returns the batch that a write names, or None, and the action on it."""
    path_parts = parse_path_parts(target)
    if len(path_parts) < 2 or path_parts[0].lower() not in ("batches", "batch"):
        return None, ""
    return path_parts[1], "/".join(path_parts[2:]).lower()


def _build_api_key_for_starts(tenant: Tenant, credentials: Credentials) -> ApiKey:
    """Builds the key under which signed starts of a tenant are recorded."""
    return ApiKey(f"signed {tenant.merchant}", "signed", "", *tenant, credentials, None, ())


class SignedStart(Generic[Response]):
    """A client-signed start, executed like a legacy one: recorded, sent once, reconciled."""

    def __init__(self, write_request: WriteRequest, send: Send[Response]) -> None:
        self._write_request = write_request
        self._send = send
        self._response: Response | None = None
        self._failure: Failure | None = None

    async def run(self, idempotency_guard: IdempotencyGuard, stamp: int) -> Response:
        caller = self._write_request.caller
        caller.send_write, caller.stamped_at = self._send_call, datetime.fromtimestamp(stamp, UTC)
        try:
            _, operation = await idempotency_guard.answer(
                self._write_request, self._build_response, self._record_failure
            )
        except Failure as failure:
            # A response of the service takes precedence; reconciliation resolves the rest.
            if self._response is None:
                raise self._build_error(failure) from None
        else:
            if operation is not None:
                idempotency_guard.record_delivery(operation)
        if self._response is None:
            # No response and no failure: a retry of a start that has already happened.
            raise self._build_error(self._failure)
        return self._response

    async def _send_call(self, _call: Call, fence: Fence | None) -> JSON:
        """Sends the call with the client's signature, in place of a call signed by the gateway."""
        response = self._response = await self._send(fence)
        # The recorded answer of a start has no content; the client gets the service's own
        # response.
        if 200 <= response.status < 300:
            return {}
        if not 400 <= response.status < 500:
            raise Unknown(f"status {response.status}")
        raise Refused(response.status)

    async def _build_response(self, answer: Answer) -> LegacyResponse:
        return LegacyResponse(200, answer.body)

    async def _record_failure(self, failure: Failure) -> LegacyResponse:
        self._failure = failure
        return LegacyResponse(500, {})

    def _build_error(self, failure: Failure | None) -> Exception:
        return WrongBatchStatus() if failure is None or isinstance(failure, Invalid) else failure
