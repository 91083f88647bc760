"""Legacy codec: decodes requests for flows and encodes their answers and failures for clients.

Translates the configured vocabulary, and replaces each id by the id that the other side knows.
"""

from collections.abc import Callable, Collection, Container, Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from hashlib import sha256
from itertools import chain
from operator import itemgetter
from typing import Any, cast

import structlog

from gateway.admission.load import AdmissionSlot
from gateway.config.settings import Settings
from gateway.http import request_reader, responses
from gateway.http.request import HttpRequest
from gateway.http.request_reader import generate_hex_id
from gateway.http.responses import LegacyResponse
from gateway.legacy_api.request_context import RequestContext
from gateway.observability.access_log import describe_problems
from gateway.payloads import json_codec
from gateway.payloads.worker_thread import run_in_thread, run_in_thread_if
from gateway.storage import StoreUnavailable
from gateway.storage.alias_ids import AliasIds
from gateway.storage.tenants import Tenant
from gateway.writes.write_request import Caller
from mappings import errors, request_bodies
from mappings.effects import JSON, Answer, Operation, Request
from mappings.errors import KNOWN_CODES, ErrorAnswer
from mappings.failures import Failure, Halted, Problem, Refused
from mappings.ids import (
    ID_IN_TEXT_PATTERN,
    LEGACY_ID_PATTERN,
    TEXTS_PER_SLICE,
    IdSets,
    collect_ids,
    iterate_id_slices,
    replace_ids,
    replace_ids_in_text,
)
from mappings.lazy_sequences import iterate_chunks, materialize_rows
from mappings.vocabulary import build_legacy_translator

log = structlog.get_logger()


class LegacyCodec:
    """``wall`` returns Unix time in seconds."""

    def __init__(self, settings: Settings, ids: AliasIds, wall: Callable[[], float]) -> None:
        self._ids = ids
        self._vocabulary = build_legacy_translator(settings.vocabulary.build_vocabulary())
        self._legacy_options = settings.legacy.build_legacy_options()
        self._max_body_bytes = settings.limits.body_bytes
        self._undeclared_charset = settings.legacy.undeclared_charset
        self._wall = wall

    async def decode_and_validate_body(
        self, request: HttpRequest, context: RequestContext, data: bytes
    ) -> tuple[JSON, tuple[Problem, ...]]:
        """Decodes a request body.

        Returns its values and the problems found in them. Raises Invalid and BodyTooLarge.
        """
        body_shape = context.operation.body_shape if context.operation else None
        if body_shape is None:
            return None, ()
        encoding = request.fields.headers.get("Content-Encoding", "")
        charset = request.fields.headers.get("Content-Type", ""), self._undeclared_charset
        # The memory of the values counts for the request until it ends.
        slot = cast("AdmissionSlot", context.slot)
        body = await request_reader.decode_json_body(
            data, encoding, charset, self._max_body_bytes, slot
        )
        # The size of a compressed body says nothing about its decompressed size.
        is_long = len(data) > json_codec.LARGE_BYTES or bool(encoding)
        # Words come first, because the shapes below contain only the neutral ones.
        translated = body
        if not self._vocabulary.is_identity:
            translated = self._vocabulary.translate_to_neutral(body_shape, body)
        problems, parse_body = request_bodies.BodyProblems(), request_bodies.parse_body
        parsed_body: tuple[JSON, tuple[Problem, ...]] = (
            await run_in_thread(parse_body, body_shape, translated, problems)
            if is_long
            else parse_body(body_shape, translated, problems)
        )
        if problems.has_unknown_fields or problems.found:
            context.full_body_digest = await run_in_thread_if(is_long, _digest_body, body)
        if context.caller:
            # A long request is handled in slices and in threads, so that it does not block others.
            context.caller.is_long = is_long and json_codec.has_rows(parsed_body[0])
            if context.caller.is_long:
                _log_progress(context, "translating_request", len(data))
        return parsed_body

    async def build_request(
        self,
        request: HttpRequest,
        context: RequestContext,
        ids: Mapping[str, str],
        parsed_body: tuple[JSON, tuple[Problem, ...]],
    ) -> Request:
        """Builds the request for a flow from the ids in the path and the decoded body."""
        operation, caller = context.operation, context.caller
        assert operation is not None  # noqa: S101 - a request without one has no flow
        body, problems = parsed_body
        parameters = self._parse_query(request, operation) if "?" in request.raw_path else {}
        current_ids: Mapping[str, str] = {}
        if caller is not None and (ids or body or parameters):
            current_ids = await self._map_ids_in_request_to_current_ids(
                context, caller, ids, body, parameters
            )
        path_ids = ids
        imported_ids: Mapping[str, str] = {}
        if current_ids:
            path_ids = {name: current_ids.get(id_, id_) for name, id_ in ids.items()}
            imported_ids = self._select_imported_ids(context, ids, current_ids)
            parameters = replace_ids(operation.query_shape, parameters, current_ids)
            body = replace_ids(operation.body_shape, body, current_ids)
            # The flow iterates over the lists several times: replace ids once, not in each pass.
            if json_codec.has_rows(body):
                body = await run_in_thread(_materialize_lists, body)
        api_keys: tuple[str, ...] = ()
        if caller is not None:
            credentials = caller.key.credentials
            api_keys = context.client.api_key, credentials.access_key, credentials.secret_key
        return Request(
            now=datetime.fromtimestamp(self._wall(), UTC),
            # Not the request id, which a client may use for two requests.
            seed=generate_hex_id() if operation.is_write else "",
            ids=path_ids,
            query=parameters,
            body=body,
            options=self._legacy_options,
            problems=problems,
            api_keys=api_keys,
            imported_ids=imported_ids,
            full_body_digest=context.full_body_digest,
        )

    def _parse_query(self, request: HttpRequest, operation: Operation) -> dict[str, str]:
        parameters: dict[str, str] = self._vocabulary.translate_to_neutral(
            operation.query_shape,
            request_reader.parse_query(request_reader.split_request_target(request)[1]),
        )
        return parameters

    def _select_imported_ids(
        self, context: RequestContext, path_ids: Mapping[str, str], current_ids: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Returns the imported ids of a write, which also identify a retry of it.

        For a long request, only the ids in the path: they name the object that it changes.
        """
        is_write = cast("Operation", context.operation).is_write
        if context.caller is None or not is_write:
            return {}
        # Limited to the ids in the path, because a long body may have hundreds of thousands.
        if context.caller.is_long:
            current_ids = {id_: current_ids[id_] for id_ in path_ids.values() if id_ in current_ids}
        return self._ids.map_current_to_imported_legacy_ids(context.caller.key.tenant, current_ids)

    async def _map_ids_in_request_to_current_ids(
        self,
        context: RequestContext,
        caller: Caller,
        path_ids: Mapping[str, str],
        body: JSON,
        query: Mapping[str, str],
    ) -> Mapping[str, str]:
        """Maps the ids of a request to current ids; ids that are the same in both are left out."""
        tenant = caller.key.tenant
        sent_ids: Collection[str]
        if not body and not query:
            sent_ids = list(filter(LEGACY_ID_PATTERN.fullmatch, path_ids.values()))
        else:
            operation = context.operation
            assert operation is not None  # noqa: S101 - a request without one has no flow
            body_shape = operation.body_shape
            if caller.is_long:
                context.current_ids = await self._map_ids_in_large_request_to_current_ids(
                    tenant, path_ids, body_shape, body
                )
                return context.current_ids
            sent_ids = _select_sent_ids(
                path_ids, collect_ids(body_shape, body), collect_ids(operation.query_shape, query)
            )
        current_ids = self._ids.find_cached_current_ids(tenant, sent_ids)
        if current_ids is None:
            current_ids = await self._ids.map_legacy_to_current_ids(tenant, sent_ids)
        if current_ids:
            context.client_ids = {current_ids.get(id_, id_): id_ for id_ in sent_ids}
            context.has_only_current_ids = False
        else:
            context.client_ids = dict(zip(sent_ids, sent_ids, strict=True))
        return current_ids

    async def _map_ids_in_large_request_to_current_ids(
        self, tenant: Tenant, path_ids: Mapping[str, str], body_shape: Any, body: JSON
    ) -> Mapping[str, str]:
        slices = _iter_sent_id_slices(path_ids, body_shape, body)
        current_ids: dict[str, str] = {}
        while sent_ids := await run_in_thread(next, slices, None):
            resolved_ids = await self._ids.map_legacy_to_current_ids(
                tenant, sent_ids, is_cached=False
            )
            current_ids |= {id_: resolved_ids[id_] for id_ in sent_ids if id_ in resolved_ids}
        return current_ids

    async def build_response(self, context: RequestContext, answer: Answer) -> LegacyResponse:
        """Builds the response to a client, in its vocabulary and with its ids."""
        operation = context.operation
        assert operation is not None  # noqa: S101 - a request without one has no flow
        body, caller = answer.body, context.caller
        if answer.notices:
            context.notices = answer.notices
        is_long = caller is not None and caller.is_long and json_codec.has_rows(body)
        if caller is not None:
            shape, client_ids = operation.answer_shape, None
            if is_long:
                client_ids = await self._map_ids_in_long_response_to_client_ids(
                    context, caller, shape, body
                )
            else:
                ids = collect_ids(shape, body)
                client_ids = self._find_cached_client_ids(context, caller, ids)
                if client_ids is None:
                    client_ids = await self._map_ids_to_client_ids(context, caller, ids)
            if client_ids:
                body = replace_ids(shape, body, client_ids)
        # Words come last, because ids are found by the neutral field names.
        if not self._vocabulary.is_identity:
            body = self._vocabulary.translate_from_neutral(operation.answer_shape, body)
        response_body = {"ok": True, **body}
        # Encoded once, and the chunks serve the stored copy for retries too.
        # 200 also for deletes: existing clients fail on an empty body.
        if not is_long:
            return LegacyResponse(200, [json_codec.dumps_trusted(response_body)])
        chunks = await run_in_thread(json_codec.dumps_chunks, response_body)
        _log_progress(context, "sending_response", sum(map(len, chunks)))
        return LegacyResponse(200, chunks)

    def _find_cached_client_ids(
        self, context: RequestContext, caller: Caller, ids: IdSets
    ) -> Mapping[str, str] | None:
        """Maps the ids of an answer as below, but only from the cache; None if any is missing."""
        objects, mentioned_ids = ids
        if mentioned_ids:
            return None
        legacy_ids = self._ids.find_cached_legacy_ids(caller.key.tenant, objects)
        if legacy_ids is None or (not legacy_ids and context.has_only_current_ids):
            return legacy_ids
        return dict(_iter_differing_id_pairs(ids, legacy_ids, context.client_ids))

    async def _map_ids_in_long_response_to_client_ids(
        self, context: RequestContext, caller: Caller, response_shape: Any, body: JSON
    ) -> Mapping[str, str]:
        slices = iterate_id_slices(response_shape, body)
        client_ids: dict[str, str] = {}
        while id_slice := await run_in_thread(next, slices, None):
            client_ids |= await self._map_ids_to_client_ids(context, caller, id_slice, is_long=True)
        return client_ids

    async def _map_ids_to_client_ids(
        self, context: RequestContext, caller: Caller, ids: IdSets, *, is_long: bool = False
    ) -> dict[str, str]:
        """Maps the ids of an answer to client ids; ids that are the same in both are left out."""
        execution = caller.execution
        # New ids are recorded together with the outcome of the write, but those of a long answer
        # are recorded one slice at a time, to bound the size of a transaction. Only a started
        # write has an outcome to record them with, and only if no other process has taken it over.
        deferred_ids: dict[str, str] | None = None
        if execution and execution.is_saved and not execution.ended.is_set() and not is_long:
            deferred_ids = execution.new_aliases
        tenant, (objects, mentioned_ids) = caller.key.tenant, ids
        legacy_ids = await self._ids.find_or_create_legacy_ids(
            tenant, objects, deferred_ids, is_cached=not is_long
        )
        # Free text gets no new aliases.
        if unnamed := mentioned_ids - legacy_ids.keys():
            legacy_ids |= await self._ids.map_current_to_existing_legacy_ids(tenant, unnamed)
        pairs = _iter_differing_id_pairs(ids, legacy_ids, context.client_ids)
        return await run_in_thread(dict, pairs) if is_long else dict(pairs)

    async def build_failure_response(
        self, context: RequestContext, failure: Failure
    ) -> LegacyResponse:
        """Builds the error response for a failure, with the field names that the client sent."""
        is_long = context.caller is not None and context.caller.is_long
        answer = await run_in_thread_if(is_long, errors.translate_failure, failure)
        context.log_fields |= describe_problems(answer.problems)
        # A 4xx of the gateway's own checks is the client's mistake, and its codes say enough.
        if answer.status >= 500 or isinstance(failure, Refused | Halted):
            context.log_fields["error.type"] = failure.error_type
            context.log_fields |= _build_failure_log_fields(failure)
        body_shape = context.operation.body_shape if context.operation else None
        client_ids = await self._map_ids_in_messages_to_client_ids(answer, context)
        return await run_in_thread_if(
            is_long, self._build_error_response, answer, body_shape, client_ids
        )

    def _build_error_response(
        self, answer: ErrorAnswer, body_shape: Any, client_ids: Mapping[str, str]
    ) -> LegacyResponse:
        problems = [
            self._translate_problem(problem, body_shape, client_ids) for problem in answer.problems
        ]
        return responses.build_error_response(
            ErrorAnswer(answer.status, tuple(problems), answer.retry_after)
        )

    async def _map_ids_in_messages_to_client_ids(
        self, answer: ErrorAnswer, context: RequestContext
    ) -> dict[str, str]:
        texts = (problem.message for problem in answer.problems)
        mentioned_ids = {id_ for text in texts for id_ in ID_IN_TEXT_PATTERN.findall(text)}
        if not mentioned_ids or context.caller is None:
            return {}
        tenant, current_ids = context.caller.key.tenant, context.current_ids
        sent_ids = context.client_ids | await run_in_thread_if(
            bool(current_ids), _map_current_ids_to_sent_ids, current_ids, mentioned_ids
        )
        try:
            # The client's own spelling takes precedence over the recorded one.
            recorded = await self._ids.map_current_to_existing_legacy_ids(tenant, mentioned_ids)
            return recorded | sent_ids
        except StoreUnavailable:
            # The client needs the error more than the ids in its message.
            return sent_ids

    def _translate_problem(
        self, problem: Problem, body_shape: Any, client_ids: Mapping[str, str]
    ) -> Problem:
        """Translates the field name and the ids of a problem, also within its message."""
        message = replace_ids_in_text(problem.message, client_ids.get)
        return self._vocabulary.translate_problem(
            body_shape, Problem(problem.code, message, problem.field)
        )


def _digest_body(body: JSON) -> str:
    digest = sha256()
    for chunk in json_codec.iterdumps_canonical(body):
        digest.update(chunk)
    return digest.hexdigest()


def _log_progress(context: RequestContext, step: str, size: int) -> None:
    log.info("large_payload_progress", request_id=context.request_id, step=step, body_bytes=size)


def _select_sent_ids(path_ids: Mapping[str, str], *collected: IdSets) -> AbstractSet[str]:
    """Selects the ids of a request, in order; values that cannot be ids are left out."""
    candidates = list(path_ids.values())
    for ids, _mentioned in collected:
        candidates += map(itemgetter(1), ids)
    return dict.fromkeys(filter(LEGACY_ID_PATTERN.fullmatch, candidates)).keys()


def _iter_sent_id_slices(
    path_ids: Mapping[str, str], body_shape: Any, body: JSON
) -> Iterator[AbstractSet[str]]:
    """Like ``_select_sent_ids``, but yields slices, because the body may hold very many ids."""
    slices = iterate_id_slices(body_shape, body)
    body_ids = (id_ for id_slice, _mentioned in slices for _kind, id_ in id_slice)
    ids = filter(LEGACY_ID_PATTERN.fullmatch, chain(path_ids.values(), body_ids))
    for sent_ids in iterate_chunks(ids, TEXTS_PER_SLICE):
        yield dict.fromkeys(sent_ids).keys()


def _materialize_lists(body: JSON) -> JSON:
    """Materializes the lazy lists of a body as compressed lists."""
    return {name: materialize_rows(value) for name, value in body.items()}


def _iter_differing_id_pairs(
    collected: IdSets,
    legacy_ids: Mapping[str, str],
    client_ids: Mapping[str, str],
) -> Iterator[tuple[str, str]]:
    """Yields (current id, client id) for collected ids that differ between the two."""
    for id_ in dict.fromkeys(chain(map(itemgetter(1), collected[0]), collected[1])):
        # The client's own spelling of an id takes precedence.
        if (client_id := client_ids.get(id_, legacy_ids.get(id_, id_))) != id_:
            yield id_, client_id


def _map_current_ids_to_sent_ids(
    current_ids: Mapping[str, str], wanted_ids: Container[str]
) -> dict[str, str]:
    """Maps those of the wanted current ids that a long request sent to the ids that it used."""
    return {current: id_ for id_, current in current_ids.items() if current in wanted_ids}


def _build_failure_log_fields(failure: Failure) -> dict[str, Any]:
    """Builds the log fields of a failure.

    Of a refusal, only the status and known codes: other texts come from the service and may
    hold personal data.
    """
    if not isinstance(failure, Refused):
        return {"reason": str(failure)}
    codes = [
        problem.code if problem.code in KNOWN_CODES else "unknown" for problem in failure.problems
    ]
    return {"upstream_status_code": failure.status, "upstream_error_codes": codes}
