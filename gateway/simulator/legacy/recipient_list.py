"""The list of recipients with its filters and sort orders (section 4.1, List query parameters).

The operation has no error status for parameters: a filter with an unknown word matches nobody, and
an invalid order or date is ignored.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from gateway.simulator.legacy import loose, recipient_views
from gateway.simulator.legacy.names import Names
from gateway.simulator.state import Recipient, iso

Test = Callable[[Recipient], bool]
Question = Callable[[Names, str], Test]
Look = Callable[[Names, Recipient], object]

DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def found(names: Names, query: Mapping[str, str]) -> list[Recipient]:
    """List matching recipients; ignores empty and unknown parameters. Ties are sorted by id."""
    tests = [ask(names, query[name]) for name, ask in QUESTIONS.items() if query.get(name)]
    left = [
        each
        for each in names.world.recipients.values()
        if not each.archived and all(test(each) for test in tests)
    ]
    look = ORDERS.get(query.get("orderBy", ""), ORDERS["createdAt"])
    # Two stable sorts, so that `reverse` does not reverse the order of ties.
    left.sort(key=lambda each: names.shown(each.id))
    left.sort(
        key=lambda each: str(look(names, each) or ""),
        reverse=query.get("sortBy") != "asc",
    )
    return left


def _folded(value: object) -> str:
    return str(value or "").casefold()


def _field(name: str) -> Look:
    return lambda _, each: _folded(each.fields.get(name))


def _address(name: str) -> Look:
    return lambda _, each: _folded(each.address.get(name))


def _payout_currency(_: Names, each: Recipient) -> object:
    return each.primary.fields["currency"] if each.primary else None


ORDERS: dict[str, Look] = {
    "status": lambda _, each: recipient_views.status(each),
    "country": _address("country"),
    "city": _address("city"),
    "name": _field("name"),
    "email": _field("email"),
    "id": lambda names, each: names.shown(each.id),
    "complianceStatus": lambda _, each: recipient_views.compliance_status(each),
    "createdAt": lambda _, each: iso(each.created_at),
    "updatedAt": lambda _, each: iso(each.updated_at),
    "referenceId": _field("referenceId"),
    "type": _field("type"),
    "firstName": _field("firstName"),
    "lastName": _field("lastName"),
    "language": lambda _, each: each.fields.get("language", "en"),
    "dob": _field("dob"),
    "payoutMethod": recipient_views.payout_method,
    "payoutCurrency": _payout_currency,
    "primaryCurrency": _field("primaryCurrency"),
}


def _paid_in(names: Names, value: str) -> Test:
    return lambda each: bool(_payout_currency(names, each) == value.upper())


def _same(look: Look) -> Question:
    return lambda names, value: lambda each: bool(look(names, each) == value)


def _anywhere(_: Names, value: str) -> Test:
    wanted = value.casefold()
    searched = ("name", "email", "referenceId")
    return lambda each: any(wanted in _folded(each.fields.get(name)) for name in searched)


def _in_city(_: Names, value: str) -> Test:
    return lambda each: _folded(each.address.get("city")) == value.casefold()


def _in_country(_: Names, value: str) -> Test:
    code = loose.country(value)
    return lambda each: bool(each.address.get("country") == code)


def _from(_: Names, value: str) -> Test:
    start = moment(value)
    return lambda each: start is None or each.created_at >= start


def _until(_: Names, value: str) -> Test:
    """Create a test for an end date; a date without a time includes the whole day."""
    end = moment(value)
    if end is None:
        return lambda _: True
    if DAY.fullmatch(value):
        return lambda each: each.created_at < end + timedelta(days=1)
    return lambda each: each.created_at <= end


def moment(value: str) -> datetime | None:
    try:
        read = datetime.fromisoformat(value)
    except ValueError:
        return None
    return read.replace(tzinfo=UTC) if read.tzinfo is None else read


QUESTIONS: dict[str, Question] = {
    "search": _anywhere,
    "startDate": _from,
    "endDate": _until,
    "status": _same(ORDERS["status"]),
    "complianceStatus": _same(ORDERS["complianceStatus"]),
    "country": _in_country,
    "city": _in_city,
    "payoutMethod": _same(recipient_views.payout_method),
    "payoutCurrency": _paid_in,
}
