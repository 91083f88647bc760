"""HTTP handler of signed requests: checks them and passes them on unchanged.

Checks the path, headers, access key, address, timestamp, body, signature, rate limit, admission
and recorded batch state, in this order. The signature covers the body, and only verified requests
count against a tenant's limit, so that strangers cannot use it up. The service verifies each
request again. Refusals have the service's codes (current interface, section 7).
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

from gateway.admission.limits import Admission
from gateway.admission.load import AdmissionSlot, LoadShedder, Overloaded
from gateway.config.settings import Settings
from gateway.http import request_reader, responses
from gateway.http.client_address import (
    Address,
    format_address_rate_limit_name,
    parse_networks,
    resolve_client_address,
)
from gateway.http.delivery import is_client_disconnected
from gateway.http.request import HttpRequest
from gateway.http.request_paths import PathTemplates, is_forwardable
from gateway.http.responses import HttpResponse
from gateway.observability import access_log, logs, metrics, traces
from gateway.payloads import json_codec
from gateway.reads.recipient_cache import RecipientCaches
from gateway.signed_api.credentials import (
    SignatureVerifier,
    parse_signature_header,
)
from gateway.signed_api.replies import (
    Refusal,
    WaitingClient,
    build_streamed_response,
    stream_response,
)
from gateway.signed_api.senders import SenderAuthenticator, Signer
from gateway.signed_api.transitions import (
    Send,
    SignedWrite,
    SignedWriteGuard,
    WriteTarget,
)
from gateway.storage import StoreUnavailable, Tenant
from gateway.storage.request_counts import UsageCounter
from gateway.upstream import instrumentation, passthrough
from gateway.upstream.http_connection import Fence
from gateway.upstream.passthrough import (
    PassthroughClient,
    PassthroughRequest,
    PassthroughResponse,
    Spool,
)
from gateway.writes.executor import MIN_RETRY_AFTER_SECONDS
from mappings import errors
from mappings.effects import JSON
from mappings.failures import (
    CircuitOpen,
    ClientDisconnected,
    Failure,
    Halted,
    Invalid,
    Problem,
    Unknown,
)

READ_METHODS = ("GET", "HEAD", "OPTIONS")
PREFLIGHT_METHODS = (*READ_METHODS[:2], "POST", "PUT", "PATCH", "DELETE")
"""Methods in a preflight response; a request may have any method that is not refused."""

REFUSED_METHODS = ("CONNECT", "TRACE")
"""Addressed to intermediaries; and a response to TRACE would repeat the credentials."""

UNKNOWN_KEYS = "unknown keys"
"""Admission name of all senders with unknown access keys, which share the slots of one tenant."""

CLIENT_CLOSED_REQUEST = 499
"""Logged status if the client disconnected before its response, as in nginx; never sent."""


@dataclass(slots=True)
class SignedRequestContext:
    """A request with the results of its checks and calls, for the response and the log."""

    request_id: str
    address: Address | None
    route: str
    received_at: float
    """When the request was received, by the event loop's clock."""
    status: int = CLIENT_CLOSED_REQUEST
    tenant: Tenant | None = None
    admission: Admission | None = None
    started_at: float = field(default_factory=perf_counter)
    calls: int = 0
    service_seconds: float = 0.0
    response_bytes: int = 0
    log_fields: dict[str, Any] = field(default_factory=dict)
    slot: AdmissionSlot | None = None

    def cancel_slot_wait(self, _has_acknowledged_all: bool) -> None:
        if self.slot:
            self.slot.cancel_wait()


class SignedHandler:
    """Answers signed requests; a request handler."""

    def __init__(
        self,
        settings: Settings,
        *,
        sender_authenticator: SenderAuthenticator,
        passthrough: PassthroughClient,
        write_guard: SignedWriteGuard,
        recipient_caches: RecipientCaches,
        usage: UsageCounter,
        load: LoadShedder,
    ) -> None:
        self._load = load
        self._body_bytes_per_second = settings.load.body_bytes_per_second
        self._usage = usage
        self._sender_authenticator = sender_authenticator
        self._passthrough = passthrough
        self._write_guard = write_guard
        self._recipient_caches = recipient_caches
        self._words = settings.vocabulary.current
        self._path_templates = PathTemplates(settings.vocabulary.build_vocabulary())
        self._max_body_bytes = settings.limits.body_bytes
        self._timeout_seconds = settings.upstream.timeout_seconds
        self._trusted_proxies = parse_networks(settings.server.trusted_proxies)

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        context = SignedRequestContext(
            request_reader.find_client_request_id(request) or request_reader.generate_hex_id(),
            resolve_client_address(
                request.remote,
                request.headers.getall("X-Forwarded-For", []),
                self._trusted_proxies,
            ),
            self._path_templates.redact(request.raw_path),
            request.arrived_at or asyncio.get_running_loop().time(),
        )
        request.on_disconnect = context.cancel_slot_wait
        try:
            response = await self._respond(request, context)
            if request.transport is not None or context.calls:
                # Otherwise the client disconnected before anything was sent, and the status remains
                # 499.
                context.status = response.status
            context.response_bytes = response.body_length
        finally:
            if context.slot:
                context.slot.release()
            _log_and_count_request(self._usage, request, context)
        return response

    async def _respond(self, request: HttpRequest, context: SignedRequestContext) -> HttpResponse:
        try:
            return await self._verify_and_forward_request(request, context)
        except Refusal as refusal:
            context.log_fields["reason"] = refusal.reason
            error_response = responses.build_error_response(refusal.answer)
        except request_reader.BodyTooLarge as too_large:
            error_response = responses.build_error_response(
                too_large.answer, closes_connection=True
            )
        except Overloaded as overloaded:
            fields = {"error.type": overloaded.error_type, "reason": overloaded.reason}
            context.log_fields |= fields
            error_response = responses.build_error_response(
                errors.translate_failure(overloaded), closes_connection=not request.body.is_complete
            )
        except Failure as failure:
            context.log_fields |= {"error.type": failure.error_type, "reason": str(failure)}
            error_response = responses.build_error_response(errors.translate_failure(failure))
        except StoreUnavailable as unavailable:
            context.log_fields |= {
                "error.type": metrics.DATABASE_UNAVAILABLE,
                "reason": str(unavailable),
            }
            halted = Halted(errors.INTERNAL_ERROR, retry_after=MIN_RETRY_AFTER_SECONDS)
            error_response = responses.build_error_response(errors.translate_failure(halted))
        except Exception as error:  # noqa: BLE001 - no client may see a traceback, and no log a text
            context.log_fields |= logs.describe_exception(error)
            # An error after a write was sent must not look like "not executed".
            is_in_doubt = bool(context.calls) and request.method not in READ_METHODS
            unknown = errors.translate_failure(Unknown(type(error).__name__))
            error_response = responses.build_error_response(
                unknown if is_in_doubt else errors.build_legacy_error(errors.INTERNAL_ERROR)
            )
        return responses.build_http_response(error_response, context.request_id, context.admission)

    async def _verify_and_forward_request(
        self, request: HttpRequest, context: SignedRequestContext
    ) -> HttpResponse:
        # Before authentication, because parsers may disagree about what such a path means.
        if request.method in REFUSED_METHODS or not is_forwardable(request.raw_path):
            raise Refusal(errors.NOT_FOUND, "the path must not be forwarded")
        if "Authorization" not in request.headers:
            # Only a preflight gets here without Authorization (``InterfaceRouter``).
            names = ("Authorization", self._words.timestamp_header, "Content-Type", "X-Request-Id")
            preflight_response = responses.build_preflight_response(PREFLIGHT_METHODS, names)
            return responses.build_http_response(preflight_response, context.request_id)
        authenticator, address = self._sender_authenticator, context.address
        signature_header = parse_signature_header(request.headers, self._words)
        signers = await authenticator.load_admissible_signers(signature_header, address)
        if request.is_read_with_body:
            # Servers disagree about such bodies, which allows request smuggling.
            raise Refusal(BODY_ON_READ, "a GET or HEAD has a body")
        request_reader.check_content_length(request, self._max_body_bytes)
        secrets = [signer.credentials.secret_key for signer in signers]
        verifier = SignatureVerifier(secrets, signature_header, request.method, request.raw_path)
        # In the name of the client's address: the signature is not verified yet, so the body must
        # not use up the tenant's share.
        slot_name = f"unproven {format_address_rate_limit_name(address)}"
        slot = context.slot = AdmissionSlot(self._load, slot_name, request.connection)
        slot.check_capacity(str(signers[0].tenant if signers else UNKNOWN_KEYS))
        async with self._spool_body(request, verifier, slot) as body:
            # Checked only now: the signature covers the body, so it is known after the last byte.
            signer = authenticator.select_matching_signer(signers, verifier.list_secret_matches())
            context.tenant = signer.tenant if signer else None
            request.connection.attribute_to_tenant(context.tenant or UNKNOWN_KEYS)
            context.admission = await authenticator.admit(signer, signature_header, address)
            if not context.admission.is_admitted:
                retry_after = context.admission.reset_seconds
                raise Refusal(
                    errors.RATE_LIMIT_EXCEEDED, metrics.RATE_LIMIT_REASON, retry_after=retry_after
                )
            await slot.acquire(str(context.tenant or UNKNOWN_KEYS))
            stamp = int(signature_header.stamp)
            return await self._forward_request(request, context, signer, body, stamp)

    @asynccontextmanager
    async def _spool_body(
        self, request: HttpRequest, verifier: SignatureVerifier, slot: AdmissionSlot
    ) -> AsyncIterator[Spool]:
        with closing(Spool()) as spool:
            try:
                async for part in request_reader.iter_body_chunks(
                    request, self._max_body_bytes, slot, self._body_bytes_per_second
                ):
                    # Verified while it arrives, so that the body is not read twice.
                    verifier.update(part)
                    await spool.append(part)
            except Invalid as invalid:
                raise Refusal(invalid.problems[0], "the body did not arrive completely") from None
            yield spool

    # Passing on

    async def _forward_request(
        self,
        request: HttpRequest,
        context: SignedRequestContext,
        signer: Signer | None,
        body: Spool,
        stamp: int,
    ) -> HttpResponse:
        headers = passthrough.filter_request_headers(request.headers)
        # The client's own id is passed on unchanged.
        headers.setdefault("X-Request-Id", context.request_id)
        tenant, unknown = context.tenant, self._sender_authenticator.unknown_key_environment
        is_write = request.method not in READ_METHODS
        passthrough_request = PassthroughRequest(
            tenant.environment if tenant else unknown,
            request.method,
            request.raw_path,
            headers,
            body if body.size else None,
            is_write=is_write,
            stamp=stamp,
        )
        # A read is cancelled if its client disconnects. A write that has been sent is not.
        client = WaitingClient(request, None if is_write else asyncio.current_task())
        async with AsyncExitStack() as stack:
            send = partial(
                self._send_and_await_headers, stack, passthrough_request, client, context
            )
            if is_write:
                environment = passthrough_request.environment
                target = WriteTarget(request.method, request.raw_path)
                write = SignedWrite(
                    *(signer, environment, target, stamp, context.request_id),
                    await _parse_body(body) if target.is_body_needed else {},
                    context.received_at,
                    partial(is_client_disconnected, request),
                )
                upstream_response = await self._send_write(write, send)
            else:
                upstream_response = await send()
            if upstream_response.status == 401 and tenant:
                # Hints at clock skew or credentials that were replaced at the service only.
                context.log_fields["reason"] = "the service refuses a signature that is valid here"
            response = build_streamed_response(
                upstream_response, context.request_id, context.admission
            )
            problem = await stream_response(
                client,
                response,
                upstream_response,
                reads_to_end=is_write,
                seconds=self._timeout_seconds,
            )
            if problem:
                context.log_fields["reason"] = problem
        return response

    async def _send_write(self, write: SignedWrite, send: Send) -> PassthroughResponse:
        try:
            return await self._write_guard.send_write(write, send)
        finally:
            parts = write.target.parts
            if write.signer and parts[:1] == ["recipients"]:
                # Done even if the write failed: it may have changed the recipient, and the cache
                # would be stale.
                id_ = "".join(parts[1:2])
                self._recipient_caches.record_changed_recipient(write.signer.tenant, id_)

    async def _send_and_await_headers(
        self,
        stack: AsyncExitStack,
        passthrough_request: PassthroughRequest,
        client: WaitingClient,
        context: SignedRequestContext,
        fence: Fence | None = None,
    ) -> PassthroughResponse:
        """Sends the request, and returns the response once its headers have arrived.

        Sends nothing for a disconnected client, which may already have sent the request again.
        """
        if client.is_disconnected:
            raise ClientDisconnected
        started_at = perf_counter()
        context.calls = 1
        path = self._path_templates.find_endpoint_path(
            passthrough_request.method, passthrough_request.target
        )
        try:
            with instrumentation.record_call(
                passthrough_request.environment, passthrough_request.method, path
            ) as call:
                # Built within the span, so that the service's span becomes its child.
                passthrough_request.headers.update(traces.build_trace_headers())
                upstream_response = await stack.enter_async_context(
                    self._passthrough.send(passthrough_request, fence)
                )
                call.status = upstream_response.status
                return upstream_response
        except CircuitOpen:
            context.calls = 0
            raise
        finally:
            context.service_seconds = perf_counter() - started_at


MAX_PARSED_BYTES = 64 * 1024
"""Largest body of a new batch, an added payment or a bulk deletion that is parsed before it is passed
on."""


async def _parse_body(body: Spool) -> Mapping[str, JSON]:
    """Parses a body; empty if it is longer than ``MAX_PARSED_BYTES``, or no JSON object."""
    if body.size > MAX_PARSED_BYTES:
        return {}
    return json_codec.loads_object(b"".join([part async for part in body.iter_chunks()])) or {}


BODY_ON_READ = Problem("invalid_field", "A GET or HEAD has no body.")


def _log_and_count_request(
    usage: UsageCounter, request: HttpRequest, context: SignedRequestContext
) -> None:
    seconds = perf_counter() - context.started_at
    source = access_log.find_request_source(
        "signed", request.method, None, context.route, context.tenant
    )
    record = (
        usage.wall(),
        context.request_id,
        source,
        context.status,
        seconds,
        context.calls,
        context.service_seconds,
        context.log_fields,
    )
    access_log.log_and_record_request(
        record,
        None if context.address is None else str(context.address),
        request.fields.content_length or 0,
        context.response_bytes,
    )
    usage.pending_requests.append(record)
