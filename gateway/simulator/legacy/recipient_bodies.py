"""Parsing of recipients and government ids in request bodies (sections 2, 4.1 and 4.2)."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.simulator import validation
from gateway.simulator.legacy import lenient
from gateway.simulator.legacy.views import (
    SSN_COUNTRY,
    mask_recipient_ssn,
    select_government_id_type,
)
from gateway.simulator.recipients import (
    ADDRESS_CHECKS,
    UPDATE_CHECKS,
    check_government_id,
    merge_recipient_fields,
)
from gateway.simulator.state import LegacyStatus
from gateway.simulator.validation import JsonObject, Problems

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


@dataclass(frozen=True)
class SentId:
    """An id that a request contains in a field of its own; problems are reported for the field."""

    problems: Problems
    field: str
    country: str
    value: object

    def build_checked_entry(self, recipient_type: str) -> JsonObject:
        entry = {
            "country": self.country,
            "type": select_government_id_type(self.country),
            "value": self.value,
        }
        nested_problems = Problems()
        check_government_id(nested_problems, entry, recipient_type)
        for problem in nested_problems.collected:
            if problem.field == "value":  # The account's own rules report a wrong country.
                self.problems.add_problem(problem.code, self.field, problem.message)
        return entry


def parse_ssn(problems: Problems, body: JsonObject, recipient: JsonObject) -> list[SentId]:
    """Parses a US SSN without spaces and hyphens; the shown value counts as no change."""
    value = body.get("ssn")
    if value is None or value == mask_recipient_ssn(recipient):
        return []
    if isinstance(value, str) and {" ", "-"}.intersection(value):
        problems.add_invalid_field("ssn", "Must be without spaces and hyphens")
        return []
    return [SentId(problems, "ssn", SSN_COUNTRY, value)]


def replace_government_ids(recipient: JsonObject, sent_ids: Iterable[SentId]) -> bool:
    """Replaces all ids of a recipient by those in a request. Returns whether it has any."""
    ids, entries = list(sent_ids), dict[str, JsonObject]()
    if not ids:
        return False
    for sent_id in ids:
        # A recipient has one US id. An SSN that is malformed is refused anyway.
        ssn = str(entries[sent_id.country]["value"]) if sent_id.country in entries else ""
        if ssn != sent_id.value and re.fullmatch(r"[0-9]{9}|.*\*.*", ssn):
            sent_id.problems.add_invalid_field(sent_id.field, "Is not the ssn sent with it")
        else:
            entries[sent_id.country] = sent_id.build_checked_entry(str(recipient.get("type")))
    # The service replaces all ids together, and responses show them masked: a client cannot repeat
    # the id of another country, which would be lost.
    previous_ids = recipient.get("governmentIds", [])
    others = [entry for entry in previous_ids if entry["country"] not in entries]
    problems, field = ids[0].problems, ids[0].field
    if others and not problems.has_problem_of(field):
        problems.add_invalid_field(field, "Recipient has a government id of another country")
    recipient["governmentIds"] = [*others, *entries.values()]
    return True
