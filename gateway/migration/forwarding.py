"""Forwards legacy requests to the legacy service; writes are recorded first and sent once.

The outcome of a write without an answer cannot be read from the legacy service. It stays in doubt,
is never sent again, and an operator resolves it. A client that did not receive its answer gets it
when it sends the request again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter

import structlog
from multidict import CIMultiDict

from gateway.http.request_reader import (
    DecompressedBodyTooLarge,
    DecompressionError,
    decompress_body,
)
from gateway.http.responses import LegacyResponse, PassedResponse
from gateway.migration.inbound_request import InboundRequest, parse_fields
from gateway.observability import traces
from gateway.payloads import json_codec
from gateway.storage import StoreUnavailable
from gateway.storage.operation_records import OperationRecord
from gateway.upstream import instrumentation, passthrough
from gateway.upstream.client import MAX_ANSWER_BYTES, UNANSWERED_STATUSES
from gateway.upstream.http_connection import Fence, ResponseLost
from gateway.upstream.passthrough import PassthroughClient, PassthroughRequest, Spool
from gateway.writes.batch_routing import BatchRouting
from gateway.writes.idempotency import IdempotencyGuard
from gateway.writes.retry_matching import FirstAttemptTranslatedError
from gateway.writes.stored_responses import FORWARDED_RETRY_AFTER_SECONDS, ObjectNotShownError
from gateway.writes.write_request import WriteRequest
from mappings import FORWARDED, money
from mappings.effects import JSON, Answer, Call, CompareAndSet
from mappings.errors import NOT_FOUND
from mappings.failures import CircuitOpen, Failure, Problem, Refused, Unknown, Unreachable
from mappings.forwarded_writes import FORWARDED_PREFIX, require_known_creation
from mappings.outcome_matching import is_shown_value_compatible

NOT_MODIFIED = 304
_CHANGE_WORDS = {"PATCH": "updated", "DELETE": "deleted"}
"""The legacy interface's answers to writes that show no object, by method."""
_CREATED_OBJECTS = ("batch", "payment", "recipient")
_READ_HEADERS = ("X-API-Key", "X-Request-Id")
NO_LEGACY_ADDRESS = (
    "legacy_base_url is not set: give it in the configuration, or switch to translate"
)
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

    async def forward(self, inbound: InboundRequest, fence: Fence | None = None) -> PassedResponse:
        """Sends a request once; raises Unreachable, and for a write Unknown."""
        environment = inbound.caller.key.environment
        with instrumentation.record_legacy_call(environment, inbound.operation) as call:
            response = await self._send_once(inbound, fence)
            call.status = response.status
            return response

    async def read(self, inbound: InboundRequest, target: str) -> PassedResponse:
        """Reads an object with the key of a request; raises Unreachable."""
        if not self.has_environment(inbound.caller.key.environment):
            raise Unreachable(NO_LEGACY_ADDRESS)
        headers: CIMultiDict[str] = CIMultiDict(
            (name, inbound.headers[name]) for name in _READ_HEADERS if name in inbound.headers
        )
        operation = replace(inbound.operation, method="GET")
        return await self.forward(
            replace(inbound, operation=operation, target=target, headers=headers, body=b"")
        )

    async def _send_once(self, inbound: InboundRequest, fence: Fence | None) -> PassedResponse:
        caller, started_at = inbound.caller, perf_counter()
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
            async with self._passthrough.send(passthrough_request, fence) as passthrough_response:
                headers = passthrough.filter_response_headers(passthrough_response.headers)
                body = await _decompress_body(await passthrough_response.read_body(), headers)
                status = passthrough_response.status
        except ResponseLost as lost:
            reason = str(lost)
            raise (Unknown(reason) if inbound.is_write else Unreachable(reason)) from None
        except CircuitOpen:
            caller.call_count -= 1
            raise
        finally:
            spool.close()
            caller.service_seconds += perf_counter() - started_at
        # A redirect is not followed, because that would send the API key to another host. That of
        # a write is an answer like any other (contract, section 7).
        if not inbound.is_write and 300 <= status < 400 and status != NOT_MODIFIED:
            raise Unreachable(f"status {status}, a redirect")
        # A proxy answered instead of the service, which may have executed the write.
        if inbound.is_write and status in UNANSWERED_STATUSES:
            raise Unknown(f"status {status}")
        return PassedResponse(status, headers, body)


@dataclass(slots=True)
class ForwardedWrite:
    """A write that is executed at the legacy service: recorded, sent once, and never matched."""

    _inbound: InboundRequest
    _sender: LegacySender
    _batch_routing: BatchRouting
    _response: PassedResponse | None = None

    async def execute_or_replay(
        self, idempotency_guard: IdempotencyGuard
    ) -> ForwardedAnswer | None:
        """Returns the response to the write, or that to its first attempt.

        None for a retry of a write that was translated. Raises BatchRoutedElsewhereError.
        """
        inbound = self._inbound
        inbound.caller.send_write, inbound.caller.send_read = self._send_call, self._read
        write_request = WriteRequest(
            _FORWARDED_OPERATIONS[inbound.operation.name],
            inbound.flow_request,
            inbound.caller,
            inbound.idempotency_key,
            routing_checks=partial(self._check_and_build_routing_marks, idempotency_guard),
            forwarded_request=inbound.forwarded_request,
            rebuild_forwarded_response=self.build_response,
        )
        try:
            replayed, record = await idempotency_guard.answer(
                write_request, self.build_response, self._build_failure_response
            )
        except FirstAttemptTranslatedError:
            return None
        except (Failure, StoreUnavailable):
            # The service's response goes to its client, even if it could not be saved.
            if self._response is None:
                raise
            execution = inbound.caller.execution
            return ForwardedAnswer(
                self._response, None if execution is None else execution.operation_record
            )
        finally:
            # The same caller makes the calls of the translation, if the request is routed again.
            inbound.caller.send_write = inbound.caller.send_read = None
        return ForwardedAnswer(self._response or _build_passed_response(replayed), record)

    async def _check_and_build_routing_marks(
        self, idempotency_guard: IdempotencyGuard, operation_id: str
    ) -> Sequence[CompareAndSet]:
        inbound = self._inbound
        if inbound.operation.name == "start_batch":
            (batch_id,) = inbound.batches
            await idempotency_guard.executor.execute(
                require_known_creation(batch_id), inbound.caller
            )
        return await self._batch_routing.build_legacy_routing_marks(
            inbound.caller.key.tenant, inbound.batches, operation_id
        )

    async def _read(self, call: Call, _fence: Fence | None) -> JSON:
        """Reads an object of the legacy service; raises Refused and Unreachable."""
        response = await self._sender.read(self._inbound, f"/v1{call.path}")
        fields = await parse_fields(response.body)
        if response.status != 200:
            raise Refused(response.status, parse_problems(fields))
        return fields

    async def _send_call(self, _call: Call, fence: Fence | None) -> JSON:
        """Sends the client's own request; raises Refused, Unreachable or Unknown."""
        try:
            response = self._response = await self._sender.forward(self._inbound, fence)
        except Unknown as unknown:
            raise Unknown(
                f"passed on to the legacy service: {unknown}",
                age_seconds=unknown.age_seconds,
                retry_after=FORWARDED_RETRY_AFTER_SECONDS,
            ) from None
        fields = await parse_fields(response.body)
        # Also a redirect or a 5xx is the service's answer and ends the write (contract, section 7);
        # those of proxies were raised as Unknown before.
        if response.status >= 300:
            raise Refused(response.status, parse_problems(fields))
        created_id = _find_created_id(self._inbound, fields)
        if created_id is None and self._inbound.operation.name == "create_batch":
            log.error(
                "forwarded_batch_not_recorded",
                request_id=self._inbound.caller.request_id,
                reason="the response of the legacy service has no readable batch id",
            )
        return {"id": created_id} if created_id else {}

    async def build_response(self, answer: Answer) -> LegacyResponse:
        """Builds the response to store for a retry, or for a retry of what an operator confirmed."""
        response = self._response or await self._rebuild_response(answer)
        headers = {
            name: response.headers[name] for name in ("Content-Type",) if name in response.headers
        }
        # Anything else than UTF-8 cannot be stored as text.
        body = response.body.decode("utf-8", "replace").encode()
        return LegacyResponse(response.status, [body], headers)

    async def _rebuild_response(self, answer: Answer) -> PassedResponse:
        """Builds the response to an executed write whose own response is lost; raises Unknown.

        A POST answers with the object that it made or changed, which is read with the client's key
        (legacy interface, sections 4.1 to 4.4).
        """
        inbound, operation = self._inbound, self._inbound.operation
        if word := _CHANGE_WORDS.get(operation.method):
            body = json_codec.dumps({"ok": True, "object": word})
            return PassedResponse(200, CIMultiDict(), body)
        path = inbound.target.partition("?")[0].rstrip("/")
        kind = operation.name.removeprefix("create_")
        is_creation = kind in _CREATED_OBJECTS
        if is_creation:
            path += f"/{answer.body.get('id')}"
        target = path.removesuffix("/start-processing").removesuffix("/generate-quote")
        try:
            response = await self._sender.read(inbound, target)
        except Failure as failure:
            reason = f"the legacy service cannot be read: {failure}"
        else:
            if response.status == 200:
                if is_creation and not _is_possible_result(
                    kind, await parse_fields(inbound.body), await parse_fields(response.body)
                ):
                    raise ObjectNotShownError(
                        f"{answer.body.get('id')}, which was recorded as made, is another {kind}",
                        retry_after=FORWARDED_RETRY_AFTER_SECONDS,
                    )
                return response
            if is_creation and await is_not_found(response):
                raise ObjectNotShownError(
                    f"the legacy service has no {answer.body.get('id')}, which was recorded as made",
                    retry_after=FORWARDED_RETRY_AFTER_SECONDS,
                )
            reason = (
                f"the legacy service does not show what the write did: status {response.status}"
            )
        raise Unknown(reason, retry_after=FORWARDED_RETRY_AFTER_SECONDS)

    async def _build_failure_response(self, _failure: Failure) -> LegacyResponse | None:
        return None if self._response is None else await self.build_response(Answer({}))


_FORWARDED_OPERATIONS = {
    operation.name.removeprefix(FORWARDED_PREFIX): operation for operation in FORWARDED
}


def _build_passed_response(response: LegacyResponse) -> PassedResponse:
    headers: CIMultiDict[str] = CIMultiDict(response.headers)
    headers.setdefault("Content-Type", "application/json; charset=utf-8")
    return PassedResponse(response.status, headers, response.body_bytes)


async def is_not_found(response: PassedResponse) -> bool:
    """Whether the service itself says that it has no such object, and not a proxy."""
    problems = parse_problems(await parse_fields(response.body))
    return NOT_FOUND.code in [problem.code for problem in problems]


def parse_problems(fields: Mapping[str, JSON]) -> list[Problem]:
    """Parses the error codes and fields of a legacy error response."""
    errors = fields.get("errors")
    return [
        Problem(str(error.get("code")), "", str(error.get("field") or "") or None)
        for error in (errors if isinstance(errors, list) else [])
        if isinstance(error, dict)
    ]


def _is_possible_result(
    kind: str, sent: Mapping[str, JSON], shown_fields: Mapping[str, JSON]
) -> bool:
    """Whether a request may have created the object that an operator named.

    A mistyped id would pay another person, or the same one again.
    """
    shown = _find_object(shown_fields, kind)
    if kind == "batch" and sent:  # it may be in another charset
        payments = sent.get("payments")
        sent_count = len(payments) if isinstance(payments, Sequence) else 0
        return shown.get("totalPayments") in (None, sent_count)
    payee: JSON = sent
    shown_payee: JSON = shown
    if kind == "payment":
        payee, shown_payee = sent.get("recipient") or {}, shown.get("recipient") or {}
        amounts = (money.parse_amount(each.get("sourceAmount")) for each in (sent, shown))
        if len({*amounts} - {None}) > 1:
            return False
    # What the service does not show contradicts nothing.
    return all(
        is_shown_value_compatible(payee[name], shown_payee[name])
        for name in (("email",) if kind == "recipient" else ("id", "email"))
        if payee.get(name) and shown_payee.get(name)
    )


def _find_created_id(inbound: InboundRequest, fields: Mapping[str, JSON]) -> str | None:
    """Finds the id of a created object in a response."""
    kind = inbound.operation.name.removeprefix("create_")
    created_id = _find_object(fields, kind).get("id") if kind in _CREATED_OBJECTS else None
    return created_id if isinstance(created_id, str) else None


def _find_object(fields: Mapping[str, JSON], name: str) -> dict[str, JSON]:
    """Finds an object in a response; empty if it is missing."""
    value = fields.get(name)
    return value if isinstance(value, dict) else {}


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
