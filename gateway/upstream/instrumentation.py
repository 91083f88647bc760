"""Metrics and traces of calls to the services."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Self

from gateway.observability import metrics, traces
from mappings.grammar import Failure, Operation


class Told:
    """Records the outcome of a call in a span and a metric; without a status, it is "cancelled".

    A class, because a generator-based context manager costs more per call.
    """

    __slots__ = ("_count", "_opened", "_span", "outcome", "status")

    def __init__(
        self, opened: AbstractContextManager[traces.Calling], count: Callable[[str], None]
    ) -> None:
        self._opened = opened
        self._count = count
        self.outcome = "cancelled"
        self.status: int | None = None

    def answered(self, status: int) -> None:
        self.status = status
        self.outcome = f"{status // 100}xx"

    def __enter__(self) -> Self:
        self._span = self._opened.__enter__()
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
        self._span.ended(self.outcome, self.status)
        self._count(self.outcome)
        self._opened.__exit__(kind, error, trace)


def instrument_call(environment: str, method: str, path: str) -> Told:
    """Instruments a call; ``path`` is the endpoint's template, empty for an unknown endpoint."""
    span = traces.start_call_span(method, path, environment)
    return Told(span, partial(metrics.count_call, environment, method, path))


def instrument_legacy_call(environment: str, operation: Operation) -> Told:
    """Instruments a request that is forwarded to the legacy service."""
    span = traces.start_call_span(operation.method, operation.path, environment, service="legacy")
    return Told(span, partial(metrics.count_legacy_call, environment, operation.name))
