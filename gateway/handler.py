"""The door: a legacy HTTP request comes in, a legacy HTTP answer goes out, whatever happens.

In this order: path, key, address, limit, body. Then the operation's flow is played. Every failure
leaves through one error table, and every request leaves one line in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog
from aiohttp import web

from gateway import answers, incoming, logs
from gateway.answers import Said
from gateway.callers import Address, address_of, networks
from gateway.keys import Key, Keyring
from gateway.limits import Admission, Limits
from gateway.player import Caller, Player
from gateway.routes import match
from gateway.settings import Settings
from gateway.store import StoreUnavailable
from mappings import errors, kinds
from mappings.errors import KNOWN_CODES, ErrorAnswer
from mappings.grammar import JSON, Failure, Invalid, Operation, Problem, Refused, Request
from mappings.spelling import Spelling

log = structlog.get_logger()


@dataclass(slots=True)
class Visit:
    """One request on its way through: what is known of it so far, for the answer and the log."""

    request_id: str
    began: float
    operation: Operation | None = None
    caller: Caller | None = None
    admission: Admission | None = None
    notices: tuple[str, ...] = ()
    told: dict[str, Any] = field(default_factory=dict)


class Handler:
    """Called by the server with each request."""

    def __init__(
        self,
        settings: Settings,
        *,
        keyring: Keyring,
        limits: Limits,
        player: Player,
        spelling: Spelling,
        clock: Callable[[], datetime],
    ) -> None:
        self._keyring = keyring
        self._limits = limits
        self._player = player
        self._spelling = spelling
        self._clock = clock
        self._manners = settings.legacy.for_mappings()
        self._most = settings.limits.body_bytes
        self._requests_per_hour = settings.limits.requests_per_hour
        self._trusted = networks(settings.server.trusted_proxies)

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        visit = Visit(incoming.request_id(request), asyncio.get_running_loop().time())
        said = await self._said(request, visit)
        _log(request, visit, said.status)
        return answers.response(said, visit.request_id, visit.admission)

    async def _said(self, request: web.BaseRequest, visit: Visit) -> Said:
        try:
            return await self._answer(request, visit)
        except Failure as failure:
            return answers.refusal(self._failed(failure, visit))
        except incoming.Overlong as overlong:
            return answers.refusal(overlong.answer, closes=True)
        except StoreUnavailable as unavailable:
            visit.told |= {"state": str(unavailable)}
        except Exception as error:  # noqa: BLE001 - no client may see a traceback, and no log a text
            visit.told |= logs.told(error)
        return answers.refusal(errors.of(errors.INTERNAL))

    async def _answer(self, request: web.BaseRequest, visit: Visit) -> Said:
        path, query = incoming.path_and_query(request)
        matched = match(path)
        if matched is None:
            raise Invalid(errors.NOT_FOUND)
        if request.method == "OPTIONS":
            return answers.preflight(matched.route.operations)
        operation = matched.route.operations.get(request.method)
        if operation is None:
            raise Invalid(errors.NOT_FOUND)
        visit.operation = operation
        visit.admission = await self._admitted(request, visit, operation)
        if not visit.admission.admitted:
            wait = str(visit.admission.retry_after)
            return answers.refusal(ErrorAnswer(429, (errors.OVER_LIMIT,), wait))
        incoming.refuse_overlong(request, self._most)
        body, problems = await self._body(request, operation)
        asked = Request(
            now=self._clock(),
            ids=matched.ids,
            query=self._spelling.inward(operation.query, incoming.parameters(query)),
            body=body,
            manners=self._manners,
            problems=problems,
        )
        flow = operation.flow(asked)
        answer = await self._player.play(flow, visit.caller, problems)
        visit.notices = answer.notices
        return answers.done(self._spelling.outward(operation.gives, dict(answer.body)))

    async def _admitted(
        self, request: web.BaseRequest, visit: Visit, operation: Operation
    ) -> Admission:
        """Who is calling, and whether they may do so once more; raises Invalid for nobody we know."""
        address = self._address(request)
        if operation.keyless:
            return await self._limits.admit(f"address {address}", self._requests_per_hour)
        key = await self._key(request)
        if key.allowed_ips and (address is None or not key.admits(address)):
            raise Invalid(errors.NOT_AUTHORIZED)
        visit.caller = Caller(key, visit.request_id)
        return await self._limits.admit(key.id, key.requests_per_hour or self._requests_per_hour)

    async def _key(self, request: web.BaseRequest) -> Key:
        given = request.headers.getall("X-API-Key", [])
        key = await self._keyring.find(given[0].strip()) if len(given) == 1 else None
        if key is None:
            raise Invalid(errors.INVALID_KEY)
        return key

    def _address(self, request: web.BaseRequest) -> Address | None:
        forwarded = request.headers.getall("X-Forwarded-For", [])
        return address_of(request.remote, forwarded, self._trusted)

    async def _body(
        self, request: web.BaseRequest, operation: Operation
    ) -> tuple[JSON, tuple[Problem, ...]]:
        if operation.takes is None:
            return None, ()
        body = await incoming.json_body(request, self._most)
        return kinds.read(operation.takes, self._spelling.inward(operation.takes, body))

    def _failed(self, failure: Failure, visit: Visit) -> ErrorAnswer:
        answer = errors.answer(failure)
        if answer.status >= 500:
            visit.told |= {"failure": type(failure).__name__, **_because(failure)}
        takes = visit.operation.takes if visit.operation else None
        named = [self._named(one, takes) for one in answer.problems]
        return ErrorAnswer(answer.status, tuple(named), answer.retry_after)

    def _named(self, problem: Problem, takes: Any) -> Problem:
        """A problem with its field in the client's own words, in the message too."""
        if problem.field is None:
            return problem
        own = self._spelling.field(takes, problem.field)
        return Problem(problem.code, problem.message.replace(problem.field, own), own)


def _because(failure: Failure) -> dict[str, Any]:
    """Of a refusal its status and the codes that are known; other texts are the service's."""
    if not isinstance(failure, Refused):
        return {"because": str(failure)}
    codes = [one.code if one.code in KNOWN_CODES else "unknown" for one in failure.problems]
    return {"service_status": failure.status, "service_codes": codes}


def _log(request: web.BaseRequest, visit: Visit, status: int) -> None:
    caller, seconds = visit.caller, asyncio.get_running_loop().time() - visit.began
    line: dict[str, Any] = {
        "request_id": visit.request_id,
        "operation": visit.operation.name if visit.operation else None,
        "merchant": caller.key.merchant if caller else None,
        "environment": caller.key.environment if caller else None,
        "key": caller.key.name if caller else None,
        "method": request.method,
        "status": status,
        "ms": round(seconds * 1000, 1),
        "upstream_calls": caller.calls if caller else 0,
        "upstream_ms": round(caller.seconds * 1000, 1) if caller else 0,
    }
    (log.error if status >= 500 else log.info)("request", **line, **visit.told)
    for notice in visit.notices:
        log.warning("notice", request_id=visit.request_id, notice=notice)
