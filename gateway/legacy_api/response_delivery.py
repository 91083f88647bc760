"""Delivery of the responses to writes: whether the client got them, or went away before."""

from __future__ import annotations

import asyncio
from functools import partial

import structlog

from gateway.http.delivery import is_acknowledged, wait_for_tcp_acknowledgement
from gateway.http.request import HttpRequest
from gateway.http.responses import HttpResponse
from gateway.legacy_api.request_context import RequestContext
from gateway.observability import logs
from gateway.storage.operation_records import OperationRecord
from gateway.writes.delivery import Deliveries

log = structlog.get_logger()


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
            self._deliveries.record_delivery(operation)

    def _record_connection_reset(self, context: RequestContext, operation: OperationRecord) -> None:
        context.is_reset = True
        self._deliveries.record_reset(operation)

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
