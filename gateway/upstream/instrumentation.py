"""Metrics and traces of calls to the services."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from time import perf_counter

from gateway.observability import metrics, traces
from mappings.effects import Operation
from mappings.failures import Failure


@dataclass(slots=True)
class RecordedCall:
    status: int | None = None
    """Of the response, which the caller sets."""


def describe_failed_call(error: BaseException) -> str:
    """Returns the outcome of a call without an answer, for metrics and traces."""
    if isinstance(error, Failure):
        return error.error_type
    return "failed" if isinstance(error, Exception) else "cancelled"


@contextmanager
def _record_call(
    span_context: AbstractContextManager[traces.CallSpan],
    count_outcome: Callable[[str, float], None],
) -> Iterator[RecordedCall]:
    """Records the outcome of a call in a span and a metric."""
    call, started_at, outcome = RecordedCall(), perf_counter(), ""
    with span_context as span:
        try:
            yield call
        except BaseException as error:
            outcome = describe_failed_call(error)
            raise
        finally:
            outcome = outcome or f"{(call.status or 0) // 100}xx"
            span.record_outcome(outcome, call.status)
            count_outcome(outcome, perf_counter() - started_at)


def record_call(environment: str, method: str, path: str) -> AbstractContextManager[RecordedCall]:
    """Records a call; ``path`` is the endpoint's template, empty for an unknown endpoint."""
    span, endpoint = traces.start_call_span(method, path, environment), (environment, method, path)
    append = metrics.pending_calls.append
    return _record_call(span, lambda outcome, seconds: append((endpoint, outcome, seconds)))


def record_legacy_call(
    environment: str, operation: Operation
) -> AbstractContextManager[RecordedCall]:
    """Records a request that is forwarded to the legacy service."""
    span = traces.start_call_span(operation.method, operation.path, environment, service="legacy")
    counts, name = metrics.traffic.legacy_call_counts, operation.name
    return _record_call(span, lambda outcome, _: counts.update([(environment, name, outcome)]))
