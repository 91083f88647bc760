"""The access log: one line for each request, of either interface."""

import re
from collections.abc import Iterable
from functools import lru_cache

from gateway.observability import logs, metrics, traces
from gateway.observability.recent_requests import LIST_INDEX_PATTERN, recorded_requests
from gateway.observability.request_series import RequestRecord, RequestSource
from mappings.errors import KNOWN_CODES
from mappings.failures import ClientDisconnected, Problem

MAX_LOGGED_FIELDS = 10
_FIELD_PATTERN = re.compile(r"[A-Za-z_-]+\d?(\[\d*\]|\.[A-Za-z_-]+\d?)*")


@lru_cache(maxsize=4096)
def find_request_source(
    api: str,
    method: str,
    operation: str | None,
    route: str | None,
    tenant: tuple[str, str] | None,
    *,
    key_name: str | None = None,
) -> RequestSource:
    """Finds the source of a request; ``tenant`` is the merchant and environment."""
    merchant, environment = tenant or (None, None)
    members = logs.encode_members(
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
    # Signed requests are counted beside the legacy operations, to show how far a tenant has
    # migrated.
    counted_operation = operation or (metrics.SIGNED_OPERATION if api == "signed" else "")
    usage_key = tenant or ("", ""), key_name or "", counted_operation
    series = metrics.find_request_series(api, operation, environment or "")
    return RequestSource(api, method, operation, tenant, key_name, usage_key, series, members)


def describe_problems(problems: Iterable[Problem]) -> dict[str, list[str]]:
    """Returns the log fields of an error response: its codes and fields, without its messages.

    A service may write anything into its responses, so only known codes and plain names are logged.
    """
    codes: set[str] = set()
    fields: dict[str, str] = {}
    for problem in problems:
        codes.add(problem.code if problem.code in KNOWN_CODES else "unknown")
        if problem.field and _FIELD_PATTERN.fullmatch(problem.field):
            # One body may have the same problem in thousands of payments.
            fields.setdefault(LIST_INDEX_PATTERN.sub("[]", problem.field), problem.field)
    log_fields = {
        "error_codes": sorted(codes),
        "error_fields": list(fields.values())[:MAX_LOGGED_FIELDS],
    }
    return {name: values for name, values in log_fields.items() if values}


def log_and_record_request(
    request: RequestRecord,
    client_address: str | None,
    request_bytes: int,
    response_bytes: int,
) -> None:
    """Logs a request, and records it for metrics, span and console, so that all agree.

    ``request_bytes`` is the Content-Length. The request id has been checked; the further fields
    are free of what the client sent.
    """
    at, request_id, source, status, seconds, upstream_calls, upstream_seconds, fields = request
    metrics.pending_requests.append(request)
    recorded_requests.append(request)
    address = "null" if client_address is None else f'"{client_address}"'
    # Written out: an encoder would look at each name and value of every request.
    members = (
        f'{source.members},"http.response.status_code":{status}'
        f',"client.address":{address}'
        f',"http.request.body.size":{request_bytes}'
        f',"http.response.body.size":{response_bytes},"duration_ms":{seconds * 1000:.3f}'
        f',"request_id":"{request_id}","upstream_calls":{upstream_calls}'
        f',"upstream_duration_ms":{upstream_seconds * 1000:.3f}'
    )
    if traces.active_tracer is not None:
        traces.set_request_span_attributes(
            api=source.api,
            method=source.method,
            operation=source.operation,
            environment=source.tenant[1] if source.tenant else "",
            status=status,
            outcome=metrics.classify_outcome(status, fields),
        )
        if trace_id := traces.get_trace_id():
            members += f',"trace_id":"{trace_id}"'
    if fields:
        members += f",{logs.encode_members(fields)}"
    # A 4xx is the client's error, so only 5xx are logged as errors, if a client has seen them.
    is_error = status >= 500 and fields.get("error.type") != ClientDisconnected.error_type
    logs.write_request_line(members, at, is_error=is_error)
