"""Translation of failures into legacy error responses (legacy interface, section 7).

A response with status 2xx and ``ok: false`` is a refusal if all of its codes are in
``REFUSAL_STATUS``: "callers must check ``ok``" (current interface, section 7). With any other code,
or without errors, it proves nothing: a write is then in doubt, as after a 5xx, and a read has
failed.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from mappings.failures import (
    MAX_ERRORS,
    Failure,
    Halted,
    Invalid,
    Problem,
    Refused,
    Unknown,
    Unreachable,
    list_enclosing_fields,
)

STATUS_BY_CODE = {
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
"""Error code to HTTP status (legacy interface, section 7)."""

VALIDATION_CODES = frozenset({"invalid_status", "invalid_field", "empty_field", "expired_quote"})
"""Codes for which the service responds with 400 or, for some operations, 406."""

REFUSAL_STATUS = {
    **dict.fromkeys(VALIDATION_CODES, 400),
    "invalid_api_key": 401,
    "not_authorized": 403,
    "not_found": 404,
    "rate_limit_exceeded": 429,
}
"""The codes that blame the client (current interface, section 7), and their statuses."""

KNOWN_CODES = frozenset({*STATUS_BY_CODE, "partner_integration_error"})

INTERNAL_ERROR = Problem("internal_server_error", "Internal error.")
SERVICE_UNREACHABLE = Problem(
    "internal_server_error", "The service gave no answer that can be used; nothing was changed."
)
OUTCOME_UNKNOWN = Problem(
    "internal_server_error",
    "The outcome of this request is unknown: no answer of the service shows it. "
    "It may have been carried out.",
)
OTHER_IN_DOUBT = Problem(
    "internal_server_error",
    "The outcome of another write to the same object is in doubt; nothing of this request was done. "
    "Send it again later.",
)
NOT_FOUND = Problem("not_found", "Object not found.")
INVALID_KEY = Problem("invalid_api_key", "Invalid API key.")
NOT_AUTHORIZED = Problem("not_authorized", "Not authorized.")
WRITES_FROZEN = Problem(
    "internal_server_error",
    "The operator of this gateway has temporarily stopped writes; nothing was done.",
)
WRITES_PAUSED = Problem(
    "internal_server_error",
    "The operator of this gateway has temporarily stopped writes; a part of this request was done, "
    "and it continues later.",
)
OPERATOR_RETRY_AFTER_SECONDS = 60
"""The ``Retry-After`` of writes that are refused until an operator acts: unfreezes or reconciles."""
RESTORE_CHECK_PENDING = Problem(
    "internal_server_error",
    "The gateway's records are being checked; nothing was done. Try again later.",
)
OVERLOADED = Problem(
    "internal_server_error", "The gateway is overloaded; nothing was sent. Try again later."
)
RECIPIENT_NOT_SHOWN_YET = Problem(
    "internal_server_error",
    "The service does not show the last changes of this recipient yet; it was not changed. "
    "Try again later.",
)
RATE_LIMIT_EXCEEDED = Problem("rate_limit_exceeded", "Rate limit exceeded.")
BODY_TOO_LARGE = Problem("invalid_field", "The body is too large.")


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """A legacy error response: its HTTP status and the entries of ``errors``."""

    status: int
    problems: tuple[Problem, ...]
    retry_after: str | int | None = None

    def build_body(self) -> dict[str, object]:
        errors = [
            {"code": problem.code, "message": problem.message}
            | ({} if problem.field is None else {"field": problem.field})
            for problem in self.problems
        ]
        return {"ok": False, "errors": errors}


def translate_failure(failure: Failure) -> ErrorAnswer:
    """Builds the legacy response for a failure that the flow did not handle."""
    if isinstance(failure, Invalid):
        return ErrorAnswer(
            STATUS_BY_CODE[failure.problems[0].code],
            truncate_problems(failure.problems, failure.omitted_count),
        )
    if isinstance(failure, Refused):
        return _translate_refusal(failure)
    if isinstance(failure, Unknown):
        problem = failure.problem or OUTCOME_UNKNOWN
        return ErrorAnswer(500, (problem,), failure.retry_after)
    problem = failure.problem if isinstance(failure, Halted) else SERVICE_UNREACHABLE
    retry_after = failure.retry_after if isinstance(failure, Unreachable) else None
    return ErrorAnswer(STATUS_BY_CODE[problem.code], (problem,), retry_after)


def truncate_problems(problems: Sequence[Problem], omitted_count: int) -> tuple[Problem, ...]:
    """Returns the first ``MAX_ERRORS`` problems; the last one says how many more there are."""
    reported = tuple(problems[:MAX_ERRORS])
    omitted_count += len(problems) - len(reported)
    if not omitted_count:
        return reported
    last = structs.replace(
        reported[-1], message=f"{reported[-1].message} … and {omitted_count:,} more"
    )
    return (*reported[:-1], last)


def derive_status_from_problem_codes(problems: Sequence[Problem]) -> int:
    """Derives the status of a 2xx with ``ok: false`` from its codes.

    It is a refusal if every code blames the client. Any other code proves nothing, and neither does
    the absence of errors: 500.
    """
    statuses = [REFUSAL_STATUS.get(problem.code, 500) for problem in problems]
    if not statuses or 500 in statuses:
        return 500
    # Validation comes first, because the client can correct that.
    return 400 if 400 in statuses else statuses[0]


def convert_not_found_to_invalid_field(refusal: Refused, field: str | None = None) -> Refused:
    """Turns "not found" into an invalid field, for a call whose *body* names the missing object.

    A 404 would tell the client that the object in its own path is missing. ``field`` is the only
    one that names an object: the service names fields of validation errors only.
    """

    def convert(problem: Problem) -> Problem:
        if problem.code != "not_found":
            return problem
        return structs.replace(problem, code="invalid_field", field=problem.field or field)

    problems = [*map(convert, refusal.problems)]
    status = 400 if refusal.status == 404 else refusal.status
    return Refused(status, problems, field_map=refusal.field_map, retry_after=refusal.retry_after)


def convert_not_found_if_field_named(refusal: Refused) -> Refused:
    """Applies ``convert_not_found_to_invalid_field`` if the refusal names a field of the body."""
    if any(problem.field for problem in refusal.problems):
        return convert_not_found_to_invalid_field(refusal)
    return refusal


def build_legacy_error(*problems: Problem) -> ErrorAnswer:
    return ErrorAnswer(STATUS_BY_CODE[problems[0].code], problems)


_ERRORS_BY_CODE = {
    error.code: error for error in (INVALID_KEY, NOT_AUTHORIZED, NOT_FOUND, RATE_LIMIT_EXCEEDED)
}


def _translate_refusal(refusal: Refused) -> ErrorAnswer:
    """Translates by code, because the document gives several codes two statuses.

    A 5xx is an internal error whatever code it has: the service may send any code with it.
    """
    # By status: a proxy's rate limit may have any code, or none.
    if refusal.status >= 500 or refusal.status == 429:
        default = RATE_LIMIT_EXCEEDED if refusal.status == 429 else INTERNAL_ERROR
        problem = _replace_message_with_service_message(refusal, default)
        return ErrorAnswer(STATUS_BY_CODE[default.code], (problem,), refusal.retry_after)
    # Validation errors take precedence: the client can correct them.
    if faults := [problem for problem in refusal.problems if problem.code in VALIDATION_CODES]:
        words = _build_field_word_map(refusal.field_map)
        problems = [
            _translate_problem(problem, refusal.field_map, words) for problem in faults[:MAX_ERRORS]
        ]
        # Several fields of a call may come from one field of the client. Problems without a field
        # all remain, because each may be about another payment.
        distinct = {
            (problem, index if problem.field is None else None): problem
            for index, problem in enumerate(problems)
        }
        omitted_count = len(faults) - len(problems)
        return ErrorAnswer(406, truncate_problems([*distinct.values()], omitted_count))
    codes = (problem.code for problem in refusal.problems if problem.code in _ERRORS_BY_CODE)
    default = _ERRORS_BY_CODE.get(next(codes, ""), INTERNAL_ERROR)
    # The service's message would be about the gateway's credentials, not about the client's key.
    if default is INVALID_KEY:
        return build_legacy_error(INVALID_KEY)
    return build_legacy_error(_replace_message_with_service_message(refusal, default))


def _replace_message_with_service_message(refusal: Refused, default: Problem) -> Problem:
    """Returns the legacy error with the first message of the service, if it sent any."""
    text = next((problem.message for problem in refusal.problems if problem.message), None)
    if text is None:
        return default
    words = _build_field_word_map(refusal.field_map)
    text = _translate_field_names_in_message(text, refusal.field_map, words)
    return structs.replace(default, message=text)


def _translate_problem(
    problem: Problem, field_map: Mapping[str, str], words: Mapping[str, str]
) -> Problem:
    # None if the client did not send it. The service may name a part of a field
    # (``governmentIds[0].value``): the longest prefix that was sent is used.
    paths = _list_field_paths(problem.field or "")
    field = next((field_map[path] for path in paths if path in field_map), None)
    if problem.field and field:
        # The same field of another item may have another name: this one's takes precedence.
        words = {**words, **_build_field_word_map({problem.field: field})}
        if _PATH_SEPARATOR.search(problem.field):
            words[problem.field] = field
    message = (
        _translate_field_names_in_message(problem.message, field_map, words) or "Value invalid."
    )
    return Problem(problem.code, message, field)


def _list_field_paths(name: str) -> list[str]:
    """Lists a field and its parents, also below the whole object, as in ``account.branchId``."""
    path = _normalize_field_path(name)
    return [*list_enclosing_fields(path), *list_enclosing_fields(path.partition(".")[2])]


def _normalize_field_path(name: str) -> str:
    """Rewrites ``payments.3.amount``, as some services write it, to ``payments[3].amount``."""
    return re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", name)


def limit_field_map_to_problem_fields(
    field_map: Mapping[str, str], problems: Sequence[Problem]
) -> Mapping[str, str]:
    """Selects the entries of a field map that are needed to report these problems.

    They are those that it iterates over (see ``batch_bodies.FieldNames``), and those mentioned.
    """
    names = dict(field_map)
    for problem in problems:
        for name in _NAME_PATTERN.findall(f"{problem.field or ''} {problem.message}"):
            paths = _list_field_paths(name)
            names |= {path: field_map[path] for path in paths if path in field_map}
    return names


_NAME_PATTERN = re.compile(r"\w+(?:\[\d+\])*(?:\.\w+(?:\[\d+\])*)*")
"""Matches words and field paths such as ``payments[3].amount``."""

_PATH_SEPARATOR = re.compile(r"[.\[]")
"""Matches names that are paths, not only the last part of one."""


def _build_field_word_map(field_map: Mapping[str, str]) -> dict[str, str]:
    """Maps the last part of current field paths to the legacy one; shared names stay unchanged."""
    words: dict[str, str] = {}
    for current, legacy in field_map.items():
        word = current.rpartition(".")[2]
        words.setdefault(word, word if word in legacy.split(".") else legacy.rpartition(".")[2])
    return words


def _translate_field_names_in_message(
    message: str, field_map: Mapping[str, str], words: Mapping[str, str]
) -> str:
    """Replaces current field names in a message by the client's own.

    The cost depends on the length of the message and not on the number of fields: a batch may be
    refused with as many messages as it has payments.
    """

    def translate_name(match: re.Match[str]) -> str:
        name = match[0]
        # The last part of a field path is the most common form, and needs no further search.
        if name in words:
            return words[name]
        if not _PATH_SEPARATOR.search(name):
            return name
        place, dot, last = name.rpartition(".")
        return field_map.get(_normalize_field_path(name), f"{place}{dot}{words.get(last, last)}")

    return _NAME_PATTERN.sub(translate_name, message)
