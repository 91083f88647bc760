"""The way out: every failure as the legacy interface says it (legacy interface, section 7)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mappings.grammar import Failure, Invalid, Problem, Refused, Unknown

STATUS = {
    "invalid_token": 401,
    "invalid_api_key": 403,
    "not_authorized": 403,
    "not_found": 404,
    "invalid_status": 406,
    "invalid_field": 406,
    "empty_field": 406,
    "expired_quote": 406,
    "rate_limit_exceeded": 429,
    "internal_server_error": 500,
}
"""Legacy interface, section 7: code to HTTP status."""

VALIDATION = frozenset({"invalid_status", "invalid_field", "empty_field", "expired_quote"})
"""The codes that the service answers with 400 or, for some operations, 406."""

KNOWN_CODES = frozenset({*STATUS, "partner_integration_error"})

INTERNAL = Problem("internal_server_error", "Internal error.")
UNREACHED = Problem(
    "internal_server_error", "The service gave no answer that can be used; nothing was changed."
)
OUTCOME_UNKNOWN = Problem(
    "internal_server_error",
    "No answer came in time: the outcome of this request is unknown, it may have been carried out.",
)
NOT_FOUND = Problem("not_found", "Object not found.")
INVALID_KEY = Problem("invalid_api_key", "Invalid API key.")
NOT_AUTHORIZED = Problem("not_authorized", "Not authorized.")
OVER_LIMIT = Problem("rate_limit_exceeded", "Rate limit exceeded.")
TOO_LARGE = Problem("invalid_field", "The body is too large.")


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """A legacy error: its HTTP status and the entries of ``errors``."""

    status: int
    problems: tuple[Problem, ...]
    retry_after: str | None = None

    def body(self) -> dict[str, object]:
        return {"ok": False, "errors": [_entry(problem) for problem in self.problems]}


def _entry(problem: Problem) -> dict[str, str]:
    entry = {"code": problem.code, "message": problem.message}
    if problem.field is not None:
        entry["field"] = problem.field
    return entry


def answer(failure: Failure) -> ErrorAnswer:
    """What a legacy client is told of a failure that no flow dealt with."""
    if isinstance(failure, Invalid):
        return of(*failure.problems)
    if isinstance(failure, Refused):
        return _refused(failure)
    return of(OUTCOME_UNKNOWN if isinstance(failure, Unknown) else UNREACHED)


def in_body(refused: Refused) -> Refused:
    """A refusal of what the *body* names: what is not found is a wrong value of its field."""
    told = [
        replace(problem, code="invalid_field") if problem.code == "not_found" else problem
        for problem in refused.problems
    ]
    status = 400 if refused.status == 404 else refused.status
    return Refused(status, told, sent_as=refused.sent_as, retry_after=refused.retry_after)


def where_named(refused: Refused) -> Refused:
    """The refusal as one of the body where it names a field of it, else as it is."""
    return in_body(refused) if any(one.field for one in refused.problems) else refused


def of(*problems: Problem) -> ErrorAnswer:
    return ErrorAnswer(STATUS[problems[0].code], problems)


_BY_CODE = {
    "invalid_api_key": INVALID_KEY,
    "not_authorized": NOT_AUTHORIZED,
    "not_found": NOT_FOUND,
    "rate_limit_exceeded": OVER_LIMIT,
}


def _refused(refused: Refused) -> ErrorAnswer:
    """By code; the document gives several of them two statuses. A 5xx is internal whatever it says."""
    if refused.status >= 500:
        return of(_said(refused, INTERNAL))
    if refused.status == 429:
        return ErrorAnswer(429, (_said(refused, OVER_LIMIT),), refused.retry_after)
    if told := tuple(
        _named(one, refused.sent_as) for one in refused.problems if one.code in VALIDATION
    ):
        return ErrorAnswer(406, told)
    code = next((one.code for one in refused.problems if one.code in _BY_CODE), None)
    if code == "invalid_api_key":
        return of(INVALID_KEY)
    return of(_said(refused, _BY_CODE[code] if code else INTERNAL))


def _said(refused: Refused, default: Problem) -> Problem:
    """The service's own message under the legacy code, where it gave one."""
    for problem in refused.problems:
        if problem.message:
            return replace(default, message=_reworded(problem.message, refused.sent_as))
    return default


def _named(problem: Problem, sent_as: Mapping[str, str]) -> Problem:
    field = _client_field(problem.field, sent_as) if problem.field else None
    message = _reworded(problem.message, sent_as) or "Value invalid."
    return Problem(problem.code, message, field)


def _client_field(field: str, sent_as: Mapping[str, str]) -> str | None:
    """The client's own name of a field; None for one that the client did not send.

    The service may name a part of what was sent (``governmentIds[0].value``): the longest
    beginning that was sent counts.
    """
    parts = re.split(r"\.", field)
    for length in range(len(parts), 0, -1):
        head = ".".join(parts[:length])
        if head in sent_as:
            return sent_as[head]
        bare = re.sub(r"\[\d+\]$", "", head)
        if bare in sent_as:
            return sent_as[bare]
    return None


def _reworded(message: str, sent_as: Mapping[str, str]) -> str:
    """A message with the client's names of fields for the current interface's."""
    for current, legacy in sent_as.items():
        ours, theirs = current.rpartition(".")[2], legacy.rpartition(".")[2]
        if ours != theirs:
            message = re.sub(rf"\b{re.escape(ours)}\b", theirs, message)
    return message
