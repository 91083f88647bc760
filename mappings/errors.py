"""The way out: every failure as the legacy interface says it (legacy interface, section 7).

A response with status 2xx and ``ok: false`` is a refusal by its codes if each of them is in
``REFUSAL_STATUS``: "callers must check ``ok``" (current interface, section 7). With any other code, or
with no errors, it proves nothing: a write is then in doubt, as after a 5xx, and a read has failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from mappings.grammar import (
    MAX_ERRORS,
    Failure,
    Halted,
    Invalid,
    Problem,
    Refused,
    Unknown,
    Unreachable,
)

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

REFUSAL_STATUS = {
    **dict.fromkeys(VALIDATION, 400),
    "invalid_api_key": 401,
    "not_authorized": 403,
    "not_found": 404,
    "rate_limit_exceeded": 429,
}
"""The codes that blame the client (current interface, section 7), and their statuses."""

KNOWN_CODES = frozenset({*STATUS, "partner_integration_error"})

INTERNAL = Problem("internal_server_error", "Internal error.")
UNREACHED = Problem(
    "internal_server_error", "The service gave no answer that can be used; nothing was changed."
)
OUTCOME_UNKNOWN = Problem(
    "internal_server_error",
    "No answer came in time: the outcome of this request is unknown, it may have been carried out.",
)
OTHER_IN_DOUBT = Problem(
    "internal_server_error",
    "The outcome of another write to the same object is in doubt; nothing of this request was done. "
    "Send it again later.",
)
NOT_FOUND = Problem("not_found", "Object not found.")
INVALID_KEY = Problem("invalid_api_key", "Invalid API key.")
NOT_AUTHORIZED = Problem("not_authorized", "Not authorized.")
FROZEN = Problem(
    "internal_server_error",
    "Writes are stopped for the moment by the operator of this gateway; nothing was done.",
)
FROZEN_SECONDS = 60
"""After which a client may ask whether a freeze is over."""
BEING_CHECKED = Problem(
    "internal_server_error",
    "The gateway's records are being checked; nothing was started. Try again later.",
)
BUSY = Problem(
    "internal_server_error",
    "There is more to do here than can be done; nothing was sent. Try again later.",
)
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


def translate_failure(failure: Failure) -> ErrorAnswer:
    """What a legacy client is told of a failure that no flow dealt with."""
    if isinstance(failure, Invalid):
        return ErrorAnswer(
            STATUS[failure.problems[0].code], truncate_problems(failure.problems, failure.more)
        )
    if isinstance(failure, Refused):
        return _refused(failure)
    if isinstance(failure, Unknown):
        return ErrorAnswer(500, (OUTCOME_UNKNOWN,), _wait(failure.retry_after))
    problem = failure.problem if isinstance(failure, Halted) else UNREACHED
    wait = failure.retry_after if isinstance(failure, Unreachable) else None
    return ErrorAnswer(STATUS[problem.code], (problem,), _wait(wait))


def truncate_problems(problems: Sequence[Problem], more: int = 0) -> tuple[Problem, ...]:
    """The first ``MAX_ERRORS`` problems; the last one says how many more there are."""
    reported = tuple(problems[:MAX_ERRORS])
    more += len(problems) - len(reported)
    if not more:
        return reported
    last = replace(reported[-1], message=f"{reported[-1].message} … and {more:,} more")
    return (*reported[:-1], last)


def _wait(seconds: int | None) -> str | None:
    return None if seconds is None else str(seconds)


def derive_refusal_status(problems: Sequence[Problem]) -> int:
    """The status that belongs to the codes of a 2xx with ``ok: false``.

    It is a refusal if every code blames the client. Any other code proves nothing, and neither do no
    errors at all: 500.
    """
    statuses = [REFUSAL_STATUS.get(one.code, 500) for one in problems]
    if not statuses or 500 in statuses:
        return 500
    return 400 if 400 in statuses else statuses[0]


def is_transient(failure: Failure) -> bool:
    """Whether a read failed in a way that tells nothing of what was to be read."""
    if isinstance(failure, Refused):
        return failure.status == 429 or failure.status >= 500
    return True


def convert_not_found(refused: Refused) -> Refused:
    """A refusal of what the *body* names: what is not found is a wrong value of its field."""
    told = [
        replace(problem, code="invalid_field") if problem.code == "not_found" else problem
        for problem in refused.problems
    ]
    status = 400 if refused.status == 404 else refused.status
    return Refused(status, told, sent_as=refused.sent_as, retry_after=refused.retry_after)


def convert_not_found_in_fields(refused: Refused) -> Refused:
    """The refusal as one of the body where it names a field of it, else as it is."""
    return convert_not_found(refused) if any(one.field for one in refused.problems) else refused


def build_legacy_error(*problems: Problem) -> ErrorAnswer:
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
        return build_legacy_error(_said(refused, INTERNAL))
    if refused.status == 429:
        return ErrorAnswer(429, (_said(refused, OVER_LIMIT),), refused.retry_after)
    if faults := [one for one in refused.problems if one.code in VALIDATION]:
        words = _words(refused.sent_as)
        told = [_named(one, refused.sent_as, words) for one in faults[:MAX_ERRORS]]
        return ErrorAnswer(406, truncate_problems([*_once(told)], len(faults) - len(told)))
    code = next((one.code for one in refused.problems if one.code in _BY_CODE), None)
    if code == "invalid_api_key":
        return build_legacy_error(INVALID_KEY)
    return build_legacy_error(_said(refused, _BY_CODE[code] if code else INTERNAL))


def _said(refused: Refused, default: Problem) -> Problem:
    """The service's own message under the legacy code, where it gave one."""
    for problem in refused.problems:
        if problem.message:
            words = _words(refused.sent_as)
            return replace(default, message=_reworded(problem.message, refused.sent_as, words))
    return default


def _once(told: Sequence[Problem]) -> Iterable[Problem]:
    """Several fields of a call may be one of the client's: it has made one mistake.

    What names no field is told as often as the service does: each may be of another payment.
    """
    apart = {(one, place if one.field is None else None): one for place, one in enumerate(told)}
    return apart.values()


def _named(problem: Problem, sent_as: Mapping[str, str], words: Mapping[str, str]) -> Problem:
    field = _client_field(problem.field, sent_as) if problem.field else None
    if problem.field and field:
        # Its own name goes before what the same field of another item is called.
        words = {**words, **_words({problem.field: field})}
        if _HAS_A_PLACE.search(problem.field):
            words[problem.field] = field
    message = _reworded(problem.message, sent_as, words) or "Value invalid."
    return Problem(problem.code, message, field)


def _client_field(field: str, sent_as: Mapping[str, str]) -> str | None:
    """The client's own name of a field; None for one that the client did not send.

    The service may name a part of what was sent (``governmentIds[0].value``): the longest
    beginning that was sent counts.
    """
    parts = _placed(field).split(".")
    for length in range(len(parts), 0, -1):
        head = ".".join(parts[:length])
        if head in sent_as:
            return sent_as[head]
        bare = re.sub(r"\[\d+\]$", "", head)
        if bare in sent_as:
            return sent_as[bare]
    return None


def _placed(name: str) -> str:
    """A field of an item as calls name it, where a service writes ``payments.3.amount``."""
    return re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", name)


MANY, FEW = 5000, 100
"""Of more names than many only a few are told, and those that a refusal mentions."""


def select_mentioned_names(
    sent_as: Mapping[str, str], problems: Sequence[Problem]
) -> Mapping[str, str]:
    """Of the names of fields those that are needed to tell of some problems."""
    if len(sent_as) <= MANY:
        return sent_as
    names = dict(islice(sent_as.items(), FEW))
    for problem in problems:
        for name in _NAMES.findall(f"{problem.field or ''} {problem.message}"):
            parts = _placed(name).split(".")
            for length in range(1, len(parts) + 1):
                head = ".".join(parts[:length])
                names |= {
                    one: sent_as[one]
                    for one in (head, re.sub(r"\[\d+\]$", "", head))
                    if one in sent_as
                }
    return names


_NAMES = re.compile(r"\w+(?:\[\d+\])*(?:\.\w+(?:\[\d+\])*)*")
"""Words, and names of fields such as ``payments[3].amount``."""

_HAS_A_PLACE = re.compile(r"[.\[]")
"""In a name that says where a field stands, not only what it is called."""


def _words(sent_as: Mapping[str, str]) -> dict[str, str]:
    """What fields are called, without where they stand; a word of both interfaces stays."""
    words: dict[str, str] = {}
    for current, legacy in sent_as.items():
        word = current.rpartition(".")[2]
        words.setdefault(word, word if word in legacy.split(".") else legacy.rpartition(".")[2])
    return words


def _reworded(message: str, sent_as: Mapping[str, str], words: Mapping[str, str]) -> str:
    """A message with the client's names of fields for the current interface's.

    One look at each word of it, however many fields were sent: a batch may be refused with as many
    messages as it has payments.
    """

    def spelled(found: re.Match[str]) -> str:
        name = found[0]
        if name in words:
            return words[name]
        if not _HAS_A_PLACE.search(name):
            return name
        place, dot, last = name.rpartition(".")
        return sent_as.get(_placed(name), f"{place}{dot}{words.get(last, last)}")

    return _NAMES.sub(spelled, message)
