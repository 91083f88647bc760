"""Assembles a gateway of the simulation from the parts of the product, without a socket.

This module, ``database``, ``postgresql`` and ``mutations`` are all of the simulation that imports internals of the product.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from multidict import CIMultiDict, CIMultiDictProxy

from gateway.auth.keys import ApiKey
from gateway.auth.signing import Credentials, compute_signature, extract_signed_target
from gateway.config.settings import Comparing, Lists
from gateway.http import responses
from gateway.http.responses import LegacyResponse, PassedResponse
from gateway.migration.forwarding import LegacySender
from gateway.migration.inbound_request import InboundRequest
from gateway.migration.routing import ServiceRouter
from gateway.operator import ActionRefused
from gateway.operator.in_doubt_writes import load_in_doubt_writes, record_operator_verdict
from gateway.payloads import json_codec
from gateway.reads.listing import ListReader
from gateway.reads.recipient_cache import RecipientCaches
from gateway.signed_api.senders import Signer
from gateway.signed_api.transitions import (
    SignedWrite,
    SignedWriteGuard,
    WriteTarget,
    WrongBatchStatus,
)
from gateway.storage import ObjectStateStore, StoreUnavailable, Tenant
from gateway.storage.alias_ids import AliasIds
from gateway.storage.capability_cache import CapabilityCache
from gateway.storage.freezes import freeze_writes, unfreeze_writes
from gateway.storage.mode_rows import FORWARD, TRANSLATE, Mode
from gateway.storage.operation_records import OperationRecord
from gateway.upstream.client import UNANSWERED_STATUSES
from gateway.upstream.clock import ServiceClock, measure_skew
from gateway.upstream.http_connection import Fence, Reply
from gateway.upstream.optional_endpoints import OptionalEndpoints
from gateway.writes.batch_routing import BatchRoutedElsewhereError, BatchRouting
from gateway.writes.executor import FlowExecutor
from gateway.writes.idempotency import IdempotencyGuard
from gateway.writes.instance_leases import LEASE_TTL_SECONDS, InstanceLeases
from gateway.writes.journal import Journal
from gateway.writes.operation_execution import OperationExecution
from gateway.writes.outcome_policy import OutcomePolicy
from gateway.writes.reconciler import WriteReconciler
from gateway.writes.states import ABSENT, CONFIRMED
from gateway.writes.write_request import Caller, LoadRoutingChecks, WriteRequest
from mappings import OPERATIONS, UNLISTED, errors, request_bodies
from mappings.effects import Answer, Operation, Request, Vocabulary
from mappings.failures import Failure, Unknown, Unreachable
from tests.recording_service import HTML, SentRequest
from tests.simulation.database import Connection, SimulatedStore
from tests.simulation.network import (
    SIGNATURE_HEADERS,
    SIGNED_BY_CLIENT,
    TIMEOUT_SECONDS,
    ConnectionFailed,
    LegacyNetwork,
    Network,
)
from tests.simulation.process import Process, ProcessKilled
from tests.state import KEY

OPERATIONS_BY_NAME = {operation.name: operation for operation in (*OPERATIONS, *UNLISTED)}
API_KEY = ApiKey(
    "key",
    "a key",
    "",
    KEY["merchant"],
    KEY["environment"],
    Credentials(KEY["access_key"], KEY["secret_key"]),
    None,
    (),
)
ALL_TENANTS = Tenant("", "")
LEASE_SECONDS = LEASE_TTL_SECONDS
PATIENCE_SECONDS = TIMEOUT_SECONDS + 5
MAX_SHUTDOWN_SECONDS = PATIENCE_SECONDS + 5
INTERNAL_ERROR = responses.build_error_response(errors.build_legacy_error(errors.INTERNAL_ERROR))


@dataclass(frozen=True, slots=True)
class LegacyRequest:
    """An authenticated legacy request."""

    operation: str
    ids: dict[str, str] = field(default_factory=dict)
    body: Any = None
    idempotency: str | None = None
    changes_modes: bool = False
    """Whether it meets a mode of the gateway's that changes from request to request."""

    def __str__(self) -> str:
        body = self.body or {}
        subject = body.get("email") or body.get("description") or self.ids.get("id", "")
        return f"{self.operation} {subject} {self.idempotency or ''}".rstrip()


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A write of a batch that its client has signed; ``stamp`` is its Unix time."""

    method: str
    target: str
    stamp: float
    body: bytes = b""

    def __str__(self) -> str:
        return f"signed {self.method} {self.target}"


@dataclass(frozen=True, slots=True)
class Response:
    """A response, as its client gets it."""

    status: int
    data: bytes
    headers: Mapping[str, str]

    async def peek_body(self) -> bytes:
        return self.data


class ClientConnection:
    """A client's connection; ``response`` is None if it was closed without one."""

    def __init__(self) -> None:
        self.response: asyncio.Future[Response | None] = asyncio.get_running_loop().create_future()
        self.is_disconnected = False
        self.on_disconnect: Callable[[], None] = lambda: None

    def disconnect(self) -> None:
        self.is_disconnected = True
        self.on_disconnect()

    def close(self) -> None:
        if not self.response.done():
            self.response.set_result(None)


@dataclass(slots=True)
class _Call:
    """One upstream call, and whether it was sent."""

    credentials: Credentials
    method: str
    target: str
    body: bytes
    is_write: bool
    fence: Fence | None
    may_repeat: bool
    has_left: bool = False
    sent_at: float = 0.0

    def build_failure(self, reason: str) -> Unreachable | Unknown:
        if self.is_write and self.has_left:
            return Unknown(reason, age_seconds=asyncio.get_running_loop().time() - self.sent_at)
        return Unreachable(reason)


class SimulatedUpstream:
    """Replaces the HTTP client of one process, with the same guarantees.

    A write is sent once and signed when it is sent; a sent write without a response raises Unknown.
    """

    timeout_seconds = TIMEOUT_SECONDS

    def __init__(self, process: Process, network: Network, clock: ServiceClock) -> None:
        self.clock = clock
        self._process = process
        self._network = network

    async def send(
        self,
        environment: str,
        credentials: Credentials,
        method: str,
        target: str,
        body: bytes | None,
        *,
        request_id: str,
        write: bool,
        fence: Fence | None = None,
    ) -> Reply:
        call = _Call(credentials, method, target, body or b"", write, fence, may_repeat=not write)
        start_time = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self.timeout_seconds):
                status, body_bytes, date = await self._send_with_correction(call, environment)
        except TimeoutError:
            raise call.build_failure("no answer in time") from None
        except ConnectionFailed:
            raise call.build_failure("the connection failed") from None
        finally:
            await self._process.step()
        lines = [(b"Date", date.encode())]
        return Reply(status, lines, body_bytes, asyncio.get_running_loop().time() - start_time, 1)

    async def _send_with_correction(self, call: _Call, environment: str) -> tuple[int, bytes, str]:
        correction, has_retried = self.clock.offset(environment), False
        while True:
            status, body, date = await self._attempt(call, correction)
            skew = measure_skew({"Date": date}, self.clock.wall(), self._network_time(call))
            if status == 401 and not has_retried:
                new_correction = self.clock.select_retry_correction(environment, skew, correction)
                if new_correction is not None:
                    correction, has_retried = new_correction, True
                    if call.fence:
                        await call.fence.verify_fence(self.clock.wall() + correction)
                    continue
            if has_retried and status < 500 and status not in (401, 429):
                self.clock.record_proven_correction(environment, correction)
            elif 200 <= status < 300 and skew:
                self.clock.record_accepted(environment, skew)
            return status, body, date

    def _network_time(self, call: _Call) -> float:
        return asyncio.get_running_loop().time() - call.sent_at

    async def _attempt(self, call: _Call, correction: float) -> tuple[int, bytes, str]:
        while True:
            call.has_left = False
            await self._process.step()
            if self._network.is_refusing:
                raise ConnectionFailed
            headers = self._sign(call, correction)
            while call.fence and not call.fence.is_fence_recent:
                await call.fence.verify_fence(self.clock.wall() + correction)
                headers = self._sign(call, correction)
            call.has_left, call.sent_at = True, asyncio.get_running_loop().time()
            request = SentRequest(call.method, call.target, headers, call.body)
            try:
                response = await self._network.send(request, call.sent_at)
            except ConnectionFailed:
                if not call.may_repeat:
                    raise
                call.may_repeat = False
            else:
                if (call.method, call.target) == ("POST", "/v1/batches"):
                    self._network.maybe_interrupt(self._process)
                return response

    def _sign(self, call: _Call, correction: float) -> CIMultiDict[str]:
        return _sign(
            call.credentials, call.method, call.target, call.body, self.clock.wall() + correction
        )


def _sign(
    credentials: Credentials, method: str, target: str, body: bytes, stamp: float
) -> CIMultiDict[str]:
    timestamp, path = int(stamp), extract_signed_target("path", target)
    signature = compute_signature(credentials.keyed, timestamp, method, path, body)
    signature_headers = {
        "Authorization": f"{SIGNATURE_HEADERS.scheme} {credentials.access_key}:{signature}",
        SIGNATURE_HEADERS.timestamp_header: str(timestamp),
    }
    kind = {"Content-Type": "application/json"} if body else {}
    return CIMultiDict({**signature_headers, **kind})


async def _send_once(process: Process, network: Network, request: SentRequest) -> tuple[int, bytes]:
    """Sends a request once; raises Unknown without a response."""
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            status, body, _ = await network.send(request, asyncio.get_running_loop().time())
    except (TimeoutError, ConnectionFailed):
        raise Unknown("no response") from None
    finally:
        await process.step()
    return status, body


class SimulatedLegacySender(LegacySender):
    """Sends one process's forwarded requests to the legacy service, each at most once."""

    def __init__(self, process: Process, network: LegacyNetwork) -> None:
        self._process = process
        self._network = network

    def has_environment(self, environment: str) -> bool:
        return True

    async def forward(self, inbound: InboundRequest, fence: Fence | None = None) -> PassedResponse:
        await self._process.step()
        while fence and not fence.is_fence_recent:
            await fence.verify_fence()
        headers = CIMultiDict[str]()
        if inbound.is_write:
            execution = cast("OperationExecution", inbound.caller.execution)
            headers["X-Request-Id"] = execution.operation_record.id
        request = SentRequest(inbound.operation.method, inbound.target, headers, inbound.body)
        status, body = await _send_once(self._process, self._network, request)
        if status in (*UNANSWERED_STATUSES, 302):
            raise Unknown(f"status {status}")
        return PassedResponse(status, CIMultiDict(), body)


class FixedMode:
    """The mode of all keys during one request."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode

    def find_mode_of_key(self, *_: Any) -> Mode:
        return self._mode


@dataclass
class Gateway:
    process: Process
    network: Network
    legacy_network: LegacyNetwork
    state: SimulatedStore
    report_problem: Callable[[str], None]
    lease_seconds: float
    request_tasks: dict[asyncio.Task[None], None] = field(default_factory=dict)
    is_open: bool = False

    async def open(self, ids: random.Random) -> None:
        store, process = self.state, self.process
        clock = ServiceClock(process.wall, process.monotonic)
        upstream: Any = SimulatedUpstream(process, self.network, clock)
        object_states = ObjectStateStore(store)
        self._clock = clock
        self._ids = ids
        self._journal = Journal(
            store, object_states, clock, self.lease_seconds, lambda: f"{ids.getrandbits(128):032x}"
        )
        self._outcome_policy = OutcomePolicy(self._journal, clock)
        optional_endpoints = OptionalEndpoints("auto", CapabilityCache(store), process.wall)
        self._executor = FlowExecutor(
            upstream,
            object_states,
            Vocabulary(),
            optional_endpoints,
            policy=self._outcome_policy,
            listing=ListReader(RecipientCaches(Lists(index=False))),
        )
        leases = InstanceLeases(
            store, self._journal.instance, self.lease_seconds, process.monotonic
        )
        self._reconciler = WriteReconciler(
            store, self._journal, self._executor, self._outcome_policy, leases
        )
        self._idempotency_guard = IdempotencyGuard(
            self._journal, self._executor, self._reconciler, PATIENCE_SECONDS
        )
        self._batch_routing = BatchRouting(object_states, AliasIds(store, "keep"))
        self._legacy_sender = SimulatedLegacySender(process, self.legacy_network)
        self._signed_write_guard = SignedWriteGuard(
            object_states,
            self._journal.operations,
            self._idempotency_guard,
            store.clock,
        )
        await self._reconciler.__aenter__()
        self.is_open = True

    async def close(self) -> None:
        """Waits for requests in flight."""
        self.is_open = False
        if self.request_tasks:
            await asyncio.wait(list(self.request_tasks), timeout=MAX_SHUTDOWN_SECONDS)
        await self._reconciler.__aexit__()
        self.process.kill()

    def accept(self, request: LegacyRequest | SignedRequest, connection: ClientConnection) -> None:
        self.network.log(self._journal.instance[:4], "takes", request)
        task = self.process.start_task(
            self._serve_signed(request, connection)
            if isinstance(request, SignedRequest)
            else self._serve(request, connection)
        )
        self.request_tasks[task] = None
        task.add_done_callback(self.request_tasks.pop)
        task.add_done_callback(lambda _task: connection.close())

    async def _serve(self, request: LegacyRequest, connection: ClientConnection) -> None:
        caller = Caller(API_KEY, "a request")
        connection.on_disconnect = lambda: self._note_disconnect(caller)
        finished: OperationRecord | None = None
        try:
            response, finished = await self._answer_or_error(request, caller)
            await self.process.step()
            if not connection.is_disconnected and not connection.response.done():
                connection.response.set_result(
                    Response(response.status, response.body_bytes, response.headers)
                )
                await self.process.step()
                if finished:
                    self._idempotency_guard.deliveries.record_delivery(finished)
        finally:
            if finished and not self.process.is_dead:
                self._idempotency_guard.deliveries.end(finished)

    async def _serve_signed(self, request: SignedRequest, connection: ClientConnection) -> None:
        write = SignedWrite(
            Signer(API_KEY.tenant, API_KEY.credentials, (), ()),
            API_KEY.environment,
            WriteTarget(request.method, request.target),
            int(request.stamp),
            f"{self._ids.getrandbits(96):024x}",
            json.loads(request.body) if request.body else {},
            is_disconnected=lambda: connection.is_disconnected,
        )
        try:
            status = (
                await self._signed_write_guard.send_write(
                    write, partial(self._send_signed, request, connection)
                )
            ).status
        except WrongBatchStatus:
            status = 400
        except (Failure, StoreUnavailable):
            status = 500
        await self.process.step()
        if not connection.response.done():
            connection.response.set_result(Response(status, b"", {}))

    async def _send_signed(
        self, request: SignedRequest, connection: ClientConnection, fence: Fence | None
    ) -> Response:
        """Sends a client's own request once."""
        if connection.is_disconnected:
            raise Unreachable("the client has disconnected")
        await self.process.step()
        while fence and not fence.is_fence_recent:
            await fence.verify_fence()
        if connection.is_disconnected and request.target.endswith("/start-processing"):
            self.report_problem(f"{request} is sent for a client that has gone")
        credentials = cast("Credentials", API_KEY.credentials)
        headers = _sign(credentials, request.method, request.target, request.body, request.stamp)
        headers[SIGNED_BY_CLIENT] = "yes"
        sent_request = SentRequest(request.method, request.target, headers, request.body)
        status, body = await _send_once(self.process, self.network, sent_request)
        kind = "text/html" if body == HTML else "application/json"
        return Response(status, body, CIMultiDictProxy(CIMultiDict({"Content-Type": kind})))

    def _note_disconnect(self, caller: Caller) -> None:
        """Records a disconnect, which the server notices before any later request of that client."""
        caller.is_disconnected = True
        if caller.execution and not self.process.is_dead:
            self.process.start_task(self._record_disconnect(caller.execution))

    async def _record_disconnect(self, execution: OperationExecution) -> None:
        with suppress(StoreUnavailable):
            await self._idempotency_guard.deliveries.record_disconnect(execution)

    async def _answer_or_error(
        self, request: LegacyRequest, caller: Caller
    ) -> tuple[LegacyResponse, OperationRecord | None]:
        try:
            while True:
                # Another request has assigned the batch to a service meanwhile.
                with suppress(BatchRoutedElsewhereError):
                    return await self._build_answer(request, caller)
        except Failure as failure:
            return await _build_refusal(failure), None
        except StoreUnavailable:
            return INTERNAL_ERROR, None
        except Exception as error:  # noqa: BLE001 - a client would get 500, too
            self.report_problem(f"{request.operation} was answered by {error!r}")
            return INTERNAL_ERROR, None

    async def _build_answer(
        self, legacy_request: LegacyRequest, caller: Caller
    ) -> tuple[LegacyResponse, OperationRecord | None]:
        operation = OPERATIONS_BY_NAME[legacy_request.operation]
        body, problems = None, ()
        if operation.body_shape is not None:
            body, problems = request_bodies.parse_body(operation.body_shape, legacy_request.body)
        request = Request(
            now=self.state.clock(),
            seed=f"{self._ids.getrandbits(96):024x}",
            ids=legacy_request.ids,
            body=body,
            problems=problems,
        )
        routing_checks: LoadRoutingChecks | None = None
        if legacy_request.changes_modes:
            inbound = _build_inbound_request(operation, request, legacy_request, caller)
            router = self._create_router()
            if answer := await router.forward_if_routed_to_legacy(inbound):
                response = LegacyResponse(answer.response.status, [answer.response.body])
                return response, answer.pending_delivery
            routing_checks = partial(router.load_routing_checks, inbound)
        if not operation.is_write:
            result = await self._executor.execute(operation.flow(request), caller, problems)
            return await _build_success(result), None
        write_request = WriteRequest(
            operation, request, caller, legacy_request.idempotency, problems, routing_checks
        )
        return await self._idempotency_guard.answer(write_request, _build_success, _build_refusal)

    def _create_router(self) -> ServiceRouter:
        """Creates the router of one request, whose mode is drawn."""
        modes: Any = FixedMode(self.process.random_source.choice((FORWARD, TRANSLATE)))
        return ServiceRouter(
            modes, self._batch_routing, self._legacy_sender, self._idempotency_guard, Comparing()
        )


def _build_inbound_request(
    operation: Operation, request: Request, legacy_request: LegacyRequest, caller: Caller
) -> InboundRequest:
    body = b"" if legacy_request.body is None else json.dumps(legacy_request.body).encode()
    return InboundRequest(
        operation,
        caller,
        request,
        request,
        f"/v1{operation.path.format(**legacy_request.ids)}",
        CIMultiDict(),
        body,
        legacy_request.idempotency,
        log_fields={},
    )


async def _build_success(result: Answer) -> LegacyResponse:
    return LegacyResponse(200, [json_codec.dumps({"ok": True, **result.body})])


async def _build_refusal(failure: Failure) -> LegacyResponse:
    return responses.build_error_response(errors.translate_failure(failure))


async def settle_forwarded_writes(store: SimulatedStore, network: LegacyNetwork) -> None:
    """Settles the forwarded writes in doubt as an operator does who sees what the legacy service has."""
    if not network.is_idle:
        return
    for in_doubt in await load_in_doubt_writes(store):
        if not in_doubt.record.is_forwarded:
            continue
        request = network.find_request(in_doubt.record.id)
        has_happened = bool(request and request.is_done)
        verdict = (request and request.created_id) or (CONFIRMED if has_happened else ABSENT)
        with suppress(ActionRefused):
            await record_operator_verdict(store, in_doubt.id, verdict)


async def freeze_all_writes(store: SimulatedStore) -> None:
    await freeze_writes(store, ALL_TENANTS)


async def unfreeze_all_writes(store: SimulatedStore) -> None:
    await unfreeze_writes(store, ALL_TENANTS)


async def start_gateway(
    network: Network,
    legacy_network: LegacyNetwork,
    connection: Connection,
    random_source: random.Random,
    report_problem: Callable[[str], None],
    *,
    shared: bool,
    lease_seconds: float,
) -> Gateway:
    """Starts a gateway in a new process; it is not open if it was killed meanwhile."""
    process = Process(random.Random(random_source.randrange(1 << 30)))
    gateway = Gateway(
        process,
        network,
        legacy_network,
        SimulatedStore(process, connection, shared=shared),
        report_problem,
        lease_seconds,
    )
    start_task = process.start_task(gateway.open(random.Random(random_source.randrange(1 << 30))))
    try:
        await start_task
    except (ProcessKilled, asyncio.CancelledError, StoreUnavailable):
        process.kill()
    return gateway
