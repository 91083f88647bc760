"""Validates and translates the recipient bodies that clients send.

The field table (``objects.RECIPIENT``) translates most fields; this module does the rest, for a
create and for an update.
"""

import re
from collections.abc import Iterator, Mapping

from mappings.banking import ClientGovernmentId, build_government_id_entries
from mappings.effects import JSON
from mappings.failures import Problem, build_empty_field_problem, build_invalid_field_problem
from mappings.field_types import is_masked_value
from mappings.objects import (
    RECIPIENT,
    UPSTREAM_STATUS,
    Facts,
    choose_legacy_recipient_status,
    find_masked_government_id,
    is_legacy_status_still_valid,
)
from mappings.payouts import Recipient, validate_masks
from mappings.recipient_outcomes import NAME_FIELDS

SETTABLE_STATUSES = ("active", "suspended", *UPSTREAM_STATUS)
"""Statuses that a legacy client can set (legacy interface, section 3)."""

_LANGUAGE_PATTERN = re.compile(r"[A-Za-z]{2}([-_][A-Za-z]{2})?")


def validate_recipient(body: Mapping[str, JSON], recipient: Recipient) -> Iterator[Problem]:
    """Validates the fields of a create, for which ``recipient`` is empty, or of an update."""
    previous_type = recipient.get("type")
    recipient_type = body.get("type") or previous_type or ""
    for name in ("type", "email", *NAME_FIELDS.get(recipient_type, ())):
        # Changing the type requires the other type's fields, unless the recipient already has them.
        is_needed = name in body or recipient_type != previous_type
        if is_needed and not body.get(name, recipient.get(name)):
            yield build_empty_field_problem(name)
    yield from validate_masks(body, "")
    if body.get("ssn") and not extract_ssn_as_government_ids(body):
        yield build_invalid_field_problem("ssn", "must be nine digits, without spaces or hyphens")
    language = body.get("language")
    # The service decides which spelling of a code it accepts.
    if language and not _LANGUAGE_PATTERN.fullmatch(language):
        fault = "must be a language code, such as en or en-US"
        yield build_invalid_field_problem("language", fault)


def build_recipient_creation_body(
    body: Mapping[str, JSON], government_ids: list[ClientGovernmentId]
) -> dict[str, JSON]:
    result = RECIPIENT.translate_to_current(body)
    # The create call of the current interface takes no language.
    result.pop("language", None)
    # The service derives the name of an individual (current interface, section 2.3).
    if body["type"] == "business":
        result["name"] = body["name"]
    # The create call includes the id, because in some countries an account is refused without it.
    if government_ids:
        result["governmentIds"] = build_government_id_entries(government_ids)
    return result


def choose_currency_field(body: Mapping[str, JSON]) -> str:
    """Returns the field of the currency: ``primaryCurrency`` if a whole object is sent back."""
    return "currency" if body.get("currency") else "primaryCurrency"


def extract_ssn_as_government_ids(body: Mapping[str, JSON]) -> list[ClientGovernmentId]:
    """Returns the SSN as a government id, unless it is malformed."""
    ssn = body.get("ssn") or ""
    is_valid = re.fullmatch("[0-9]{9}", ssn) or is_masked_value(ssn)
    return [ClientGovernmentId("US", ssn, "ssn")] if is_valid else []


def drop_unchanged_recipient_fields(
    body: Mapping[str, JSON], recipient: Recipient, *, is_shown_late: bool
) -> dict[str, JSON]:
    """Drops masks from answers, and the unchanged fields of a whole object that is sent back.

    A body with an ``id`` is a whole object. Its unchanged fields must not be sent: they would undo
    concurrent changes of others, and some services recompute the status when they get an address.
    If ``is_shown_late``, a value may be shown that was changed a moment ago, so that it is sent.
    """
    ssn = recipient.get("ssn") or find_masked_government_id(recipient, "US")
    answer = {**RECIPIENT.translate_to_legacy(recipient), "ssn": ssn}
    is_whole_object = body.get("id") and not is_shown_late
    compared_fields = _COMPARED_FIELDS if is_whole_object else _MASKED_FIELDS
    fields = {
        name: value
        for name, value in body.items()
        if name not in compared_fields or not _is_unchanged_value(value, answer.get(name))
    }
    if is_whole_object and (address := fields.get("address")):
        # Answers have null for what the service does not have, and which it may refuse as a value.
        shown = answer.get("address") or {}
        names = [
            name for name in address if address[name] is not None or shown.get(name) is not None
        ]
        fields["address"] = {name: address[name] for name in names}
    return fields


_MASKED_FIELDS = frozenset({"ssn", "passport"})
_COMPARED_FIELDS = frozenset(
    {"type", "name", "firstName", "lastName", "email", "address", "referenceId"}
    | {"dob", "language"}
    | _MASKED_FIELDS
)


def _is_unchanged_value(new_value: JSON, old_value: JSON) -> bool:
    if isinstance(new_value, dict) and isinstance(old_value, dict):
        return all(value == old_value.get(name) for name, value in new_value.items())
    return bool(new_value == old_value)


def validate_requested_status(
    body: Mapping[str, JSON], recipient: Recipient, facts: Facts
) -> Iterator[Problem]:
    status = _find_requested_status(body, recipient, facts)
    if status is not None and status not in SETTABLE_STATUSES:
        fault = f"must be one of: {', '.join(SETTABLE_STATUSES)}"
        yield build_invalid_field_problem("status", fault)


def _find_requested_status(body: Mapping[str, JSON], recipient: Recipient, facts: Facts) -> JSON:
    """Returns the status that the client requests, or None if it only repeats the shown one.

    The status that was shown before the service's own changed counts as repeated too, so that
    sending `inactive` back never lifts a suspension. For the statuses that stop payments this
    applies only to whole objects sent back: a client that sends such a status alone does want it.
    """
    status, previous = body.get("status"), facts.get("status_shown_before")
    if status == previous and (previous == "inactive" or body.get("id")):
        return None
    shown_status = choose_legacy_recipient_status(recipient, facts)
    return None if status in (None, "incomplete", shown_status) else status


def merge_new_type_and_name(body: Mapping[str, JSON], recipient: Recipient) -> Recipient:
    """Returns the recipient with its new type and name, on which its accounts depend."""
    names = ("type", "name", "firstName", "lastName")
    return {**recipient, **{name: body[name] for name in names if body.get(name)}}


def build_recipient_update_fields(
    body: Mapping[str, JSON],
    recipient: Recipient,
    facts: Facts,
    government_ids: list[ClientGovernmentId],
    *,
    is_shown_late: bool,
) -> dict[str, JSON]:
    fields = RECIPIENT.translate_to_current(body)
    # The service derives an individual's name from the first and last name, so it is sent only if it
    # comes alone. A whole object sent back always has all three, even if unchanged ones were dropped.
    is_business = body.get("type", recipient.get("type")) == "business"
    has_name_parts = body.get("id") or body.get("firstName") or body.get("lastName")
    is_name_changed = "name" in body and body["name"] != recipient.get("name")
    if "name" in body and (is_business or (is_name_changed and not has_name_parts)):
        fields["name"] = body["name"]
    currency = body.get(choose_currency_field(body))
    if currency and (is_shown_late or currency != recipient.get("primaryCurrency")):
        fields["primaryCurrency"] = currency
    status = _find_requested_status(body, recipient, facts)
    if is_shown_late and body.get("status") in ("active", "suspended"):
        status = body["status"]
    if status:
        fields["status"] = UPSTREAM_STATUS.get(status, status)
    if government_ids:
        fields["governmentIds"] = build_government_id_entries(government_ids)
    return fields


def derive_status_fact_change(
    body: Mapping[str, JSON], fields: Mapping[str, JSON], facts: Facts, updated: Mapping[str, JSON]
) -> dict[str, JSON]:
    """Returns the change of the stored legacy status after an update.

    ``updated`` is the recipient in the response of the service, which may have changed its status.
    """
    if "status" not in fields:
        word, status = facts.get("status"), updated.get("status")
        is_outdated = word and status and not is_legacy_status_still_valid(word, status)
        return {"status": None} if is_outdated else {}
    # "active" means the same on both sides, so nothing needs to be stored for it.
    word = body["status"] if body["status"] != "active" else None
    return {"status": word} if word != facts.get("status") else {}
