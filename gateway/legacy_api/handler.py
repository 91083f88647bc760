"""HTTP handler of the legacy interface.

Checks the path, API key, address, rate limit and body, in this order, waits for an admission slot,
and runs the operation's flow. Every failure goes through one error table, every request to the log.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from hashlib import sha256
from typing import cast

import structlog
from msgspec import structs

from gateway.admission.limits import Admission, RateLimiter
from gateway.admission.load import AdmissionSlot, LoadShedder, Overloaded
from gateway.auth.keys import ApiKeyStore
from gateway.compare import endpoints
from gateway.config.settings import Settings
from gateway.http import request_reader, responses
from gateway.http.request import HttpRequest
from gateway.http.request_reader import generate_hex_id
from gateway.http.responses import HttpResponse, LegacyResponse, PassedResponse
from gateway.legacy_api.authentication import CallerAuthenticator
from gateway.legacy_api.codec import LegacyCodec
from gateway.legacy_api.deprecation import DeprecationNotice
from gateway.legacy_api.request_context import (
    RequestContext,
    ResponseDelivery,
    read_idempotency_key,
)
from gateway.legacy_api.routes import Routes
from gateway.migration.brownouts import Brownouts
from gateway.migration.inbound_request import InboundRequest, build_forwarded_request
from gateway.migration.routing import ServiceRouter
from gateway.migration.shadow_traffic import ShadowTraffic
from gateway.observability import access_log, logs, metrics, traces
from gateway.observability.request_series import RequestSource
from gateway.storage import StoreUnavailable
from gateway.storage.mode_rows import COMPARE
from gateway.storage.request_counts import UsageCounter
from gateway.upstream import passthrough
from gateway.writes.batch_routing import BatchRoutedElsewhereError
from gateway.writes.executor import MIN_RETRY_AFTER_SECONDS, FlowExecutor
from gateway.writes.idempotency import IdempotencyGuard, RecordedResponse
from gateway.writes.write_request import Caller, WriteRequest
from mappings import errors
from mappings.effects import JSON, Operation, Request
from mappings.errors import ErrorAnswer
from mappings.failures import Failure, Halted, Invalid, Problem, Unknown, Unreachable

MAX_ROUTING_ATTEMPTS = 5
"""Attempts to select the service of a request while other requests change where its batches are."""

NO_PARSED_BODY: tuple[JSON, tuple[Problem, ...]] = (None, ())
"""The body of an operation without one."""

log = structlog.get_logger()


class LegacyHandler:
    """Answers requests of the legacy interface; a request handler."""

    def __init__(
        self,
        settings: Settings,
        *,
        key_store: ApiKeyStore,
        limits: RateLimiter,
        unauthenticated_limits: RateLimiter,
        flow_executor: FlowExecutor,
        idempotency_guard: IdempotencyGuard,
        codec: LegacyCodec,
        usage: UsageCounter,
        brownouts: Brownouts,
        service_router: ServiceRouter,
        shadow_traffic: ShadowTraffic,
        load: LoadShedder,
        clock: Callable[[], datetime],
    ) -> None:
        self._authenticator = CallerAuthenticator(
            settings, key_store, limits, unauthenticated_limits, service_router
        )
        self._flow_executor = flow_executor
        self._idempotency_guard = idempotency_guard
        self._delivery = ResponseDelivery(idempotency_guard.deliveries)
        self._codec = codec
        self._usage = usage
        self._brownouts = brownouts
        self._service_router = service_router
        self._shadow_traffic = shadow_traffic
        self._load = load
        self._body_bytes_per_second = settings.load.body_bytes_per_second
        self._deprecation = DeprecationNotice(settings.deprecation, settings.environments)
        self._clock = clock
        self._routes = Routes(settings.vocabulary.build_vocabulary())
        self._max_body_bytes = settings.limits.body_bytes

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        client = request.fields.client or self._authenticator.identify_client(request)
        context = RequestContext(client.request_id or generate_hex_id(), request.arrived_at, client)
        # Set before the first await: the client may disconnect at any time from here on.
        request.on_disconnect = partial(self._delivery.handle_disconnect, context)
        legacy_response: LegacyResponse | PassedResponse
        try:
            admitted = await self._admit_request(request, context)
            if isinstance(admitted, LegacyResponse | PassedResponse):
                legacy_response = admitted
            else:
                legacy_response, context.pending_delivery = await admitted
        except Exception as error:  # noqa: BLE001 - no client may see a traceback, and no log a text
            legacy_response = await self._answer_failed_request(request, context, error)
        finally:
            if context.slot:
                context.slot.release()
        try:
            response = self._build_http_response(request, context, legacy_response)
            # Before it is sent, so that a client that has its response finds the request counted.
            log_and_count_request(self._usage, request, context, response)
            if context.pending_delivery:
                await self._delivery.send_and_await_acknowledgement(
                    request, response, context, context.pending_delivery
                )
        finally:
            if context.pending_delivery:
                # Also after errors and cancellation, so that a repeated request is a retry.
                self._idempotency_guard.deliveries.end(context.pending_delivery)
            if context.caller:
                # It has the request's body, and the connection refers to the context for a while.
                context.caller.execution = None
        if inbound := context.shadow_request:
            # Queued, so that the client does not wait for the other service.
            caller = Caller(inbound.caller.key, context.request_id)
            self._shadow_traffic.enqueue_comparison(
                inbound,
                legacy_response,
                partial(self._run_flow_for_comparison, context, inbound, caller),
                partial(self._flow_executor.execute, caller=caller),
            )
        return response

    def _build_http_response(
        self,
        request: HttpRequest,
        context: RequestContext,
        legacy_response: LegacyResponse | PassedResponse,
    ) -> HttpResponse:
        environment = context.caller.key.environment if context.caller else None
        deprecation_headers = self._deprecation.headers_by_environment.get(
            environment, responses.NO_HEADERS
        )
        if isinstance(legacy_response, LegacyResponse):
            return responses.build_http_response(
                legacy_response, context.request_id, context.admission, deprecation_headers
            )
        own_headers = dict(deprecation_headers)
        if request.headers.get("User-Agent") == endpoints.USER_AGENT:
            own_headers[endpoints.ANSWERED_BY_HEADER] = endpoints.LEGACY_SERVICE
        return responses.build_passthrough_response(
            legacy_response, context.request_id, context.admission, own_headers
        )

    async def _answer_failed_request(
        self, request: HttpRequest, context: RequestContext, error: Exception
    ) -> LegacyResponse:
        if isinstance(error, Overloaded):
            legacy_response = await self._codec.build_failure_response(context, error)
            # In place of the message for the client, which does not say what is exhausted.
            context.log_fields["reason"] = error.reason
            # The rest of the body is not read, so the connection cannot be used again.
            return structs.replace(legacy_response, closes_connection=not request.body.is_complete)
        if isinstance(error, Failure):
            return await self._codec.build_failure_response(context, error)
        if isinstance(error, request_reader.BodyTooLarge):
            return responses.build_error_response(error.answer, closes_connection=True)
        if isinstance(error, StoreUnavailable):
            context.log_fields["error.type"] = metrics.DATABASE_UNAVAILABLE
            context.log_fields["reason"] = str(error)
            halted = Halted(errors.INTERNAL_ERROR, retry_after=MIN_RETRY_AFTER_SECONDS)
            return responses.build_error_response(errors.translate_failure(halted))
        context.log_fields |= logs.describe_exception(error)
        if context.caller and context.caller.execution and context.caller.execution.writes:
            # It may have been executed: the client must not read 500 as "not executed".
            unknown = Unknown(type(error).__name__)
            return responses.build_error_response(errors.translate_failure(unknown))
        return responses.build_error_response(errors.build_legacy_error(errors.INTERNAL_ERROR))

    async def _admit_request(
        self, request: HttpRequest, context: RequestContext
    ) -> LegacyResponse | PassedResponse | Awaitable[RecordedResponse]:
        """Checks a request; returns its response, or starts the flow that has it."""
        path, _ = request_reader.split_request_target(request)
        route_match = self._routes.match(path)
        if route_match is None:
            context.log_fields["reason"] = f"no operation matches {self._routes.redact_path(path)}"
            raise Invalid(errors.NOT_FOUND)
        if request.method == "OPTIONS":
            # Before authentication: browsers send preflights without credentials.
            return responses.build_preflight_response(route_match.route.operations)
        operation = route_match.route.operations.get(request.method)
        if operation is None:
            raise Invalid(errors.NOT_FOUND)
        context.operation = operation
        # Before the body is read, so that a refused client costs no memory.
        context.admission = await self._authenticator.authenticate_and_rate_limit(
            request, context, operation
        )
        caller = context.caller
        if (not context.admission.is_admitted or self._brownouts.open_brownouts) and (
            refusal := self._find_refusal(context, context.admission, operation)
        ):
            return refusal
        # Not before authentication: operators want to know whose clients still call after the sunset.
        if self._deprecation.is_refused_after_sunset and (
            sunset_problem := self._deprecation.find_sunset_problem(self._clock())
        ):
            raise Invalid(sunset_problem)
        # After the rate limit (contract, section 1), so that refused uploads count as requests too.
        if request.fields.content_length:
            request_reader.check_content_length(request, self._max_body_bytes)
        slot = context.slot = self._create_admission_slot(request, operation, caller)
        # The selected service may depend on the body, so it is selected after the body is read.
        if caller and caller.key.tenant in self._service_router.modes.switched_tenants:
            return await self._answer_from_either_service(request, context, route_match.ids, slot)
        parsed_body = NO_PARSED_BODY
        if operation.body_shape is not None:
            body = await request_reader.read_whole_body(
                request, self._max_body_bytes, slot, self._body_bytes_per_second
            )
            # Before the slot is acquired: an invalid body must not take a place from others.
            parsed_body = await self._codec.decode_and_validate_body(request, context, body)
            del body  # it may be large, and the flow may take long
        flow_request = await self._codec.build_request(
            request, context, route_match.ids, parsed_body
        )
        del parsed_body
        # Keyless operations make no calls (contract, section 10), so they need no place.
        if caller and not slot.try_acquire(caller.key.tenant_name):
            await slot.acquire(caller.key.tenant_name)
        return self._start_flow(request, context, operation, flow_request)

    def _find_refusal(
        self, context: RequestContext, admission: Admission, operation: Operation
    ) -> LegacyResponse | None:
        """Finds the refusal of a request over its rate limit, or during a brownout."""
        if not admission.is_admitted:
            context.log_fields["reason"] = metrics.RATE_LIMIT_REASON
            wait = str(admission.reset_seconds)
            answer = ErrorAnswer(429, (errors.RATE_LIMIT_EXCEEDED,), wait)
        elif context.caller and (
            refusal := self._brownouts.find_refusal(context.caller.key, operation.name)
        ):
            context.log_fields["reason"] = metrics.BROWNOUT_REASON
            answer = refusal
        else:
            return None
        return responses.build_error_response(answer)

    async def _answer_from_either_service(
        self,
        request: HttpRequest,
        context: RequestContext,
        ids: Mapping[str, str],
        slot: AdmissionSlot,
    ) -> LegacyResponse | PassedResponse:
        """Answers from the legacy service, or with calls of the current one if that is selected."""
        body = b""
        # The body of a read is ignored, and never forwarded (contract, section 2).
        if not request.is_read_with_body:
            body = await request_reader.read_whole_body(
                request, self._max_body_bytes, slot, self._body_bytes_per_second
            )
        inbound = await self._build_inbound_request(request, context, ids, body)
        await slot.acquire(inbound.caller.key.tenant_name)
        if await self._service_router.is_compared(inbound):
            context.shadow_request, context.log_fields["mode"] = inbound, COMPARE
        for _ in range(MAX_ROUTING_ATTEMPTS):
            # Another request has assigned a batch to a service meanwhile: select again.
            with suppress(BatchRoutedElsewhereError):
                return await self._answer_from_selected_service(request, context, inbound)
        raise Unreachable("concurrent requests keep changing which service has it", retry_after=1)

    async def _answer_from_selected_service(
        self, request: HttpRequest, context: RequestContext, inbound: InboundRequest
    ) -> LegacyResponse | PassedResponse:
        if forwarded_answer := await self._service_router.forward_if_routed_to_legacy(inbound):
            context.pending_delivery = forwarded_answer.pending_delivery
            return forwarded_answer.response
        try:
            parsed_body = await self._codec.decode_and_validate_body(request, context, inbound.body)
            flow_request = await self._codec.build_request(
                request, context, inbound.forwarded_request.ids, parsed_body
            )
            response, context.pending_delivery = await self._start_flow(
                request, context, inbound.operation, flow_request, inbound
            )
        except Failure as failure:
            # Either service may have the payment: the request does not name its batch.
            if fallback_response := await self._service_router.fetch_legacy_fallback_response(
                inbound, failure
            ):
                return fallback_response
            raise
        return response

    def _start_flow(
        self,
        request: HttpRequest,
        context: RequestContext,
        operation: Operation,
        flow_request: Request,
        inbound: InboundRequest | None = None,
    ) -> Awaitable[RecordedResponse]:
        """Starts a flow; ``inbound`` is the request as the legacy service could also get it."""
        if parameters := flow_request.query:
            known = getattr(operation.query_shape, "__annotations__", {})
            # Ignored as documented (contract, section 3), but counted: a client may expect an
            # effect. Not of a forwarded request, whose parameters the legacy service gets.
            if unknown := parameters.keys() - known.keys():
                metrics.ignored_parameters.labels(operation.name).inc(len(unknown))
        if context.caller is None or not operation.is_write:
            return self._run_reading_flow(context, operation, flow_request)
        write_request = WriteRequest(
            operation,
            flow_request,
            context.caller,
            read_idempotency_key(request),
            flow_request.problems,
        )
        if inbound is not None:
            write_request = structs.replace(
                write_request,
                routing_checks=partial(self._service_router.load_routing_checks, inbound),
                rebuild_forwarded_response=partial(
                    self._service_router.rebuild_forwarded_response, inbound
                ),
            )
        build_response = partial(self._codec.build_response, context)
        return self._idempotency_guard.answer(
            write_request, build_response, partial(self._codec.build_failure_response, context)
        )

    async def _run_reading_flow(
        self, context: RequestContext, operation: Operation, flow_request: Request
    ) -> RecordedResponse:
        flow = operation.flow(flow_request)
        answer = await self._flow_executor.execute(flow, context.caller, flow_request.problems)
        return await self._codec.build_response(context, answer), None

    async def _run_flow_for_comparison(
        self,
        context: RequestContext,
        inbound: InboundRequest,
        caller: Caller,
        current_ids: Mapping[str, str],
    ) -> LegacyResponse:
        """Runs a read against the current service for comparison; raises Unreachable.

        ``current_ids`` are the current service's ids by legacy id, for ids that are not imported.
        """
        comparison_context = RequestContext(
            context.request_id,
            context.start_time,
            context.client,
            inbound.operation,
            caller,
            client_ids=context.client_ids | {id_: name for name, id_ in current_ids.items()},
            has_only_current_ids=context.has_only_current_ids and not current_ids,
        )
        ids = {name: current_ids.get(id_, id_) for name, id_ in inbound.flow_request.ids.items()}
        flow_request = structs.replace(inbound.flow_request, ids=ids)
        flow, problems = inbound.operation.flow(flow_request), flow_request.problems
        try:
            answer = await self._flow_executor.execute(flow, caller, problems)
            return await self._codec.build_response(comparison_context, answer)
        # Unreachable, so that the caller does not count this as a difference.
        except Unreachable:
            raise
        except Failure as failure:
            return await self._codec.build_failure_response(comparison_context, failure)

    async def _build_inbound_request(
        self, request: HttpRequest, context: RequestContext, ids: Mapping[str, str], body: bytes
    ) -> InboundRequest:
        """Builds the request to forward, with the flow request by which a retry is recognized."""
        try:
            parsed_body = await self._codec.decode_and_validate_body(request, context, body)
            flow_request = await self._codec.build_request(request, context, ids, parsed_body)
        except Invalid:
            # The legacy service decides about such a body; its digest still identifies a retry.
            digest = sha256(body).hexdigest()
            flow_request = Request(self._clock(), generate_hex_id(), ids, body={"unread": digest})
        path, query = request_reader.split_request_target(request)
        headers = passthrough.filter_legacy_request_headers(request.headers)
        # The id that was validated and logged, not the raw header.
        headers["X-Request-Id"] = context.request_id
        target = f"{path}?{query}" if query else path
        operation, caller = cast("Operation", context.operation), cast("Caller", context.caller)
        return InboundRequest(
            operation,
            caller,
            flow_request,
            await build_forwarded_request(operation, ids, flow_request, body),
            target,
            headers,
            body,
            idempotency_key=read_idempotency_key(request),
            log_fields=context.log_fields,
        )

    def _create_admission_slot(
        self, request: HttpRequest, operation: Operation, caller: Caller | None
    ) -> AdmissionSlot:
        """Creates an admission slot; raises Overloaded."""
        if caller is None:
            # All keyless requests share one name, so that they cannot displace those with keys.
            return AdmissionSlot(self._load, "without a key")
        key = caller.key
        slot = AdmissionSlot(self._load, key.tenant_name, request.connection, key.tenant)
        if operation.body_shape is not None:
            slot.check_capacity(key.tenant_name)
        return slot


def log_and_count_request(
    usage: UsageCounter, request: HttpRequest, context: RequestContext, response: HttpResponse
) -> None:
    """Writes the access log line and counts the usage."""
    # One duration for all, so that the log and the counts agree.
    seconds = time.monotonic() - context.start_time
    caller, log_fields = context.caller, context.log_fields
    operation = context.operation
    if caller and operation:
        service_seconds, call_count = caller.service_seconds, caller.call_count
        # Found once for each key, not by a key of six names for each request.
        source = caller.key.request_sources.get(operation.name)
        if source is None:
            source = caller.key.request_sources[operation.name] = _find_source(context, request)
    else:
        service_seconds, call_count = 0.0, 0
        source = _find_source(context, request)
    if context.pending_delivery and context.pending_delivery.request_id != context.request_id:
        # `trace` finds an operation by the request id of its first try.
        log_fields = {**log_fields, "retry_of": context.pending_delivery.request_id}
    record = (
        usage.wall(),
        context.request_id,
        source,
        response.status,
        seconds,
        call_count,
        service_seconds,
        log_fields,
    )
    access_log.log_and_record_request(
        record,
        context.client.address_text,
        request.fields.content_length or 0,
        response.body_length,
    )
    usage.pending_requests.append(record)
    for notice in context.notices:
        log.warning("request_warning", request_id=context.request_id, reason=notice)


def _find_source(context: RequestContext, request: HttpRequest) -> RequestSource:
    operation = context.operation.name if context.operation else None
    route = traces.ROUTES_BY_OPERATION[operation] if operation else None
    key = context.caller.key if context.caller else None
    return access_log.find_request_source(
        "legacy",
        request.method,
        operation,
        route,
        key.tenant if key else None,
        key_name=key.name if key else None,
    )
