"""The access log: one line for each request, of either interface."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import Any

from gateway.observability import logs, metrics, traces
from gateway.observability.recent_requests import recorded_requests

format_address = lru_cache(maxsize=1024)(str)
"""Formats an address; those of few clients are most of all."""


def log_and_measure_request(
    *,
    status: int,
    method: str,
    duration_seconds: float,
    request_id: str,
    api: str,
    route: str | None,
    client_address: Hashable,
    operation: str | None = None,
    tenant: tuple[str, str] | None = None,
    key_name: str | None = None,
    upstream_calls: int = 0,
    upstream_seconds: float = 0.0,
    request_bytes: str | None = None,
    response_bytes: int = 0,
    extra_fields: Mapping[str, Any],
) -> None:
    """Logs a request, and records its metrics and span and for the console, so that all agree.

    ``tenant`` is the merchant and environment; ``request_bytes`` the Content-Length, which the HTTP
    parser has checked; ``extra_fields`` are free of what the client sent.
    """
    merchant, environment = tenant or (None, None)
    metrics.observe_request(
        api=api,
        operation=operation,
        environment=environment or "",
        status=status,
        duration_seconds=duration_seconds,
        upstream_seconds=upstream_seconds,
        request_id=request_id,
        log_fields=extra_fields,
    )
    identity = request_id, api, operation, tenant, key_name
    costs = duration_seconds, upstream_calls, upstream_seconds
    recorded_requests.append((time.time(), identity, status, costs, extra_fields))
    fields: dict[str, Any] = {
        "http.request.method": method,
        "http.route": route,
        "http.response.status_code": status,
        "client.address": None if client_address is None else format_address(client_address),
        "api": api,
        "operation": operation,
        "http.request.body.size": int(request_bytes or 0),
        "http.response.body.size": response_bytes,
        "duration_ms": round(duration_seconds * 1000, 3),
        "merchant": merchant,
        "environment": environment,
        "key": key_name,
        "request_id": request_id,
        "upstream_calls": upstream_calls,
        "upstream_duration_ms": round(upstream_seconds * 1000, 3),
    }
    if traces.active_tracer is not None:
        fields |= _annotate_request_span(fields, metrics.classify_outcome(status, extra_fields))
    fields.update(extra_fields)
    # A 4xx is the client's error, so only 5xx are logged as errors.
    logs.write_request_line(fields, is_error=status >= 500)


def _annotate_request_span(fields: Mapping[str, Any], outcome: str) -> dict[str, str]:
    """Sets the attributes of the request's span; returns the fields that refer to it."""
    traces.set_request_span_attributes(
        api=fields["api"],
        method=fields["http.request.method"],
        operation=fields["operation"],
        environment=fields["environment"] or "",
        status=fields["http.response.status_code"],
        outcome=outcome,
    )
    trace_id = traces.get_trace_id()
    return {"trace_id": trace_id} if trace_id else {}
