"""Recipients: their validation and changes (current interface, sections 2.3 to 2.5, 3 and 4.1)."""

import re
from collections.abc import Iterable, Mapping

from gateway.simulator import validation
from gateway.simulator.accounts import BANK_TRANSFER, CHECK, MOBILE_WALLET, is_government_id_missing
from gateway.simulator.countries import (
    PHONE_COUNTRIES,
    find_country_problem,
    find_government_id_digit_range,
)
from gateway.simulator.state import Recipient, Tenant
from gateway.simulator.validation import (
    Check,
    JsonObject,
    Problems,
    build_invalid_status_error,
    create_nullable_check,
    is_blank,
)

TEXT = create_nullable_check(validation.find_text_problem)

ADDRESS_CHECKS: dict[str, Check] = {
    "street1": create_nullable_check(validation.find_street_problem),
    **dict.fromkeys(("street2", "city", "region", "postalCode"), TEXT),
    "country": create_nullable_check(find_country_problem),
    "phone": create_nullable_check(
        lambda value: None if value == "" else validation.find_phone_problem(value)
    ),
}

# The create body of section 4.1, without government ids and address, which are checked below.
CREATE_CHECKS: dict[str, Check] = {
    **dict.fromkeys(("referenceId", "name", "firstName", "lastName"), TEXT),
    "type": validation.create_choice_check("business", "individual"),
    "email": validation.find_email_problem,
    "passport": create_nullable_check(validation.find_mask_problem),
    "dob": create_nullable_check(validation.find_date_problem),
    "phone": ADDRESS_CHECKS["phone"],
}

# "Any recipient fields to change": those of section 2.3 that the service does not fill itself.
UPDATE_CHECKS: dict[str, Check] = {
    **CREATE_CHECKS,
    "status": validation.create_choice_check("active", "suspended"),
    "language": validation.find_language_problem,
    "placeOfBirth": TEXT,
    "ssn": create_nullable_check(validation.find_mask_problem),
    "primaryCurrency": validation.find_currency_problem,
    **dict.fromkeys(("tags", "contactEmails"), validation.find_array_problem),
}

REQUIRED_FIELDS = {
    "business": ("type", "name", "email"),
    "individual": ("type", "firstName", "lastName", "email"),
}


def merge_recipient_fields(
    problems: Problems,
    body: JsonObject,
    checks: Mapping[str, Check],
    previous_fields: JsonObject,
) -> JsonObject:
    """Merges a request into a recipient's previous fields and checks them; ignores unknown fields.

    An address is merged field by field; government ids replace all previous ones.
    """
    sent_fields = {name: body[name] for name in checks if name in body}
    merged_fields = {**previous_fields, **sent_fields}
    # Of the merged fields: a change of the type may make others required.
    required = REQUIRED_FIELDS.get(str(merged_fields.get("type")), ("type", "email"))
    missing = [name for name in required if is_blank(merged_fields.get(name))]
    for name in missing:
        problems.add_empty_field(name)
    for name, value in sent_fields.items():
        if name not in missing:
            problems.check(name, value, checks[name])
    _merge_sent_address(problems, body, merged_fields)
    if "governmentIds" in body:
        merged_fields["governmentIds"] = []
        for nested_problems, government_id in problems.iter_objects(body, "governmentIds"):
            check_government_id(nested_problems, government_id, str(merged_fields.get("type")))
            merged_fields["governmentIds"].append(government_id)
    # The service derives the name of an individual (section 2.3).
    if merged_fields.get("type") == "individual":
        first_name, last_name = merged_fields.get("firstName"), merged_fields.get("lastName")
        merged_fields["name"] = f"{first_name} {last_name}"
    return merged_fields


def _merge_sent_address(problems: Problems, body: JsonObject, merged_fields: JsonObject) -> None:
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
            nested_problems.check(name, sent_fields[name], check)
    # Section 4.1 has a phone next to the address, section 2.5 in it: both set the same field here.
    phone = merged_fields.pop("phone", None)
    if not is_blank(phone) and "phone" not in sent_fields:
        address["phone"] = phone
    merged_fields["address"] = address


def check_government_id(problems: Problems, government_id: JsonObject, recipient_type: str) -> None:
    checks: dict[str, Check] = {
        "country": find_country_problem,
        # Section 2.4 lists SSN, passport and other as "values seen", so other types may exist.
        "type": validation.find_text_problem,
        "value": lambda _: _find_government_id_problem(government_id, recipient_type),
    }
    for name, find_problem in checks.items():
        problems.check_required(name, government_id.get(name), find_problem)


def _find_government_id_problem(government_id: JsonObject, recipient_type: str) -> str | None:
    if error := validation.find_mask_problem(government_id["value"]):
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
    return f"Must have {' to '.join(map(str, dict.fromkeys(digit_range)))} digits"


def build_draft_recipient(tenant: Tenant, fields: JsonObject) -> Recipient:
    """Builds a recipient without an id: the request may be refused."""
    now = tenant.now()
    return Recipient("", fields, created_at=now, updated_at=now)


def insert_recipient(tenant: Tenant, recipient: Recipient) -> None:
    recipient.id = tenant.create_id("R-", tenant.options.recipient_id_length)
    tenant.recipients[recipient.id] = recipient
    refresh_status(recipient)


def apply_recipient_fields(
    tenant: Tenant, recipient: Recipient, fields: JsonObject, sent_names: Iterable[str]
) -> None:
    """Stores `fields` from `merge_recipient_fields`; `sent_names` are those in the request."""
    # A recipient has its status in an attribute, not among its fields.
    status = fields.pop("status", None)
    recipient.fields = fields
    recipient.updated_at = tenant.now()
    if status is not None:
        set_status(recipient, status)
    elif {"address", "phone", "governmentIds", "type"}.intersection(sent_names):
        refresh_status(recipient)


def record_account_change(tenant: Tenant, recipient: Recipient) -> None:
    recipient.updated_at = tenant.now()
    refresh_status(recipient)


def check_not_archived(recipient: Recipient) -> None:
    if recipient.is_archived:
        raise build_invalid_status_error("Recipient is archived")


def archive_recipients(tenant: Tenant, recipients: Iterable[Recipient]) -> None:
    for recipient in recipients:
        set_status(recipient, "archived")
        recipient.updated_at = tenant.now()


def refresh_status(recipient: Recipient) -> None:
    """Sets `incomplete` or `active` by the recipient's data; a status set by a client stays."""
    if recipient.status in ("incomplete", "active"):
        set_status(recipient, "active" if is_recipient_payable(recipient) else "incomplete")


def set_status(recipient: Recipient, status: str) -> None:
    # The legacy interface's own word belongs to the previous status.
    if status != recipient.status:
        recipient.legacy_status = None
    recipient.status = status


def is_recipient_payable(recipient: Recipient) -> bool:
    """Whether a recipient has all data that payments need (section 1, item 6).

    Bank transfers also need the data of sections 2.4 and 2.5. Payments to a wallet need no address
    (legacy interface, section 3).
    """
    address, primary = recipient.address, recipient.primary_account
    if primary is None:
        return False
    if primary.type not in (BANK_TRANSFER, CHECK, MOBILE_WALLET):
        return True
    countries = [
        account.fields["country"] for account in recipient.accounts if account.type == BANK_TRANSFER
    ]
    required = ["country", *(("street1", "city") if countries else ())]
    if PHONE_COUNTRIES.intersection(countries):
        required.append("phone")
    return not any(is_blank(address.get(name)) for name in required) and not any(
        is_government_id_missing(recipient.fields, country) for country in countries
    )
