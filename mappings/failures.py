"""Failures that flows raise or receive; errors.py translates those that no flow handles."""

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec


class Problem(msgspec.Struct, frozen=True):
    """One entry of ``errors``. ``code`` is an error code of the legacy interface, section 7."""

    code: str
    message: str
    field: str | None = None


def build_empty_field_problem(field: str) -> Problem:
    return Problem("empty_field", f"{field} is required.", field)


def build_invalid_field_problem(field: str, fault: str) -> Problem:
    return Problem("invalid_field", f"{field} {fault}.", field)


MAX_ERRORS = 100
"""Maximum number of errors reported for one body (contract, section 2)."""


class ProblemList:
    """The first ``MAX_ERRORS`` problems, each once; the rest is only counted.

    A short body can have a million problems, which would take a hundred times its size.
    """

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], Problem] = {}
        self.more = 0

    def add_problem(self, problem: Problem) -> None:
        key = problem.code, problem.field or problem.message
        if key in self._first:
            return
        if len(self._first) < MAX_ERRORS:
            self._first[key] = problem
        else:
            self.more += 1

    def __bool__(self) -> bool:
        return bool(self._first)

    def __iter__(self) -> Iterator[Problem]:
        return iter(self._first.values())


def list_enclosing_fields(field: str) -> list[str]:
    """Lists a field and its parents: ``payments[3].memo``, ``payments[3]``, ``payments``."""
    separators = reversed([*re.finditer(r"[.\[]", field)])
    return [field, *(field[: separator.start()] for separator in separators)]


class Failure(Exception):
    """The base class of the exceptions that a step can throw into a flow.

    Class names are stored in the step log: renaming a class needs a migration.
    """

    error_type: str = "failed"
    """Name of this failure in logs, metrics and traces."""


class Invalid(Failure):
    """The client's request is invalid.

    ``omitted_count`` is the number of further problems that are not listed.
    """

    error_type = "invalid_request"

    def __init__(self, *problems: Problem, omitted_count: int = 0) -> None:
        # Codes only: exception texts end up in logs, and messages can contain personal data.
        super().__init__(", ".join(problem.code for problem in problems))
        self.problems = problems
        self.omitted_count = omitted_count


class Refused(Failure):
    """The service refused the call; nothing was executed."""

    error_type = "refused_by_service"

    def __init__(
        self,
        status: int,
        problems: Sequence[Problem] = (),
        *,
        field_map: Mapping[str, str] | None = None,
        retry_after: str | None = None,
    ) -> None:
        super().__init__(f"{status} " + ", ".join(problem.code for problem in problems))
        self.status = status
        if status >= 500:
            self.error_type = "service_error"
        self.problems = tuple(problems)
        self.field_map = field_map or {}
        self.retry_after = retry_after

    @property
    def is_not_found(self) -> bool:
        """Whether the service itself says that an object does not exist.

        A 404 without its error may come from a page that stands in its place, and proves nothing.
        """
        return self.status == 404 and bool(self.problems)

    def has_field_problem(self, code: str, field: str) -> bool:
        """Whether the refusal reports this code for this field, by the current field name."""
        # Services name a field with or without the path to it.
        return any(
            problem.code == code and (problem.field or "").rpartition(".")[2] == field
            for problem in self.problems
        )


class Conflict(Failure):
    """The stored facts of an object are not the expected ones: another request has changed them."""

    error_type = "conflict"


class NoSuchOperation(Failure):
    """The service lacks an optional endpoint; the flow must continue without it."""

    error_type = "no_such_operation"


class Unreachable(Failure):
    """The request was never sent, or was a read without a response: it changed nothing.

    ``retry_after`` is the number of seconds after which a retry makes sense, if known.
    """

    error_type = "unreachable"

    def __init__(self, reason: str = "", *, retry_after: int | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class PossiblyExecuted(Unreachable):
    """The write was sent, and nobody can find out whether it was executed."""


class CircuitOpen(Unreachable):
    """The call was not sent, because the service's circuit breaker is open."""


class ClientDisconnected(Unreachable):
    """The call was not sent, because its client may have sent the request again elsewhere."""

    error_type = "client_disconnected"

    def __init__(self, reason: str = "the client disconnected before anything was sent") -> None:
        super().__init__(reason)


class Halted(Unreachable):
    """The gateway itself refused to send the call; ``problem`` is the error for the client."""

    error_type = "blocked"

    def __init__(self, problem: Problem, *, retry_after: int | None = None) -> None:
        super().__init__(problem.message, retry_after=retry_after)
        self.problem = problem


class Unknown(Failure):
    """A write was sent and got no readable response: it may have been executed.

    It was sent ``age_seconds`` ago; ``retry_after`` is as for Unreachable. ``problem`` is the error
    for the client, None for one that says that the outcome is unknown.
    """

    error_type = "in_doubt"

    def __init__(
        self,
        reason: str = "",
        *,
        age_seconds: float = 0,
        retry_after: int | None = None,
        problem: Problem | None = None,
    ) -> None:
        super().__init__(reason)
        self.age_seconds = age_seconds
        self.retry_after = retry_after
        self.problem = problem


class UndoRefused(Unknown):
    """The service refuses an undo; if that ``is_final``, it is not sent again."""

    def __init__(self, status: int | None) -> None:
        super().__init__(f"the service refuses to undo it (status {status})")
        self.status, self.is_final = status, status not in (401, 403, 429)


class UndoPending(Unknown):
    """The service refused a later step, and what was created before is not undone yet.

    The client gets the refusal; the reconciler continues the undo until the service confirms it.
    What the service refuses to undo is left to an operator.
    """

    def __init__(self, refusal: Refused, reason: str) -> None:
        message = f"what a refused request changed is not undone yet: {reason}"
        super().__init__(message, retry_after=1)
        self.refusal = refusal


def is_retryable_read_failure(failure: Failure) -> bool:
    """Whether a read that failed this way may succeed later: it says nothing about the object."""
    if isinstance(failure, Refused):
        # Without the service's error, it is from a page that stands in the service's place.
        return failure.status >= 500 or failure.status == 429 or not failure.problems
    return isinstance(failure, Unreachable)
