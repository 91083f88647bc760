"""The list of recipients with its filters and sort orders (current interface, section 4.1)."""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from gateway.simulator import values, views
from gateway.simulator.accepted_request import parse_page
from gateway.simulator.accounts import BANK_TRANSFER, CHECK
from gateway.simulator.countries import is_country_code
from gateway.simulator.errors import Problems
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.state import Recipient, Tenant
from gateway.simulator.values import Check

RecipientTest = Callable[[Recipient], bool]
Filter = tuple[Check, Callable[[str, Recipient], bool]]
"""A check of a query parameter, and the test of a recipient by its value."""

DATE_PATTERN = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z)?"
)

SORT_KEYS: dict[str, Callable[[Recipient], Any]] = {
    "name": lambda recipient: _fold_case(recipient.fields["name"]),
    "email": lambda recipient: _fold_case(recipient.fields["email"]),
    "referenceId": lambda recipient: _fold_case(recipient.fields.get("referenceId")),
    "payoutMethod": lambda recipient: (
        recipient.primary_account.type if recipient.primary_account else ""
    ),
    "createdAt": lambda recipient: recipient.created_at,
    "updatedAt": lambda recipient: recipient.updated_at,
}


def list_recipients(tenant: Tenant, query: Mapping[str, str]) -> JsonObject:
    """Lists recipients; empty and unknown parameters are ignored. Raises ApiError.

    The document does not show the order without `orderBy`: here the last updated come first. Ties
    are sorted by id.
    """
    problems = Problems()
    page = parse_page(problems, query, tenant.options.max_page_size)
    tests = _parse_filters(problems, query, _build_filters_by_parameter(tenant))
    sort_key = _parse_query_choice(problems, query, "orderBy", tuple(SORT_KEYS), "updatedAt")
    direction = _parse_query_choice(problems, query, "sortBy", ("asc", "desc"), "desc")
    problems.raise_if_any()
    is_archived_requested = tenant.options.filters_archived and query.get("status") == "archived"
    if not (tenant.options.lists_archived or is_archived_requested):
        tests.append(lambda recipient: not recipient.is_archived)
    matches = [
        recipient
        for recipient in tenant.recipients.values()
        if all(test(recipient) for test in tests)
    ]
    # Two stable sorts, so that `reverse` does not reverse the order of ties.
    matches.sort(key=lambda recipient: recipient.id)
    matches.sort(key=SORT_KEYS[sort_key], reverse=direction == "desc")
    return page.build("recipients", matches, partial(views.build_recipient, tenant))


def _parse_filters(
    problems: Problems, query: Mapping[str, str], filters: Mapping[str, Filter]
) -> list[RecipientTest]:
    tests: list[RecipientTest] = []
    for name, (find_problem, matches) in filters.items():
        value = query.get(name, "")
        if value and (error := find_problem(value)):
            problems.add_invalid_field(name, error)
        elif value:
            tests.append(partial(matches, value))
    # Section 4.1: the currency is required with this filter.
    if query.get("payoutMethod") == BANK_TRANSFER and not query.get("currency"):
        problems.add_empty_field("currency")
    return tests


def _parse_query_choice(
    problems: Problems, query: Mapping[str, str], name: str, words: tuple[str, ...], default: str
) -> str:
    value = query.get(name) or default
    if error := values.create_choice_check(*words)(value):
        problems.add_invalid_field(name, error)
    return value


def _build_filters_by_parameter(tenant: Tenant) -> dict[str, Filter]:
    text = values.find_text_problem
    methods = values.create_choice_check(tenant.vocabulary.wallet, BANK_TRANSFER, CHECK)
    statuses = values.create_choice_check("active", "incomplete", "suspended", "archived")
    # `review` is a compliance status, but the document does not list it for the filter.
    compliance = values.create_choice_check("pending", "verified", "blocked")
    return {
        "search": (text, _matches_search),
        "name": (text, _matches_name),
        "email": (text, lambda value, recipient: recipient.fields["email"] == value),
        "referenceId": (
            text,
            lambda value, recipient: recipient.fields.get("referenceId") == value,
        ),
        "startDate": (
            _find_utc_date_problem,
            lambda value, recipient: recipient.updated_at >= _parse_timestamp(value),
        ),
        "endDate": (
            _find_utc_date_problem,
            lambda value, recipient: recipient.updated_at <= _parse_timestamp(value),
        ),
        "status": (statuses, lambda value, recipient: recipient.status == value),
        "complianceStatus": (compliance, lambda value, each: each.compliance_status == value),
        "country": (
            _find_countries_problem,
            lambda value, recipient: recipient.address.get("country") in value.split(","),
        ),
        "payoutMethod": (
            methods,
            lambda value, each: bool(each.primary_account and each.primary_account.type == value),
        ),
        "currency": (values.find_currency_problem, _matches_currency),
    }


def _fold_case(value: object) -> str:
    return str(value or "").casefold()


def _matches_search(value: str, recipient: Recipient) -> bool:
    # Section 4.1: by prefix, of the user part and of the domain part.
    texts = [_fold_case(recipient.fields.get(name)) for name in ("name", "email", "referenceId")]
    texts.append(texts[1].rpartition("@")[2])
    return any(text.startswith(value.casefold()) for text in texts)


def _matches_name(value: str, recipient: Recipient) -> bool:
    names = map(recipient.fields.get, ("name", "firstName", "lastName"))
    return any(_fold_case(name).startswith(value.casefold()) for name in names)


def _matches_currency(value: str, recipient: Recipient) -> bool:
    # Section 4.1 filters by "currency of the bank account": of the account that gets payments.
    account = recipient.primary_account
    if account is None or account.type != BANK_TRANSFER:
        return False
    return bool(account.fields["currency"] == value)


def _find_countries_problem(value: str) -> str | None:
    if all(is_country_code(code) for code in value.split(",")):
        return None
    return "Must be ISO 3166-1 alpha-2 codes, separated by commas"


def _find_utc_date_problem(value: str) -> str | None:
    try:
        if DATE_PATTERN.fullmatch(value) and _parse_timestamp(value):
            return None
    except ValueError:
        pass
    return "Must be an ISO 8601 date in UTC"


def _parse_timestamp(value: str) -> datetime:
    """Parses a UTC date; without a time it is midnight."""
    return datetime.fromisoformat(value).replace(tzinfo=UTC)
