"""The list of recipients with its filters and sort orders (section 4.1, List query parameters).

The operation has no error status for parameters: a filter with an unknown word matches nobody, and
an invalid order or date is ignored.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from gateway.simulator.legacy import lenient, recipient_views
from gateway.simulator.legacy.id_mapper import IdMapper
from gateway.simulator.state import Recipient, format_timestamp

RecipientTest = Callable[[Recipient], bool]
CreateTest = Callable[[IdMapper, str], RecipientTest]
ReadValue = Callable[[IdMapper, Recipient], object]

DATE_PATTERN = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def filter_recipients(id_mapper: IdMapper, query: Mapping[str, str]) -> list[Recipient]:
    """Lists matching recipients; ignores empty and unknown parameters. Ties are sorted by id."""
    tests = [
        create_test(id_mapper, query[name])
        for name, create_test in FILTERS.items()
        if query.get(name)
    ]
    matches = [
        recipient
        for recipient in id_mapper.tenant.recipients.values()
        if not recipient.is_archived and all(test(recipient) for test in tests)
    ]
    read_value = SORT_KEYS.get(query.get("orderBy", ""), SORT_KEYS["createdAt"])
    # Two stable sorts, so that `reverse` does not reverse the order of ties.
    matches.sort(key=lambda recipient: id_mapper.build_client_id(recipient.id))
    matches.sort(
        key=lambda recipient: str(read_value(id_mapper, recipient) or ""),
        reverse=query.get("sortBy") != "asc",
    )
    return matches


def _fold_case(value: object) -> str:
    return str(value or "").casefold()


def _create_field_reader(name: str) -> ReadValue:
    return lambda _, recipient: _fold_case(recipient.fields.get(name))


def _create_address_field_reader(name: str) -> ReadValue:
    return lambda _, recipient: _fold_case(recipient.address.get(name))


def _find_payout_currency(_: IdMapper, recipient: Recipient) -> object:
    return recipient.primary_account.fields["currency"] if recipient.primary_account else None


SORT_KEYS: dict[str, ReadValue] = {
    "status": lambda _, recipient: recipient_views.translate_status(recipient),
    "country": _create_address_field_reader("country"),
    "city": _create_address_field_reader("city"),
    "name": _create_field_reader("name"),
    "email": _create_field_reader("email"),
    "id": lambda id_mapper, recipient: id_mapper.build_client_id(recipient.id),
    "complianceStatus": lambda _, recipient: recipient_views.translate_compliance_status(recipient),
    "createdAt": lambda _, recipient: format_timestamp(recipient.created_at),
    "updatedAt": lambda _, recipient: format_timestamp(recipient.updated_at),
    "referenceId": _create_field_reader("referenceId"),
    "type": _create_field_reader("type"),
    "firstName": _create_field_reader("firstName"),
    "lastName": _create_field_reader("lastName"),
    "language": lambda _, recipient: recipient.fields.get("language", "en"),
    "dob": _create_field_reader("dob"),
    "payoutMethod": recipient_views.find_payout_method,
    "payoutCurrency": _find_payout_currency,
    "primaryCurrency": _create_field_reader("primaryCurrency"),
}


def _create_currency_predicate(id_mapper: IdMapper, value: str) -> RecipientTest:
    return lambda recipient: bool(_find_payout_currency(id_mapper, recipient) == value.upper())


def _create_equality_predicate(read_value: ReadValue) -> CreateTest:
    return lambda id_mapper, value: (
        lambda recipient: bool(read_value(id_mapper, recipient) == value)
    )


def _create_search_predicate(_: IdMapper, value: str) -> RecipientTest:
    search_text = value.casefold()
    search_fields = ("name", "email", "referenceId")
    return lambda recipient: any(
        search_text in _fold_case(recipient.fields.get(name)) for name in search_fields
    )


def _create_city_predicate(_: IdMapper, value: str) -> RecipientTest:
    return lambda recipient: _fold_case(recipient.address.get("city")) == value.casefold()


def _create_country_predicate(_: IdMapper, value: str) -> RecipientTest:
    # Clients send two- and three-letter codes in any case.
    code = lenient.normalize_country(value)
    return lambda recipient: bool(recipient.address.get("country") == code)


def _create_start_date_predicate(_: IdMapper, value: str) -> RecipientTest:
    start = parse_date(value)
    return lambda recipient: start is None or recipient.created_at >= start


def _create_end_date_predicate(_: IdMapper, value: str) -> RecipientTest:
    """Creates a test for an end date; a date without a time includes the whole day."""
    end = parse_date(value)
    if end is None:
        return lambda _: True
    if DATE_PATTERN.fullmatch(value):
        return lambda recipient: recipient.created_at < end + timedelta(days=1)
    return lambda recipient: recipient.created_at <= end


def parse_date(value: str) -> datetime | None:
    try:
        parsed_date = datetime.fromisoformat(value)
    except ValueError:
        return None
    # Without an offset: the document has all dates in UTC.
    return parsed_date.replace(tzinfo=UTC) if parsed_date.tzinfo is None else parsed_date


FILTERS: dict[str, CreateTest] = {
    "search": _create_search_predicate,
    "startDate": _create_start_date_predicate,
    "endDate": _create_end_date_predicate,
    "status": _create_equality_predicate(SORT_KEYS["status"]),
    "complianceStatus": _create_equality_predicate(SORT_KEYS["complianceStatus"]),
    "country": _create_country_predicate,
    "city": _create_city_predicate,
    "payoutMethod": _create_equality_predicate(recipient_views.find_payout_method),
    "payoutCurrency": _create_currency_predicate,
}
