"""State of a legacy request while it is handled, and its line in the access log."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec
import structlog

from gateway.admission.limits import Admission
from gateway.admission.load import AdmissionSlot
from gateway.http.client_address import Address
from gateway.http.request import HttpRequest
from gateway.http.responses import HttpResponse
from gateway.migration.inbound_request import InboundRequest
from gateway.observability import access_log, traces
from gateway.observability.request_series import RequestSource
from gateway.storage.operation_records import OperationRecord
from gateway.storage.request_counts import UsageCounter
from gateway.writes.write_request import Caller
from mappings.effects import Operation
from mappings.failures import Invalid, Problem


class LegacyClient(msgspec.Struct, frozen=True):
    """The client of a connection, from the header fields that its requests repeat.

    ``request_id`` is empty if the client sets none. ``api_key`` and its digest are empty unless
    there is exactly one.
    """

    address: Address | None
    address_text: str | None
    request_id: str = ""
    api_key: str = ""
    key_digest: str = ""
    key_count: int = 0

    def __repr__(self) -> str:
        return "LegacyClient(…)"  # it has the API key


class RequestContext(msgspec.Struct, eq=False):
    """A request with the results of its checks and calls, for the response and the log.

    ``start_time`` is in seconds of the monotonic clock.
    """

    request_id: str
    start_time: float
    client: LegacyClient
    operation: Operation | None = None
    caller: Caller | None = None
    admission: Admission | None = None
    notices: tuple[str, ...] = ()
    client_ids: dict[str, str] = {}
    """Ids as the client sent them, by current id: the response repeats the client's spelling."""
    has_only_current_ids: bool = True
    """Whether the client sent all ids as the service spells them, or none."""
    current_ids: Mapping[str, str] = {}
    """Current ids by sent id, of a long request. Only error messages need them."""
    full_body_digest: str = ""
    """Digest of the body, if it has fields or values that were left out when it was decoded."""
    log_fields: dict[str, Any] = {}
    slot: AdmissionSlot | None = None
    pending_delivery: OperationRecord | None = None
    """The write that ends when the client has acknowledged the response."""
    shadow_request: InboundRequest | None = None
    """The request to repeat at the other service after the response is sent."""
    is_response_written: bool = False
    """Whether the whole response was handed to the connection."""
    is_delivered: bool = False
    """Whether the client had acknowledged the response when the connection ended."""
    is_reset: bool = False
    """Whether the connection was reset: the client may not have read what it acknowledged."""


_MAX_KEY_LENGTH = 255
INVALID_KEY = Problem(
    "invalid_field",
    f"An Idempotency-Key is 1 to {_MAX_KEY_LENGTH} visible characters, and given once.",
    "Idempotency-Key",
)


def read_idempotency_key(request: HttpRequest) -> str | None:
    """Reads the key of a write; raises Invalid if it is not a valid one."""
    header_values = request.fields.headers.getall("Idempotency-Key", [])
    # A GET may write (the summary does), but to its client it is a read, which needs no key.
    if not header_values or request.method == "GET":
        return None
    key = header_values[0].strip()
    if (
        # Two values may come from a proxy that merged requests; neither is safe to choose.
        len(header_values) > 1
        or not 0 < len(key) <= _MAX_KEY_LENGTH
        or not (key.isascii() and key.isprintable())
    ):
        raise Invalid(INVALID_KEY)
    return key


log = structlog.get_logger()


def log_and_count_request(
    usage: UsageCounter, request: HttpRequest, context: RequestContext, response: HttpResponse
) -> None:
    """Writes the access log line and counts the usage."""
    # One duration for all, so that the log and the counts agree.
    seconds = time.monotonic() - context.start_time
    caller, log_fields = context.caller, context.log_fields
    operation = context.operation
    if caller and operation:
        service_seconds, call_count = caller.service_seconds, caller.call_count
        # Found once for each key, not by a key of six names for each request.
        source = caller.key.request_sources.get(operation.name)
        if source is None:
            source = caller.key.request_sources[operation.name] = _find_source(context, request)
    else:
        service_seconds, call_count = 0.0, 0
        source = _find_source(context, request)
    if context.pending_delivery and context.pending_delivery.request_id != context.request_id:
        # `trace` finds an operation by the request id of its first try.
        log_fields = {**log_fields, "retry_of": context.pending_delivery.request_id}
    record = (
        usage.wall(),
        context.request_id,
        source,
        response.status,
        seconds,
        call_count,
        service_seconds,
        log_fields,
    )
    access_log.log_and_record_request(
        record,
        context.client.address_text,
        request.fields.content_length or 0,
        response.body_length,
    )
    usage.pending_requests.append(record)
    for notice in context.notices:
        log.warning("request_warning", request_id=context.request_id, reason=notice)


def _find_source(context: RequestContext, request: HttpRequest) -> RequestSource:
    operation = context.operation.name if context.operation else None
    route = traces.ROUTES_BY_OPERATION[operation] if operation else None
    key = context.caller.key if context.caller else None
    return access_log.find_request_source(
        "legacy",
        request.method,
        operation,
        route,
        key.tenant if key else None,
        key_name=key.name if key else None,
    )
