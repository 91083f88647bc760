"""The access log: one line for each request, of either interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from gateway.observability import metrics, traces

log = structlog.get_logger()


def log_request(
    *,
    status: int,
    method: str,
    took: float,
    request_id: str,
    api: str,
    route: str | None,
    client_address: object,
    operation: str | None = None,
    owner: tuple[str, str] | None = None,
    key: str | None = None,
    calls: int = 0,
    seconds: float = 0.0,
    more: Mapping[str, Any],
) -> None:
    """Log a request, and record its metrics and span, so that all three agree.

    ``tenant`` is the merchant and environment. ``extra_fields`` must contain nothing that the client
    sent.
    """
    merchant, environment = owner or (None, None)
    metrics.observe_request(
        api=api,
        operation=operation,
        environment=environment or "",
        status=status,
        took=took,
        at_service=seconds,
        request_id=request_id,
        told=more,
    )
    traces.record_request_span(
        api=api,
        method=method,
        operation=operation,
        environment=environment or "",
        status=status,
        outcome=metrics.classify_outcome(status, more),
    )
    line: dict[str, Any] = {
        "http.request.method": method,
        "http.route": route,
        "http.response.status_code": status,
        "client.address": None if client_address is None else str(client_address),
        "api": api,
        "operation": operation,
        "duration_ms": round(took * 1000, 1),
        "merchant": merchant,
        "environment": environment,
        "key": key,
        "request_id": request_id,
        "upstream_calls": calls,
        "upstream_duration_ms": round(seconds * 1000, 1),
    }
    if trace := traces.current_trace_id():
        line["trace_id"] = trace
    # A 4xx is the client's error, so only 5xx are logged as errors.
    (log.error if status >= 500 else log.info)("request", **line, **more)
