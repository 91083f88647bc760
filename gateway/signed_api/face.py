"""HTTP handler of signed requests: checks them and passes them on unchanged.

Checks the path, headers, access key, address, timestamp, body, signature, rate limit, admission
and recorded batch state, in this order. The signature covers the body, and only verified requests
count against a tenant's limit, so that strangers cannot use it up. The service verifies each
request again. Refusals have the codes of the current interface (section 7).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiohttp import web

from gateway.admission.limits import Admission
from gateway.admission.load import AdmissionSlot, Load, Overloaded
from gateway.config.settings import Settings
from gateway.http import request_reader, responses
from gateway.http.client_address import Address, counted_as, parse_networks, resolve_client_address
from gateway.http.request_paths import PathTemplates, is_forwardable, names_in
from gateway.http.request_reader import Pace
from gateway.http.responses import LegacyResponse
from gateway.migration.usage import NO_OWNER, Usage
from gateway.observability import access_log, logs, metrics, traces
from gateway.payloads import json_codec
from gateway.reads.recent_reads import Kept
from gateway.signed_api import refusals
from gateway.signed_api.credentials import Malformed, Proof, SignatureHeader, parse_signature_header
from gateway.signed_api.refusals import Refusal, refuse_invalid_key
from gateway.signed_api.replies import Client, Streamed, stream_response
from gateway.signed_api.senders import Sender, Senders
from gateway.signed_api.signers import Signer
from gateway.signed_api.transitions import (
    Send,
    Transitions,
    Written,
    WrongStatus,
    extract_added_payment,
    is_add,
)
from gateway.storage import StoreUnavailable, Tenant
from gateway.upstream import header_filter, instrumentation
from gateway.upstream.passthrough import Passed, PassthroughClient, PassthroughRequest
from gateway.upstream.send_attempt import Turn
from gateway.upstream.spool import Spool
from mappings import errors
from mappings.grammar import JSON, Failure, Invalid, Problem, Unknown, Unreachable

READS = ("GET", "HEAD", "OPTIONS")
METHODS = (*READS[:2], "POST", "PUT", "PATCH", "DELETE")
"""Methods in a preflight response; a request may have any method that is not refused."""

NEVER = ("CONNECT", "TRACE")
"""Addressed to intermediaries; and a response to TRACE would repeat the credentials."""

NOBODY_KNOWN = "unknown keys"
"""Admission name of all senders with unknown access keys, which share the slots of one tenant."""

GONE = "the client disconnected before anything was sent"

NOBODY = 499
"""Logged status if the client disconnected before its response, as in nginx; never sent."""


@dataclass(slots=True)
class Visit:
    """A request and what has been found out about it, for the response and the log.

    ``start_time`` is in seconds of the event loop's clock.
    """

    request_id: str
    began: float
    address: Address | None
    route: str
    status: int = NOBODY
    owner: Tenant | None = None
    admission: Admission | None = None
    calls: int = 0
    seconds: float = 0.0
    told: dict[str, Any] = field(default_factory=dict)
    stay: AdmissionSlot | None = None

    def forsake(self, _has_all: bool = False) -> None:
        if self.stay:
            self.stay.forsake()


class SignedFace:
    """Answers signed requests; an aiohttp handler."""

    def __init__(
        self,
        settings: Settings,
        *,
        senders: Senders,
        passing: PassthroughClient,
        transitions: Transitions,
        kept: Kept,
        usage: Usage,
        load: Load,
    ) -> None:
        self._load = load
        self._pace = Pace(settings.load.body_seconds, settings.load.body_bytes_per_second)
        self._usage = usage
        self._senders = senders
        self._passing = passing
        self._transitions = transitions
        self._kept = kept
        self._words = settings.vocabulary.current
        self._outlines = PathTemplates(settings.vocabulary.for_mappings())
        self._most = settings.limits.body_bytes
        self._seconds = settings.upstream.timeout_seconds
        self._trusted = parse_networks(settings.server.trusted_proxies)

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        visit = Visit(
            request_reader.resolve_request_id(request),
            asyncio.get_running_loop().time(),
            self._address(request),
            self._outlines.of(request.raw_path),
        )
        forsake: Callable[[bool], None] = visit.forsake
        request[request_reader.DESERTED] = forsake
        try:
            response = await self._answered(request, visit)
            if request.transport is not None or visit.calls:
                # Otherwise the client disconnected before anything was sent, and 499 stays.
                visit.status = response.status
        finally:
            if visit.stay:
                visit.stay.end()
            _tell(request, visit)
            # Counted beside the legacy operations, to show how far a tenant has migrated.
            began, now = visit.began, asyncio.get_running_loop().time()
            self._usage.count(
                visit.owner or NO_OWNER,
                "",
                "signed",
                visit.status,
                seconds=now - began,
                service_seconds=visit.seconds,
            )
        return response

    async def _answered(self, request: web.BaseRequest, visit: Visit) -> web.StreamResponse:
        try:
            return await self._answer(request, visit)
        except Refusal as refusal:
            visit.told["reason"] = refusal.why
            said = responses.build_error_response(refusal.answer)
        except request_reader.Overlong as overlong:
            said = responses.build_error_response(overlong.answer, closes=True)
        except Overloaded as overloaded:
            visit.told["reason"] = overloaded.why
            said = responses.build_error_response(
                errors.translate_failure(overloaded), closes=not request.content.is_eof()
            )
        except Failure as failure:
            said = _failed(failure, visit)
        except StoreUnavailable as unavailable:
            visit.told |= {
                "error.type": metrics.DATABASE_UNAVAILABLE,
                "reason": str(unavailable),
            }
            said = responses.build_error_response(errors.build_legacy_error(errors.INTERNAL))
        except Exception as error:  # noqa: BLE001 - no client may see a traceback, and no log a text
            visit.told |= logs.describe_exception(error)
            is_open = bool(visit.calls) and request.method not in READS
            unknown = errors.translate_failure(Unknown(type(error).__name__))
            said = responses.build_error_response(
                unknown if is_open else errors.build_legacy_error(errors.INTERNAL)
            )
        return responses.build_web_response(said, visit.request_id, visit.admission)

    async def _answer(self, request: web.BaseRequest, visit: Visit) -> web.StreamResponse:
        # Before authentication, because parsers may disagree about what such a path means.
        if request.method in NEVER or not is_forwardable(request.raw_path):
            raise Refusal(errors.NOT_FOUND, "the path must not be forwarded")
        if "Authorization" not in request.headers:
            # Only a preflight gets here without Authorization (``InterfaceRouter``).
            return responses.build_web_response(self._preflight(), visit.request_id)
        credentials, address = self._credentials(request), visit.address
        signers = await self._senders.held(credentials, address)
        if request_reader.is_read_with_body(request):
            # Servers disagree about such bodies, which allows request smuggling.
            raise Refusal(BODY_OF_READ, "a GET or HEAD has a body")
        request_reader.check_content_length(request, self._most)
        secrets = [one.pair.secret_key for one in signers]
        proof = Proof(secrets, credentials, request.method, request.raw_path)
        stay = self._stays(request, visit, signers, address)
        async with self._spooled(request, proof, stay) as body:
            sender = self._senders.proven(signers, proof.found())
            visit.owner = sender.owner
            request_reader.mark_authenticated(request, sender.owner or NOBODY_KNOWN)
            await self._admit(sender, credentials, address, visit)
            await stay.begin(str(sender.owner or NOBODY_KNOWN))
            stamp = int(credentials.stamp)
            return await self._passed_on(request, visit, sender, body, stamp)

    def _preflight(self) -> LegacyResponse:
        headers = ("Authorization", self._words.timestamp_header, "Content-Type", "X-Request-Id")
        return responses.build_preflight_response(METHODS, headers)

    def _credentials(self, request: web.BaseRequest) -> SignatureHeader:
        try:
            return parse_signature_header(request.headers, self._words)
        except Malformed as malformed:
            raise refuse_invalid_key(str(malformed)) from None

    def _address(self, request: web.BaseRequest) -> Address | None:
        forwarded = request.headers.getall("X-Forwarded-For", [])
        return resolve_client_address(request.remote, forwarded, self._trusted)

    def _stays(
        self,
        request: web.BaseRequest,
        visit: Visit,
        signers: Sequence[Signer],
        address: Address | None,
    ) -> AdmissionSlot:
        """Acquires an admission slot in the name of the client's address.

        The signature is not verified yet, so the body must not use up the tenant's share.
        """
        owner = str(signers[0].owner if signers else NOBODY_KNOWN)
        connection = request.get(request_reader.CONNECTION)
        visit.stay = self._load.stay(f"unproven {counted_as(address)}", connection)
        visit.stay.check(owner)
        return visit.stay

    @asynccontextmanager
    async def _spooled(
        self, request: web.BaseRequest, proof: Proof, stay: AdmissionSlot
    ) -> AsyncIterator[Spool]:
        spool = Spool()
        try:
            async for part in request_reader.iter_body_chunks(
                request, self._most, stay, self._pace
            ):
                # Verified while it arrives, so that the body is not read twice.
                proof.add(part)
                await spool.add(part)
            yield spool
        finally:
            spool.close()

    async def _admit(
        self, sender: Sender, credentials: SignatureHeader, address: Address | None, visit: Visit
    ) -> None:
        admission = visit.admission = await self._senders.admit(sender, credentials, address)
        if not admission.admitted:
            why = metrics.OVER_LIMIT
            raise Refusal(errors.OVER_LIMIT, why, retry_after=admission.retry_after)

    # Passing on

    async def _passed_on(
        self, request: web.BaseRequest, visit: Visit, sender: Sender, body: Spool, stamp: int
    ) -> web.StreamResponse:
        writes = request.method not in READS
        headers = header_filter.filter_request_headers(request.headers)
        # The client's own id is passed on unchanged.
        headers.setdefault("X-Request-Id", visit.request_id)
        passage = PassthroughRequest(
            sender.environment,
            request.method,
            request.raw_path,
            headers,
            body if body.size else None,
            write=writes,
            stamp=stamp,
        )
        # A read is cancelled if its client disconnects. A write that has been sent is not.
        client = Client(request, None if writes else asyncio.current_task())
        async with AsyncExitStack() as stack:
            send = partial(self._begun, stack, passage, client, visit)
            try:
                passed = await (
                    self._written(send, passage, sender, visit, stamp) if writes else send()
                )
            finally:
                names = names_in(passage.target) if writes else []
                if sender.owner and names[:1] == ["recipients"]:
                    # Even if the write failed: it may have changed the recipient, and a cached one
                    # would be stale.
                    self._kept.forget(sender.owner, "".join(names[1:2]))
            if passed.status == 401 and sender.owner:
                # Hints at clock skew or credentials that were replaced at the service only.
                visit.told["reason"] = "the service refuses a signature that is valid here"
            response = Streamed(passed, visit.request_id, visit.admission)
            trouble = await stream_response(
                client, response, passed, whole=writes, seconds=self._seconds
            )
            if trouble:
                visit.told["reason"] = trouble
        return response

    async def _written(
        self,
        send: Send[Passed],
        passage: PassthroughRequest,
        sender: Sender,
        visit: Visit,
        stamp: int,
    ) -> Passed:
        its = (sender.owner, sender.pair, passage.environment, passage.target)
        payment = await _read_added_payment(passage)
        written = Written(*its, stamp, visit.request_id, payment)
        try:
            return await self._transitions.send(written, send)
        except WrongStatus:
            why = "the recorded state of the batch does not allow this write"
            raise Refusal(refusals.WRONG_STATUS, why) from None

    async def _begun(
        self,
        stack: AsyncExitStack,
        passage: PassthroughRequest,
        client: Client,
        visit: Visit,
        turn: Turn | None = None,
    ) -> Passed:
        """Sends the request, and returns the response once its headers have arrived.

        Sends nothing for a disconnected client, which may already have sent the request again.
        """
        if client.is_gone:
            raise Unreachable(GONE)
        began = asyncio.get_running_loop().time()
        visit.calls = 1
        path = self._outlines.endpoint(passage.method, passage.target)
        try:
            with instrumentation.instrument_call(passage.environment, passage.method, path) as told:
                # Within the span, so that the service's span becomes its child.
                passage.headers.update(traces.build_trace_headers())
                passed = await stack.enter_async_context(
                    self._passing.sent(passage, turn or _Waits(client))
                )
                told.answered(passed.status)
                return passed
        finally:
            visit.seconds = asyncio.get_running_loop().time() - began


LONGEST_PAYMENT = 64 * 1024
"""Bytes of the body of a payment that is read besides being passed on."""


async def _read_added_payment(passage: PassthroughRequest) -> Mapping[str, JSON] | None:
    body = passage.body
    if body is None or body.size > LONGEST_PAYMENT or not is_add(passage.method, passage.target):
        return None
    try:
        return extract_added_payment(
            json_codec.read(b"".join([part async for part in body.parts()]))
        )
    except json_codec.Unreadable:
        return None


BODY_OF_READ = Problem("invalid_field", "A GET or HEAD has no body.")


@dataclass(frozen=True, slots=True)
class _Waits:
    """A fence that stops the request if the client disconnects before there is a connection."""

    client: Client

    @property
    def is_fenced(self) -> bool:
        return not self.client.is_gone

    async def fence(self) -> None:
        raise Unreachable(GONE)


def _failed(failure: Failure, visit: Visit) -> LegacyResponse:
    """Builds the response to an invalid body, an unreachable service, or a write in doubt."""
    if isinstance(failure, Invalid):
        visit.told["reason"] = "the body did not arrive completely"
        return responses.build_error_response(refusals.build_refusal_answer(*failure.problems))
    visit.told |= {"error.type": failure.error_type, "reason": str(failure)}
    return responses.build_error_response(errors.translate_failure(failure))


def _tell(request: web.BaseRequest, visit: Visit) -> None:
    access_log.log_request(
        status=visit.status,
        method=request.method,
        took=asyncio.get_running_loop().time() - visit.began,
        request_id=visit.request_id,
        api="signed",
        route=visit.route,
        client_address=visit.address,
        owner=visit.owner,
        calls=visit.calls,
        seconds=visit.seconds,
        more=visit.told,
    )
