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
SSN_NAMES = {"governmentIds": "ssn", "governmentIds[0]": "ssn"}


def translate_problems(sent_as: dict[str, str], *problems: Problem) -> list[tuple[str | None, str]]:
    translated_problems = errors.translate_failure(
        Refused(400, list(problems), field_map=sent_as)
    ).problems
    return [(problem.field, problem.message) for problem in translated_problems]


def test_current_fields_of_one_client_field_give_one_error() -> None:
    message = "currency is not supported"
    problems = [
        Problem("invalid_field", message, field_path)
        for field_path in ("currency", "payments[0].currency")
    ]
    assert translate_problems(BATCH_NAMES, *problems) == [
        ("sourceCurrency", "sourceCurrency is not supported")
    ]


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


def test_part_of_a_value_is_reported_by_client_field_name() -> None:
    field_path = "governmentIds[0].value"
    problem = Problem("invalid_field", f"{field_path} is not valid", field_path)
    assert translate_problems(SSN_NAMES, problem) == [("ssn", "ssn is not valid")]


@pytest.mark.parametrize(
    ("problem_field", "field"),
    [
        ("account.branchId", "accounts.bank.routing"),
        ("account.governmentIds[0].value", "accounts.bank.governmentId"),
        ("account.primary", None),
    ],
)
def test_field_below_the_whole_object_is_reported_by_client_field_name(
    problem_field: str, field: str | None
) -> None:
    names = {
        "branchId": "accounts.bank.routing",
        "governmentIds": "accounts.bank.governmentId",
    }
    refusal = Refused(400, [Problem("invalid_field", "Value is invalid", problem_field)])
    names_of_problem = errors.limit_field_map_to_problem_fields(names, refusal.problems)
    expected = [(field, "Value is invalid")]
    assert translate_problems({**names_of_problem}, *refusal.problems) == expected


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
