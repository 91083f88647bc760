"""Writes the access log line of a legacy request, and offers the request to the recorder."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

import structlog

from gateway.compare import endpoints
from gateway.http import request_reader
from gateway.http.request import HttpRequest
from gateway.http.responses import HttpResponse, LegacyResponse, PassedResponse
from gateway.legacy_api.request_context import RequestContext
from gateway.migration.recorder import RecordedExchange, Recorder
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


def record_exchange(
    recorder: Recorder,
    request: HttpRequest,
    context: RequestContext,
    legacy_response: LegacyResponse | PassedResponse,
    now: datetime,
) -> None:
    """Offers the exchange to the recorder.

    Requests whose body was not read are not recorded: refusals of a key, a limit or a brownout. Nor
    are those of `payout-gateway compare`, which sends recorded requests again.
    """
    operation, key = context.operation, context.caller.key if context.caller else None
    if operation is None or context.body is None:
        return
    if request.headers.get("User-Agent") == endpoints.USER_AGENT:
        return
    if not recorder.is_selected(operation.name, key.name if key else "", now):
        return
    seconds = time.monotonic() - context.start_time
    path, query = request_reader.split_request_target(request)
    # All keys are secrets, not only the caller's: a keyless operation may carry an unchecked one.
    sent_secrets = [
        *request.headers.getall("X-API-Key", []),
        *request.headers.getall("Authorization", []),
    ]
    key_secrets = [key.credentials.access_key, key.credentials.secret_key] if key else []
    recorder.enqueue_exchange(
        RecordedExchange(
            operation=operation.name,
            key=key.name if key else "",
            started_at=now - timedelta(seconds=seconds),
            seconds=seconds,
            method=request.method,
            target=f"{path}?{query}" if query else path,
            content_type=request.headers.get("Content-Type", ""),
            body=context.body,
            status=legacy_response.status,
            answer=legacy_response.body
            if isinstance(legacy_response, PassedResponse)
            else legacy_response.body_bytes,
            secrets=tuple(secret.strip() for secret in (*sent_secrets, *key_secrets)),
        )
    )
