"""The one line that a request leaves in the log, whichever face it was for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import structlog

from gateway import metrics, traces

if TYPE_CHECKING:
    from gateway.store import Owner

log = structlog.get_logger()


def tell(
    *,
    status: int,
    method: str,
    began: float,
    request_id: str,
    face: str,
    operation: str | None = None,
    owner: Owner | None = None,
    key: str | None = None,
    calls: int = 0,
    seconds: float = 0.0,
    more: Mapping[str, Any],
) -> None:
    """``began`` by the loop's clock; ``more`` holds nothing that a client sent.

    Counted as well, so that the log and the metrics agree.
    """
    took = asyncio.get_running_loop().time() - began
    metrics.request(
        face=face,
        operation=operation,
        environment=owner.environment if owner else "",
        status=status,
        took=took,
        at_service=seconds,
        request_id=request_id,
        told=more,
    )
    traces.answered(
        face=face,
        method=method,
        operation=operation,
        environment=owner.environment if owner else "",
        status=status,
        outcome=metrics.outcome(status, more),
    )
    line: dict[str, Any] = {
        "status": status,
        "method": method,
        "face": face,
        "operation": operation,
        "ms": round(took * 1000, 1),
        "merchant": owner.merchant if owner else None,
        "environment": owner.environment if owner else None,
        "key": key,
        "request_id": request_id,
        "upstream_calls": calls,
        "upstream_ms": round(seconds * 1000, 1),
    }
    if trace := traces.trace_id():
        line["trace_id"] = trace
    (log.error if status >= 500 else log.info)("request", **line, **more)
