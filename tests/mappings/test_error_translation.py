"""Translation of the service's field names in errors for legacy clients."""

from __future__ import annotations

import pytest

from mappings import errors
from mappings.errors import derive_status_from_problem_codes
from mappings.failures import Problem, Refused

BATCH_NAMES = {
    "currency": "sourceCurrency",
    "payments[0].recipient": "payments[0].recipient.id",
    "payments[0].currency": "sourceCurrency",
    "payments[1].recipient": "payments[7].recipient.email",
}


def translate_problems(sent_as: dict[str, str], *problems: Problem) -> list[tuple[str | None, str]]:
    translated_problems = errors.translate_failure(
        Refused(400, list(problems), field_map=sent_as)
    ).problems
    return [(problem.field, problem.message) for problem in translated_problems]


def test_errors_without_field_are_all_listed() -> None:
    incomplete = Problem("invalid_status", "Recipient is incomplete")
    assert len(translate_problems(BATCH_NAMES, incomplete, incomplete)) == 2


@pytest.mark.parametrize(
    ("problem_field", "field"),
    [
        ("payments[0].recipient", "payments[0].recipient.id"),
        ("payments[1].recipient", "payments[7].recipient.email"),
    ],
)
def test_word_of_both_interfaces_is_not_replaced(problem_field: str, field: str) -> None:
    problem = Problem("invalid_status", "the recipient is not active", problem_field)
    assert translate_problems(BATCH_NAMES, problem) == [(field, "the recipient is not active")]


@pytest.mark.parametrize(
    ("codes", "status"),
    [
        (["invalid_field"], 400),
        (["not_found"], 404),
        (["not_found", "invalid_field"], 400),
        (["rate_limit_exceeded"], 429),
        (["invalid_api_key"], 401),
        (["not_authorized"], 403),
        (["not_found", "internal_server_error"], 500),
        (["internal_server_error"], 500),
        (["partner_integration_error"], 500),
        (["teapot"], 500),
        ([], 500),
    ],
)
def test_refusal_with_status_200_is_classified_by_its_codes(codes: list[str], status: int) -> None:
    assert derive_status_from_problem_codes([Problem(code, "") for code in codes]) == status
