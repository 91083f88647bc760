"""The translation: whatever the body and the service's responses, only permitted calls are made.

The bytes choose an operation, the malformed values in its body (or the whole body), its query, and which of
its steps fail, and how. An example service responds to the other steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from gateway.payloads import json_codec
from gateway.upstream.client import TARGET_PATTERN
from gateway.writes.call_sender import TargetBuilder
from mappings import OPERATIONS, UNLISTED, errors, request_bodies
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

MAX_STEPS = 400
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

_PAYEE = {"id": "R-EXAMPLE", "name": "Ada Example", "email": "ada@example.com"}
_CREATED_AT = "2026-01-01T00:00:00.000Z"
_SENT_BATCH = {
    "phase": "sent",
    "version": 1,
    "upstream": "B-EXAMPLE",
    "currency": "USD",
    "createdAt": _CREATED_AT,
}
_ENTRIES = {
    "entries": [
        {
            "id": "P-EXAMPLE0",
            "recipient": _PAYEE,
            "sourceAmount": "100.00",
            "createdAt": _CREATED_AT,
        },
        {
            "id": "P-EXAMPLE1",
            "recipient": _PAYEE,
            "targetAmount": "100.00",
            "targetCurrency": "EUR",
        },
    ]
}
STATES: tuple[Mapping[tuple[str, str], Mapping[str, Any]], ...] = (
    {},
    {("batch", "B-EXAMPLE"): _SENT_BATCH, ("payments", "B-EXAMPLE"): _ENTRIES},
    {("batch", "B-EXAMPLE"): {**_SENT_BATCH, "upstream": None, "phase": "draft"},
     ("payments", "B-EXAMPLE"): _ENTRIES},
    {("batch", "B-EXAMPLE"): {**_SENT_BATCH, "phase": "editing", "since": _CREATED_AT}},
    {("batch", "B-EXAMPLE"): {**_SENT_BATCH, "phase": "deleted"}},
    {("recipient", "R-EXAMPLE"): {"status": "disabled", "holdup": {"limit": 5, "active": True}}},
    {("recipient", "R-EXAMPLE"): {"deleted": True, "still_there": True}},
    {("country", "DE"): {"account_number": True}},
)  # fmt: skip
"""Object states that may be stored before the flow starts."""


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
        result = _play_flow(operation.flow(request), request, choices)
    except Failure as failure:
        _assert_legacy(failure)
    else:
        json_codec.dumps(dict(result.body))


def _build_id(operation: Operation) -> str:
    return {"recipients": "R-EXAMPLE", "batches": "B-EXAMPLE"}.get(
        operation.path.split("/")[1], "P-EXAMPLE0"
    )


def _choose_body(operation: Operation, choices: Choices) -> tuple[Any, tuple[Problem, ...]]:
    if operation.body_shape is None:
        return None, ()
    if choices.choose_number(4) == 0:
        try:
            return request_bodies.parse_body(
                operation.body_shape, json_codec.loads(choices.take_rest())
            )
        except json_codec.JsonError:
            raise Invalid(Problem("invalid_field", "no JSON")) from None
    bodies = [
        body
        for method, path, body in malformed_values.OPERATIONS
        if _is_call(operation, method, path)
    ]
    body = choices.choose(bodies)
    for _ in range(choices.choose_number(4)):
        location = choices.choose(list(malformed_values.iterate_paths(body)))
        body = malformed_values.replace_at(
            body, location, choices.choose(malformed_values.MALFORMED_VALUES)
        )
    text = malformed_values.dump_json(body)
    for name, id_ in NAMES.items():
        text = text.replace(f"{{{name}}}", id_)
    try:
        return request_bodies.parse_body(operation.body_shape, json_codec.loads(text.encode()))
    except json_codec.JsonError:
        raise Invalid(Problem("invalid_field", "no JSON")) from None


def _is_call(operation: Operation, method: str, path: str) -> bool:
    shape = re.sub(r"\{\w+\}", "*", operation.path)
    return operation.method == method and shape == re.sub(r"\{\w+\}", "*", path)


def _choose_query(operation: Operation, choices: Choices) -> dict[str, str]:
    names = list(getattr(operation.query_shape, "__annotations__", {}))
    texts = [
        value
        for value in malformed_values.MALFORMED_VALUES
        if isinstance(value, str) and value.strip()
    ]
    return (
        {choices.choose(names): choices.choose(texts) for _ in range(choices.choose_number(4))}
        if names
        else {}
    )


def _play_flow(flow: Flow, request: Request, choices: Choices) -> Answer:
    example_service = ExampleService(request.body, {}, has_accounts=request.body is None)
    step_result, failure = None, None
    object_states = ObjectStates(choices.choose(STATES))
    for _ in range(MAX_STEPS):
        try:
            step = flow.throw(failure) if failure else flow.send(step_result)
        except StopIteration as stop:
            result: Answer = stop.value
            assert isinstance(result, Answer)
            return result
        if request.problems and isinstance(step, Call) and not step.is_read:
            raise Invalid(*request.problems)
        _assert_may_be_made(step, request)
        failure = _choose_failure(step, choices)
        step_result = (
            None if failure else _choose_result(step, example_service, object_states, choices)
        )
    raise AssertionError("a flow that does not end")


class ObjectStates:
    """The object state of one flow."""

    def __init__(self, states: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
        self._states = {key: dict(state) for key, state in states.items()}

    def recall(self, step: LoadFacts) -> dict[str, Any]:
        if step.id is not None and step.ids is not None:
            entries = self._states.get((step.kind, step.id), {}).get("entries", [])
            return {"entries": [entry for entry in entries if entry["id"] in step.ids]}
        if step.id is not None:
            return dict(self._states.get((step.kind, step.id), {}))
        if step.kind == "abandoned":
            aliases = self.recall(LoadFacts("alias"))
            return {id_: state for id_, state in aliases.items() if state.get("abandoned")}
        states_of_kind = {
            id_: state for (kind, id_), state in self._states.items() if kind == step.kind
        }
        return {
            id_: state
            for id_, state in states_of_kind.items()
            if step.ids is None or id_ in step.ids
        }

    def record(self, step: CompareAndSet) -> None:
        for member in step.members:
            if member.kind == "draft payments":
                payments = self._states.setdefault(("payments", member.id), {})
                entries = {entry["id"]: entry for entry in payments.get("entries", [])}
                changed_entries = (entries | member.facts).values()
                payments["entries"] = [entry for entry in changed_entries if entry is not None]
                continue
            state = {**self._states.get((member.kind, member.id), {}), **member.facts}
            json_codec.dumps(state)  # stored facts must be JSON
            self._states[member.kind, member.id] = {
                name: value for name, value in state.items() if value is not None
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
    step: Step, example_service: ExampleService, object_states: ObjectStates, choices: Choices
) -> Any:
    if isinstance(step, LoadFacts):
        return {} if step.kind == "legacy id" else object_states.recall(step)
    if isinstance(step, CompareAndSet):
        return object_states.record(step)
    result = example_service.answer_step(step)
    if isinstance(step, Parallel):
        return [
            choices.choose(FAILURES)() if choices.choose_number(12) == 1 else entry
            for entry in result
        ]
    return result


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
    client_amounts = {value for name, value in _iterate_leaves(request.body) if name in AMOUNTS}
    for name, value in _iterate_leaves(call.body):
        if name in AMOUNTS:
            assert isinstance(value, str), "an amount travels as text"
            assert value in client_amounts or value == "100.00", (
                "no amount that the client did not write"
            )
        if name in UNMASKED:
            assert "*" not in str(value), name


def _iterate_leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _iterate_leaves(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from _iterate_leaves(item, name)
    else:
        yield name, value


def _assert_legacy(failure: Failure) -> None:
    problem_response = errors.translate_failure(failure)
    assert problem_response.status in {*errors.STATUS_BY_CODE.values(), 413}
    assert problem_response.problems
    assert all(problem.code in errors.STATUS_BY_CODE for problem in problem_response.problems)
    json_codec.dumps(problem_response.build_body())
