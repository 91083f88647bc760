"""Explains the current calls that a legacy request becomes, by running its flow.

Nothing is sent. The service's answers are made up, so an explained answer shows where each field
comes from, not its real value.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from gateway.config.settings import Settings
from gateway.docgen.curl import InvalidRequestText
from gateway.http.request_reader import parse_query
from gateway.legacy_api.routes import Routes
from gateway.payloads import json_codec
from gateway.reads.recipient_cache.scan import PAGE_SIZE
from gateway.writes.call_sender import TargetBuilder
from mappings import errors, request_bodies
from mappings.current import find_documented_endpoint
from mappings.effects import (
    JSON,
    Answer,
    Call,
    CompareAndSet,
    ListQuery,
    Operation,
    Parallel,
    Request,
    Step,
)
from mappings.errors import ErrorAnswer
from mappings.examples import ExampleService
from mappings.failures import Failure, Invalid, Problem
from mappings.provenance import (
    BOOKKEEPING_FACTS,
    FACT_LABELS,
    explain_unsent_fields,
    explain_unsent_params,
    is_field_path_within,
    iterate_json_leaves,
)
from mappings.vocabulary import (
    VocabularyTranslator,
    build_current_translator,
    build_legacy_translator,
)

TIMESTAMP_PLACEHOLDER = "<timestamp>"

PAGING_PARAMETERS = ("page", "pageSize", "orderBy", "sortBy")
RENAMED_PARAMETERS = {"currency": "payoutCurrency"}
"""Current to legacy names of list parameters; all others are equal (legacy and current interface,
section 4.1).
"""


@dataclass(frozen=True, slots=True)
class FieldOrigin:
    """A body field or query parameter of a call, and the field of the request it comes from."""

    field: str
    value: JSON
    sent_in: str | None
    rule: str


@dataclass(frozen=True, slots=True)
class ExplainedCall:
    """A call of the service, with the string to sign (current interface, section 5)."""

    method: str
    target: str
    section: str
    inferred: bool
    body: JSON
    fields: tuple[FieldOrigin, ...]
    signed_text: str


@dataclass(slots=True)
class Explanation:
    operation: Operation
    sent: list[tuple[str, JSON]] = field(default_factory=list)
    """The fields and values of the request body, in order."""
    calls: list[ExplainedCall] = field(default_factory=list)
    kept: list[tuple[str, str]] = field(default_factory=list)
    """Fields that no call contains, each with the reason."""
    remembered: list[str] = field(default_factory=list)
    """What the gateway stores because the current interface has no field for it."""
    answer: Mapping[str, JSON] | None = None
    refusal: ErrorAnswer | None = None


def explain_request(settings: Settings, method: str, target: str, data: bytes) -> Explanation:
    """Explains a request without calling the service.

    Raises InvalidRequestText.
    """
    # The same routing, vocabulary and flow as for traffic, so that the explanation cannot differ from it.
    vocabulary = settings.vocabulary.build_vocabulary()
    path, _, query = target.partition("?")
    routes = Routes(vocabulary)
    # The document of the legacy interface leaves out the prefix too.
    route_match = routes.match(path) or routes.match(f"/v1{path}")
    operation = route_match.route.operations.get(method) if route_match else None
    if route_match is None or operation is None:
        raise InvalidRequestText(
            f"{method} {path} is not an operation of the legacy interface; `operations` lists them"
        )
    words = {"<wallet>": vocabulary.legacy_wallet, "<service>": vocabulary.legacy_service}
    for placeholder, word in words.items():
        operation = replace(operation, path=operation.path.replace(placeholder, word))
    spelling = build_legacy_translator(vocabulary)
    sent_body = _decode_body(operation, data)
    legacy_body = spelling.translate_to_neutral(operation.body_shape, sent_body)
    legacy_query = spelling.translate_to_neutral(operation.query_shape, parse_query(query))
    explanation = Explanation(operation, list(iterate_json_leaves(sent_body)))
    try:
        body, problems = None, tuple[Problem, ...]()
        if operation.body_shape is not None:
            body, problems = request_bodies.parse_body(operation.body_shape, legacy_body)
        request = Request(
            now=datetime.now(UTC),
            # A constant, so that the same request is explained with the same ids again.
            seed="explain",
            ids=route_match.ids,
            query=legacy_query,
            body=body,
            options=settings.legacy.build_legacy_options(),
            problems=problems,
        )
        answer = _run_flow(operation, request, explanation, settings)
    except Failure as failure:
        explanation.refusal = errors.translate_failure(failure)
    else:
        explanation.answer = spelling.translate_from_neutral(
            operation.answer_shape, {"ok": True, **answer.body}
        )
    fields_in_calls = {origin.sent_in for call in explanation.calls for origin in call.fields}
    explanation.kept = list(explain_unsent_fields(legacy_body, fields_in_calls))
    explanation.kept += explain_unsent_params(operation, legacy_query, fields_in_calls)
    if explanation.refusal:
        # The reasons above assume that the request succeeds.
        explanation.kept = [
            (name, _explain_field_rejection(explanation.refusal, name))
            for name, _why in explanation.kept
        ]
    _translate_explanation(explanation, spelling)
    return explanation


def _translate_explanation(explanation: Explanation, spelling: VocabularyTranslator) -> None:
    """Translates the names of the request's fields to the client's words."""
    shape = explanation.operation.body_shape

    def translate_origin(origin: FieldOrigin) -> FieldOrigin:
        sent_in = origin.sent_in and spelling.translate_field_path(shape, origin.sent_in)
        return replace(origin, sent_in=sent_in)

    explanation.calls = [
        replace(call, fields=tuple(map(translate_origin, call.fields)))
        for call in explanation.calls
    ]
    explanation.kept = [
        (spelling.translate_field_path(shape, name), reason) for name, reason in explanation.kept
    ]
    if refusal := explanation.refusal:
        problems = [spelling.translate_problem(shape, problem) for problem in refusal.problems]
        explanation.refusal = replace(refusal, problems=tuple(problems))


def _explain_field_rejection(refusal: ErrorAnswer, name: str) -> str:
    """Explains why no call contains a field: it, or another one, makes the request invalid."""
    for problem in refusal.problems:
        if problem.field and is_field_path_within(name, problem.field):
            return f"rejected: {problem.message}"
    return "the request is rejected"


def _decode_body(operation: Operation, data: bytes) -> JSON:
    if operation.body_shape is None:
        return None
    if not data.strip():
        raise InvalidRequestText(
            f"The request has no body; {operation.name} needs one. Add it with -d '{{…}}'."
        )
    try:
        return json_codec.loads(data)
    except json_codec.JsonError as unreadable:
        raise InvalidRequestText(f"The body cannot be read: {unreadable}.") from None


def _run_flow(
    operation: Operation, request: Request, explanation: Explanation, settings: Settings
) -> Answer:
    # Every object exists and every write succeeds, so that the flow runs to its end.
    # A POST may add the recipient's first account; the other requests change or show existing ones.
    simulated_service = ExampleService(
        request.body, request.ids, has_accounts=operation.method != "POST"
    )
    flow = operation.flow(request)
    step_result: Any = None
    while True:
        try:
            step = flow.send(step_result)
        except StopIteration as stop:
            answer: Answer = stop.value
            if request.problems:
                raise Invalid(*request.problems) from None
            return answer
        # Like the server: reads may run before an invalid request is rejected, writes never.
        if request.problems and isinstance(step, Call) and not step.is_read:
            raise Invalid(*request.problems)
        # A step may be several parallel calls, or a list that is read in pages.
        explanation.calls += [
            _build_explained_call(call, request, settings) for call in _list_calls_of_step(step)
        ]
        if isinstance(step, CompareAndSet):
            names = [
                FACT_LABELS.get(name, name)
                for name, value in step.facts.items()
                if value and name not in BOOKKEEPING_FACTS
            ]
            if names:
                explanation.remembered.append(f"{step.kind} {step.id}: {', '.join(names)}")
        step_result = simulated_service.answer_step(step)


def _list_calls_of_step(step: Step) -> list[Call]:
    if isinstance(step, Call):
        return [step]
    if isinstance(step, Parallel):
        return list(step.calls)
    if not isinstance(step, ListQuery):
        return []
    # With a native query, one call answers the list; without one, the gateway reads every page.
    scan = {"page": "1", "pageSize": str(PAGE_SIZE), **step.prefilter, **step.scan_sort}
    return [Call("GET", step.path, query=step.native_query or scan)]


def _build_explained_call(call: Call, request: Request, settings: Settings) -> ExplainedCall:
    endpoint = find_documented_endpoint(call.method, call.path)
    vocabulary = settings.vocabulary.build_vocabulary()
    spelling = build_current_translator(vocabulary)
    body = call.body
    if body is not None:
        body = spelling.translate_from_neutral(endpoint.body_shape, body)
    query = spelling.translate_from_neutral(endpoint.query_shape, dict(call.query))
    fields = [
        replace(origin, field=name, value=value)
        for origin, (name, value) in zip(
            _iter_body_origins(call, request.body), iterate_json_leaves(body), strict=True
        )
    ]
    target = TargetBuilder(vocabulary).build(call, endpoint)
    is_query_signed = settings.upstream.signed_target == "path-and-query"
    # Like the upstream client: "auto" starts without the query.
    signed_target = target if is_query_signed else target.partition("?")[0]
    body_text = "" if body is None else json_codec.dumps(body).decode()
    return ExplainedCall(
        call.method,
        target,
        _find_document_section_of_path(call.path),
        endpoint.is_optional,
        body,
        (*fields, *_iter_query_origins(call, request, query)),
        f"{TIMESTAMP_PLACEHOLDER}\n{call.method}\n{signed_target}\n{body_text}\n",
    )


def _find_document_section_of_path(path: str) -> str:
    # First, because the paths of accounts begin with those of recipients.
    if "/accounts" in path:
        return "4.2"
    return "4.1" if path.startswith("/recipients") else "4.3"


def _iter_body_origins(call: Call, legacy_body: JSON) -> Iterator[FieldOrigin]:
    values_by_field = dict(iterate_json_leaves(legacy_body))
    for name, value in iterate_json_leaves(call.body):
        source_field = _find_mapped_source_field(call, name)
        # A field map may lack fields that have the same name in both interfaces.
        if source_field not in values_by_field and name in values_by_field and call.field_map:
            source_field = name
        if source_field is None:
            yield _build_origin(name, value, None, None)
        elif source_field in values_by_field:
            yield _build_origin(name, value, source_field, values_by_field[source_field])
        else:
            yield FieldOrigin(name, value, None, f"set by the gateway, for {source_field}")


def _build_origin(name: str, value: JSON, source_field: str | None, given: JSON) -> FieldOrigin:
    """Returns the origin of a value; ``given`` is the client's value of the field."""
    if source_field is None:
        rule = "set by the gateway"
    elif given != value:
        rule = "translated"
    else:
        rule = "same" if source_field == name else "renamed"
    return FieldOrigin(name, value, source_field, rule)


def _iter_query_origins(
    call: Call, request: Request, current_query: Mapping[str, JSON]
) -> Iterator[FieldOrigin]:
    """Yields the origins of query parameters. ``current_query`` has the service's words."""
    for name, value in call.query.items():
        names = (name, RENAMED_PARAMETERS.get(name))
        source_field = next(
            (candidate for candidate in names if candidate and request.query.get(candidate)), None
        )
        given_value = request.query.get(source_field) if source_field else None
        if name in PAGING_PARAMETERS and given_value != value:
            # The client's value may differ: it pages the gateway's list, not the service's.
            source_field = None  # the gateway chooses its own paging
        if source_field is None and name == "email":  # a payment's recipient is looked up by email
            leaves = iterate_json_leaves(request.body)
            source_field = next(
                (field for field, held_value in leaves if held_value == value), None
            )
            given_value = value
        origin = _build_origin(name, value, source_field, given_value)
        yield replace(origin, value=current_query.get(name, value))


def _find_mapped_source_field(call: Call, name: str) -> str | None:
    """Returns the client's field for a call's field, also if only its parent is mapped."""
    head = name
    while head:
        for mapped_name in (head, head.partition("[")[0]):
            if mapped_name in call.field_map:
                return call.field_map[mapped_name] + (
                    name[len(head) :] if mapped_name == head else ""
                )
        head = head.rpartition(".")[0]
    return None


def format_value(value: JSON) -> str:
    return value if isinstance(value, str) else json_codec.dumps_trusted(value).decode()
