"""A request that writes, as the idempotency guard receives it, and the caller of any request."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

import msgspec

from gateway.auth.keys import ApiKey
from gateway.http.responses import LegacyResponse
from gateway.upstream.http_connection import Fence
from gateway.writes.operation_execution import OperationExecution
from mappings.effects import (
    JSON,
    MAX_PARALLEL_CALLS,
    Answer,
    Call,
    CompareAndSet,
    Operation,
    Request,
)
from mappings.failures import ClientDisconnected, Problem


class Caller(msgspec.Struct, eq=False):
    """The API key and client of the request being executed, and its cost so far."""

    key: ApiKey
    request_id: str
    call_count: int = 0
    service_seconds: float = 0.0
    execution: OperationExecution | None = None
    is_disconnected: bool = False
    received_at: float | None = None
    """When the request was received, by the event loop's clock."""
    is_connection_closed: Callable[[], bool] = bool
    """Whether the client's end of the connection is closed at this moment."""
    is_long: bool = False
    """Whether the request's bodies are so large that a worker thread processes them."""
    send_write: Callable[[Call, Fence | None], Awaitable[JSON]] | None = None
    """Sends a write in the client's own bytes, if it is signed by the client or forwarded."""
    send_read: Callable[[Call, Fence | None], Awaitable[JSON]] | None = None
    """Reads from the legacy service, if the write is forwarded to it."""
    stamped_at: datetime | None = None
    """The timestamp of the client's own signature."""
    _read_slots: asyncio.Semaphore | None = None

    def check_connected(self) -> None:
        """Raises ClientDisconnected: the client may have been answered elsewhere."""
        if self.is_disconnected:
            raise ClientDisconnected

    @property
    def parallel_read_semaphore(self) -> asyncio.Semaphore:
        """Limits the parallel reads of the request; created lazily, as most requests make none."""
        if self._read_slots is None:
            self._read_slots = asyncio.Semaphore(MAX_PARALLEL_CALLS)
        return self._read_slots


LoadRoutingChecks = Callable[[str], Awaitable[Sequence[CompareAndSet]]]
RenderAnswer = Callable[[Answer], Awaitable[LegacyResponse]]


class WriteRequest(msgspec.Struct, frozen=True):
    """A request that writes, as the client sent it."""

    operation: Operation
    request: Request
    caller: Caller
    idempotency_key: str | None = None
    problems: Sequence[Problem] = ()
    routing_checks: LoadRoutingChecks | None = None
    """Loads the changes and checks that keep a batch at the service that owns it, for the id of the
    operation; saved with its first change. Raises BatchRoutedElsewhereError."""
    forwarded_request: Request | None = None
    """The request for the legacy service, with the client's own ids. ``request`` is its
    translation, by which a retry is recognized; None if the operation is translated."""
    rebuild_forwarded_response: RenderAnswer | None = None
    """Builds the response to a first attempt that was forwarded and that an operator confirmed, whose
    answer names what the legacy service can be asked for. None if the tenant has only one service."""
