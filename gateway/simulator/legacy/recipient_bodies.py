"""Parsing of recipients in request bodies (section 4.1)."""

from collections.abc import Callable
from functools import partial

from gateway.simulator import values
from gateway.simulator.accounts import BANK_TRANSFER
from gateway.simulator.errors import Problems
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy import government_ids, lenient
from gateway.simulator.legacy.lenient import translate_problems
from gateway.simulator.legacy.views import find_visible_account
from gateway.simulator.recipients import UPDATE_CHECKS, merge_recipient_fields
from gateway.simulator.state import LegacyStatus, Recipient

COPIED_FIELDS = (
    "referenceId", "type", "name", "firstName", "lastName", "email", "passport", "dob", "language",
)  # fmt: skip
ADDRESS_FIELDS = ("street1", "street2", "city", "region", "postalCode", "country", "phone")

# Section 3: statuses that a client may set, with the service's status and the word to show.
STATUS_CHOICES: dict[str, tuple[str, LegacyStatus | None]] = {
    "active": ("active", None),
    "inactive": ("active", "inactive"),
    "disabled": ("suspended", "disabled"),
    "suspended": ("suspended", None),
}

UpdateGovernmentIds = Callable[..., list[JsonObject] | None]


def parse_new_recipient(problems: Problems, body: JsonObject) -> JsonObject:
    # Null means that a new recipient does not have the field.
    given_fields = {name: value for name, value in body.items() if value is not None}
    fields = _parse_fields(problems, _translate_fields(problems, given_fields), body, {})
    if ids := _parse_ssn_into_government_ids(
        problems, body, fields, government_ids.list_government_ids_after_adding
    ):
        fields["governmentIds"] = ids
    return fields


def parse_recipient_change(
    problems: Problems, body: JsonObject, recipient: Recipient
) -> tuple[JsonObject, set[str]]:
    """Returns the merged fields and the names of those that the request contains."""
    service_fields = _translate_fields(problems, body)
    fields = _parse_fields(problems, service_fields, body, recipient.fields)
    replace_ids = partial(
        government_ids.list_government_ids_after_replacing,
        other_country=_find_new_government_id_country(body, recipient),
    )
    if ids := _parse_ssn_into_government_ids(problems, body, recipient.fields, replace_ids):
        service_fields["governmentIds"] = fields["governmentIds"] = ids
    return fields, set(service_fields)


def _find_new_government_id_country(body: JsonObject, recipient: Recipient) -> str | None:
    """Returns the country of the request's bank account if it has a new government id."""
    bank: object = body
    for name in ("payout", "accounts", "bank"):
        bank = bank.get(name) if isinstance(bank, dict) else None
    if not isinstance(bank, dict) or bank.get("governmentId") is None:
        return None
    current_account = find_visible_account(recipient, BANK_TRANSFER)
    country = str(
        lenient.normalize_country(bank.get("country"))
        or (current_account and current_account.fields.get("country"))
    )
    # A masked id that is sent back changes nothing.
    is_new = bank["governmentId"] != government_ids.mask_recipient_government_id(
        recipient.fields, country
    )
    return country if is_new else None


def parse_status_change(problems: Problems, body: JsonObject, current_status: str) -> str | None:
    """Returns a status to set, or None."""
    # Clients send whole objects back, so the current status is not a change.
    status = body.get("status")
    if status in (None, current_status, "incomplete"):
        return None
    if isinstance(status, str) and status in STATUS_CHOICES:
        return status
    problems.add_invalid_field("status", f"Must be one of: {', '.join(STATUS_CHOICES)}")
    return None


def _parse_fields(
    problems: Problems, service_fields: JsonObject, body: JsonObject, previous_fields: JsonObject
) -> JsonObject:
    nested_problems = Problems()
    fields = merge_recipient_fields(nested_problems, service_fields, UPDATE_CHECKS, previous_fields)
    currency_field = "currency" if body.get("currency") is not None else "primaryCurrency"
    translate_problems(problems, nested_problems, {"primaryCurrency": currency_field})
    return fields


def _translate_fields(problems: Problems, body: JsonObject) -> JsonObject:
    service_fields: JsonObject = {name: body[name] for name in COPIED_FIELDS if name in body}
    for name in ("currency", "primaryCurrency"):
        if body.get(name) is None:  # Responses show null if there is none.
            continue
        code = lenient.normalize_currency(body[name])
        if "primaryCurrency" in service_fields and (error := values.find_currency_problem(code)):
            problems.add_invalid_field(name, error)
        service_fields.setdefault("primaryCurrency", code)
    if "address" in body:
        service_fields["address"] = _parse_address(problems, body)
    return service_fields


def _parse_address(problems: Problems, body: JsonObject) -> JsonObject | None:
    if body["address"] is None:
        return None  # Removes the whole address.
    address = lenient.parse_object(problems, body, "address")
    address_fields = {name: address[name] for name in ADDRESS_FIELDS if name in address}
    if "country" in address_fields:
        address_fields["country"] = lenient.normalize_country(address_fields["country"])
    return address_fields


def _parse_ssn_into_government_ids(
    problems: Problems, body: JsonObject, fields: JsonObject, update_ids: UpdateGovernmentIds
) -> list[JsonObject] | None:
    """Parses a US SSN without spaces and hyphens; the current value counts as no change."""
    value = body.get("ssn")
    if value is None or value == government_ids.mask_recipient_ssn(fields):
        return None
    if isinstance(value, str) and {" ", "-"}.intersection(value):
        problems.add_invalid_field("ssn", "Must be without spaces and hyphens")
        return None
    return update_ids(problems, "ssn", value, government_ids.SSN_COUNTRY, fields)
