"""Validation of recipients (current interface, sections 2.3 to 2.5 and 4.1)."""

import re
from collections.abc import Mapping
from typing import Any

from gateway.simulator import values
from gateway.simulator.countries import COUNTRIES, find_government_id_digit_range
from gateway.simulator.errors import Problems
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.values import Check, create_nullable_check, is_blank

ADDRESS_CHECKS: dict[str, Check] = {
    "street1": create_nullable_check(values.find_street_problem),
    "street2": create_nullable_check(values.find_text_problem),
    "city": create_nullable_check(values.find_text_problem),
    "region": create_nullable_check(values.find_text_problem),
    "postalCode": create_nullable_check(values.find_text_problem),
    "country": create_nullable_check(
        lambda value: None if is_country_code(value) else "Must be ISO 3166-1 alpha-2"
    ),
    "phone": create_nullable_check(
        lambda value: None if value == "" else values.find_phone_problem(value)
    ),
}

# The create body of section 4.1, without government ids and address, which are checked below.
CREATE_CHECKS: dict[str, Check] = {
    "referenceId": create_nullable_check(values.find_text_problem),
    "type": values.create_choice_check("business", "individual"),
    "name": create_nullable_check(values.find_text_problem),
    "firstName": create_nullable_check(values.find_text_problem),
    "lastName": create_nullable_check(values.find_text_problem),
    "email": values.find_email_problem,
    "passport": create_nullable_check(values.find_mask_problem),
    "dob": create_nullable_check(values.find_date_problem),
    "phone": ADDRESS_CHECKS["phone"],
}

# "Any recipient fields to change": those of section 2.3 that the service does not fill itself.
UPDATE_CHECKS: dict[str, Check] = {
    **CREATE_CHECKS,
    "status": values.create_choice_check("active", "suspended"),
    "language": values.find_language_problem,
    "placeOfBirth": create_nullable_check(values.find_text_problem),
    "ssn": create_nullable_check(values.find_mask_problem),
    "primaryCurrency": values.find_currency_problem,
    "tags": values.find_array_problem,
    "contactEmails": values.find_emails_problem,
}

REQUIRED_FIELDS = {
    "business": ("type", "name", "email"),
    "individual": ("type", "firstName", "lastName", "email"),
}


def is_country_code(value: Any) -> bool:
    return isinstance(value, str) and value in COUNTRIES


def merge_recipient_fields(
    problems: Problems,
    body: Mapping[str, Any],
    checks: Mapping[str, Check],
    previous_fields: JsonObject,
) -> JsonObject:
    """Merges a request into a recipient's previous fields and checks them; ignores unknown fields.

    An address is merged field by field; government ids replace all previous ones.
    """
    sent_fields = {name: body[name] for name in checks if name in body}
    merged_fields = {**previous_fields, **sent_fields}
    # Of the merged fields: a change of the type may make others required.
    missing = _list_missing_fields(merged_fields)
    for name in missing:
        problems.add_empty_field(name)
    for name, value in sent_fields.items():
        if name not in missing and (error := checks[name](value)):
            problems.add_invalid_field(name, error)
    _merge_sent_address(problems, body, merged_fields)
    if "governmentIds" in body:
        merged_fields["governmentIds"] = _parse_government_ids(
            problems, body["governmentIds"], merged_fields
        )
    return _fill_individual_name(merged_fields)


def _list_missing_fields(fields: JsonObject) -> list[str]:
    recipient_type = fields.get("type")
    required = REQUIRED_FIELDS.get(recipient_type, ()) if isinstance(recipient_type, str) else ()
    return [name for name in required or ("type", "email") if is_blank(fields.get(name))]


def _fill_individual_name(fields: JsonObject) -> JsonObject:
    # The service derives the name of an individual (section 2.3).
    if fields.get("type") == "individual":
        fields["name"] = f"{fields.get('firstName')} {fields.get('lastName')}"
    return fields


def _merge_sent_address(
    problems: Problems, body: Mapping[str, Any], merged_fields: JsonObject
) -> None:
    address = dict(merged_fields.get("address") or {})
    sent_fields = body.get("address", {})
    # Null removes the address; a missing field leaves it as it is.
    if sent_fields is None:
        address, sent_fields = {}, {}
    if not isinstance(sent_fields, dict):
        problems.add_invalid_field("address", "Must be an object")
        return
    nested_problems = problems.create_nested_view("address.")
    for name, check in ADDRESS_CHECKS.items():
        if name in sent_fields:
            address[name] = sent_fields[name]
            if error := check(sent_fields[name]):
                nested_problems.add_invalid_field(name, error)
    # Section 4.1 has a phone next to the address, section 2.5 in it: both set the same field here.
    phone = merged_fields.pop("phone", None)
    if not is_blank(phone) and "phone" not in sent_fields:
        address["phone"] = phone
    merged_fields["address"] = address


def _parse_government_ids(
    problems: Problems, sent_fields: Any, merged_fields: JsonObject
) -> list[JsonObject]:
    if sent_fields is None:
        return []
    if not isinstance(sent_fields, list):
        problems.add_invalid_field("governmentIds", "Must be an array")
        return []
    for position, government_id in enumerate(sent_fields):
        nested_problems = problems.create_nested_view(f"governmentIds[{position}].")
        if isinstance(government_id, dict):
            check_government_id(nested_problems, government_id, str(merged_fields.get("type")))
        else:
            problems.add_invalid_field(f"governmentIds[{position}]", "Must be an object")
    return [government_id for government_id in sent_fields if isinstance(government_id, dict)]


def check_government_id(problems: Problems, government_id: JsonObject, recipient_type: str) -> None:
    missing = [name for name in ("country", "type", "value") if is_blank(government_id.get(name))]
    for name in missing:
        problems.add_empty_field(name)
    if "country" not in missing and not is_country_code(government_id["country"]):
        problems.add_invalid_field("country", "Must be ISO 3166-1 alpha-2")
    # Section 2.4 lists SSN, passport and other as "values seen", so other types may exist.
    if "type" not in missing and (error := values.find_text_problem(government_id["type"])):
        problems.add_invalid_field("type", error)
    if "value" not in missing and (
        error := _find_government_id_problem(government_id, recipient_type)
    ):
        problems.add_invalid_field("value", error)


def _find_government_id_problem(government_id: JsonObject, recipient_type: str) -> str | None:
    if error := values.find_mask_problem(government_id["value"]):
        return error
    country, id_type = government_id.get("country"), government_id.get("type")
    if not isinstance(country, str) or id_type == "passport":
        return None
    digit_range = (
        (9, 9) if id_type == "SSN" else find_government_id_digit_range(country, recipient_type)
    )
    if digit_range is None:
        return None
    # Clients may send the usual dots and hyphens; a Chilean RUT may end in K.
    unpunctuated = re.sub(r"[ ./-]", "", government_id["value"])
    last_character = "[0-9Kk]" if country == "CL" else "[0-9]"
    if (
        re.fullmatch(f"[0-9]+{last_character}", unpunctuated)
        and digit_range[0] <= len(unpunctuated) <= digit_range[1]
    ):
        return None
    min_digits, max_digits = digit_range
    return f"Must have {min_digits if min_digits == max_digits else f'{min_digits} to {max_digits}'} digits"
