"""Legacy codec: decodes requests for flows and encodes their answers and failures for clients.

Translates the configured vocabulary, and replaces each id by the id that the other side knows.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import datetime
from itertools import chain
from typing import Any, Literal, cast

import structlog
from aiohttp import web

from gateway.admission.load import AdmissionSlot
from gateway.config.settings import Settings
from gateway.http import progress, request_reader, responses
from gateway.http.request_ids import token
from gateway.http.responses import LegacyResponse
from gateway.legacy_api.request_context import RequestContext
from gateway.observability import metrics
from gateway.payloads import json_codec
from gateway.payloads.worker_thread import run_in_thread, run_in_thread_if
from gateway.storage import StoreUnavailable
from gateway.storage.alias_ids import Ids
from gateway.storage.tenants import Tenant
from mappings import errors, kinds
from mappings.errors import KNOWN_CODES, ErrorAnswer
from mappings.grammar import (
    JSON,
    Answer,
    Failure,
    Halted,
    Operation,
    Problem,
    Refused,
    Request,
)
from mappings.ids import (
    IN_TEXT,
    SHAPE,
    TOGETHER,
    Named,
    collect_ids,
    iterate_id_slices,
    replace_ids,
    replace_ids_in_text,
)
from mappings.rows import Keyed, iterate_chunks, packed
from mappings.spelling import build_legacy_spelling

log = structlog.get_logger()


class LegacyCodec:
    def __init__(self, settings: Settings, ids: Ids, clock: Callable[[], datetime]) -> None:
        self._ids = ids
        self._spelling = build_legacy_spelling(settings.vocabulary.for_mappings())
        self._manners = settings.legacy.for_mappings()
        self._most = settings.limits.body_bytes
        self._undeclared_charset = settings.legacy.undeclared_charset
        self._clock = clock

    async def read(
        self, request: web.BaseRequest, visit: RequestContext, data: bytes
    ) -> tuple[JSON, tuple[Problem, ...]]:
        """Decodes a request body.

        Returns its values and the problems found in them. Raises Invalid and BodyTooLarge.
        """
        takes = visit.operation.takes if visit.operation else None
        if takes is None:
            return None, ()
        encoding = request.headers.get("Content-Encoding", "")
        charset = request.charset, self._undeclared_charset
        stay = cast("AdmissionSlot", visit.stay)
        body = await request_reader.decode_json_body(data, encoding, charset, self._most, stay)
        # The size of a compressed body says nothing about its decompressed size.
        is_long = len(data) > json_codec.LARGE or bool(encoding)
        own = self._spelling.inward(takes, body)
        found: tuple[JSON, tuple[Problem, ...]]
        found = await run_in_thread_if(is_long, kinds.read, takes, own)
        if visit.caller:
            # A long request is handled in slices and in threads, so that it does not block others.
            visit.caller.is_long = json_codec.has_rows(found[0])
            _tell(visit, "translating_request", len(data), is_long=visit.caller.is_long)
        return found

    async def asked(
        self,
        request: web.BaseRequest,
        visit: RequestContext,
        ids: Mapping[str, str],
        read: tuple[JSON, tuple[Problem, ...]],
    ) -> Request:
        """Builds the request for a flow from the ids in the path and the decoded body."""
        operation = cast("Operation", visit.operation)
        query = request_reader.split_request_target(request)[1]
        body, problems = read
        given = self._spelling.inward(operation.query, request_reader.parse_query(query))
        unknown = given.keys() - getattr(operation.query, "__annotations__", {}).keys()
        if unknown:
            # Ignored as documented (contract, section 3), but counted: a client may expect an
            # effect.
            metrics.count_ignored_parameters(operation.name, len(unknown))
        names = await self._stood_for(visit, ids, body, given)
        body = replace_ids(operation.takes, body, names)
        if names and json_codec.has_rows(body):
            # The flow iterates over the lists several times: replace ids once, not in each pass.
            body = await run_in_thread(_made, body)
        return Request(
            now=self._clock(),
            seed=token(),  # not the request id: a client may use one for two requests
            ids={name: names.get(id_, id_) for name, id_ in ids.items()},
            query=replace_ids(operation.query, given, names),
            body=body,
            manners=self._manners,
            problems=problems,
            keys=_keys(request, visit),
            imported=self._imported(visit, ids, names),
        )

    def _imported(
        self, visit: RequestContext, path: Mapping[str, str], names: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Returns the imported ids of a write, which also identify a retry of it.

        For a long request, only the ids in the path: they name the object that it changes.
        """
        if visit.caller is None or not names or not cast("Operation", visit.operation).writes:
            return {}
        if visit.caller.is_long:
            names = {id_: names[id_] for id_ in path.values() if id_ in names}
        return self._ids.imported(visit.caller.key.owner, names)

    async def _stood_for(
        self, visit: RequestContext, path: Mapping[str, str], body: JSON, query: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Maps the ids of a request to current ids; ids that are the same in both are left out."""
        if visit.caller is None:
            return {}
        operation = cast("Operation", visit.operation)
        takes = operation.takes
        if visit.caller.is_long:
            visit.named = await self._many_stood_for(visit.caller.key.owner, path, takes, body)
            return visit.named
        sent = _sent(path, collect_ids(takes, body), collect_ids(operation.query, query))
        names = await self._ids.current(visit.caller.key.owner, sent) if sent else {}
        visit.as_sent = {names.get(id_, id_): id_ for id_ in sent}
        return names

    async def _many_stood_for(
        self, owner: Tenant, path: Mapping[str, str], takes: Any, body: JSON
    ) -> Mapping[str, str]:
        found, names = _many_sent(path, takes, body), Keyed()
        while sent := await run_in_thread(next, found, None):
            those = await self._ids.current(owner, sent, keeps=False)
            # Keyed looks up entries fastest in the order in which they were added.
            await run_in_thread(names.update, [(id_, those[id_]) for id_ in sent if id_ in those])
        return names

    async def answered(self, visit: RequestContext, answer: Answer) -> LegacyResponse:
        """Builds the response to a client, in its vocabulary and with its ids."""
        operation = cast("Operation", visit.operation)
        visit.notices, body = answer.notices, dict(answer.body)
        is_long = visit.caller is not None and visit.caller.is_long and json_codec.has_rows(body)
        if visit.caller is not None:
            course = visit.caller.course
            # New ids are recorded together with the outcome of the write, but those of a long
            # answer are recorded one slice at a time, to bound the size of a transaction.
            # Only a started write has an outcome to record them with.
            later = course.names if course is not None and course.begun and not is_long else None
            owner = visit.caller.key.owner
            changed = await self._names_in(visit, owner, body, later, is_long=is_long)
            body = replace_ids(operation.gives, body, changed)
        said = responses.build_success_response(self._spelling.outward(operation.gives, body))
        if not is_long:
            return said
        written = await run_in_thread(json_codec.dumps_chunks, said.body)
        _tell(visit, "sending_response", sum(map(len, written)), is_long=is_long)
        return replace(said, body={}, written=written)

    async def _names_in(
        self,
        visit: RequestContext,
        owner: Tenant,
        body: JSON,
        later: dict[str, str] | None,
        *,
        is_long: bool,
    ) -> Mapping[str, str]:
        """Maps the ids of an answer to client ids; ids that are the same in both are left out."""
        gives = cast("Operation", visit.operation).gives
        if not is_long:
            named = collect_ids(gives, body)
            names = await self._ids.legacy_of(owner, *named, later)
            return dict(_spelled(named, names, visit.as_sent))
        found, changed = iterate_id_slices(gives, body), Keyed()
        while some := await run_in_thread(next, found, None):
            names = await self._ids.legacy_of(owner, *some, later, keeps=False)
            await run_in_thread(changed.update, _spelled(some, names, visit.as_sent))
        return changed

    async def refusal(self, visit: RequestContext, failure: Failure) -> LegacyResponse:
        """Builds the error response for a failure, with the field names that the client sent."""
        is_long = visit.caller is not None and visit.caller.is_long
        answer = await run_in_thread_if(is_long, errors.translate_failure, failure)
        visit.told["error_codes"] = list(dict.fromkeys(one.code for one in answer.problems))
        if fields := [one.field for one in answer.problems if one.field]:
            # Bounded, because one body may have problems in thousands of fields.
            visit.told["error_fields"] = fields[:10]
        if answer.status >= 500 or isinstance(failure, Refused | Halted):
            visit.told |= {"error.type": failure.error_type, **_because(failure)}
        takes = visit.operation.takes if visit.operation else None
        names = await self._names_in_messages(answer, visit)
        return await run_in_thread_if(is_long, self._refused, answer, takes, names)

    def _refused(self, answer: ErrorAnswer, takes: Any, names: Mapping[str, str]) -> LegacyResponse:
        named = [self._named(one, takes, names) for one in answer.problems]
        return responses.build_error_response(
            ErrorAnswer(answer.status, tuple(named), answer.retry_after)
        )

    async def _names_in_messages(
        self, answer: ErrorAnswer, visit: RequestContext
    ) -> dict[str, str]:
        found = {id_ for one in answer.problems for id_ in IN_TEXT.findall(one.message)}
        if not found or visit.caller is None:
            return {}
        as_sent = {
            **visit.as_sent,
            **await run_in_thread_if(bool(visit.named), _sent_as, visit.named, found),
        }
        try:
            # The client's own spelling takes precedence over the recorded one.
            return await self._ids.known(visit.caller.key.owner, found) | as_sent
        except StoreUnavailable:
            # The client needs the error more than the ids in its message.
            return as_sent

    def _named(self, problem: Problem, takes: Any, names: Mapping[str, str]) -> Problem:
        """Translates the field name and the ids of a problem, also within its message."""
        message = replace_ids_in_text(problem.message, names.get)
        if problem.field is None:
            return Problem(problem.code, message)
        own = self._spelling.field(takes, problem.field)
        return Problem(problem.code, message.replace(problem.field, own), own)


def _tell(
    visit: RequestContext,
    step: Literal["translating_request", "sending_response"],
    size: int,
    *,
    is_long: bool,
) -> None:
    """Records progress on a long request, in the log and for operators."""
    if is_long:
        log.info("large_payload_progress", request_id=visit.request_id, step=step, body_bytes=size)
        progress.told(step, size if step == "translating_request" else 0, size)


def _sent(path: Mapping[str, str], *named: Named) -> AbstractSet[str]:
    """Selects the ids of a request, in order; values that cannot be ids are left out."""
    those = [*path.values(), *(id_ for ids, _mentioned in named for _kind, id_ in ids)]
    return dict.fromkeys(filter(SHAPE.fullmatch, those)).keys()


def _many_sent(path: Mapping[str, str], takes: Any, body: JSON) -> Iterator[AbstractSet[str]]:
    """Like ``_select_sent_ids``, but yields slices, because the body may hold very many ids."""
    named = (id_ for some, _mentioned in iterate_id_slices(takes, body) for _kind, id_ in some)
    for sent in iterate_chunks(filter(SHAPE.fullmatch, chain(path.values(), named)), TOGETHER):
        yield dict.fromkeys(sent).keys()


def _made(body: JSON) -> JSON:
    """Materializes the lazy lists of a body as compressed lists."""
    return {name: packed(one) for name, one in body.items()}


def _spelled(
    some: Named,
    names: Mapping[str, str],
    as_sent: Mapping[str, str],
) -> Iterator[tuple[str, str]]:
    """Yields (current id, client id) for collected ids that differ between the two."""
    for id_ in dict.fromkeys(chain((id_ for _kind, id_ in some[0]), some[1])):
        # The client's own spelling of an id takes precedence.
        if (name := as_sent.get(id_, names.get(id_, id_))) != id_:
            yield id_, name


def _sent_as(named: Mapping[str, str], those: Container[str]) -> dict[str, str]:
    """Maps those of the wanted current ids that a long request sent to the ids that it used."""
    return {current: id_ for id_, current in named.items() if current in those}


def _keys(request: web.BaseRequest, visit: RequestContext) -> tuple[str, ...]:
    if visit.caller is None:
        return ()
    pair = visit.caller.key.pair
    return (request.headers.get("X-API-Key", "").strip(), pair.access_key, pair.secret_key)


def _because(failure: Failure) -> dict[str, Any]:
    """Builds the log fields of a failure.

    Of a refusal, only the status and known codes: other texts come from the service and may
    hold personal data.
    """
    if not isinstance(failure, Refused):
        return {"reason": str(failure)}
    codes = [one.code if one.code in KNOWN_CODES else "unknown" for one in failure.problems]
    return {"upstream_status_code": failure.status, "upstream_error_codes": codes}
