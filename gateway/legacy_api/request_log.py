"""Writes the access log line of a legacy request."""

from __future__ import annotations

import time

import structlog

from gateway.http.request import HttpRequest
from gateway.http.responses import HttpResponse
from gateway.legacy_api.request_context import RequestContext
from gateway.observability import access_log, traces
from gateway.observability.request_series import RequestSource
from gateway.storage.request_counts import UsageCounter

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
