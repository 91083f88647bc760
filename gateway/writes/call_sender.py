"""Sends the calls of a flow to the service.

Translates the vocabulary in both directions, and turns each response into a result or one of the
four failures (Refused, Unreachable, Unknown, NoSuchOperation).
"""

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, urlencode

import structlog

from gateway.admission.load import AdmissionSlot, LoadShedder, Overloaded
from gateway.config import settings
from gateway.observability import metrics, traces
from gateway.payloads import json_codec
from gateway.payloads.worker_thread import run_in_thread, run_in_thread_if
from gateway.upstream.client import MAX_ANSWER_BYTES, UpstreamClient
from gateway.upstream.http_connection import Fence, Reply
from gateway.upstream.instrumentation import describe_failed_call
from gateway.upstream.optional_endpoints import OptionalEndpoints
from gateway.writes.operation_execution import OperationExecution
from gateway.writes.write_request import Caller
from mappings import errors
from mappings.current import BALANCE_PATH, SUMMARY_PATH, Endpoint, find_documented_endpoint
from mappings.effects import JSON, Call, Vocabulary
from mappings.failures import CircuitOpen, Failure, Problem, Refused, Unknown, Unreachable
from mappings.payloads import CHECKED_PATHS, has_expected_shape
from mappings.vocabulary import build_current_translator

log = structlog.get_logger()


MAX_ANSWER_MEMORY_BYTES = 8 * MAX_ANSWER_BYTES
"""Maximum estimated memory of a decoded response. No response of the service has a value in every
ten bytes; hostile input does."""


MAX_SLICED_MEMORY = 16
"""Maximum estimated memory, by size, of a response that is decoded in slices; rows have a quarter."""

STATUS_CLASSES = tuple(f"{hundreds}xx" for hundreds in range(10))
"""Outcomes of answered calls, by the first digit of the status."""


START_DEADLINE_SECONDS = 25.0
"""Seconds after its request was received within which a start is sent (contract, section 7)."""


@dataclass(frozen=True, slots=True)
class StartFence:
    """The fence of a batch start; it also refuses a start that is late or whose client is gone."""

    caller: Caller
    execution: OperationExecution

    @property
    def _can_be_sent(self) -> bool:
        is_disconnected = self.caller.is_disconnected or self.caller.is_connection_closed()
        is_in_time = self.execution.is_recent(self.execution.received_at, START_DEADLINE_SECONDS)
        return is_in_time and not is_disconnected

    @property
    def is_fence_recent(self) -> bool:
        return self.execution.is_fence_recent and self._can_be_sent

    async def verify_fence(self, stamped_at: float | None = None) -> None:
        if not self._can_be_sent:
            raise Unreachable("not sent: the client no longer waits for the response")
        await self.execution.verify_fence(stamped_at)


def _build_fence(call: Call, caller: Caller) -> Fence | None:
    if call.is_read or caller.execution is None:
        return None
    return (
        StartFence(caller, caller.execution) if call.only_while_client_waits else caller.execution
    )


class TargetBuilder:
    """Builds paths and queries in the configured vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = build_current_translator(vocabulary)
        self._paths = {
            SUMMARY_PATH: vocabulary.current_summary_path,
            BALANCE_PATH: vocabulary.current_balance_path,
        }

    def build(self, call: Call, endpoint: Endpoint) -> str:
        """Builds ``/v1/...`` with its query, percent-encoded."""
        path = f"/v1{call.path}"
        # These two paths are configurable.
        if path_template := self._paths.get(endpoint.path):
            match = endpoint.pattern.fullmatch(call.path)
            path = path_template.format(**(match.groupdict() if match else {}))
        if not call.query:
            return path
        query = self._vocabulary.translate_from_neutral(endpoint.query_shape, dict(call.query))
        # Spaces as ``%20``: a ``+`` is a plus sign to services that decode the query like a path.
        return path + (f"?{urlencode(query, quote_via=quote)}" if query else "")


class CallSender:
    """Sends one call to the service, and turns the response into a result or a failure."""

    def __init__(
        self,
        upstream: UpstreamClient,
        vocabulary: Vocabulary,
        optional_endpoints: OptionalEndpoints,
        load: LoadShedder | None = None,
    ) -> None:
        self._upstream = upstream
        self._translator = build_current_translator(vocabulary)
        self._targets = TargetBuilder(vocabulary)
        self._optional_endpoints = optional_endpoints
        self._load = load or LoadShedder(settings.Load())

    def find_read_slots(self, caller: Caller) -> asyncio.Semaphore:
        return self._load.find_read_slots(caller.key.tenant_name)

    async def send(self, call: Call, caller: Caller) -> JSON:
        """Sends a call and returns the body of a 2xx response.

        Raises Refused, Unreachable or Unknown.
        """
        is_read, key = call.is_read, caller.key
        # A client that signed its request must get the service's response to its own bytes.
        if (send := caller.send_read if is_read else caller.send_write) is not None:
            return await send(call, _build_fence(call, caller))
        endpoint = find_documented_endpoint(call.method, call.path)
        data = None if call.body is None else await self._encode_body(call, endpoint, caller)
        started_at = time.perf_counter()
        # Counted before it is sent: the access log also shows calls that failed.
        caller.call_count += 1
        try:
            sending = self._upstream.send(
                key.environment,
                key.credentials,
                call.method,
                self._targets.build(call, endpoint),
                data,
                request_id=caller.request_id,
                write=not is_read,
                fence=None if is_read else _build_fence(call, caller),
            )
            if traces.active_tracer is not None:
                sending = _await_in_span(sending, call, endpoint, caller)
            reply = await sending
            outcome = "unreadable" if reply.is_unreadable else STATUS_CLASSES[reply.status // 100]
        except BaseException as error:
            outcome = describe_failed_call(error)
            if isinstance(error, CircuitOpen):
                caller.call_count -= 1
            raise
        finally:
            seconds = time.perf_counter() - started_at
            caller.service_seconds += seconds
            name = key.environment, call.method, endpoint.path
            metrics.pending_calls.append((name, outcome, seconds))
        del data, sending  # the body may be large, and so may the response
        body: JSON
        if caller.is_long or len(reply.body) > json_codec.LARGE_BYTES:
            body = await self._decode_long_response(call, caller, reply.body)
        else:
            body = json_codec.loads_object(reply.body)
        if reply.status == 204 and call.method == "DELETE":
            body = {}  # deletes may be answered without a body (legacy document, section 4.3)
        # A 2xx with ``ok: false`` is a refusal.
        if body is None or not is_success(reply.status, body):
            raise await self._build_failure(call, endpoint, caller, reply, body)
        if not self._translator.is_identity:
            body = self._translator.translate_to_neutral(endpoint.response_shape, body)
        if endpoint.path in CHECKED_PATHS and not has_expected_shape(endpoint, body):
            raise _build_unreadable_failure(call)
        return body

    async def _build_failure(
        self,
        call: Call,
        endpoint: Endpoint,
        caller: Caller,
        reply: Reply,
        body: Mapping[str, JSON] | None,
    ) -> Failure:
        """Builds the failure of a refusal, or of a 2xx without a result."""
        if 200 <= reply.status < 300 and not (body and body.get("errors")):
            return _build_unreadable_failure(call)
        # A 404 of an optional endpoint proves that nothing happened if other reads show that the
        # service itself answers.
        is_confirmed = (
            call.probe_ids is not None
            and self._optional_endpoints.is_refusal_confirmed_with_reads(reply.status)
        )
        if not (call.is_read or is_confirmed or is_proven_refusal(reply.status, body)):
            return Unknown(f"status {reply.status}")
        return await run_in_thread_if(
            caller.is_long, self._build_refused_failure, call, endpoint, reply, body or {}
        )

    async def _decode_long_response(
        self, call: Call, caller: Caller, data: bytes
    ) -> dict[str, JSON] | None:
        """Decodes a long response; None if it is not JSON or needs too much memory.

        While a response that cannot be decoded in slices is decoded, its memory is reserved from
        ``load.held_bytes``.
        """
        caller.is_long = True
        _log_progress(caller, "receiving_response", call, data)
        if len(data) <= json_codec.LARGE_BYTES:
            return json_codec.loads_object(data)
        cost = await run_in_thread(json_codec.estimate_memory_bytes, data)
        if cost > MAX_ANSWER_MEMORY_BYTES:
            return None
        # Decoding in slices needs a fraction of the memory, so it is tried before memory is
        # reserved; but not of lists of very short items, which are split all at once.
        if cost <= MAX_SLICED_MEMORY * len(data):
            with suppress(json_codec.NotSliceableError):
                return await run_in_thread(json_codec.loads_in_slices, data, json_codec.LONG_LISTS)
        admission_slot = AdmissionSlot(self._load, caller.key.tenant_name)
        try:
            if cost > admission_slot.max_bytes:
                return None
            admission_slot.reserve_bytes(cost)
            return await run_in_thread(json_codec.loads_object, data)
        except Overloaded as overloaded:
            if call.is_read:
                raise
            # The write was executed, and only its response cannot be decoded: it is in doubt.
            raise Unknown(overloaded.reason) from None
        finally:
            admission_slot.release()

    async def _encode_body(self, call: Call, endpoint: Endpoint, caller: Caller) -> bytes:
        current_body = call.body
        if not self._translator.is_identity:
            current_body = self._translator.translate_from_neutral(endpoint.body_shape, call.body)
        if not caller.is_long:
            return json_codec.dumps_trusted(current_body)
        body = await run_in_thread(json_codec.dumps, current_body)
        _log_progress(caller, "calling_service", call, body)
        return body

    def _build_refused_failure(
        self, call: Call, endpoint: Endpoint, reply: Reply, body: Mapping[str, JSON]
    ) -> Refused:
        problems = [
            problem for entry in list_error_entries(body) if (problem := parse_error_entry(entry))
        ]
        status = reply.status
        if status < 400:
            # The service sends no 3xx; something between it and the gateway does.
            status = derive_status_from_error_codes(body) if status < 300 else 502
            if status == 404 and call.probe_ids is not None:
                status = 400  # only a real 404 may mean that the endpoint is missing
        return Refused(
            status,
            problems,
            field_map=self._translate_field_map(call, endpoint, problems),
            retry_after=_extract_retry_after_header(reply),
        )

    def _translate_field_map(
        self, call: Call, endpoint: Endpoint, problems: Sequence[Problem]
    ) -> dict[str, str]:
        """Returns the field map in the service's own field names, as its error messages use."""
        names = errors.limit_field_map_to_problem_fields(call.field_map, problems)
        return {
            self._translator.translate_field_path(endpoint.body_shape, name): field_
            for name, field_ in names.items()
        }


async def _await_in_span(
    sending: Coroutine[Any, Any, Reply], call: Call, endpoint: Endpoint, caller: Caller
) -> Reply:
    with traces.start_call_span(call.method, endpoint.path, caller.key.environment) as span:
        try:
            reply = await sending
        except BaseException as error:
            span.record_outcome(describe_failed_call(error))
            raise
        span.record_outcome(STATUS_CLASSES[reply.status // 100], reply.status)
        return reply


def _build_unreadable_failure(call: Call) -> Failure:
    """Builds the failure of a 2xx that does not contain what its call asks for."""
    # A read without a result changed nothing; a write may have been executed.
    failure = Unreachable if call.is_read else Unknown
    return failure("the response is unreadable")


def _log_progress(
    caller: Caller,
    step: Literal["calling_service", "receiving_response"],
    call: Call,
    body: bytes,
) -> None:
    """Logs the progress of large bodies, but not of a large request's short reads."""
    if caller.is_long and (not call.is_read or len(body) > json_codec.LARGE_BYTES):
        endpoint_name = f"{call.method} {find_documented_endpoint(call.method, call.path).path}"
        log.info(
            "large_payload_progress",
            request_id=caller.request_id,
            step=step,
            call=endpoint_name,
            body_bytes=len(body),
        )


def _extract_retry_after_header(reply: Reply) -> str | None:
    """Returns the Retry-After of a response; None if it is not valid as a header value."""
    header = reply.headers.get("Retry-After", "")
    # It goes into a response header, where a control character would start another header.
    return header if header and header.isascii() and header.isprintable() else None


# What a response proves about a write (contract, section 7)


def is_success(status: int, body: Mapping[str, JSON]) -> bool:
    """Whether a response with a readable body proves that the write was executed."""
    return 200 <= status < 300 and body.get("ok") is not False


def is_proven_refusal(status: int, body: Mapping[str, JSON] | None) -> bool:
    """Whether a response to a write proves that it was not executed (contract, section 7).

    A 4xx with the service's own error JSON does, and so does a 2xx with ``ok: false`` and error
    codes. A 5xx does not: it may come from a proxy that gave up while the service was still
    working.
    """
    # Every code must blame the client: one that does not may mean that a part was done.
    if status < 300:
        return derive_status_from_error_codes(body or {}) < 500
    return 400 <= status < 500 and any(map(parse_error_entry, list_error_entries(body or {})))


def derive_status_from_error_codes(body: Mapping[str, JSON]) -> int:
    """Returns the status for the errors of a 2xx with ``ok: false``; 500 if one has no code."""
    problems = [parse_error_entry(entry) for entry in list_error_entries(body)]
    parsed = [problem for problem in problems if problem is not None]
    return errors.derive_status_from_problem_codes(parsed) if len(parsed) == len(problems) else 500


def list_error_entries(body: Mapping[str, JSON]) -> list[JSON]:
    entries = body.get("errors")
    return entries if isinstance(entries, list) else []


def parse_error_entry(entry: JSON) -> Problem | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("code"), str):
        return None
    message, field = entry.get("message"), entry.get("field")
    return Problem(
        entry["code"],
        message if isinstance(message, str) else "",
        field if isinstance(field, str) else None,
    )
