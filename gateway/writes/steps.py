"""Stored results of a flow's steps, from which an interrupted flow is replayed.

Each result is stored with a fingerprint of its step. If a replay yields a step with another
fingerprint, the program has changed since the interruption, and the replay stops.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from gateway.payloads import json_codec, stored_json
from gateway.payloads.stored_json import Text
from mappings.effects import (
    JSON,
    AwaitFacts,
    Call,
    CompareAndSet,
    ListPage,
    ListQuery,
    LoadFacts,
    Parallel,
    Step,
)
from mappings.failures import (
    Conflict,
    Failure,
    Halted,
    Invalid,
    NoSuchOperation,
    Problem,
    Refused,
    Unreachable,
)

Outcome = Any
"""The result of a step, or the Failure that it raised."""


def mark(step: Step | str) -> str:
    """A hash that identifies a step; a string already is one and is returned as it is."""
    if isinstance(step, str):
        return step
    digest = hashlib.sha256()
    for part in json_codec.iterdumps(_told(step)):
        digest.update(part)
    return digest.hexdigest()[:16]


def _told(step: Step) -> JSON:
    match step:
        case Call():
            return [step.method, step.path, dict(step.query), step.body]
        case Parallel(calls):
            return [_told(call) for call in calls]
        case ListQuery():
            return ["find", step.path, step.page, step.page_size, dict(step.prefilter)]
        case LoadFacts(kind, id_, ids):
            return ["recall", kind, id_, ids]
        case AwaitFacts(kind, id_):
            return ["await", kind, id_]
        case CompareAndSet(kind, id_, facts):
            return ["record", kind, id_, dict(facts)]


def written(given: list[tuple[Step | str, Outcome]]) -> Text:
    """Encodes the results of steps as JSON, each with the fingerprint of its step."""
    return stored_json.encode_stored([[mark(step), _encoded(outcome)] for step, outcome in given])


def marked(given: list[tuple[Step | str, Outcome]]) -> list[tuple[str, Outcome]]:
    """Results with the fingerprints of their steps, as ``decode_steps`` returns them."""
    return [(mark(step), outcome) for step, outcome in given]


def is_long(step: Step | str) -> bool:
    """Whether the fingerprint takes long enough to be computed in a worker thread."""
    match step:
        case Call():
            return json_codec.has_rows(step.body)
        case CompareAndSet():
            return json_codec.has_rows(step.facts)
        case _:
            return False


def read(text: Text) -> list[tuple[str, Outcome]]:
    return [(its, _decoded(encoded)) for its, encoded in stored_json.value(text)]


def _encoded(outcome: Outcome) -> JSON:
    match outcome:
        case Failure():
            return {"failed": _failure(outcome)}
        case ListPage():
            return {"found": [list(outcome.rows), outcome.pages, outcome.records]}
        case list() if any(isinstance(one, Failure) for one in outcome):
            return {"together": [_encoded(one) for one in outcome]}
        case _:
            return {"given": outcome}


def _decoded(encoded: dict[str, Any]) -> Outcome:
    match encoded:
        case {"failed": failure}:
            return _KINDS[failure["kind"]](failure)
        case {"found": [rows, pages, records]}:
            return ListPage(rows, pages, records)
        case {"together": those}:
            return [_decoded(one) for one in those]
    return encoded["given"]


def _failure(failure: Failure) -> dict[str, JSON]:
    told: dict[str, JSON] = {"kind": type(failure).__name__, "why": str(failure)}
    if isinstance(failure, Refused):
        told |= {
            "status": failure.status,
            "problems": _problems(failure.problems),
            "sent_as": dict(failure.field_map),
            "retry_after": failure.retry_after,
        }
    if isinstance(failure, Invalid):
        told["problems"] = _problems(failure.problems)
    if isinstance(failure, Halted):
        told["problems"] = _problems((failure.problem,))
    return told


def _problems(those: tuple[Problem, ...]) -> list[JSON]:
    return [[one.code, one.message, one.field] for one in those]


def _refused(told: dict[str, Any]) -> Failure:
    return Refused(
        told["status"],
        [Problem(*one) for one in told["problems"]],
        field_map=told["sent_as"],
        retry_after=told["retry_after"],
    )


def _plain(kind: type[Failure]) -> Callable[[dict[str, Any]], Failure]:
    return lambda told: kind(told["why"])


_KINDS: dict[str, Callable[[dict[str, Any]], Failure]] = {
    "Refused": _refused,
    "Invalid": lambda told: Invalid(*(Problem(*one) for one in told["problems"])),
    "Halted": lambda told: Halted(Problem(*told["problems"][0])),
    "Conflict": _plain(Conflict),
    "NoSuchOperation": _plain(NoSuchOperation),
    "Unreachable": _plain(Unreachable),
}
