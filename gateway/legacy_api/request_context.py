"""State of a legacy request while it is handled, and the delivery of the response to a write."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
import structlog

from gateway.admission.limits import Admission
from gateway.admission.load import AdmissionSlot
from gateway.http.client_address import Address
from gateway.http.delivery import is_acknowledged, wait_for_tcp_acknowledgement
from gateway.http.request import HttpRequest
from gateway.http.responses import HttpResponse
from gateway.migration.inbound_request import InboundRequest
from gateway.observability import logs
from gateway.storage.operation_records import OperationRecord
from gateway.writes.delivery import Deliveries
from gateway.writes.write_request import Caller
from mappings.effects import Operation
from mappings.failures import Invalid, Problem

log = structlog.get_logger()


class LegacyClient(msgspec.Struct, frozen=True):
    """The client of a connection, from the header fields that its requests repeat.

    ``request_id`` is empty if the client sets none. ``api_key`` and its digest are empty unless
    there is exactly one.
    """

    address: Address | None
    address_text: str | None
    request_id: str = ""
    api_key: str = ""
    key_digest: str = ""
    key_count: int = 0

    def __repr__(self) -> str:
        return "LegacyClient(…)"  # it has the API key


class RequestContext(msgspec.Struct, eq=False):
    """A request with the results of its checks and calls, for the response and the log.

    ``start_time`` is in seconds of the monotonic clock.
    """

    request_id: str
    start_time: float
    client: LegacyClient
    operation: Operation | None = None
    caller: Caller | None = None
    admission: Admission | None = None
    notices: tuple[str, ...] = ()
    client_ids: dict[str, str] = {}
    """Ids as the client sent them, by current id: the response repeats the client's spelling."""
    has_only_current_ids: bool = True
    """Whether the client sent all ids as the service spells them, or none."""
    current_ids: Mapping[str, str] = {}
    """Current ids by sent id, of a long request. Only error messages need them."""
    full_body_digest: str = ""
    """Digest of the body, if it has fields or values that were left out when it was decoded."""
    log_fields: dict[str, Any] = {}
    slot: AdmissionSlot | None = None
    pending_delivery: OperationRecord | None = None
    """The write that ends when the client has acknowledged the response."""
    shadow_request: InboundRequest | None = None
    """The request to repeat at the other service after the response is sent."""
    is_response_written: bool = False
    """Whether the whole response was handed to the connection."""
    is_delivered: bool = False
    """Whether the client had acknowledged the response when the connection ended."""
    is_reset: bool = False
    """Whether the connection was reset: the client may not have read what it acknowledged."""


_MAX_KEY_LENGTH = 255
INVALID_IDEMPOTENCY_KEY = Problem(
    "invalid_field",
    f"An Idempotency-Key is 1 to {_MAX_KEY_LENGTH} visible characters, and given once.",
    "Idempotency-Key",
)


def read_idempotency_key(request: HttpRequest) -> str | None:
    """Reads the key of a write; raises Invalid if it is not a valid one."""
    header_values = request.fields.headers.getall("Idempotency-Key", [])
    # A GET may write (the summary does), but to its client it is a read, which needs no key.
    if not header_values or request.method == "GET":
        return None
    key = header_values[0].strip()
    if (
        # Two values may come from a proxy that merged requests; neither is safe to choose.
        len(header_values) > 1
        or not 0 < len(key) <= _MAX_KEY_LENGTH
        or not (key.isascii() and key.isprintable())
    ):
        raise Invalid(INVALID_IDEMPOTENCY_KEY)
    return key


class ResponseDelivery:
    """Sends the responses to writes, and records disconnects, which make a repetition a retry."""

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries
        self._disconnect_tasks: set[asyncio.Future[None]] = set()

    async def send_and_await_acknowledgement(
        self,
        request: HttpRequest,
        response: HttpResponse,
        context: RequestContext,
        operation: OperationRecord,
    ) -> None:
        """Sends the response, and records whether the client has acknowledged it.

        If the connection ended first, or is reset later, a repeated request is a retry.
        """
        # Behind a proxy, resets say nothing: HAProxy resets every connection it no longer needs.
        if "X-Forwarded-For" not in request.fields.headers:
            request.on_reset = partial(self._record_connection_reset, context, operation)
        try:
            await response.send(request)
        except OSError:
            return
        # From here on, a disconnect may follow a complete delivery.
        context.is_response_written = True
        transport, tcp_transport = request.connection.transport, request.connection.tcp_transport
        is_delivered = is_acknowledged(transport, tcp_transport)
        if not is_delivered:
            self._deliveries.watch(
                operation,
                lambda: context.is_delivered or is_acknowledged(request.transport, tcp_transport),
            )
            request.connection.mark_response_in_progress()
            is_delivered = (
                await wait_for_tcp_acknowledgement(transport, tcp_transport) or context.is_delivered
            )
        # A reset may have arrived during the wait.
        if is_delivered and not context.is_reset:
            self._deliveries.record_delivery(operation, context.start_time)

    def _record_connection_reset(self, context: RequestContext, operation: OperationRecord) -> None:
        context.is_reset = True
        self._deliveries.record_reset(operation, context.start_time)

    def handle_disconnect(self, context: RequestContext, has_acknowledged_all: bool) -> None:
        # Determined while the socket was still open; afterwards the kernel cannot tell any more.
        context.is_delivered = (
            context.is_response_written and has_acknowledged_all and not context.is_reset
        )
        if context.caller is None or context.is_delivered:
            return
        context.caller.is_disconnected = True
        if context.slot:
            context.slot.cancel_wait()
        if context.caller.execution:
            task = asyncio.ensure_future(
                self._deliveries.record_disconnect(context.caller.execution)
            )
            # The event loop has only weak references to tasks, so the set keeps them alive.
            self._disconnect_tasks.add(task)
            task.add_done_callback(self._log_disconnect_failure)

    def _log_disconnect_failure(self, task: asyncio.Future[None]) -> None:
        self._disconnect_tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("client_disconnect_not_recorded", **logs.describe_exception(error))
