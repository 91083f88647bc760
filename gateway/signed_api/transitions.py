"""Coordinates signed writes on batches with legacy writes.

- A superseded batch, which its legacy clients have replaced, is neither changed nor started.
- Starts, changes and creations of a batch are operations like the legacy ones
  (``mappings.signed_writes``). A start is reconciled if it has no answer. The others are never
  compared with another request; a created batch is never taken for the result of another write.
- A freeze stops all of them.
"""

import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from msgspec import structs

from gateway.auth.keys import ApiKey
from gateway.auth.signing import Credentials
from gateway.http.request_paths import parse_path_parts
from gateway.http.request_reader import (
    DecompressedBodyTooLarge,
    DecompressionError,
    decompress_body,
)
from gateway.http.responses import LegacyResponse
from gateway.payloads import json_codec
from gateway.signed_api.replies import Refusal
from gateway.signed_api.senders import Signer
from gateway.storage import ObjectStateStore, StoreUnavailable, Tenant
from gateway.storage.operations import OperationRepository
from gateway.upstream.client import MAX_ANSWER_BYTES
from gateway.upstream.http_connection import Fence, ResponseLost
from gateway.upstream.passthrough import PassthroughResponse
from gateway.writes.call_sender import is_proven_refusal, is_success
from gateway.writes.idempotency import IdempotencyGuard
from gateway.writes.write_request import Caller, WriteRequest
from mappings import errors
from mappings.batch_locks import SIGNED_CHANGES_KIND
from mappings.batch_reads import WRONG_STATUS
from mappings.effects import JSON, Answer, Call, CompareAndSet, Request
from mappings.failures import (
    ClientDisconnected,
    Conflict,
    Failure,
    Halted,
    Invalid,
    Problem,
    Refused,
    Unknown,
)
from mappings.payloads import extract_batch, extract_payment
from mappings.signed_writes import CHANGE, START


class WrongBatchStatus(Refusal):
    """The recorded state of the batch does not allow the write; nothing was sent."""

    def __init__(self) -> None:
        super().__init__(WRONG_STATUS, "the recorded state of the batch does not allow this write")


Send = Callable[[Fence | None], Awaitable[PassthroughResponse]]
"""Sends the write as its client signed it, unless the fence refuses."""


class WriteTarget:
    """What a signed write names, by its method and path."""

    def __init__(self, method: str, target: str) -> None:
        self.method = method
        self.target = target
        """The raw target, which is sent."""
        self.parts = parts = parse_path_parts(target)
        is_of_batch = len(parts) > 1 and parts[0].lower() in ("batches", "batch")
        self.batch = parts[1] if is_of_batch else None
        self.action = "/".join(parts[2:]).lower() if is_of_batch else ""
        self.is_payment_addition = method == "POST" and self.action == _ADD_ACTION
        is_of_all_batches = [part.lower() for part in parts] == ["batches"]
        self.is_batch_creation = method == "POST" and is_of_all_batches
        self.is_bulk_deletion = method == "DELETE" and is_of_all_batches

    @property
    def is_body_needed(self) -> bool:
        """Whether the check of the write depends on its body."""
        return self.is_payment_addition or self.is_bulk_deletion or self.is_batch_creation


_START_ACTION, _ADD_ACTION = "start-processing", "payments"
_PAYMENT_PARTS = 4
"""Parts of the path of a payment in its batch."""


@dataclass(frozen=True, slots=True)
class SignedWrite:
    """A signed write to send.

    ``signer`` is None for an unknown access key. ``stamp`` is the client's timestamp, in seconds
    since 1970.
    """

    signer: Signer | None
    environment: str
    target: WriteTarget
    stamp: int
    request_id: str
    body: Mapping[str, JSON] = field(default_factory=dict)
    """The fields of the body, if ``target.is_body_needed``."""
    received_at: float | None = None
    """When the request was received, by the event loop's clock; None means now."""
    is_disconnected: Callable[[], bool] = bool
    """Whether the client's end of the connection is closed at this moment."""


@dataclass(slots=True)
class SignedWriteGuard:
    _object_state: ObjectStateStore
    _operations: OperationRepository
    _idempotency_guard: IdempotencyGuard
    _now: Callable[[], datetime]

    async def send_write(self, write: SignedWrite, send: Send) -> PassthroughResponse:
        """Sends a write and returns the service's response.

        Raises WrongBatchStatus, StoreUnavailable, and the Failure because of which the write was
        not sent or not answered.
        """
        batch, is_start = write.target.batch, write.target.action == _START_ACTION
        batches = _extract_deleted_batches(write) if batch is None else [batch]
        is_recorded = bool(batches) or write.target.is_batch_creation
        if not is_recorded or write.signer is None:
            check = partial(self._check_unrecorded_write, write, batches, is_start=is_start)
            response = await send(fence := UnrecordedWriteFence(check))
            undo = fence.undo if 400 <= response.status < 500 else None
            with suppress(Conflict, Unknown, StoreUnavailable):  # the response is passed on
                if (
                    undo
                    and write.signer
                    and (await _find_proof(write.target.method, response))[0] is False
                ):
                    await self._change_object(write.signer.tenant, undo)
            return response
        tenant = write.signer.tenant
        key = _build_api_key(tenant, write.signer.credentials)
        caller = Caller(
            key,
            write.request_id,
            received_at=write.received_at,
            is_connection_closed=write.is_disconnected,
        )
        pairs = [[id_, await self._object_state.find_first_id(tenant, id_)] for id_ in batches]
        if is_start:
            (id_, first_id), *_ = pairs
            flow_request = Request(self._now(), _generate_name(), {"id": id_, "batch": first_id})
            write_request = WriteRequest(START, flow_request, caller)
        else:
            write_request = WriteRequest(CHANGE, self._build_change(write, pairs), caller)
        return await SignedBatchWrite(write_request, send).run(self._idempotency_guard, write.stamp)

    def _build_change(self, write: SignedWrite, pairs: Sequence[Sequence[str]]) -> Request:
        # Its own name makes it different from any other request.
        name, target = _generate_name(), write.target
        payment = _extract_recipient_and_amounts(write.body) if target.is_payment_addition else None
        body: dict[str, Any] = {"method": target.method, "payment": payment}
        if target.batch is None:
            ids = {"change": name}
            # ``ids`` are those of the operation, which edits of any of the batches wait for.
            body |= {
                "path": "/batches",
                "batches": pairs,
                "payments": _extract_payments_in_other_currencies(write.body),
                "ids": [id_ for pair in pairs for id_ in pair],
            }
        else:
            ((id_, first_id),) = pairs
            ids = {"id": id_, "batch": first_id, "change": name}
            if target.method == "DELETE" and len(target.parts) == _PAYMENT_PARTS:
                ids["payment"] = target.parts[-1]  # by which a retry of its add finds it removed
            body["path"] = f"/batches/{id_}/{target.action}".rstrip("/")
        return Request(self._now(), name, ids, body=body)

    async def _check_unrecorded_write(
        self, write: SignedWrite, batches: Sequence[str], *, is_start: bool
    ) -> CompareAndSet | None:
        """Checks a write that no operation records, because its access key or batch is unknown.

        Any tenant's record of its batches counts. Returns what to undo if the write is refused.
        """
        for batch in batches:
            if await self._object_state.is_batch_superseded_for_any_tenant(
                write.environment, batch
            ):
                raise WrongBatchStatus
        if is_start and await self._operations.is_restore_unchecked():
            raise Halted(
                errors.RESTORE_CHECK_PENDING, retry_after=errors.OPERATOR_RETRY_AFTER_SECONDS
            )
        tenant = write.signer.tenant if write.signer else None
        # Last, because a freeze may be acknowledged at any time.
        if await self._operations.is_frozen(tenant or Tenant("", write.environment)):
            raise Halted(errors.WRITES_FROZEN, retry_after=errors.OPERATOR_RETRY_AFTER_SECONDS)
        if write.is_disconnected():
            raise ClientDisconnected
        kind, id_ = [*write.target.parts, "", ""][:2]
        if tenant and kind.lower() == "recipients" and _RECIPIENT_ID.fullmatch(id_):
            # The service may show the change late, as a legacy one.
            facts, absent = {"last": _generate_name()}, {"last": None}
            record = CompareAndSet(SIGNED_CHANGES_KIND, id_, facts)
            try:
                await self._change_object(tenant, structs.replace(record, expected=absent))
            except Conflict:  # the record of another change, which is not undone
                await self._change_object(tenant, record)
            else:
                return structs.replace(record, facts=absent, expected=facts)
        return None

    async def _change_object(self, tenant: Tenant, record: CompareAndSet) -> None:
        await self._object_state.compare_and_set_all(tenant, [record])


def _generate_name() -> str:
    """Generates a name for a write: its request id may be the client's own, and not unique."""
    return os.urandom(8).hex()


@dataclass(slots=True)
class UnrecordedWriteFence:
    """The fence of a write that no operation records: checks it once, when it has a connection."""

    check: Callable[[], Awaitable[CompareAndSet | None]]
    is_fence_recent: bool = False
    undo: CompareAndSet | None = None

    async def verify_fence(self, stamped_at: float | None = None) -> None:  # noqa: ARG002 - as in Fence
        self.undo = await self.check()
        self.is_fence_recent = True


def _extract_deleted_batches(write: SignedWrite) -> list[str]:
    """Returns the batches of a bulk deletion; raises Refusal if the service may see others."""
    if not write.target.is_bulk_deletion:
        return []
    ids = write.body.get("ids")
    if (
        not (isinstance(ids, list) and ids)
        or not all(isinstance(id_, str) and _BATCH_ID.fullmatch(id_) for id_ in ids)
        or "?" in write.target.target
    ):
        raise Refusal(INVALID_IDS, "the batches to delete are not given as documented")
    return list(dict.fromkeys(ids))


INVALID_IDS = Problem(
    "invalid_field", "The body has the ids of batches, at most 64 KiB, and no query.", "ids"
)

_BATCH_ID, _RECIPIENT_ID = re.compile(r"B-[A-Za-z0-9]+"), re.compile(r"R-[A-Za-z0-9]+")


def _extract_recipient_and_amounts(body: Mapping[str, JSON]) -> dict[str, JSON]:
    """Returns the recipient and amounts of an added payment; nothing if it names no recipient."""
    recipient = body.get("recipient")
    id_ = recipient.get("id") if isinstance(recipient, dict) else None
    if not isinstance(id_, str):
        return {}
    # Amounts become text, and are compared with the service's by value.
    amounts = {name: str(body[name]) for name in _AMOUNT_FIELDS if body.get(name) is not None}
    return {"recipient": {"id": id_}, **amounts}


_AMOUNT_FIELDS = ("amount", "currency", "sourceAmount", "targetAmount", "targetCurrency")


def _extract_payments_in_other_currencies(body: Mapping[str, JSON]) -> list[dict[str, JSON]]:
    """Returns the payments of a new batch whose amounts are not in the batch's currency."""
    payments, own_currencies = body.get("payments"), (None, body.get("currency"))
    payments = payments if isinstance(payments, list) else ()
    objects = (each for each in payments if isinstance(each, dict))
    rows = map(_extract_recipient_and_amounts, objects)
    return [
        row for row in rows if row.get("targetAmount") or row.get("currency") not in own_currencies
    ]


def _build_api_key(tenant: Tenant, credentials: Credentials) -> ApiKey:
    """Builds the key under which signed writes of a tenant are recorded."""
    return ApiKey(f"signed {tenant.merchant}", "signed", "", *tenant, credentials, None, ())


@dataclass(slots=True)
class SignedBatchWrite:
    """A client-signed write of a batch, executed like a legacy one: recorded, and sent once."""

    _write_request: WriteRequest
    _send: Send
    _response: PassthroughResponse | None = None
    _is_in_doubt: bool = False
    """Whether it was sent and has no response."""

    async def run(self, idempotency_guard: IdempotencyGuard, stamp: int) -> PassthroughResponse:
        caller = self._write_request.caller
        caller.send_write, caller.stamped_at = self._send_call, datetime.fromtimestamp(stamp, UTC)
        try:
            _, operation = await idempotency_guard.answer(
                self._write_request, _build_response, _build_no_response
            )
        except Failure as failure:
            # A response of the service takes precedence; reconciliation resolves the rest.
            if self._response is None:
                raise (WrongBatchStatus() if isinstance(failure, Invalid) else failure) from None
        else:
            # A copy of a signed request is another one, so none waits for the delivery.
            if operation is not None:
                idempotency_guard.deliveries.record_delivery(operation)
                idempotency_guard.deliveries.end(operation)
        if self._response is None and self._is_in_doubt:
            raise Unknown("another process has determined the outcome")
        if self._response is None:  # a retry of a start that has already happened
            raise WrongBatchStatus
        return self._response

    async def _send_call(self, call: Call, fence: Fence | None) -> JSON:
        """Sends the call with the client's signature, in place of a call signed by the gateway."""
        try:
            response = self._response = await self._send(fence)
        except Unknown:
            self._is_in_doubt = True
            raise
        is_executed, fields = await _find_proof(call.method, response)
        if is_executed is None:
            raise Unknown(f"status {response.status}")
        if not is_executed:
            raise Refused(response.status)
        # The recorded answer only names what was created; the client gets the service's own response.
        if (call.method, call.path) == ("POST", "/batches"):
            return _read_created_batch(fields)
        payment_id = extract_payment(fields).get("id")
        is_addition = call.method == "POST" and call.path.endswith(f"/{_ADD_ACTION}")
        return {"id": payment_id} if is_addition and isinstance(payment_id, str) else {}


async def _build_response(answer: Answer) -> LegacyResponse:
    return LegacyResponse(200, [json_codec.dumps_trusted(answer.body)])


async def _build_no_response(_failure: Failure) -> None:
    """Lets the failure be raised, because refusals of signed requests are not legacy responses."""


async def _find_proof(
    method: str, response: PassthroughResponse
) -> tuple[bool | None, Mapping[str, JSON]]:
    """Finds whether a response proves that a write was executed, or that it was refused.

    Returns None if it proves neither, and the fields of its body if these were read; raises Unknown
    if it is truncated. A body that is long, or that the gateway cannot decompress, is judged by its
    type: pages of proxies are HTML.
    """
    status = response.status
    try:
        body = await response.peek_body()
    except ResponseLost as lost:
        raise Unknown(str(lost)) from None
    if status == 204 and method == "DELETE":
        return True, {}
    encoding = response.headers.get("Content-Encoding", "")
    try:
        decoded_body = body and await decompress_body(body, encoding, MAX_ANSWER_BYTES)
        if body is None or (encoding and decoded_body is body):
            is_json = "json" in response.headers.get("Content-Type", "").lower()
            return (status < 300 if is_json and 200 <= status < 500 else None), {}
        fields = json_codec.loads(decoded_body or b"")
    except (DecompressionError, DecompressedBodyTooLarge, json_codec.JsonError):
        return None, {}
    if not isinstance(fields, dict):
        return None, {}
    is_refused = is_proven_refusal(status, fields)
    return is_success(status, fields) or (False if is_refused else None), fields


def _read_created_batch(fields: Mapping[str, JSON]) -> dict[str, JSON]:
    """Returns the ``id`` and ``createdAt`` of a created batch, each None if it is not given."""
    batch = extract_batch(fields)
    id_, created_at = batch.get("id"), batch.get("createdAt")
    return {
        "id": id_ if isinstance(id_, str) and _BATCH_ID.fullmatch(id_) else None,
        "createdAt": created_at if isinstance(created_at, str) else None,
    }
