"""The stored request of an operation, and the results of its steps, from which it is replayed.

The results up to the first checkpoint are stored with the request, later ones in rows of their own.
Each result is stored with a fingerprint of its step. If a replay yields a step with another
fingerprint, the program has changed since the interruption, and the replay stops.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from msgspec import structs

from gateway.payloads import json_codec, stored_json
from gateway.payloads.stored_json import StoredText
from mappings.dates import EARLIEST_INSTANT, parse_instant_or_earliest
from mappings.effects import (
    JSON,
    AwaitFacts,
    Call,
    CompareAndSet,
    LegacyOptions,
    LoadFacts,
    Parallel,
    Request,
    Step,
)
from mappings.failures import (
    ClientDisconnected,
    Conflict,
    Failure,
    Halted,
    Invalid,
    NoSuchOperation,
    PossiblyExecuted,
    Problem,
    Refused,
    Unreachable,
)

Outcome = Any
"""The result of a step, or the Failure that it raised."""

FLOW_CHANGED_REASON = "the program has changed since, and its flow yields another step now"
"""Why a replay stops; only an operator can end the operation then."""


def encode_request(
    request: Request, results: Sequence[tuple[Step | str, Outcome]] = ()
) -> StoredText:
    encoded = {
        "now": request.now.isoformat(),
        # A replay must derive the same ids, so the seed is stored; like the body, it is encrypted.
        "seed": request.seed,
        "ids": dict(request.ids),
        "query": dict(request.query),
        "body": request.body,
        # Named as by older versions, whose requests may still have to be replayed.
        "manners": structs.asdict(request.options),
        "steps": _list_encodable_steps(results),
    }
    return stored_json.encode_value(encoded)


def decode_request(text: StoredText) -> tuple[Request, list[tuple[str, Outcome]]]:
    """Decodes a request, and the results of its first steps."""
    encoded = stored_json.decode_value(text)
    request = Request(
        now=datetime.fromisoformat(encoded["now"]),
        seed=encoded["seed"],
        ids=encoded["ids"],
        query=encoded["query"],
        body=encoded["body"],
        options=LegacyOptions(**encoded["manners"]),
    )
    # Older versions stored them in rows.
    return request, _decode_results(encoded.get("steps", ()))


def fingerprint_step(step: Step | str) -> str:
    """Returns a hash that identifies a step; a string already is one and is returned as it is."""
    if isinstance(step, str):
        return step
    digest = hashlib.sha256()
    for part in json_codec.iterdumps(_build_step_key(step)):
        digest.update(part)
    # 64 bits: it detects a program that has changed, and need not resist an attacker.
    return digest.hexdigest()[:16]


def _build_step_key(step: Step) -> JSON:
    match step:
        case Call():
            return [step.method, step.path, dict(step.query), step.body]
        case Parallel(calls):
            return [_build_step_key(call) for call in calls]
        # The tags are part of stored fingerprints: another one would stop a replay.
        case LoadFacts(kind, id_, ids):
            return ["recall", kind, id_, ids]
        case AwaitFacts(kind, id_):
            return ["await", kind, id_]
        # Conditions are left out: they depend on the state at that time, and the outcome is stored.
        case CompareAndSet(kind, id_, facts):
            return ["record", kind, id_, dict(facts)]
    raise TypeError("a write has no list query")


def encode_steps(results: Sequence[tuple[Step | str, Outcome]]) -> StoredText:
    """Encodes the results of steps as JSON, each with the fingerprint of its step."""
    return stored_json.encode_value(_list_encodable_steps(results))


def _list_encodable_steps(results: Sequence[tuple[Step | str, Outcome]]) -> list[JSON]:
    return [[fingerprint_step(step), _encode_outcome(outcome)] for step, outcome in results]


def replace_steps_with_fingerprints(
    results: list[tuple[Step | str, Outcome]],
) -> list[tuple[str, Outcome]]:
    """Results with the fingerprints of their steps, as ``decode_steps`` returns them."""
    return [(fingerprint_step(step), outcome) for step, outcome in results]


def decode_steps(text: StoredText) -> list[tuple[str, Outcome]]:
    return _decode_results(stored_json.decode_value(text))


def _decode_results(encoded_results: Iterable[Any]) -> list[tuple[str, Outcome]]:
    return [(fingerprint, _decode_outcome(encoded)) for fingerprint, encoded in encoded_results]


def _encode_outcome(outcome: Outcome) -> JSON:
    match outcome:
        # The tags are stored too, and older versions wrote the same.
        case Failure():
            return {"failed": _encode_failure(outcome)}
        case list() if any(isinstance(item, Failure) for item in outcome):
            return {"together": [_encode_outcome(item) for item in outcome]}
        case _:
            return {"given": outcome}


def _decode_outcome(encoded: dict[str, Any]) -> Outcome:
    match encoded:
        case {"failed": failure}:
            return _FAILURE_DECODERS[failure["kind"]](failure)
        case {"together": items}:
            return [_decode_outcome(item) for item in items]
    return encoded["given"]


def _encode_failure(failure: Failure) -> dict[str, JSON]:
    encoded: dict[str, JSON] = {"kind": type(failure).__name__, "why": str(failure)}
    if isinstance(failure, Refused):
        encoded |= {
            "status": failure.status,
            "problems": _encode_problems(failure.problems),
            "sent_as": dict(failure.field_map),
            "retry_after": failure.retry_after,
        }
    if isinstance(failure, Invalid):
        encoded["problems"] = _encode_problems(failure.problems)
    if isinstance(failure, Halted):
        encoded["problems"] = _encode_problems((failure.problem,))
    return encoded


def _encode_problems(problems: tuple[Problem, ...]) -> list[JSON]:
    return [[problem.code, problem.message, problem.field] for problem in problems]


def _decode_refusal(encoded: dict[str, Any]) -> Failure:
    return Refused(
        encoded["status"],
        [Problem(*fields) for fields in encoded["problems"]],
        field_map=encoded["sent_as"],
        retry_after=encoded["retry_after"],
    )


def _build_failure_decoder(kind: type[Failure]) -> Callable[[dict[str, Any]], Failure]:
    # The message of a failure was written by this program and has no value of a client in it.
    return lambda told: kind(told["why"])


_FAILURE_DECODERS: dict[str, Callable[[dict[str, Any]], Failure]] = {
    "Refused": _decode_refusal,
    "Invalid": lambda told: Invalid(*(Problem(*one) for one in told["problems"])),
    **dict.fromkeys(("Halted", "Overloaded"), lambda told: Halted(Problem(*told["problems"][0]))),
    "Conflict": _build_failure_decoder(Conflict),
    "NoSuchOperation": _build_failure_decoder(NoSuchOperation),
    **dict.fromkeys(("Unreachable", "CircuitOpen"), _build_failure_decoder(Unreachable)),
    "PossiblyExecuted": _build_failure_decoder(PossiblyExecuted),
    "ClientDisconnected": _build_failure_decoder(ClientDisconnected),
}


def find_change_time_in_result(outcome: Outcome) -> datetime | None:
    """Finds the time that the service shows with a changed recipient; None if it shows none."""
    recipient = outcome.get("recipient") if isinstance(outcome, dict) else None
    if not isinstance(recipient, dict):
        return None
    changed_at = parse_instant_or_earliest(recipient.get("updatedAt"))
    return None if changed_at == EARLIEST_INSTANT else changed_at


_CREATED_FIELDS = ("recipient", "batch", "payment")


def find_created_id_in_result(call: Call, outcome: Outcome) -> str | None:
    """Finds the id of a created object in a response; None if the call creates nothing.

    A change of an account gives it another id (current interface, section 4.2).
    """
    if not isinstance(outcome, dict):
        return None
    account = outcome.get("account")
    if isinstance(account, dict):
        object_id = account.get("recipientAccountId")
    elif call.method != "POST" or call.path.endswith(("/generate-quote", "/start-processing")):
        return None
    else:
        created = (outcome[name] for name in _CREATED_FIELDS if isinstance(outcome.get(name), dict))
        object_id = next(created, outcome).get("id")
    return object_id if isinstance(object_id, str) else None
