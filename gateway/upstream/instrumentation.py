"""Metrics and traces of calls to the services."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter
from types import TracebackType
from typing import Self

from gateway.observability import metrics, traces
from mappings.effects import Operation
from mappings.failures import Failure


class CallRecorder:
    """Records the outcome of a call in a span and a metric; without a status, it is "cancelled".

    A class, because a generator-based context manager costs more per call.
    """

    __slots__ = ("_count_outcome", "_span", "_span_context", "_started_at", "outcome", "status")

    def __init__(
        self,
        span_context: AbstractContextManager[traces.CallSpan],
        count_outcome: Callable[[str, float], None],
    ) -> None:
        self._span_context = span_context
        self._count_outcome = count_outcome
        self.outcome = "cancelled"
        self.status: int | None = None

    def record_status(self, status: int) -> None:
        self.status = status
        self.outcome = f"{status // 100}xx"

    def __enter__(self) -> Self:
        self._span = self._span_context.__enter__()
        self._started_at = perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Failure):
            self.outcome = error.error_type
        # CancelledError is no Exception, so a cancelled call keeps the outcome "cancelled".
        elif isinstance(error, Exception):
            self.outcome = "failed"
        self._span.record_outcome(self.outcome, self.status)
        self._count_outcome(self.outcome, perf_counter() - self._started_at)
        self._span_context.__exit__(kind, error, trace)


def instrument_call(environment: str, method: str, path: str) -> CallRecorder:
    """Instruments a call; ``path`` is the endpoint's template, empty for an unknown endpoint."""
    span = traces.start_call_span(method, path, environment)
    endpoint = environment, method, path
    return CallRecorder(
        span,
        lambda outcome, seconds: metrics.pending_calls.append((endpoint, outcome, seconds)),
    )


def instrument_legacy_call(environment: str, operation: Operation) -> CallRecorder:
    """Instruments a request that is forwarded to the legacy service."""
    span = traces.start_call_span(operation.method, operation.path, environment, service="legacy")
    counts, name = metrics.traffic.legacy_call_counts, operation.name
    return CallRecorder(span, lambda outcome, _: counts.update([(environment, name, outcome)]))
