"""The newest requests of this process, for the console: who, what and with which result.

They have what the access log has, and so neither bodies nor personal data.
"""

import re
from collections import deque
from dataclasses import dataclass
from typing import Any

from gateway.observability.metrics import SIGNED_OPERATION, classify_outcome
from gateway.observability.request_series import RequestRecord

MAX_REQUESTS = 5000
LIST_INDEX_PATTERN = re.compile(r"\[\d+\]")
SEPARATOR = ", "
"""Between the codes of a request, and between its fields."""

UNMATCHED_ROUTE, UNAUTHENTICATED = "unmatched route", "unauthenticated"
"""Shown instead of an operation and a merchant."""


recorded_requests: deque[RequestRecord] = deque(maxlen=MAX_REQUESTS)


@dataclass(frozen=True, slots=True)
class RecentRequest:
    """A request. ``at`` is in seconds since 1970; ``code`` is empty if it succeeded."""

    at: float
    request_id: str
    operation: str
    merchant: str
    environment: str
    key: str
    status: int
    code: str
    field: str
    reason: str
    duration_ms: float
    upstream_calls: int
    upstream_ms: float


def list_recent_requests() -> list[RecentRequest]:
    """Lists the newest requests of this process, oldest first."""
    return [_build_recent_request(record) for record in list(recorded_requests)]


def _build_recent_request(record: RequestRecord) -> RecentRequest:
    at, request_id, source, status, duration_seconds, upstream_calls, upstream_seconds, fields = (
        record
    )
    merchant, environment = source.tenant or (UNAUTHENTICATED, "")
    return RecentRequest(
        at,
        request_id,
        source.operation or (SIGNED_OPERATION if source.api == "signed" else UNMATCHED_ROUTE),
        merchant,
        environment,
        source.key_name or "",
        status,
        # The outcome if the gateway did not choose a code.
        ""
        if status < 400
        else _join_distinct(fields.get("error_codes", ())) or classify_outcome(status, fields),
        _join_distinct(
            # Without list indexes, so that a mistake in each payment is one group.
            LIST_INDEX_PATTERN.sub("[]", name)
            for name in fields.get("error_fields", ())
        ),
        str(fields.get("reason") or ""),
        round(duration_seconds * 1000, 1),
        upstream_calls,
        round(upstream_seconds * 1000, 1),
    )


def _join_distinct(names: Any) -> str:
    return SEPARATOR.join(dict.fromkeys(names))
