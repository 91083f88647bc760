"""The translation: whatever the body and the service's responses, only permitted calls are made.

The bytes choose an operation, what is odd in its body (or the whole body), its query, and which of
its steps fail, and how. An imagined service answers the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from gateway.payloads import json_codec
from gateway.upstream.call_targets import TargetBuilder
from gateway.upstream.client import TARGET_PATTERN
from mappings import OPERATIONS, UNLISTED, errors, field_types
from mappings.current import find_documented_endpoint
from mappings.effects import (
    Answer,
    Call,
    CompareAndSet,
    Flow,
    LegacyOptions,
    LoadFacts,
    Operation,
    Parallel,
    Request,
    Step,
    Vocabulary,
)
from mappings.examples import ExampleService
from mappings.failures import (
    Conflict,
    Failure,
    Invalid,
    NoSuchOperation,
    Problem,
    Refused,
    Unknown,
    Unreachable,
)
from tests import malformed_values
from tests.fuzz.choices import Choices

MOST_STEPS = 400
ALL = (*OPERATIONS, *UNLISTED)
TARGETS = TargetBuilder(Vocabulary())
NAMES = {
    "recipient": "R-EXAMPLE",
    "batch": "B-EXAMPLE",
    "payment": "P-EXAMPLE0",
    "other": "P-EXAMPLE1",
}
AMOUNTS = ("amount", "sourceAmount", "targetAmount")
UNMASKED = ("accountNum", "iban", "branchId", "bankId", "passport", "value")
FAILURES = (
    lambda: Refused(400, [Problem("invalid_field", "no", "accountNum")]),
    lambda: Refused(400, [Problem("empty_field", "no", "accountNum")]),
    lambda: Refused(400, [Problem("invalid_status", "no")]),
    lambda: Refused(404, [Problem("not_found", "no")]),
    lambda: Refused(401, [Problem("invalid_api_key", "no")]),
    lambda: Refused(429, [], retry_after="7"),
    lambda: Refused(500),
    lambda: Unreachable("down"),
    lambda: Unknown("lost"),
)

_WHOM = {"id": "R-EXAMPLE", "name": "Ada Example", "email": "ada@example.com"}
_MADE = "2026-01-01T00:00:00.000Z"
_SENT = {
    "phase": "sent",
    "version": 1,
    "upstream": "B-EXAMPLE",
    "currency": "USD",
    "createdAt": _MADE,
}
_ENTRIES = {
    "entries": [
        {"id": "P-EXAMPLE0", "recipient": _WHOM, "sourceAmount": "100.00", "createdAt": _MADE},
        {"id": "P-EXAMPLE1", "recipient": _WHOM, "targetAmount": "100.00", "targetCurrency": "EUR"},
    ]
}
STATES: tuple[Mapping[tuple[str, str], Mapping[str, Any]], ...] = (
    {},
    {("batch", "B-EXAMPLE"): _SENT, ("payments", "B-EXAMPLE"): _ENTRIES},
    {("batch", "B-EXAMPLE"): {**_SENT, "upstream": None, "phase": "draft"},
     ("payments", "B-EXAMPLE"): _ENTRIES},
    {("batch", "B-EXAMPLE"): {**_SENT, "phase": "editing", "since": _MADE}},
    {("batch", "B-EXAMPLE"): {**_SENT, "phase": "deleted"}},
    {("recipient", "R-EXAMPLE"): {"status": "disabled", "holdup": {"limit": 5, "active": True}}},
    {("recipient", "R-EXAMPLE"): {"deleted": True, "still_there": True}},
    {("country", "DE"): {"account_number": True}},
)  # fmt: skip
"""Object states that may be stored at the beginning."""


def check(data: bytes) -> None:
    choices = Choices(data)
    operation = choices.choose(ALL)
    try:
        body, problems = _choose_body(operation, choices)
    except Invalid as invalid:
        _assert_legacy(invalid)
        return
    request = Request(
        now=datetime(2026, 1, 1, tzinfo=UTC),
        seed="fuzz",
        ids={"id": _build_id(operation), "payment": "P-EXAMPLE0", "code": "CA"},
        query=_choose_query(operation, choices),
        body=body,
        options=LegacyOptions(
            government_ids=choices.choose(("keep", "replace")),
            holdup=choices.choose(("remember", "refuse")),
            primary_currency=choices.choose(("both", "flat", "nested")),
            account_number_from_iban=choices.choose(("auto", "always", "never")),
            verify_before_start=choices.choose(("warn", "refuse", "off")),
        ),
        problems=problems,
    )
    try:
        answer = _play_flow(operation.flow(request), request, choices)
    except Failure as failure:
        _assert_legacy(failure)
    else:
        json_codec.dumps(dict(answer.body))


def _build_id(operation: Operation) -> str:
    return {"recipients": "R-EXAMPLE", "batches": "B-EXAMPLE"}.get(
        operation.path.split("/")[1], "P-EXAMPLE0"
    )


def _choose_body(operation: Operation, choices: Choices) -> tuple[Any, tuple[Problem, ...]]:
    if operation.body_shape is None:
        return None, ()
    if choices.choose_number(4) == 0:
        try:
            return field_types.parse_body(
                operation.body_shape, json_codec.loads(choices.take_rest())
            )
        except json_codec.JsonError:
            raise Invalid(Problem("invalid_field", "no JSON")) from None
    whole = [
        body
        for method, path, body in malformed_values.OPERATIONS
        if _is_call(operation, method, path)
    ]
    body = choices.choose(whole)
    for _ in range(choices.choose_number(4)):
        place = choices.choose(list(malformed_values.iterate_paths(body)))
        body = malformed_values.replace_at(
            body, place, choices.choose(malformed_values.MALFORMED_VALUES)
        )
    text = malformed_values.dump_json(body)
    for name, id_ in NAMES.items():
        text = text.replace(f"{{{name}}}", id_)
    try:
        return field_types.parse_body(operation.body_shape, json_codec.loads(text.encode()))
    except json_codec.JsonError:
        raise Invalid(Problem("invalid_field", "no JSON")) from None


def _is_call(operation: Operation, method: str, path: str) -> bool:
    shape = re.sub(r"\{\w+\}", "*", operation.path)
    return operation.method == method and shape == re.sub(r"\{\w+\}", "*", path)


def _choose_query(operation: Operation, choices: Choices) -> dict[str, str]:
    names = list(getattr(operation.query_shape, "__annotations__", {}))
    texts = [
        one for one in malformed_values.MALFORMED_VALUES if isinstance(one, str) and one.strip()
    ]
    return (
        {choices.choose(names): choices.choose(texts) for _ in range(choices.choose_number(4))}
        if names
        else {}
    )


def _play_flow(flow: Flow, request: Request, choices: Choices) -> Answer:
    imagined, given, failure = ExampleService(request.body), None, None
    ledger = ObjectStates(choices.choose(STATES))
    for _ in range(MOST_STEPS):
        try:
            step = flow.throw(failure) if failure else flow.send(given)
        except StopIteration as stop:
            answer: Answer = stop.value
            assert isinstance(answer, Answer)
            return answer
        if request.problems and isinstance(step, Call) and not step.is_read:
            raise Invalid(*request.problems)
        _assert_may_be_made(step, request)
        failure = _choose_failure(step, choices)
        given = None if failure else _choose_result(step, imagined, ledger, choices)
    raise AssertionError("a flow that does not end")


class ObjectStates:
    """The object state of one flow."""

    def __init__(self, facts: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
        self._facts = {place: dict(known) for place, known in facts.items()}

    def recall(self, step: LoadFacts) -> dict[str, Any]:
        if step.id is not None:
            return dict(self._facts.get((step.kind, step.id), {}))
        if step.kind == "abandoned":
            aliases = self.recall(LoadFacts("alias"))
            return {id_: known for id_, known in aliases.items() if known.get("abandoned")}
        those = {id_: known for (kind, id_), known in self._facts.items() if kind == step.kind}
        return {id_: known for id_, known in those.items() if step.ids is None or id_ in step.ids}

    def record(self, step: CompareAndSet) -> None:
        for one in step.members:
            known = {**self._facts.get((one.kind, one.id), {}), **one.facts}
            json_codec.dumps(known)  # stored facts must be JSON
            self._facts[one.kind, one.id] = {
                name: fact for name, fact in known.items() if fact is not None
            }


def _choose_failure(step: Step, choices: Choices) -> Failure | None:
    if isinstance(step, CompareAndSet) and step.expected and choices.choose_number(8) == 1:
        return Conflict(step.kind)
    if not isinstance(step, Call) or choices.choose_number(6) != 1:
        return None
    if step.probe_ids is not None and choices.choose_number(2) == 1:
        return NoSuchOperation(step.path)
    return choices.choose(FAILURES)()


def _choose_result(
    step: Step, imagined: ExampleService, ledger: ObjectStates, choices: Choices
) -> Any:
    if isinstance(step, LoadFacts):
        return {} if step.kind == "legacy id" else ledger.recall(step)
    if isinstance(step, CompareAndSet):
        return ledger.record(step)
    given = imagined.answer_step(step)
    if isinstance(step, Parallel):
        return [
            choices.choose(FAILURES)() if choices.choose_number(12) == 1 else one for one in given
        ]
    return given


# Properties of every call


def _assert_may_be_made(step: Step, request: Request) -> None:
    for call in (
        step.calls if isinstance(step, Parallel) else [step] if isinstance(step, Call) else []
    ):
        endpoint = find_documented_endpoint(call.method, call.path)
        assert TARGET_PATTERN.fullmatch(TARGETS.build(call, endpoint)), call.path
        assert call.is_read or isinstance(step, Call), "writes are made one after the other"
        if call.body is not None:
            assert json_codec.loads(json_codec.dumps(call.body)) == call.body
            _assert_exact_and_unmasked(call, request)


def _assert_exact_and_unmasked(call: Call, request: Request) -> None:
    sent = {value for name, value in _iterate_leaves(request.body) if name in AMOUNTS}
    for name, value in _iterate_leaves(call.body):
        if name in AMOUNTS:
            assert isinstance(value, str), "an amount travels as text"
            assert value in sent or value == "100.00", "no amount that the client did not write"
        if name in UNMASKED:
            assert "*" not in str(value), name


def _iterate_leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _iterate_leaves(one, key)
    elif isinstance(value, list):
        for one in value:
            yield from _iterate_leaves(one, name)
    else:
        yield name, value


def _assert_legacy(failure: Failure) -> None:
    told = errors.translate_failure(failure)
    assert told.status in {*errors.STATUS_BY_CODE.values(), 413}
    assert told.problems
    assert all(one.code in errors.STATUS_BY_CODE for one in told.problems)
    json_codec.dumps(told.build_body())
