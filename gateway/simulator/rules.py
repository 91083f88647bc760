"""Validation of recipients (current interface, sections 2.3 to 2.5 and 4.1)."""

import re
from collections.abc import Mapping
from typing import Any

from gateway.simulator import values
from gateway.simulator.countries import COUNTRIES, government_id_digits
from gateway.simulator.refusals import Problems
from gateway.simulator.values import Check, blank, nullable
from gateway.simulator.wire import JsonObject

ADDRESS: dict[str, Check] = {
    "street1": nullable(values.street),
    "street2": nullable(values.text),
    "city": nullable(values.text),
    "region": nullable(values.text),
    "postalCode": nullable(values.text),
    "country": nullable(lambda value: None if is_country(value) else "Must be ISO 3166-1 alpha-2"),
    "phone": nullable(lambda value: None if value == "" else values.phone(value)),
}

# The create body of section 4.1, without government ids and address, which are checked below.
ON_CREATE: dict[str, Check] = {
    "referenceId": nullable(values.text),
    "type": values.one_of("business", "individual"),
    "name": nullable(values.text),
    "firstName": nullable(values.text),
    "lastName": nullable(values.text),
    "email": values.email,
    "passport": nullable(values.unmasked),
    "dob": nullable(values.day),
    "phone": ADDRESS["phone"],
}

# "Any recipient fields to change": those of section 2.3 that the service does not fill itself.
ON_UPDATE: dict[str, Check] = {
    **ON_CREATE,
    "status": values.one_of("active", "suspended"),
    "language": values.language,
    "placeOfBirth": nullable(values.text),
    "ssn": nullable(values.unmasked),
    "primaryCurrency": values.currency,
    "tags": values.array,
    "contactEmails": values.emails,
}

REQUIRED = {
    "business": ("type", "name", "email"),
    "individual": ("type", "firstName", "lastName", "email"),
}


def is_country(value: Any) -> bool:
    return isinstance(value, str) and value in COUNTRIES


def read_fields(
    problems: Problems, body: Mapping[str, Any], checks: Mapping[str, Check], before: JsonObject
) -> JsonObject:
    """Merge a request into a recipient's previous fields and check them; ignores unknown fields.

    An address is merged field by field; government ids replace all previous ones.
    """
    sent = {name: body[name] for name in checks if name in body}
    after = {**before, **sent}
    missing = _missing(after)
    for name in missing:
        problems.empty(name)
    for name, value in sent.items():
        if name not in missing and (wrong := checks[name](value)):
            problems.invalid(name, wrong)
    _read_address(problems, body, after)
    if "governmentIds" in body:
        after["governmentIds"] = _read_government_ids(problems, body["governmentIds"], after)
    return _named(after)


def _missing(fields: JsonObject) -> list[str]:
    kind = fields.get("type")
    required = REQUIRED.get(kind, ()) if isinstance(kind, str) else ()
    return [name for name in required or ("type", "email") if blank(fields.get(name))]


def _named(fields: JsonObject) -> JsonObject:
    # The service derives the name of an individual (section 2.3).
    if fields.get("type") == "individual":
        fields["name"] = f"{fields.get('firstName')} {fields.get('lastName')}"
    return fields


def _read_address(problems: Problems, body: Mapping[str, Any], after: JsonObject) -> None:
    address = dict(after.get("address") or {})
    sent = body.get("address", {})
    if sent is None:
        address, sent = {}, {}
    if not isinstance(sent, dict):
        problems.invalid("address", "Must be an object")
        return
    inside = problems.within("address.")
    for name, check in ADDRESS.items():
        if name in sent:
            address[name] = sent[name]
            if wrong := check(sent[name]):
                inside.invalid(name, wrong)
    # Section 4.1 has a phone next to the address, section 2.5 in it: both set the same field here.
    phone = after.pop("phone", None)
    if not blank(phone) and "phone" not in sent:
        address["phone"] = phone
    after["address"] = address


def _read_government_ids(problems: Problems, sent: Any, after: JsonObject) -> list[JsonObject]:
    if sent is None:
        return []
    if not isinstance(sent, list):
        problems.invalid("governmentIds", "Must be an array")
        return []
    for position, entry in enumerate(sent):
        inside = problems.within(f"governmentIds[{position}].")
        if isinstance(entry, dict):
            check_government_id(inside, entry, str(after.get("type")))
        else:
            problems.invalid(f"governmentIds[{position}]", "Must be an object")
    return [entry for entry in sent if isinstance(entry, dict)]


def check_government_id(problems: Problems, entry: JsonObject, recipient_type: str) -> None:
    missing = [name for name in ("country", "type", "value") if blank(entry.get(name))]
    for name in missing:
        problems.empty(name)
    if "country" not in missing and not is_country(entry["country"]):
        problems.invalid("country", "Must be ISO 3166-1 alpha-2")
    # Section 2.4 lists SSN, passport and other as "values seen", so other types may exist.
    if "type" not in missing and (wrong := values.text(entry["type"])):
        problems.invalid("type", wrong)
    if "value" not in missing and (wrong := _government_id_value(entry, recipient_type)):
        problems.invalid("value", wrong)


def _government_id_value(entry: JsonObject, recipient_type: str) -> str | None:
    if wrong := values.unmasked(entry["value"]):
        return wrong
    country, kind = entry.get("country"), entry.get("type")
    if not isinstance(country, str) or kind == "passport":
        return None
    bounds = (9, 9) if kind == "SSN" else government_id_digits(country, recipient_type)
    if bounds is None:
        return None
    # Clients may send the usual dots and hyphens; a Chilean RUT may end in K.
    plain = re.sub(r"[ ./-]", "", entry["value"])
    last = "[0-9Kk]" if country == "CL" else "[0-9]"
    if re.fullmatch(f"[0-9]+{last}", plain) and bounds[0] <= len(plain) <= bounds[1]:
        return None
    least, most = bounds
    return f"Must have {least if least == most else f'{least} to {most}'} digits"
