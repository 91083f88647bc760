"""The door: a legacy HTTP request comes in, a legacy HTTP answer goes out, whatever happens.

In this order: path, key, address, limit, body. Then the operation's flow is played. Every failure
leaves through one error table, and every request leaves one line in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog
from aiohttp import web

from gateway import answers, incoming, logs
from gateway.answers import Said
from gateway.callers import Address, address_of, networks
from gateway.ids import Ids
from gateway.keys import Key, Keyring
from gateway.limits import Admission, Limits
from gateway.player import Caller, Player
from gateway.routes import Routes
from gateway.settings import Settings
from gateway.store import StoreUnavailable
from mappings import errors, kinds
from mappings.errors import KNOWN_CODES, ErrorAnswer
from mappings.grammar import JSON, Failure, Invalid, Operation, Problem, Refused, Request
from mappings.ids import IN_TEXT, ids_in, with_ids, with_ids_in_text
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
    as_sent: dict[str, str] = field(default_factory=dict)
    """The ids of the request, by what they stand for: an answer spells them as it did."""
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
        ids: Ids,
        spelling: Spelling,
        clock: Callable[[], datetime],
    ) -> None:
        self._keyring = keyring
        self._limits = limits
        self._player = player
        self._ids = ids
        self._spelling = spelling
        self._clock = clock
        self._routes = Routes(settings.vocabulary.for_mappings())
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
            return await self._refusal(failure, visit)
        except incoming.Overlong as overlong:
            return answers.refusal(overlong.answer, closes=True)
        except StoreUnavailable as unavailable:
            visit.told |= {"state": str(unavailable)}
        except Exception as error:  # noqa: BLE001 - no client may see a traceback, and no log a text
            visit.told |= logs.told(error)
        return answers.refusal(errors.of(errors.INTERNAL))

    async def _answer(self, request: web.BaseRequest, visit: Visit) -> Said:
        path, query = incoming.path_and_query(request)
        matched = self._routes.match(path)
        if matched is None:
            visit.told["why"] = f"no operation of this path: {self._routes.outline(path)}"
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
        names = await self._stood_for(operation, visit, matched.ids, body)
        asked = Request(
            now=self._clock(),
            seed=visit.request_id,
            ids={name: names.get(id_, id_) for name, id_ in matched.ids.items()},
            query=self._spelling.inward(operation.query, incoming.parameters(query)),
            body=with_ids(operation.takes, body, names),
            manners=self._manners,
            problems=problems,
            keys=_keys(request, visit),
        )
        flow = operation.flow(asked)
        answer = await self._player.play(flow, visit.caller, problems)
        visit.notices = answer.notices
        shown = await self._shown(operation, visit, dict(answer.body))
        return answers.done(self._spelling.outward(operation.gives, shown))

    async def _admitted(
        self, request: web.BaseRequest, visit: Visit, operation: Operation
    ) -> Admission:
        """Who is calling, and whether they may do so once more; raises Invalid for nobody we know."""
        address = self._address(request)
        if operation.keyless:
            return await self._limits.admit(f"address {address}", self._requests_per_hour)
        key = await self._key(request, visit)
        visit.caller = Caller(key, visit.request_id)
        if key.allowed_ips and (address is None or not key.admits(address)):
            visit.told["why"] = "the client's address is not among the key's allowed_ips"
            raise Invalid(errors.NOT_AUTHORIZED)
        return await self._limits.admit(key.id, key.requests_per_hour or self._requests_per_hour)

    async def _key(self, request: web.BaseRequest, visit: Visit) -> Key:
        given = request.headers.getall("X-API-Key", [])
        if len(given) == 1:
            if key := await self._keyring.find(given[0].strip()):
                return key
            visit.told["why"] = "the API key is unknown or revoked"
        else:
            visit.told["why"] = "more than one API key" if given else "no API key"
        raise Invalid(errors.INVALID_KEY)

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

    async def _stood_for(
        self, operation: Operation, visit: Visit, path: Mapping[str, str], body: JSON
    ) -> dict[str, str]:
        """What the ids of a request stand for, where that is something else."""
        if visit.caller is None:
            return {}
        sent = {id_ for _kind, id_ in ids_in(operation.takes, body)} | set(path.values())
        names = await self._ids.current(visit.caller.key.owner, sent) if sent else {}
        visit.as_sent = {names.get(id_, id_): id_ for id_ in sent}
        return names

    async def _shown(self, operation: Operation, visit: Visit, body: JSON) -> JSON:
        """An answer with the ids that its client knows."""
        if visit.caller is None:
            return body
        names = await self._ids.legacy_in(visit.caller.key.owner, operation.gives, body)
        return with_ids(operation.gives, body, names | visit.as_sent)

    async def _refusal(self, failure: Failure, visit: Visit) -> Said:
        answer = errors.answer(failure)
        visit.told["codes"] = list(dict.fromkeys(one.code for one in answer.problems))
        if fields := [one.field for one in answer.problems if one.field]:
            visit.told["fields"] = fields[:10]
        if answer.status >= 500 or isinstance(failure, Refused):
            visit.told |= {"failure": type(failure).__name__, **_because(failure)}
        takes = visit.operation.takes if visit.operation else None
        names = await self._names_in_messages(answer, visit)
        named = [self._named(one, takes, names) for one in answer.problems]
        return answers.refusal(ErrorAnswer(answer.status, tuple(named), answer.retry_after))

    async def _names_in_messages(self, answer: ErrorAnswer, visit: Visit) -> dict[str, str]:
        found = {id_ for one in answer.problems for id_ in IN_TEXT.findall(one.message)}
        if not found or visit.caller is None:
            return {}
        try:
            return await self._ids.known(visit.caller.key.owner, found) | visit.as_sent
        except StoreUnavailable:
            return visit.as_sent

    def _named(self, problem: Problem, takes: Any, names: Mapping[str, str]) -> Problem:
        """A problem with its field in the client's own words, in the message too."""
        message = with_ids_in_text(problem.message, names.get)
        if problem.field is None:
            return Problem(problem.code, message)
        own = self._spelling.field(takes, problem.field)
        return Problem(problem.code, message.replace(problem.field, own), own)


def _keys(request: web.BaseRequest, visit: Visit) -> tuple[str, ...]:
    if visit.caller is None:
        return ()
    pair = visit.caller.key.pair
    return (request.headers.get("X-API-Key", "").strip(), pair.access_key, pair.secret_key)


def _because(failure: Failure) -> dict[str, Any]:
    """Of a refusal its status and the codes that are known; other texts are the service's."""
    if not isinstance(failure, Refused):
        return {"because": str(failure)}
    codes = [one.code if one.code in KNOWN_CODES else "unknown" for one in failure.problems]
    return {"service_status": failure.status, "service_codes": codes}


def _log(request: web.BaseRequest, visit: Visit, status: int) -> None:
    caller, seconds = visit.caller, asyncio.get_running_loop().time() - visit.began
    line: dict[str, Any] = {
        "status": status,
        "method": request.method,
        "operation": visit.operation.name if visit.operation else None,
        "ms": round(seconds * 1000, 1),
        "merchant": caller.key.merchant if caller else None,
        "environment": caller.key.environment if caller else None,
        "key": caller.key.name if caller else None,
        "request_id": visit.request_id,
        "upstream_calls": caller.calls if caller else 0,
        "upstream_ms": round(caller.seconds * 1000, 1) if caller else 0,
    }
    (log.error if status >= 500 else log.info)("request", **line, **visit.told)
    for notice in visit.notices:
        log.warning("notice", request_id=visit.request_id, notice=notice)
