"""Refusals of signed requests, with the codes and statuses of the current interface (section 7)."""

from __future__ import annotations

from mappings import errors
from mappings.errors import ErrorAnswer
from mappings.grammar import Problem

STATUS = {
    "invalid_status": 400,
    "invalid_field": 400,
    "invalid_api_key": 401,
    "not_authorized": 403,
    "not_found": 404,
    "rate_limit_exceeded": 429,
    "internal_server_error": 500,
}

WRONG_STATUS = Problem("invalid_status", "The batch's status does not allow this.")


class Refusal(Exception):
    """A request that is not passed on. ``reason`` is for the log and quotes nothing of the request."""

    def __init__(self, problem: Problem, why: str, *, retry_after: int | None = None) -> None:
        super().__init__(why)
        self.why = why
        wait = None if retry_after is None else str(retry_after)
        self.answer = ErrorAnswer(STATUS[problem.code], (problem,), wait)


def refuse_invalid_key(why: str) -> Refusal:
    """Builds a 401 refusal.

    Also used for a stale timestamp and malformed headers, for which the document names no code.
    """
    return Refusal(errors.INVALID_KEY, why)


def build_refusal_answer(*problems: Problem) -> ErrorAnswer:
    return ErrorAnswer(STATUS[problems[0].code], problems)
