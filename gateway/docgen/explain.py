"""Explains the current calls that a legacy request becomes, by running the flow that serves
traffic.

Nothing is sent. The service's answers are made up, so an explained answer shows where each field
comes from, not its real value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from gateway.config.settings import Settings
from gateway.http.request_reader import parse_query
from gateway.legacy_api.routes import Routes
from gateway.payloads import json_codec
from gateway.upstream.call_targets import Targets
from mappings import errors, kinds
from mappings.current import find_endpoint
from mappings.errors import ErrorAnswer
from mappings.examples import Imagined
from mappings.grammar import (
    JSON,
    Answer,
    Call,
    Failure,
    Invalid,
    Operation,
    Parallel,
    Problem,
    Record,
    Request,
    Step,
)
from mappings.provenance import (
    explain_unsent_fields,
    explain_unsent_params,
    is_within,
    trace_answer_fields,
)
from mappings.spelling import build_current_spelling, build_legacy_spelling

STAMP = "<timestamp>"

PAGING = ("page", "pageSize", "orderBy", "sortBy")
RENAMED_IN_QUERIES = {"currency": "payoutCurrency"}
"""Current to legacy names of list parameters (section 4.1 of both documents); all others are equal.
"""


@dataclass(frozen=True, slots=True)
class Origin:
    """A body field or query parameter of a call: its value, and the field of the request it comes
    from.
    """

    field: str
    value: JSON
    sent_in: str | None
    rule: str
    in_query: bool = False


@dataclass(frozen=True, slots=True)
class Made:
    """A call to the current interface. ``signed`` is the string to sign (section 5)."""

    method: str
    target: str
    section: str
    inferred: bool
    body: JSON
    fields: tuple[Origin, ...]
    signed: str


@dataclass(slots=True)
class Explained:
    operation: Operation
    sent: list[tuple[str, JSON]] = field(default_factory=list)
    """The fields and values of the request body, in order."""
    query: list[tuple[str, str]] = field(default_factory=list)
    calls: list[Made] = field(default_factory=list)
    kept: list[tuple[str, str]] = field(default_factory=list)
    """Fields that no call contains, each with the reason."""
    remembered: list[str] = field(default_factory=list)
    """What the gateway stores because the current interface has no field for it."""
    answer: Mapping[str, JSON] | None = None
    answered: list[tuple[str, str, str]] = field(default_factory=list)
    """Fields of the answer: legacy name, current name, and rule."""
    refusal: ErrorAnswer | None = None


class NoOperation(Exception):
    """The request is not an operation of the legacy interface."""


def explain_request(settings: Settings, method: str, target: str, data: bytes) -> Explained:
    """Explains a request without calling the service.

    Raises UnknownOperation, or Invalid if the body is not JSON.
    """
    # The same routing, vocabulary and flow as for traffic, so that the explanation cannot differ from it.
    vocabulary = settings.vocabulary.for_mappings()
    path, _, query = target.partition("?")
    matched = Routes(vocabulary).match(path)
    operation = matched.route.operations.get(method) if matched else None
    if matched is None or operation is None:
        raise NoOperation(
            f"{method} {path} is not an operation of the legacy interface; `operations` lists them"
        )
    spelling = build_legacy_spelling(vocabulary)
    sent = spelling.inward(operation.takes, _json(operation, data))
    query_sent = spelling.inward(operation.query, parse_query(query))
    told = Explained(operation, list(_leaves(sent)), list(parse_query(query).items()))
    try:
        body, problems = _body(operation, sent)
        asked = Request(
            now=datetime.now(UTC),
            seed="explain",
            ids=matched.ids,
            query=query_sent,
            body=body,
            manners=settings.legacy.for_mappings(),
            problems=problems,
        )
        answer = _played(operation, asked, told, settings)
    except Failure as failure:
        told.refusal = errors.translate_failure(failure)
    else:
        told.answer = spelling.outward(operation.gives, {"ok": True, **answer.body})
        told.answered = list(trace_answer_fields(answer.body))
    said_in = {one.sent_in for made in told.calls for one in made.fields}
    told.kept = list(explain_unsent_fields(sent, said_in))
    told.kept += explain_unsent_params(operation, query_sent, said_in)
    if told.refusal:
        # The reasons above assume that the request succeeds.
        told.kept = [(name, _refused(told.refusal, name)) for name, _why in told.kept]
    return told


def _refused(refusal: ErrorAnswer, name: str) -> str:
    """Why no call contains a field of a rejected request: the field or another one is invalid."""
    its = next((one for one in refusal.problems if one.field and is_within(name, one.field)), None)
    return f"rejected: {its.message}" if its else "the request is rejected"


def _json(operation: Operation, data: bytes) -> JSON:
    if operation.takes is None:
        return None
    try:
        return json_codec.read(data)
    except json_codec.Unreadable as unreadable:
        raise Invalid(Problem("invalid_field", f"The body cannot be read: {unreadable}.")) from None


def _body(operation: Operation, body: JSON) -> tuple[JSON, tuple[Problem, ...]]:
    return (None, ()) if operation.takes is None else kinds.read(operation.takes, body)


def _played(operation: Operation, asked: Request, told: Explained, settings: Settings) -> Answer:
    flow, imagined = operation.flow(asked), Imagined(asked.body, asked.ids)
    given: Any = None
    while True:
        try:
            step = flow.send(given)
        except StopIteration as stop:
            answer: Answer = stop.value
            if asked.problems:
                raise Invalid(*asked.problems) from None
            return answer
        # Like the server: reads may run before an invalid request is rejected, writes never.
        if asked.problems and isinstance(step, Call) and not step.reads:
            raise Invalid(*asked.problems)
        # A step may be several parallel calls, or a list that is read in pages.
        told.calls += [_made(call, asked, settings) for call in _calls(step)]
        told.remembered += _remembered(step)
        given = imagined.given(step)


def _calls(step: Step) -> list[Call]:
    return [step] if isinstance(step, Call) else list(getattr(step, "calls", ())) or _first(step)


def _first(step: Step) -> list[Call]:
    """The first call of a list step, if the step is one."""
    path = getattr(step, "path", None)
    if path is None or isinstance(step, Parallel):
        return []
    query = getattr(step, "ask", None) or {
        **getattr(step, "narrow", {}),
        **getattr(step, "sorting", {}),
    }
    return [Call("GET", path, query=query)]


def _remembered(step: Step) -> Iterator[str]:
    if isinstance(step, Record):
        yield f"{step.kind} {step.id}: {', '.join(name for name in step.facts if step.facts[name])}"


def _made(call: Call, asked: Request, settings: Settings) -> Made:
    endpoint = find_endpoint(call.method, call.path)
    vocabulary = settings.vocabulary.for_mappings()
    spelling = build_current_spelling(vocabulary)
    body = None if call.body is None else spelling.outward(endpoint.takes, call.body)
    target = Targets(vocabulary).of(call, endpoint)
    by_query = settings.upstream.signed_target == "path-and-query"
    # Like the upstream client: "auto" starts without the query.
    signed = target if by_query else target.partition("?")[0]
    text = "" if body is None else json_codec.dumps(body).decode()
    return Made(
        call.method,
        target,
        _section(call.path),
        endpoint.inferred,
        body,
        tuple(
            replace(one, field=spelling.field(endpoint.takes, one.field))
            for one in _origins(call, asked.body)
        )
        + tuple(_of_query(call, asked, spelling.outward(endpoint.query, dict(call.query)))),
        f"{STAMP}\n{call.method}\n{signed}\n{text}\n",
    )


def _section(path: str) -> str:
    if "/accounts" in path:
        return "4.2"
    return "4.1" if path.startswith("/recipients") else "4.3"


def _origins(call: Call, sent: JSON) -> Iterator[Origin]:
    held = dict(_leaves(sent))
    for name, value in _leaves(call.body):
        own = _sent_as(call, name)
        if own not in held and name in held and call.sent_as:
            own = name
        if own is None:
            yield Origin(name, value, None, "set by the gateway")
        elif own not in held:
            yield Origin(name, value, None, f"set by the gateway, for {own}")
        elif held[own] != value:
            yield Origin(name, value, own, "translated")
        else:
            yield Origin(name, value, own, "same" if own == name else "renamed")


def _of_query(call: Call, asked: Request, spelled: Mapping[str, JSON]) -> Iterator[Origin]:
    """The origins of query parameters. ``current_query`` is the query in the service's vocabulary."""
    for name, value in call.query.items():
        names = (name, RENAMED_IN_QUERIES.get(name))
        own = next((one for one in names if one and asked.query.get(one)), None)
        given = asked.query.get(own) if own else None
        if name in PAGING and given != value:
            # The client's value may differ: it pages the gateway's list, not the service's.
            own = None  # the gateway chooses its own paging
        if own is None and name == "email":  # a payment's recipient is looked up by email
            own = next((one for one, held in _leaves(asked.body) if held == value), None)
            given = value
        if own is None:
            rule = "set by the gateway"
        elif given != value:
            rule = "translated"
        else:
            rule = "same" if own == name else "renamed"
        yield Origin(name, spelled.get(name, value), own, rule, in_query=True)


def _sent_as(call: Call, name: str) -> str | None:
    """The client's field that a call's field was sent as, also if only its parent is mapped."""
    head = name
    while head:
        for known in (head, head.partition("[")[0]):
            if known in call.sent_as:
                return call.sent_as[known] + (name[len(head) :] if known == head else "")
        head = head.rpartition(".")[0]
    return None


def _leaves(value: JSON, place: str = "") -> Iterator[tuple[str, JSON]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _leaves(inner, f"{place}.{name}" if place else name)
    elif isinstance(value, list) and value:
        for number, inner in enumerate(value):
            yield from _leaves(inner, f"{place}[{number}]")
    elif place:
        yield place, value
