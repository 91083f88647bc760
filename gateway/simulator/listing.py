"""The list of recipients with its filters and sort orders (current interface, section 4.1)."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gateway.simulator import values, views
from gateway.simulator.account_rules import BANK, CHECK
from gateway.simulator.paging import read_page
from gateway.simulator.refusals import Problems
from gateway.simulator.rules import is_country
from gateway.simulator.state import Recipient, World
from gateway.simulator.values import Check
from gateway.simulator.wire import JsonObject

Test = Callable[[Recipient], bool]

DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z)?")

ORDERS: dict[str, Callable[[Recipient], Any]] = {
    "name": lambda each: _folded(each.fields["name"]),
    "email": lambda each: _folded(each.fields["email"]),
    "referenceId": lambda each: _folded(each.fields.get("referenceId")),
    "payoutMethod": lambda each: each.primary.type if each.primary else "",
    "createdAt": lambda each: each.created_at,
    "updatedAt": lambda each: each.updated_at,
}


@dataclass(frozen=True)
class Filter:
    """A query parameter: a check of its value, and the test for recipients that it creates."""

    check: Check
    test: Callable[[str], Test]


def recipients(world: World, query: Mapping[str, str]) -> JsonObject:
    """List recipients; empty and unknown parameters are ignored. Raises ApiError.

    The document does not show the order without `orderBy`: here the last updated come first. Ties
    are sorted by id.
    """
    problems = Problems()
    page = read_page(problems, query, world.switches.max_page_size)
    tests = _read_filters(problems, query, _filters(world))
    order = _read_word(problems, query, "orderBy", tuple(ORDERS), "updatedAt")
    direction = _read_word(problems, query, "sortBy", ("asc", "desc"), "desc")
    problems.refuse_if_any()
    if not (world.switches.lists_archived or _asks_for_archived(world, query)):
        tests.append(lambda each: not each.archived)
    found = [each for each in world.recipients.values() if all(test(each) for test in tests)]
    # Two stable sorts, so that `reverse` does not reverse the order of ties.
    found.sort(key=lambda each: each.id)
    found.sort(key=ORDERS[order], reverse=direction == "desc")
    return {
        "recipients": [views.recipient(world, each) for each in page.of(found)],
        "meta": page.meta(len(found)),
    }


def _asks_for_archived(world: World, query: Mapping[str, str]) -> bool:
    return world.switches.filters_archived and query.get("status") == "archived"


def _read_filters(
    problems: Problems, query: Mapping[str, str], filters: Mapping[str, Filter]
) -> list[Test]:
    tests = []
    for name, asked in filters.items():
        value = query.get(name, "")
        if value == "":
            continue
        if wrong := asked.check(value):
            problems.invalid(name, wrong)
        else:
            tests.append(asked.test(value))
    if query.get("payoutMethod") == BANK and not query.get("currency"):
        problems.empty("currency")
    return tests


def _read_word(
    problems: Problems, query: Mapping[str, str], name: str, words: tuple[str, ...], default: str
) -> str:
    value = query.get(name) or default
    if wrong := values.one_of(*words)(value):
        problems.invalid(name, wrong)
    return value


def _filters(world: World) -> dict[str, Filter]:
    methods = values.one_of(world.words.wallet, BANK, CHECK)
    return {
        "search": Filter(values.text, _search),
        "name": Filter(values.text, _named),
        "email": Filter(values.text, lambda value: lambda each: each.fields["email"] == value),
        "referenceId": Filter(
            values.text, lambda value: lambda each: each.fields.get("referenceId") == value
        ),
        "startDate": Filter(_date, lambda value: lambda each: each.updated_at >= _moment(value)),
        "endDate": Filter(_date, lambda value: lambda each: each.updated_at <= _moment(value)),
        "status": Filter(
            values.one_of("active", "incomplete", "suspended", "archived"),
            lambda value: lambda each: each.status == value,
        ),
        # `review` is a compliance status, but the document does not list it for the filter.
        "complianceStatus": Filter(
            values.one_of("pending", "verified", "blocked"),
            lambda value: lambda each: each.compliance_status == value,
        ),
        "country": Filter(_countries, _in_countries),
        "payoutMethod": Filter(
            methods,
            lambda value: lambda each: each.primary is not None and each.primary.type == value,
        ),
        "currency": Filter(values.currency, _paid_in),
    }


def _folded(value: object) -> str:
    return str(value or "").casefold()


def _search(value: str) -> Test:
    prefix = value.casefold()

    def test(each: Recipient) -> bool:
        email = _folded(each.fields["email"])
        searched = (
            _folded(each.fields["name"]),
            email,
            email.rpartition("@")[2],
            _folded(each.fields.get("referenceId")),
        )
        return any(text.startswith(prefix) for text in searched)

    return test


def _named(value: str) -> Test:
    prefix = value.casefold()
    return lambda each: any(
        _folded(each.fields.get(name)).startswith(prefix)
        for name in ("name", "firstName", "lastName")
    )


def _countries(value: str) -> str | None:
    if all(is_country(code) for code in value.split(",")):
        return None
    return "Must be ISO 3166-1 alpha-2 codes, separated by commas"


def _in_countries(value: str) -> Test:
    codes = frozenset(value.split(","))
    return lambda each: each.address.get("country") in codes


def _paid_in(value: str) -> Test:
    # Section 4.1 filters by "currency of the bank account": of the account that gets payments.
    return lambda each: (
        each.primary is not None
        and each.primary.type == BANK
        and each.primary.fields["currency"] == value
    )


def _date(value: str) -> str | None:
    try:
        if DATE.fullmatch(value) and _moment(value):
            return None
    except ValueError:
        pass
    return "Must be an ISO 8601 date in UTC"


def _moment(value: str) -> datetime:
    """Parse a UTC date; without a time it is midnight."""
    return datetime.fromisoformat(value).replace(tzinfo=UTC)
