"""Errors that the service answers with (current interface, section 7)."""

from dataclasses import dataclass, field

from gateway.simulator.wire import JsonObject

STATUS = {
    "invalid_status": 400,
    "expired_quote": 400,
    "invalid_api_key": 401,
    "not_authorized": 403,
    "not_found": 404,
    "internal_server_error": 500,
}


# A response has one status, so problems of different statuses cannot be reported together: fields
# first, then objects that do not exist, then objects in the wrong state.
TOLD_TOGETHER = (
    frozenset({"empty_field", "invalid_field"}),
    frozenset({"not_found"}),
    frozenset({"invalid_status"}),
)


@dataclass(frozen=True)
class Problem:
    code: str
    message: str
    field: str | None = None

    def as_json(self) -> JsonObject:
        shown = {"code": self.code, "message": self.message}
        return shown if self.field is None else {**shown, "field": self.field}


class Refusal(Exception):
    """An error response, `{ok: false, errors}`.

    `http_status` is set if an operation's own description contradicts section 7.
    """

    def __init__(self, *problems: Problem, http_status: int | None = None) -> None:
        super().__init__(*(problem.code for problem in problems))
        self.problems = problems
        self.http_status = http_status

    def status(self, validation_status: int) -> int:
        return self.http_status or STATUS.get(self.problems[0].code, validation_status)

    def as_json(self) -> JsonObject:
        return {"ok": False, "errors": [problem.as_json() for problem in self.problems]}


class NoSuchOperation(Refusal):
    """The path does not exist, or does not have the method."""

    def __init__(self, http_status: int = 404) -> None:
        super().__init__(Problem("not_found", "Path does not exist"), http_status=http_status)


def not_found(what: str) -> Refusal:
    return Refusal(Problem("not_found", f"{what} does not exist"))


def invalid_status(message: str) -> Refusal:
    return Refusal(Problem("invalid_status", message))


@dataclass
class Problems:
    """Collects the problems of one request, so that one response reports them all."""

    found: list[Problem] = field(default_factory=list)
    prefix: str = ""

    def within(self, prefix: str) -> "Problems":
        """Return a view of this collection for nested fields: `address.`, `governmentIds[0].`"""
        return Problems(self.found, self.prefix + prefix)

    def empty(self, name: str) -> None:
        self.add("empty_field", name, "Required field is missing or empty")

    def invalid(self, name: str, message: str = "Value is invalid") -> None:
        self.add("invalid_field", name, message)

    def not_found(self, name: str, what: str) -> None:
        self.add("not_found", name, f"{what} does not exist")

    def invalid_status(self, name: str, message: str) -> None:
        self.add("invalid_status", name, message)

    def add(self, code: str, name: str, message: str) -> None:
        self.found.append(Problem(code, message, self.prefix + name))

    def refuse_if_any(self) -> None:
        for codes in TOLD_TOGETHER:
            if told := [each for each in self.found if each.code in codes]:
                raise Refusal(*told)
