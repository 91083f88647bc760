"""Writes the access log line of a legacy request."""

from __future__ import annotations

import time

import structlog

from gateway.http.request import HttpRequest
from gateway.http.responses import HttpResponse
from gateway.legacy_api.request_context import RequestContext
from gateway.observability import access_log, traces
from gateway.storage.request_counts import UsageCounter

log = structlog.get_logger()


def log_and_count_request(
    usage: UsageCounter, request: HttpRequest, context: RequestContext, response: HttpResponse
) -> None:
    """Writes the access log line and counts the usage."""
    # One duration for all, so that the log and the counts agree.
    seconds = time.monotonic() - context.start_time
    caller, log_fields = context.caller, context.log_fields
    operation = context.operation.name if context.operation else None
    route = traces.ROUTES_BY_OPERATION[operation] if operation else None
    method, status = request.method, response.status
    if caller:
        key, service_seconds, call_count = caller.key, caller.service_seconds, caller.call_count
        source = access_log.find_request_source(
            "legacy", method, operation, route, key.tenant, key_name=key.name
        )
    else:
        service_seconds, call_count = 0.0, 0
        source = access_log.find_request_source("legacy", method, operation, route)
    if context.pending_delivery and context.pending_delivery.request_id != context.request_id:
        # `trace` finds an operation by the request id of its first try.
        log_fields = {**log_fields, "retry_of": context.pending_delivery.request_id}
    access_log.log_and_measure_request(
        source,
        status=status,
        method=method,
        duration_seconds=seconds,
        request_id=context.request_id,
        client_address=context.address,
        upstream_calls=call_count,
        upstream_seconds=service_seconds,
        request_bytes=request.headers.get("Content-Length"),
        response_bytes=response.body_length,
        extra_fields=log_fields,
    )
    usage.count(source.usage_key, status, seconds, service_seconds)
    for notice in context.notices:
        log.warning("request_warning", request_id=context.request_id, reason=notice)
