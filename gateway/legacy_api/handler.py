"""HTTP handler of the legacy interface.

Checks the path, API key, address, rate limit and body, in this order, waits for an admission slot,
and runs the operation's flow. Translates every failure with one error table, and writes one
access log line for each request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import cast
from weakref import ref

import structlog
from aiohttp import web

from gateway.admission.limits import Admission, Limits
from gateway.admission.load import AdmissionSlot, Load, Overloaded
from gateway.auth.keys import ApiKey, ApiKeyStore
from gateway.config.settings import Settings
from gateway.http import request_reader, responses
from gateway.http.client_address import (
    Address,
    counted_as,
    is_proxy,
    parse_networks,
    resolve_client_address,
)
from gateway.http.delivery import is_acknowledged, is_client_disconnected, wait_until_acknowledged
from gateway.http.progress import RequestsInProgress, Whose
from gateway.http.request_ids import token
from gateway.http.request_reader import Pace
from gateway.http.responses import LegacyResponse, PassedResponse
from gateway.legacy_api.codec import LegacyCodec
from gateway.legacy_api.deprecation import End
from gateway.legacy_api.request_context import RequestContext
from gateway.legacy_api.routes import Routes
from gateway.migration.brownouts import Brownouts
from gateway.migration.forwarding import InboundRequest, named_batches
from gateway.migration.recorder import RecordedExchange, Recorder
from gateway.migration.routing import Forwarding
from gateway.migration.shadow_traffic import Alongside
from gateway.migration.usage import NO_OWNER, Usage
from gateway.observability import access_log, logs, metrics, traces
from gateway.storage import StoreUnavailable
from gateway.storage.mode_rows import COMPARE
from gateway.storage.undertakings import OperationRecord
from gateway.upstream import header_filter
from gateway.writes.batch_routing import DecidedOtherwise
from gateway.writes.once import IdempotencyGuard, Wanted, idempotency_key
from gateway.writes.player import Caller, Player
from mappings import errors
from mappings.errors import ErrorAnswer
from mappings.grammar import (
    Failure,
    Invalid,
    Operation,
    Record,
    Request,
    Unknown,
    Unreachable,
)

DECISIONS = 5
"""Attempts to select the service of a request while other requests change where its batches are."""

log = structlog.get_logger()


class Handler:
    """Answers requests of the legacy interface; an aiohttp handler."""

    def __init__(
        self,
        settings: Settings,
        *,
        keyring: ApiKeyStore,
        limits: Limits,
        strangers: Limits,
        player: Player,
        once: IdempotencyGuard,
        wording: LegacyCodec,
        usage: Usage,
        brownouts: Brownouts,
        forwarding: Forwarding,
        alongside: Alongside,
        recorder: Recorder,
        load: Load,
        under_way: RequestsInProgress,
        clock: Callable[[], datetime],
    ) -> None:
        self._keyring = keyring
        self._limits = limits
        self._strangers = strangers
        self._player = player
        self._once = once
        self._noting: set[asyncio.Future[None]] = set()
        self._wording = wording
        self._usage = usage
        self._brownouts = brownouts
        self._forwarding = forwarding
        self._alongside = alongside
        self._recorder = recorder
        self._load = load
        self._under_way = under_way
        self._pace = Pace(settings.load.body_seconds, settings.load.body_bytes_per_second)
        self._end = End(settings.deprecation, settings.environments)
        self._clock = clock
        self._routes = Routes(settings.vocabulary.for_mappings())
        self._most = settings.limits.body_bytes
        self._environments = settings.environments.configured()
        self._requests_per_hour = settings.limits.requests_per_hour
        self._trusted = parse_networks(settings.server.trusted_proxies)

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        arrived_at = request.get(request_reader.ARRIVED_AT) or asyncio.get_running_loop().time()
        visit = RequestContext(
            request_reader.resolve_request_id(request), arrived_at, self._address(request)
        )
        deserted: Callable[[bool], None] = partial(self._deserted, visit)
        request[request_reader.DESERTED] = deserted
        self._under_way.watch(partial(_whose, ref(visit)), visit.began)
        try:
            said = await self._said(request, visit)
        finally:
            if visit.stay:
                visit.stay.end()
        try:
            # Before the response is sent: a client that has its response finds the request in the
            # log.
            self._note(request, visit, said.status)
            environment = visit.caller.key.environment if visit.caller else None
            told = self._end.headers(environment)
            response: web.StreamResponse
            if isinstance(said, PassedResponse):
                response = responses.build_passthrough_response(
                    said, visit.request_id, visit.admission, told
                )
            else:
                response = responses.build_web_response(
                    said, visit.request_id, visit.admission, told
                )
            if visit.over and await self._comes(request, response, visit, visit.over):
                self._once.delivered(visit.over)
                forwarded = request.headers.getall("X-Forwarded-For", [])
                # A proxy resets its own connections, which says nothing about the client.
                if not is_proxy(request.remote, forwarded, self._trusted):
                    reset: Callable[[], None] = partial(self._once.reopen, visit.over)
                    request[request_reader.RESET] = reset
        finally:
            if visit.over:
                # Also after an error or cancellation, so that a repeated request counts as a
                # retry.
                self._once.undelivered(visit.over)
        # Queued, so that the client does not wait for the other service.
        if came := visit.compares:
            self._alongside.offer(came, said, partial(self._translated_alone, visit, came))
        self._record(request, visit, said)
        return response

    def _record(
        self, request: web.BaseRequest, visit: RequestContext, said: LegacyResponse | PassedResponse
    ) -> None:
        """Offers the exchange to the recorder.

        Only requests whose body was read: refusals of a key, a limit or a brownout are not recorded.
        """
        operation, key = visit.operation, visit.caller.key if visit.caller else None
        if operation is None or visit.data is None or not self._recorder.is_on:
            return
        now = self._clock()
        if not self._recorder.wants(operation.name, key.name if key else "", now):
            return
        seconds = asyncio.get_running_loop().time() - visit.began
        path, query = request_reader.split_request_target(request)
        sent = [
            *request.headers.getall("X-API-Key", []),
            *request.headers.getall("Authorization", []),
        ]
        own = [key.pair.access_key, key.pair.secret_key] if key else []
        self._recorder.offer(
            RecordedExchange(
                operation=operation.name,
                key=key.name if key else "",
                began=now - timedelta(seconds=seconds),
                seconds=seconds,
                method=request.method,
                target=f"{path}?{query}" if query else path,
                content_type=request.headers.get("Content-Type", ""),
                body=visit.data,
                status=said.status,
                answer=said.body if isinstance(said, PassedResponse) else said.data,
                keys=tuple(one.strip() for one in (*sent, *own)),
            )
        )

    def _note(self, request: web.BaseRequest, visit: RequestContext, status: int) -> None:
        """Writes the access log line and counts the usage."""
        # One duration for both, so that the log and the counts agree.
        seconds = asyncio.get_running_loop().time() - visit.began
        _log(request, visit, status, seconds)
        caller = visit.caller
        self._usage.count(
            caller.key.owner if caller else NO_OWNER,
            caller.key.name if caller else "",
            visit.operation.name if visit.operation else "",
            status,
            seconds=seconds,
            service_seconds=caller.seconds if caller else 0,
        )

    async def _comes(
        self,
        request: web.BaseRequest,
        response: web.StreamResponse,
        visit: RequestContext,
        over: OperationRecord,
    ) -> bool:
        """Sends the response and waits until the client has acknowledged it.

        Returns False if the connection ended first: a repeated request is then a retry.
        """
        if (is_last := request.get(request_reader.IS_LAST)) and is_last():
            # The client must not send another request on a connection that is about to close.
            response.force_close()
        try:
            await response.prepare(request)
            await response.write_eof()
        except OSError:
            return False
        visit.is_written = True
        beneath = request.get(request_reader.BENEATH)
        self._once.delivers(
            over, lambda: visit.has_come or is_acknowledged(request.transport, beneath)
        )
        return await wait_until_acknowledged(request.transport, beneath) or visit.has_come

    def _deserted(self, visit: RequestContext, has_all: bool) -> None:
        visit.has_come = visit.is_written and has_all
        if visit.caller is None or visit.has_come:
            return
        visit.caller.is_gone = True
        if visit.stay:
            visit.stay.forsake()
        if visit.caller.course:
            noting = asyncio.ensure_future(self._once.deserted(visit.caller.course))
            self._noting.add(noting)
            noting.add_done_callback(self._noted)

    def _noted(self, noting: asyncio.Future[None]) -> None:
        self._noting.discard(noting)
        if not noting.cancelled() and (error := noting.exception()):
            log.error("client_disconnect_not_recorded", **logs.describe_exception(error))

    async def _said(
        self, request: web.BaseRequest, visit: RequestContext
    ) -> LegacyResponse | PassedResponse:
        try:
            return await self._answer(request, visit)
        except Overloaded as overloaded:
            visit.told["reason"] = overloaded.why
            said = await self._wording.refusal(visit, overloaded)
            # The rest of the body is not read, so the connection cannot be used again.
            return replace(said, closes=not request.content.is_eof())
        except Failure as failure:
            return await self._wording.refusal(visit, failure)
        except request_reader.Overlong as overlong:
            return responses.build_error_response(overlong.answer, closes=True)
        except StoreUnavailable as unavailable:
            visit.told |= {
                "error.type": metrics.DATABASE_UNAVAILABLE,
                "reason": str(unavailable),
            }
        except Exception as error:  # noqa: BLE001 - no client may see a traceback, and no log a text
            visit.told |= logs.describe_exception(error)
            if visit.caller and visit.caller.course and visit.caller.course.writes:
                # The write may have taken effect (for example, an answer without the new id):
                # the client must not read 500 as "not executed", and reconciliation decides.
                return responses.build_error_response(
                    errors.translate_failure(Unknown(type(error).__name__))
                )
        return responses.build_error_response(errors.build_legacy_error(errors.INTERNAL))

    async def _answer(
        self, request: web.BaseRequest, visit: RequestContext
    ) -> LegacyResponse | PassedResponse:
        path, _ = request_reader.split_request_target(request)
        matched = self._routes.match(path)
        if matched is None:
            visit.told["reason"] = f"no operation matches {self._routes.outline(path)}"
            raise Invalid(errors.NOT_FOUND)
        if request.method == "OPTIONS":
            # Before authentication: browsers send preflights without credentials.
            return responses.build_preflight_response(matched.route.operations)
        operation = matched.route.operations.get(request.method)
        if operation is None:
            raise Invalid(errors.NOT_FOUND)
        visit.operation = operation
        if gone := self._end.refusal(self._clock()):
            raise Invalid(gone)
        # Before the body is read, so that a refused client costs no memory.
        visit.admission = await self._admitted(request, visit, operation)
        if not visit.admission.admitted:
            visit.told["reason"] = metrics.OVER_LIMIT
            wait = str(visit.admission.retry_after)
            return responses.build_error_response(ErrorAnswer(429, (errors.OVER_LIMIT,), wait))
        if visit.caller and (met := self._brownouts.interruption(visit.caller.key, operation.name)):
            visit.told["reason"] = metrics.BROWNOUT
            return responses.build_error_response(
                ErrorAnswer(403, (met.problem,), str(met.seconds))
            )
        request_reader.check_content_length(request, self._most)
        stay = self._stays(request, visit)
        # The selected service may depend on the body, so it is selected after the body is read.
        if visit.caller and self._forwarding.concerns(visit.caller):
            return await self._on_either_side(request, visit, matched.ids, stay)
        takes = operation.takes is not None
        data = (
            await request_reader.read_whole_body(request, self._most, stay, self._pace)
            if takes
            else b""
        )
        visit.data = data if self._recorder.is_on else b""
        read = await self._wording.read(request, visit, data)
        del data  # it may be large, and the flow may take long
        asked = await self._wording.asked(request, visit, matched.ids, read)
        del read
        if visit.caller:
            await stay.begin(visit.caller.key.who)
        return await self._translated(request, visit, operation, asked)

    async def _on_either_side(
        self,
        request: web.BaseRequest,
        visit: RequestContext,
        ids: Mapping[str, str],
        stay: AdmissionSlot,
    ) -> LegacyResponse | PassedResponse:
        """Answers from the legacy service, or with calls of the current one if that is selected."""
        is_dropped = request_reader.is_read_with_body(request)
        data = (
            b""
            if is_dropped
            else await request_reader.read_whole_body(request, self._most, stay, self._pace)
        )
        visit.data = data
        came = await self._came(request, visit, ids, data)
        await stay.begin(came.caller.key.who)
        if await self._forwarding.compares(came):
            visit.compares, visit.told["mode"] = came, COMPARE
        for _ in range(DECISIONS):
            # Another request has assigned a batch to a service meanwhile: select again.
            with suppress(DecidedOtherwise):
                return await self._where_decided(request, visit, came)
        raise Unreachable("concurrent requests keep changing which service has it", retry_after=1)

    async def _where_decided(
        self, request: web.BaseRequest, visit: RequestContext, came: InboundRequest
    ) -> LegacyResponse | PassedResponse:
        if sent := await self._forwarding.answer(came):
            visit.over = sent.over
            return sent.carried
        try:
            read = await self._wording.read(request, visit, came.body)
            asked = await self._wording.asked(request, visit, came.ids, read)
            placing = await self._forwarding.placing(came)
            return await self._translated(request, visit, came.operation, asked, placing)
        except Failure as failure:
            if carried := await self._forwarding.instead(came, failure):
                return carried
            raise

    async def _translated(
        self,
        request: web.BaseRequest,
        visit: RequestContext,
        operation: Operation,
        asked: Request,
        placing: Sequence[Record] = (),
    ) -> LegacyResponse:
        if visit.caller is None or not operation.writes:
            flow = operation.flow(asked)
            answer = await self._player.play(flow, visit.caller, asked.problems)
            return await self._wording.answered(visit, answer)
        wanted = Wanted(
            operation, asked, visit.caller, _idempotency(request), asked.problems, placing
        )
        say = partial(self._wording.answered, visit)
        said, visit.over = await self._once.answer(
            wanted, say, partial(self._wording.refusal, visit)
        )
        return said

    async def _translated_alone(
        self, visit: RequestContext, came: InboundRequest
    ) -> LegacyResponse:
        """Runs a read against the current service for comparison; raises Unreachable."""
        caller = Caller(came.caller.key, visit.request_id)
        alone = RequestContext(
            visit.request_id,
            visit.began,
            visit.address,
            came.operation,
            caller,
            as_sent=visit.as_sent,
        )
        flow, problems = came.operation.flow(came.asked), came.asked.problems
        try:
            answer = await self._player.play(flow, caller, problems)
            return await self._wording.answered(alone, answer)
        except Unreachable:
            raise
        except Failure as failure:
            return await self._wording.refusal(alone, failure)

    async def _came(
        self, request: web.BaseRequest, visit: RequestContext, ids: Mapping[str, str], data: bytes
    ) -> InboundRequest:
        """Builds the request to forward, with the flow request by which a retry is recognized.

        A body that cannot be parsed is identified by its digest.
        """
        try:
            read = await self._wording.read(request, visit, data)
            asked = await self._wording.asked(request, visit, ids, read)
        except Invalid:
            # The legacy service decides about such a body; its digest still identifies a retry.
            digest = sha256(data).hexdigest()
            asked = Request(self._clock(), token(), ids, body={"unread": digest})
        path, query = request_reader.split_request_target(request)
        headers = header_filter.filter_legacy_request_headers(request.headers)
        # The id that was validated and logged, not the raw header.
        headers["X-Request-Id"] = visit.request_id
        target = f"{path}?{query}" if query else path
        operation, caller = cast("Operation", visit.operation), cast("Caller", visit.caller)
        batches = await named_batches(operation, ids, asked, data)
        return InboundRequest(
            operation,
            caller,
            ids,
            asked,
            target,
            headers,
            data,
            idempotency=_idempotency(request),
            told=visit.told,
            batches=batches,
        )

    def _stays(self, request: web.BaseRequest, visit: RequestContext) -> AdmissionSlot:
        """Acquires an admission slot; raises Overloaded before the body is read."""
        if visit.caller is None:
            # All keyless requests share one name, so that they cannot displace those with keys.
            visit.stay = self._load.stay("without a key")
        else:
            merchant = visit.caller.key.who
            visit.stay = self._load.stay(merchant, request.get(request_reader.CONNECTION))
            visit.stay.check(merchant)
        return visit.stay

    async def _admitted(
        self, request: web.BaseRequest, visit: RequestContext, operation: Operation
    ) -> Admission:
        """Identifies the caller and counts the request; raises Invalid if the key is refused."""
        address = visit.address
        if operation.keyless:
            visit.caller = await self._named_all_the_same(request, visit, operation, address)
            name = f"address {counted_as(address)}"
            return await self._strangers.admit(name, self._requests_per_hour)
        key = await self._key(request, visit)
        # The client may have disconnected during the lookup, before there was a caller to mark.
        visit.caller = Caller(
            key,
            visit.request_id,
            is_gone=request.transport is None,
            has_left=partial(is_client_disconnected, request),
            began=visit.began,
        )
        if key.allowed_ips and (address is None or not key.admits(address)):
            # Logged only: the response does not say which check failed.
            visit.told["reason"] = "the client's address is not in the key's allowed_ips"
            raise Invalid(errors.NOT_AUTHORIZED)
        return await self._limits.admit(key.id, key.requests_per_hour or self._requests_per_hour)

    async def _named_all_the_same(
        self,
        request: web.BaseRequest,
        visit: RequestContext,
        operation: Operation,
        address: Address | None,
    ) -> Caller | None:
        """Finds the caller of an operation that needs no key, if the key selects the service."""
        given = request.headers.getall("X-API-Key", [])
        if not (self._forwarding.any and len(given) == 1):
            return None
        try:
            key = await self._keyring.find(given[0].strip())
        except StoreUnavailable:
            return None
        if key is None or (key.allowed_ips and (address is None or not key.admits(address))):
            return None
        is_translated = self._forwarding.is_translated(key, operation)
        return None if is_translated else Caller(key, visit.request_id)

    async def _key(self, request: web.BaseRequest, visit: RequestContext) -> ApiKey:
        given = request.headers.getall("X-API-Key", [])
        if len(given) == 1:
            key = await self._keyring.find(given[0].strip())
            if key and key.environment in self._environments:
                request_reader.mark_authenticated(request, key.owner)
                return key
            what = "of an environment that is not configured" if key else "unknown or revoked"
            visit.told["reason"] = f"the API key is {what}"
        else:
            visit.told["reason"] = "more than one API key" if given else "no API key"
        raise Invalid(errors.INVALID_KEY)

    def _address(self, request: web.BaseRequest) -> Address | None:
        forwarded = request.headers.getall("X-Forwarded-For", [])
        return resolve_client_address(request.remote, forwarded, self._trusted)


def _whose(seen: ref[RequestContext]) -> Whose:
    """Builds the progress labels of a request.

    Takes a weak reference: a pooled connection keeps the context variables of the request that
    opened it, and would keep the request alive.
    """
    visit = seen()
    owner = visit.caller.key.owner if visit and visit.caller else NO_OWNER
    return Whose(visit.operation.name if visit and visit.operation else "", *owner)


def _idempotency(request: web.BaseRequest) -> str | None:
    given = request.headers.getall("Idempotency-Key", [])
    # A GET may write (the summary does), but to its client it is a read, which needs no key.
    return idempotency_key(given) if request.method != "GET" else None


def _log(request: web.BaseRequest, visit: RequestContext, status: int, took: float) -> None:
    caller, told = visit.caller, visit.told
    if visit.over and visit.over.request_id != visit.request_id:
        # `trace` finds an operation by the request id of its first try.
        told = {**told, "retry_of": visit.over.request_id}
    access_log.log_request(
        status=status,
        method=request.method,
        took=took,
        request_id=visit.request_id,
        api="legacy",
        route=traces.ROUTES[visit.operation.name] if visit.operation else None,
        client_address=visit.address,
        operation=visit.operation.name if visit.operation else None,
        owner=caller.key.owner if caller else None,
        key=caller.key.name if caller else None,
        calls=caller.calls if caller else 0,
        seconds=caller.seconds if caller else 0.0,
        more=told,
    )
    for notice in visit.notices:
        log.warning("request_warning", request_id=visit.request_id, reason=notice)
