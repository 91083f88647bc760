"""The access log: one line for each request, of either interface."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import Any

from gateway.observability import logs, metrics, traces
from gateway.observability.recent_requests import recorded_requests


@lru_cache(maxsize=1024)
def _encode_address(address: Hashable) -> str:
    """Encodes an IP address; those of few clients are most of all."""
    return "null" if address is None else f'"{address}"'


@lru_cache(maxsize=4096)
def _encode_identity(
    endpoint: tuple[str, str | None, str, str | None],
    tenant: tuple[str, str] | None,
    key_name: str | None,
) -> str:
    """Encodes the fields that many requests have in common."""
    method, route, api, operation = endpoint
    merchant, environment = tenant or (None, None)
    return logs.encode_members(
        {
            "http.request.method": method,
            "http.route": route,
            "api": api,
            "operation": operation,
            "merchant": merchant,
            "environment": environment,
            "key": key_name,
        }
    )


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
    parser has checked, as ``request_id`` has been; ``extra_fields`` are free of what the client
    sent.
    """
    environment = tenant[1] if tenant else ""
    metrics.observe_request(
        api=api,
        operation=operation,
        environment=environment,
        status=status,
        duration_seconds=duration_seconds,
        upstream_seconds=upstream_seconds,
        request_id=request_id,
        log_fields=extra_fields,
    )
    identity = request_id, api, operation, tenant, key_name
    costs = duration_seconds, upstream_calls, upstream_seconds
    recorded_requests.append((time.time(), identity, status, costs, extra_fields))
    # Written out: an encoder would look at each name and value of every request.
    members = (
        f"{_encode_identity((method, route, api, operation), tenant, key_name)}"
        f',"http.response.status_code":{status},"client.address":{_encode_address(client_address)}'
        f',"http.request.body.size":{int(request_bytes or 0)}'
        f',"http.response.body.size":{response_bytes},"duration_ms":{duration_seconds * 1000:.3f}'
        f',"request_id":"{request_id}","upstream_calls":{upstream_calls}'
        f',"upstream_duration_ms":{upstream_seconds * 1000:.3f}'
    )
    if traces.active_tracer is not None:
        outcome = metrics.classify_outcome(status, extra_fields)
        traces.set_request_span_attributes(
            api=api,
            method=method,
            operation=operation,
            environment=environment,
            status=status,
            outcome=outcome,
        )
        if trace_id := traces.get_trace_id():
            members += f',"trace_id":"{trace_id}"'
    if extra_fields:
        members += f",{logs.encode_members(extra_fields)}"
    # A 4xx is the client's error, so only 5xx are logged as errors.
    logs.write_request_line(members, is_error=status >= 500)
