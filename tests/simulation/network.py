"""The simulated service and the network before it, which loses, delays and corrupts messages."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from typing import Any

from gateway.config.settings import Words
from tests.recording_service import HTML, ReceivedRequest, SentRequest, extract_created_id
from tests.simulation.process import EPOCH, Process
from tests.simulator import RequestHandler, Service, ServiceOptions

TIMEOUT_SECONDS = 4.0
SEND_SECONDS = 1.25
"""How long before it is sent a write may have been recorded, and so before a freeze: half a lease."""
SIGNATURE_HEADERS = Words().current
SIGNED_BY_CLIENT = "X-Signed-By-Client"
"""Header of the requests that clients have signed."""
INTERNAL_ERROR_BODY = (
    b'{"ok":false,"errors":[{"code":"internal_server_error","message":"Something went wrong"}]}'
)
RATE_LIMIT_BODY = (
    b'{"ok":false,"errors":[{"code":"rate_limit_exceeded","message":"Too many requests"}]}'
)


class ConnectionFailed(Exception):
    """The connection failed."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What happens to a request and its response.

    The request arrives after ``request_delay`` seconds and is executed if ``is_executed``. The sender sees the
    connection fail (``fails_before`` the request arrives or ``fails_after``), gets the response that
    ``build_response`` returns after ``response_delay`` seconds, or gets none (``is_silent``).
    """

    name: str
    is_executed: bool = True
    request_delay: tuple[float, float] = (0.0, 0.02)
    fails_before: bool = False
    fails_after: bool = False
    is_silent: bool = False
    response_delay: tuple[float, float] = (0.0, 0.02)
    build_response: Callable[[int, bytes], tuple[int, bytes]] = lambda status, body: (status, body)
    is_answered_first: bool = False
    """Whether a proxy answers before the request arrives."""


def _replace_response(status: int, body: bytes) -> Callable[[int, bytes], tuple[int, bytes]]:
    return lambda _status, _body: (status, body)


DELIVERED = Delivery("well")
UNAVAILABLE = Delivery(
    "503, not done", is_executed=False, build_response=_replace_response(503, HTML)
)
FAULTY_DELIVERIES = (
    Delivery("lost before", is_executed=False, fails_before=True),
    Delivery("lost before", is_executed=False, fails_before=True),
    Delivery("silent, not done", is_executed=False, is_silent=True),
    Delivery("lost after", fails_after=True),
    Delivery("lost after", fails_after=True),
    Delivery("lost after", fails_after=True),
    Delivery("silent", is_silent=True),
    Delivery("slow", response_delay=(1.0, 10.0)),
    Delivery("late", request_delay=(1.0, 45.0)),
    Delivery("cut, and late", request_delay=(0.5, 40.0), fails_before=True),
    Delivery("half json", build_response=lambda status, body: (status, body[: len(body) // 2])),
    Delivery("empty", build_response=_replace_response(200, b"")),
    Delivery("html", build_response=_replace_response(200, HTML)),
    Delivery("502", build_response=_replace_response(502, HTML)),
    Delivery("504, not done", is_executed=False, build_response=_replace_response(504, HTML)),
    Delivery("500", build_response=_replace_response(500, INTERNAL_ERROR_BODY)),
    Delivery(
        "500, not done",
        is_executed=False,
        build_response=_replace_response(500, INTERNAL_ERROR_BODY),
    ),
    Delivery("503, not done", is_executed=False, build_response=_replace_response(503, b"")),
    Delivery("429", is_executed=False, build_response=_replace_response(429, RATE_LIMIT_BODY)),
    Delivery("302", build_response=_replace_response(302, b"")),
    Delivery(
        "408 of a proxy, and late",
        request_delay=(0.0, 10.0),
        build_response=_replace_response(408, b'{"message":"Request Timeout"}'),
        is_answered_first=True,
    ),
)


LEGACY_DELIVERIES = tuple(
    delivery
    for delivery in FAULTY_DELIVERIES
    if delivery.name not in ("half json", "empty", "html", "500", "408 of a proxy, and late")
)
"""Those after which the legacy service has executed what it did not answer with a 5xx of its own, because any
response of it ends a write."""


@dataclass
class Network:
    service: Service
    random_source: random.Random
    requests: list[ReceivedRequest] = field(default_factory=list)
    fault_rate: float = 0.0
    """Share of the requests that meet a fault."""
    deliveries: Sequence[Delivery] = FAULTY_DELIVERIES
    pause_rate: float = 0.0
    """Share of batch creates after which the process is paused or killed."""
    outage_rate: float = 0.0
    """Share of recipient creates after which the service is down for a while."""
    frozen_at: float | None = None
    """When an operator's freeze was confirmed, while it lasts."""
    is_superseded: Callable[[str], bool] = lambda _batch: False
    """Whether this upstream batch is superseded, so that nothing may be written to it."""
    problems: list[str] = field(default_factory=list)
    log: Callable[..., None] = lambda *_words: None
    _down_until: float = 0.0
    _is_refusing: bool = False
    """Whether it refuses connections while it is down; otherwise a proxy answers 503."""
    _delivery_tasks: dict[asyncio.Task[None], None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._handler = RequestHandler(self.service)
        self._lists = self.service.options.inferred

    def send(self, request: SentRequest, sent_at: float) -> asyncio.Future[tuple[int, bytes, str]]:
        """Sends a request, which continues even if its sender dies."""
        delivery = (
            self.random_source.choice(self.deliveries)
            if self.random_source.random() < self.fault_rate
            else DELIVERED
        )
        if self._is_down:
            delivery = UNAVAILABLE
        if delivery.name == "500" and request.raw_path == "/v1/batches" and not self._lists:
            # Without lists nothing shows whether it was executed, so that a 500 must mean that it was not.
            delivery = replace(delivery, is_executed=False)
        recorded_request = ReceivedRequest(
            len(self.requests), request.method, request.raw_path, request.headers, request.data, 0
        )
        recorded_request.behaviour = delivery.name
        self.requests.append(recorded_request)
        if recorded_request.is_write and self._is_frozen_at(sent_at):
            self.problems.append(
                f"{recorded_request.method} {recorded_request.path} was sent despite a freeze"
            )
        self.log(
            "sent",
            recorded_request.number,
            recorded_request.method,
            recorded_request.path,
            delivery.name,
        )
        reply = asyncio.get_running_loop().create_future()
        task = asyncio.get_running_loop().create_task(
            self._deliver(request, recorded_request, delivery, reply)
        )
        self._delivery_tasks[task] = None
        task.add_done_callback(self._delivery_tasks.pop)
        return reply

    async def _deliver(
        self,
        request: SentRequest,
        recorded_request: ReceivedRequest,
        delivery: Delivery,
        reply: asyncio.Future[Any],
    ) -> None:
        if delivery.fails_before:
            _fail(reply)
        if delivery.is_answered_first:
            self._send_response(delivery, reply, 0, b"")
        await asyncio.sleep(self.random_source.uniform(*delivery.request_delay))
        status, body = 0, b""
        if delivery.is_executed:
            status, body = await self._execute(request, recorded_request)
        if delivery.fails_after:
            _fail(reply)
        if delivery.is_silent or reply.done():
            return
        await asyncio.sleep(self.random_source.uniform(*delivery.response_delay))
        if not reply.done():
            self._send_response(delivery, reply, status, body)

    def _send_response(
        self, delivery: Delivery, reply: asyncio.Future[Any], status: int, body: bytes
    ) -> None:
        date = formatdate(self.service.clock(), usegmt=True)
        reply.set_result((*delivery.build_response(status, body), date))

    async def _execute(
        self, request: SentRequest, recorded_request: ReceivedRequest
    ) -> tuple[int, bytes]:
        response: Any = await self._handler.handle(request)  # type: ignore[arg-type]
        recorded_request.status, body = response.status, bytes(response.body)
        recorded_request.age = self.service.clock() - float(
            request.headers[SIGNATURE_HEADERS.timestamp_header]
        )
        recorded_request.created_id = extract_created_id(recorded_request, json.loads(body))
        self.log("done", recorded_request.number, recorded_request.status)
        if (request.method, request.raw_path) == ("POST", "/v1/recipients"):
            self.maybe_go_down()
        match = _BATCH_PATH.match(recorded_request.path)
        if (
            recorded_request.is_write
            and recorded_request.is_done
            and match
            and self.is_superseded(match[1])
        ):
            self.problems.append(
                f"{recorded_request.method} {recorded_request.path} was sent to a superseded batch"
            )
        return response.status, body

    def _is_frozen_at(self, sent_at: float) -> bool:
        return self.frozen_at is not None and sent_at > self.frozen_at + SEND_SECONDS

    @property
    def _is_down(self) -> bool:
        return asyncio.get_running_loop().time() < self._down_until

    @property
    def is_refusing(self) -> bool:
        """Whether it refuses connections, so that nothing is sent."""
        return self._is_down and self._is_refusing

    def maybe_go_down(self) -> None:
        """Takes the service down, mostly for longer than a client waits."""
        if not self.outage_rate or self.random_source.random() >= self.outage_rate:
            return
        seconds = self.random_source.choice((2.0, 20.0, 60.0))
        self._is_refusing = self.random_source.random() < 0.7
        self._down_until = asyncio.get_running_loop().time() + seconds
        self.log("down for", seconds, "s")

    def recover(self) -> None:
        self.fault_rate = self.pause_rate = self.outage_rate = self._down_until = 0.0

    def maybe_interrupt(self, process: Process) -> None:
        """Pauses or kills a process that has just created a batch."""
        if not self.pause_rate or self.random_source.random() >= self.pause_rate:
            return
        step_number = process.steps + self.random_source.choice((2, 3, 4, 5, 6, 8, 12, 20))
        if self.random_source.random() < 0.4:
            process.dies_at = step_number
        else:
            process.holds_at = step_number, self.random_source.choice((0.1, 0.8, 3.0))

    @property
    def is_idle(self) -> bool:
        return not self._delivery_tasks

    def list_starts(self) -> list[str]:
        """The ids of the batches that were started, once for every start."""
        return [batch_start.batch_id for batch_start in self.service.batch_starts]

    def list_executed_writes(self, method: str = "*", text: str = "") -> list[ReceivedRequest]:
        """The writes that were executed and succeeded."""
        return [
            request
            for request in self.requests
            if request.is_write
            and request.is_done
            and method in ("*", request.method)
            and request.contains_text(text)
        ]


class LegacyNetwork(Network):
    """The legacy service, of which only what the scenarios need is simulated, and the network before it."""

    def __post_init__(self) -> None:
        self._lists = True
        self._starts: list[str] = []
        self.bodies: dict[str, dict[str, Any]] = {}
        """The bodies that recipients and batches were created with, by their ids."""

    async def _execute(
        self, request: SentRequest, recorded_request: ReceivedRequest
    ) -> tuple[int, bytes]:
        status, body = self._answer(request)
        recorded_request.status = status
        recorded_request.created_id = extract_created_id(recorded_request, body)
        self.log("done", recorded_request.number, status, "at the legacy service")
        return status, json.dumps(body).encode()

    def find_request(self, operation_id: str) -> ReceivedRequest | None:
        """The request of an operation of the gateway's."""
        return next(
            (
                request
                for request in self.requests
                if request.headers.get("X-Request-Id") == operation_id
            ),
            None,
        )

    def _answer(self, request: SentRequest) -> tuple[int, dict[str, Any]]:
        name, _, rest = request.raw_path.removeprefix("/v1/").partition("/")
        if not rest or request.method == "GET":
            id_ = rest or f"{name[0].upper()}-LEGACY{len(self.bodies)}"
            if not rest:
                self.bodies[id_] = json.loads(request.data)
            return 200, {
                "ok": True,
                {"recipients": "recipient", "batches": "batch"}[name]: {"id": id_},
            }
        batch = rest.partition("/")[0]
        if batch in self._starts or batch not in self.bodies:
            code = "invalid_status" if batch in self._starts else "not_found"
            return 406, {"ok": False, "errors": [{"code": code, "message": "No"}]}
        self._starts.append(batch)
        return 200, {"ok": True, "batch": {"id": batch, "status": "processing"}}

    def list_starts(self) -> list[str]:
        return self._starts


_BATCH_PATH = re.compile(r"/v1/batches/([^/]+)")


def _fail(reply: asyncio.Future[Any]) -> None:
    if not reply.done():
        reply.set_exception(ConnectionFailed())
        reply.exception()  # mark as retrieved: the sender may be dead


def build_service(rng: random.Random, **service_options: Any) -> Service:
    def clock() -> float:
        return EPOCH + asyncio.get_running_loop().time()

    return Service(
        options=ServiceOptions(**service_options), clock=clock, seed=rng.randrange(1 << 30)
    )
