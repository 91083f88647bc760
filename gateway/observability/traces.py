"""OpenTelemetry traces, if `[traces]` configures a collector.

Requires ``pip install payout-gateway[traces]``. Each request is a span, with a child span for each
upstream call. Spans contain route templates (``/v1/recipients/{id}``), statuses and outcomes, but
no ids, queries, bodies, addresses or error texts. Only ``traceparent`` is taken from a client's
headers; the sampling decision is made here.

Both services receive a ``traceparent``. Signatures do not cover headers (current interface, section
5), so it does not affect them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, cast

from gateway.config.settings import Traces
from mappings import OPERATIONS, UNLISTED

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Tracer

KNOWN_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Other methods are reported as ``_OTHER``, because a client can invent any number of them."""

EXPORT_SECONDS = 5

ROUTES_BY_OPERATION = {
    operation.name: f"/v1{operation.path}" for operation in (*OPERATIONS, *UNLISTED)
}
"""``http.route`` of each operation, by its name."""

active_tracer: Tracer | None = None
"""None if tracing is off."""

_otel: Any = None
_propagator: Any = None
"""``opentelemetry.trace`` and its propagator, an extra that is slow to load: with the first tracer."""


def is_extra_installed() -> bool:
    """Whether OpenTelemetry can be imported, which is slow and therefore not tried."""
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


@asynccontextmanager
async def open_tracing(settings: Traces) -> AsyncIterator[None]:
    """Exports traces to the configured collector, if any."""
    if not settings.endpoint:
        yield
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - an extra
        OTLPSpanExporter,
    )

    exporter = OTLPSpanExporter(f"{settings.endpoint}/v1/traces", timeout=EXPORT_SECONDS)
    with export_spans_to(exporter, settings.ratio, batched=True) as provider:
        try:
            yield
        finally:
            # The shutdown waits for the collector and must not block requests still in flight.
            await asyncio.to_thread(provider.shutdown)


@contextmanager
def export_spans_to(
    exporter: SpanExporter, ratio: float = 1.0, *, batched: bool = False
) -> Iterator[TracerProvider]:
    """Exports the spans of this process until the context ends."""
    from opentelemetry import trace  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider, export, sampling  # noqa: PLC0415
    from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
        TraceContextTextMapPropagator,
    )

    global active_tracer, _otel, _propagator  # noqa: PLW0603 - one for the process, like a logger
    _otel, _propagator = trace, TraceContextTextMapPropagator()
    ratio_sampler = sampling.TraceIdRatioBased(ratio)
    # The client's sampled flag is ignored: otherwise clients could decide how much is exported.
    sampler = sampling.ParentBased(ratio_sampler, remote_parent_sampled=ratio_sampler)
    resource = Resource({"service.name": "payout-gateway"})
    # The library's exit handler is off, because `open_tracing` shuts the provider down.
    provider = TracerProvider(sampler, resource, shutdown_on_exit=False)
    processor = export.BatchSpanProcessor if batched else export.SimpleSpanProcessor
    provider.add_span_processor(processor(exporter))
    old_tracer, active_tracer = active_tracer, provider.get_tracer("payout-gateway")
    try:
        yield provider
    finally:
        active_tracer = old_tracer


@contextmanager
def start_request_span(method: str, traceparent: str) -> Iterator[None]:
    """Starts the span of a request of either interface, if tracing is on; see
    ``set_request_span_attributes``.
    """
    # The client's tracestate is dropped, because it can contain anything.
    parent = _propagator.extract({"traceparent": traceparent})
    method = _normalize_method(method)
    with cast("Tracer", active_tracer).start_as_current_span(
        method,
        parent,
        _otel.SpanKind.SERVER,
        {"http.request.method": method},
        # Texts of exceptions may contain personal data.
        record_exception=False,
        set_status_on_exception=False,
    ):
        yield


def set_request_span_attributes(
    *, api: str, method: str, operation: str | None, environment: str, status: int, outcome: str
) -> None:
    """Sets the attributes of the current request span, once the request is answered."""
    span, route = _otel.get_current_span(), ROUTES_BY_OPERATION.get(operation or "")
    span.update_name(f"{_normalize_method(method)} {route or api}")
    attributes = {
        "http.route": route,
        "http.response.status_code": status,
        "payout_gateway.api": api,
        "payout_gateway.operation": operation,
        "payout_gateway.environment": environment,
        "payout_gateway.outcome": outcome,
    }
    span.set_attributes({name: value for name, value in attributes.items() if value})
    # By OpenTelemetry's conventions a 4xx is an error of a client span, not of a server span.
    if status >= 500 and outcome != "client_disconnected":
        span.set_status(_otel.StatusCode.ERROR)


class CallSpan:
    def __init__(self, span: Any = None) -> None:
        self._span = span

    def record_outcome(self, outcome: str, status: int | None = None) -> None:
        if self._span is None:
            return
        self._span.set_attribute("payout_gateway.outcome", outcome)
        if status is not None:
            self._span.set_attribute("http.response.status_code", status)
        if status is None or status >= 400:
            self._span.set_attribute("error.type", outcome)
            self._span.set_status(_otel.StatusCode.ERROR)


# Shared by all calls, so that tracing costs almost nothing if it is off.
_NO_CALL_SPAN = nullcontext(CallSpan())


def start_call_span(
    method: str, path: str, environment: str, service: Literal["current", "legacy"] = "current"
) -> AbstractContextManager[CallSpan]:
    """Starts the span of an upstream call; ``path`` is a route template, or empty."""
    if active_tracer is None:
        return _NO_CALL_SPAN
    return _open_call_span(active_tracer, method, path, environment, service)


@contextmanager
def _open_call_span(
    tracer: Tracer, method: str, path: str, environment: str, service: str
) -> Iterator[CallSpan]:
    method = _normalize_method(method)
    attributes = {
        "http.request.method": method,
        "payout_gateway.environment": environment,
        "payout_gateway.service": service,
    }
    with tracer.start_as_current_span(
        f"{method} /v1{path}" if path else f"{method} other",
        kind=_otel.SpanKind.CLIENT,
        attributes=attributes | ({"url.template": f"/v1{path}"} if path else {}),
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        yield CallSpan(span)


def build_trace_headers() -> Mapping[str, str]:
    """Returns the trace context headers of the current span, to be sent to the service."""
    if active_tracer is None:
        return {}
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier


def get_trace_id() -> str | None:
    """Returns the trace id of the current span, for the access log."""
    context = _otel.get_current_span().get_span_context()
    return _otel.format_trace_id(context.trace_id) if context.is_valid else None


def _normalize_method(method: str) -> str:
    return method if method in KNOWN_METHODS else "_OTHER"
