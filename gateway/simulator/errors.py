"""Errors that the service answers with (current interface, section 7)."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from gateway.simulator.json_codec import JsonObject
from gateway.simulator.validation import Check, is_blank

STATUS_BY_CODE = {
    "invalid_status": 400, "expired_quote": 400, "invalid_api_key": 401, "not_authorized": 403,
    "not_found": 404, "internal_server_error": 500,
}  # fmt: skip

# A response has one status, so problems of different statuses cannot be reported together: fields
# first, then objects that do not exist, then objects in the wrong state.
REPORTED_TOGETHER = (
    frozenset({"empty_field", "invalid_field"}),
    frozenset({"not_found"}),
    frozenset({"invalid_status"}),
)


@dataclass(frozen=True)
class Problem:
    code: str
    message: str
    field: str | None = None

    def build_view(self) -> JsonObject:
        view = {"code": self.code, "message": self.message}
        return view if self.field is None else {**view, "field": self.field}


class ApiError(Exception):
    """An error response, `{ok: false, errors}`."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__(*(problem.code for problem in problems))
        self.problems = problems

    def build_body(self) -> JsonObject:
        return {"ok": False, "errors": [problem.build_view() for problem in self.problems]}


def build_not_found_error(object_name: str) -> ApiError:
    return ApiError(Problem("not_found", f"{object_name} does not exist"))


def build_invalid_status_error(message: str) -> ApiError:
    return ApiError(Problem("invalid_status", message))


@dataclass
class Problems:
    """Collects the problems of one request, so that one response reports them all."""

    collected: list[Problem] = field(default_factory=list)
    prefix: str = ""

    def create_nested_view(self, prefix: str) -> "Problems":
        """Returns a view of this collection for nested fields: `address.`, `governmentIds[0].`"""
        return Problems(self.collected, self.prefix + prefix)

    def check(self, name: str, value: object, find_problem: Check) -> None:
        if error := find_problem(value):
            self.add_invalid_field(name, error)

    def check_required(self, name: str, value: object, find_problem: Check) -> None:
        if is_blank(value):
            self.add_empty_field(name)
        else:
            self.check(name, value, find_problem)

    def add_empty_field(self, name: str) -> None:
        self.add_problem("empty_field", name, "Required field is missing or empty")

    def add_invalid_field(self, name: str, message: str) -> None:
        self.add_problem("invalid_field", name, message)

    def add_problem(self, code: str, name: str, message: str) -> None:
        self.collected.append(Problem(code, message, self.prefix + name))

    def has_problem_of(self, name: str) -> bool:
        return any(problem.field == self.prefix + name for problem in self.collected)

    def iter_objects(
        self, body: JsonObject, field_name: str
    ) -> Iterator[tuple["Problems", JsonObject]]:
        """Yields the objects of an array in a body; a missing array counts as empty."""
        entries = body.get(field_name)
        if not isinstance(entries, list | None):
            self.add_invalid_field(field_name, "Must be an array")
            return
        for position, entry in enumerate(entries or []):
            if isinstance(entry, dict):
                yield self.create_nested_view(f"{field_name}[{position}]."), entry
            else:
                self.add_invalid_field(f"{field_name}[{position}]", "Must be an object")

    def raise_if_any(self) -> None:
        # The first group that has a problem decides the status; the others would contradict it.
        for codes in REPORTED_TOGETHER:
            # Without duplicates: one value may be checked for each account that it applies to.
            unique = dict.fromkeys(self.collected)
            if reported := [problem for problem in unique if problem.code in codes]:
                raise ApiError(*reported)
