"""Refusals of signed requests: codes and statuses (current interface, section 7)."""

from __future__ import annotations

from mappings import errors
from mappings.errors import ErrorAnswer
from mappings.failures import Problem

STATUS_BY_CODE = {
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
    """A request that is not passed on; ``reason`` is for the log and does not quote the request."""

    def __init__(self, problem: Problem, reason: str, *, retry_after: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        wait_seconds = None if retry_after is None else str(retry_after)
        self.answer = ErrorAnswer(STATUS_BY_CODE[problem.code], (problem,), wait_seconds)


def build_invalid_key_refusal(reason: str) -> Refusal:
    """Builds a 401 refusal.

    Also used for a stale timestamp and malformed headers, for which the document names no code.
    """
    return Refusal(errors.INVALID_KEY, reason)


def build_refusal_answer(*problems: Problem) -> ErrorAnswer:
    return ErrorAnswer(STATUS_BY_CODE[problems[0].code], problems)
