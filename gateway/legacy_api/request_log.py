"""Writes the access log line of a legacy request."""

from __future__ import annotations

import time

import structlog

from gateway.http.request import HttpRequest
from gateway.http.responses import HttpResponse
from gateway.legacy_api.request_context import RequestContext
from gateway.observability import access_log, traces
from gateway.storage.request_counts import NO_TENANT, UsageCounter

log = structlog.get_logger()


def log_and_count_request(
    usage: UsageCounter, request: HttpRequest, context: RequestContext, response: HttpResponse
) -> None:
    """Writes the access log line and counts the usage."""
    # One duration for all, so that the log and the counts agree.
    seconds = time.monotonic() - context.start_time
    caller, log_fields = context.caller, context.log_fields
    operation = context.operation.name if context.operation else None
    tenant, key_name = (caller.key.tenant, caller.key.name) if caller else (None, None)
    service_seconds = caller.service_seconds if caller else 0.0
    if context.pending_delivery and context.pending_delivery.request_id != context.request_id:
        # `trace` finds an operation by the request id of its first try.
        log_fields = {**log_fields, "retry_of": context.pending_delivery.request_id}
    access_log.log_and_measure_request(
        status=response.status,
        method=request.method,
        duration_seconds=seconds,
        request_id=context.request_id,
        api="legacy",
        route=traces.ROUTES_BY_OPERATION[operation] if operation else None,
        client_address=context.address,
        operation=operation,
        tenant=tenant,
        key_name=key_name,
        upstream_calls=caller.call_count if caller else 0,
        upstream_seconds=service_seconds,
        request_bytes=request.headers.get("Content-Length"),
        response_bytes=response.body_length,
        extra_fields=log_fields,
    )
    usage.count(
        tenant or NO_TENANT,
        key_name or "",
        operation or "",
        response.status,
        seconds=seconds,
        service_seconds=service_seconds,
    )
    for notice in context.notices:
        log.warning("request_warning", request_id=context.request_id, reason=notice)
