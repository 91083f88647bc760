"""A request that writes, as the idempotency guard receives it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from gateway.writes.caller import Caller
from mappings.effects import CompareAndSet, Operation, Request
from mappings.failures import Problem

LoadRoutingChecks = Callable[[str], Awaitable[Sequence[CompareAndSet]]]


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
