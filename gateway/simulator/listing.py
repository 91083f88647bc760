"""The list of recipients with its filters and sort orders (current interface, section 4.1)."""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from gateway.simulator import validation, views
from gateway.simulator.accounts import BANK_TRANSFER, CHECK
from gateway.simulator.countries import is_country_code
from gateway.simulator.requests import parse_page
from gateway.simulator.state import Recipient, Tenant
from gateway.simulator.validation import Check, JsonObject, Problems

Filter = tuple[Check, Callable[[str, Recipient], bool]]
"""A check of a query parameter, and the test of a recipient by its value."""

DATE_PATTERN = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z)?"
)

SORT_KEYS: dict[str, Callable[[Recipient], Any]] = {
    "name": lambda each: _fold_case(each.fields["name"]),
    "email": lambda each: _fold_case(each.fields["email"]),
    "referenceId": lambda each: _fold_case(each.fields.get("referenceId")),
    "payoutMethod": lambda each: each.primary_account.type if each.primary_account else "",
    "createdAt": lambda each: each.created_at,
    "updatedAt": lambda each: each.updated_at,
}


def list_recipients(tenant: Tenant, query: Mapping[str, str]) -> JsonObject:
    """Lists recipients; empty and unknown parameters are ignored. Raises ApiError.

    The document does not show the order without `orderBy`: here the last updated come first. Ties
    are sorted by id.
    """
    problems = Problems()
    page = parse_page(problems, query, tenant.options.max_page_size)
    given = {name: value for name, value in query.items() if value}
    tests: list[Callable[[Recipient], bool]] = []
    for name, (find_problem, matches) in _build_filters_by_parameter(tenant).items():
        if name in given:
            problems.check(name, given[name], find_problem)
            tests.append(partial(matches, given[name]))
    # Section 4.1: the currency is required with this filter.
    if given.get("payoutMethod") == BANK_TRANSFER and "currency" not in given:
        problems.add_empty_field("currency")
    problems.raise_if_any()
    is_archived_requested = tenant.options.filters_archived and query.get("status") == "archived"
    if not (tenant.options.lists_archived or is_archived_requested):
        tests.append(lambda recipient: not recipient.is_archived)
    matching = [each for each in tenant.recipients.values() if all(test(each) for test in tests)]
    # Two stable sorts, so that `reverse` does not reverse the order of ties.
    matching.sort(key=lambda recipient: recipient.id)
    sort_key = SORT_KEYS[given.get("orderBy", "updatedAt")]
    matching.sort(key=sort_key, reverse=given.get("sortBy") != "asc")
    return page.build("recipients", matching, partial(views.build_recipient, tenant))


def _build_filters_by_parameter(tenant: Tenant) -> dict[str, Filter]:
    text, date = validation.find_text_problem, _find_utc_date_problem
    methods = validation.create_choice_check(tenant.vocabulary.wallet, BANK_TRANSFER, CHECK)
    statuses = validation.create_choice_check("active", "incomplete", "suspended", "archived")
    # `review` is a compliance status, but the document does not list it for the filter.
    compliance = validation.create_choice_check("pending", "verified", "blocked")
    return {
        "search": (text, _matches_search),
        "name": (text, _matches_name),
        "email": (text, lambda value, each: each.fields["email"] == value),
        "referenceId": (text, lambda value, each: each.fields.get("referenceId") == value),
        "startDate": (date, lambda value, each: each.updated_at >= _parse_timestamp(value)),
        "endDate": (date, lambda value, each: each.updated_at <= _parse_timestamp(value)),
        "status": (statuses, lambda value, each: each.status == value),
        "complianceStatus": (compliance, lambda value, each: each.compliance_status == value),
        "country": (
            _find_countries_problem,
            lambda value, each: each.address.get("country") in value.split(","),
        ),
        "payoutMethod": (methods, lambda value, each: SORT_KEYS["payoutMethod"](each) == value),
        "currency": (validation.find_currency_problem, _matches_currency),
        "orderBy": (validation.create_choice_check(*SORT_KEYS), lambda *_: True),
        "sortBy": (validation.create_choice_check("asc", "desc"), lambda *_: True),
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
    is_bank_account = account is not None and account.type == BANK_TRANSFER
    return bool(account and is_bank_account and account.fields["currency"] == value)


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
