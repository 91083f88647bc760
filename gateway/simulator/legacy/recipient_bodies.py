"""Parsing of recipients in request bodies (section 4.1)."""

from gateway.simulator import validation
from gateway.simulator.errors import Problems
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy import lenient
from gateway.simulator.recipients import ADDRESS_CHECKS, UPDATE_CHECKS, merge_recipient_fields
from gateway.simulator.state import LegacyStatus

COPIED_FIELDS = (
    "referenceId", "type", "name", "firstName", "lastName", "email", "passport", "dob", "language",
)  # fmt: skip

# Section 3: statuses that a client may set, with the service's status and the word to show.
STATUS_CHOICES: dict[str, tuple[str, LegacyStatus | None]] = {
    "active": ("active", None),
    "inactive": ("active", "inactive"),
    "disabled": ("suspended", "disabled"),
    "suspended": ("suspended", None),
}


def parse_recipient(
    problems: Problems, body: JsonObject, previous_fields: JsonObject
) -> tuple[JsonObject, set[str]]:
    """Returns the merged fields and the names of those that the request contains."""
    sent_fields: JsonObject = {name: body[name] for name in COPIED_FIELDS if name in body}
    for name in ("currency", "primaryCurrency"):
        if body.get(name) is None:  # Responses show null if there is none.
            continue
        code = lenient.normalize_currency(body[name])
        if "primaryCurrency" in sent_fields:
            problems.check(name, code, validation.find_currency_problem)
        sent_fields.setdefault("primaryCurrency", code)
    if "address" in body:
        sent_fields["address"] = _parse_address(problems, body)
    nested_problems = Problems()
    fields = merge_recipient_fields(nested_problems, sent_fields, UPDATE_CHECKS, previous_fields)
    currency_field = "currency" if body.get("currency") is not None else "primaryCurrency"
    lenient.translate_problems(problems, nested_problems, {"primaryCurrency": currency_field})
    return fields, set(sent_fields)


def _parse_address(problems: Problems, body: JsonObject) -> JsonObject | None:
    if body["address"] is None:
        return None  # Removes the whole address.
    sent_address = lenient.parse_object(problems, body, "address")
    address = {name: sent_address[name] for name in ADDRESS_CHECKS if name in sent_address}
    if "country" in address:
        address["country"] = lenient.normalize_country(address["country"])
    return address


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
