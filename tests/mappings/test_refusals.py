"""Translation of the service's field names in errors for legacy clients."""

from __future__ import annotations

import pytest

from mappings import errors
from mappings.errors import derive_refusal_status
from mappings.failures import Problem, Refused

BATCH = {
    "currency": "sourceCurrency",
    "payments[0].recipient": "payments[0].recipient.id",
    "payments[0].currency": "sourceCurrency",
    "payments[1].recipient": "payments[7].recipient.email",
}
SSN = {"governmentIds": "ssn", "governmentIds[0]": "ssn"}


def _told(sent_as: dict[str, str], *problems: Problem) -> list[tuple[str | None, str]]:
    given = errors.translate_failure(Refused(400, list(problems), field_map=sent_as)).problems
    return [(one.field, one.message) for one in given]


def test_several_fields_that_are_one_of_the_client_s_are_one_mistake() -> None:
    wrong = "currency is not supported"
    both = [Problem("invalid_field", wrong, at) for at in ("currency", "payments[0].currency")]
    assert _told(BATCH, *both) == [("sourceCurrency", "sourceCurrency is not supported")]


def test_what_names_no_field_is_told_of_each() -> None:
    incomplete = Problem("invalid_status", "Recipient is incomplete")
    assert len(_told(BATCH, incomplete, incomplete)) == 2


@pytest.mark.parametrize(
    ("named", "field"),
    [
        ("payments[0].recipient", "payments[0].recipient.id"),
        ("payments[1].recipient", "payments[7].recipient.email"),
    ],
)
def test_a_word_of_both_interfaces_stays_a_word(named: str, field: str) -> None:
    problem = Problem("invalid_status", "the recipient is not active", named)
    assert _told(BATCH, problem) == [(field, "the recipient is not active")]


def test_a_part_of_what_was_sent_is_told_by_the_client_s_name_for_the_whole() -> None:
    at = "governmentIds[0].value"
    problem = Problem("invalid_field", f"{at} is not valid", at)
    assert _told(SSN, problem) == [("ssn", "ssn is not valid")]


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
def test_an_answer_of_200_that_says_no_is_what_its_codes_say(codes: list[str], status: int) -> None:
    assert derive_refusal_status([Problem(code, "") for code in codes]) == status
