"""Government ids: `ssn` of a recipient, `governmentId` of a bank account (sections 2, 4.2)."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.simulator.errors import Problems
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.recipients import check_government_id
from gateway.simulator.validation import mask_value

SSN_COUNTRY = "US"


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
            "type": _select_government_id_type(self.country),
            "value": self.value,
        }
        nested_problems = Problems()
        check_government_id(nested_problems, entry, recipient_type)
        for problem in nested_problems.collected:
            if problem.field == "value":  # The account's own rules report a wrong country.
                self.problems.add_problem(problem.code, self.field, problem.message)
        return entry


def mask_recipient_government_id(recipient: JsonObject, country: str | None) -> str | None:
    """Returns the masked id of a country, of the type that payments there need."""
    wanted = (country, _select_government_id_type(country))
    for entry in recipient.get("governmentIds", []):
        if (entry.get("country"), entry.get("type")) == wanted:
            return mask_value(str(entry["value"]))
    return None


def mask_recipient_ssn(recipient: JsonObject) -> str | None:
    """Returns the masked SSN, from its own field or from the government ids."""
    return mask_value(recipient.get("ssn")) or mask_recipient_government_id(recipient, SSN_COUNTRY)


def _select_government_id_type(country: str | None) -> str:
    return "SSN" if country == SSN_COUNTRY else "other"


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
