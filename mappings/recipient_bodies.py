"""Validation and translation of the recipient bodies that clients send.

The field table (``objects.RECIPIENT``) translates most fields; this module does the rest, for a
create and for an update.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from mappings.banking import empty, invalid
from mappings.government_ids import Sent, build_government_id_entries
from mappings.grammar import JSON, Problem
from mappings.objects import (
    RECIPIENT,
    UPSTREAM_STATUS,
    Facts,
    derive_legacy_status,
    find_masked_ssn,
    is_status_word_valid,
)
from mappings.payouts import Recipient, validate_masks

SETTABLE = ("active", "suspended", *UPSTREAM_STATUS)
"""Statuses that a legacy client can set (legacy interface, section 3)."""

NEEDED: Mapping[str, tuple[str, ...]] = {
    "individual": ("firstName", "lastName"),
    "business": ("name",),
}

_LANGUAGE = re.compile(r"[A-Za-z]{2}([-_][A-Za-z]{2})?")


def validate_create(body: Mapping[str, JSON]) -> Iterator[Problem]:
    for name in ("type", "email", *NEEDED.get(body.get("type", ""), ())):
        if not body.get(name):
            yield empty(name)
    yield from validate_masks(body, "")
    yield from _language_problems(body)


def _language_problems(body: Mapping[str, JSON]) -> Iterator[Problem]:
    """Validates the language less strictly than the current document, section 2.2.

    The service decides which spelling of a code it accepts.
    """
    language = body.get("language")
    if language and not _LANGUAGE.fullmatch(language):
        yield invalid("language", "must be a language code, such as en or en-US")


def build_create_body(body: Mapping[str, JSON], ids: list[Sent]) -> dict[str, JSON]:
    sent = RECIPIENT.to_current(body)
    # The create call of the current interface takes no language; select_later_fields has it.
    sent.pop("language", None)
    if body["type"] == "business":
        sent["name"] = body["name"]
    if ids:
        sent["governmentIds"] = build_government_id_entries(ids)
    return sent


def select_later_fields(body: Mapping[str, JSON]) -> dict[str, JSON]:
    currency = body.get(choose_currency_field(body))
    later = {"language": body.get("language"), "primaryCurrency": currency}
    return {name: value for name, value in later.items() if value is not None}


def choose_currency_field(body: Mapping[str, JSON]) -> str:
    """Returns the field of the currency: ``primaryCurrency`` if a whole object is sent back."""
    return "currency" if body.get("currency") else "primaryCurrency"


def extract_ssn(body: Mapping[str, JSON]) -> list[Sent]:
    return [Sent("US", body["ssn"], "ssn")] if body.get("ssn") else []


def drop_unchanged_recipient_fields(
    body: Mapping[str, JSON], recipient: Recipient
) -> dict[str, JSON]:
    """Drops masks from answers, and the unchanged fields of a whole object that is sent back.

    A body with an ``id`` is a whole object. Its unchanged fields must not be sent: they would undo
    concurrent changes of others, and some services recompute the status when they get an address.
    """
    shown = {**RECIPIENT.to_legacy(recipient), "ssn": find_masked_ssn(recipient)}
    compared = _COMPARED if body.get("id") else _MASKED
    return {
        name: value
        for name, value in body.items()
        if name not in compared or not _same(value, shown.get(name))
    }


_MASKED = frozenset({"ssn", "passport"})
_COMPARED = frozenset(
    {"type", "name", "firstName", "lastName", "email", "address", "referenceId"}
    | {"dob", "language"}
    | _MASKED
)


def _same(sent: JSON, shown: JSON) -> bool:
    if isinstance(sent, dict) and isinstance(shown, dict):
        return all(value == shown.get(name) for name, value in sent.items())
    return bool(sent == shown)


def validate_update(
    body: Mapping[str, JSON], recipient: Recipient, facts: Facts
) -> Iterator[Problem]:
    before = recipient.get("type")
    kind = body.get("type") or before or ""
    for name in ("type", "email", *NEEDED.get(kind, ())):
        # Changing the type requires the other type's fields, unless the recipient already has them.
        if not body[name] if name in body else kind != before and not recipient.get(name):
            yield empty(name)
    yield from validate_masks(body, "")
    yield from _language_problems(body)
    status = _new_status(body, recipient, facts)
    if status is not None and status not in SETTABLE:
        yield invalid("status", f"must be one of: {', '.join(SETTABLE)}")


def _new_status(body: Mapping[str, JSON], recipient: Recipient, facts: Facts) -> JSON:
    """Returns the status that the client asks for, or None if it only repeats the shown one.

    The status that was shown before the service's own changed counts as repeated too, so that
    sending `inactive` back never lifts a suspension. For the statuses that stop payments this
    applies only to whole objects sent back: a client that sends such a status alone does want it.
    """
    status, before = body.get("status"), facts.get("status_shown_before")
    if status == before and (before == "inactive" or body.get("id")):
        return None
    return (
        None if status in (None, "incomplete", derive_legacy_status(recipient, facts)) else status
    )


def apply_identity(body: Mapping[str, JSON], recipient: Recipient) -> Recipient:
    """Returns the recipient with its new type and name, on which its accounts depend."""
    sent = {
        name: body[name] for name in ("type", "name", "firstName", "lastName") if body.get(name)
    }
    return {**recipient, **sent}


def build_update_fields(
    body: Mapping[str, JSON], recipient: Recipient, facts: Facts, ids: list[Sent]
) -> dict[str, JSON]:
    fields = RECIPIENT.to_current(body)
    if "name" in body and _sends_name(body, recipient):
        fields["name"] = body["name"]
    currency = body.get(choose_currency_field(body))
    if currency and currency != recipient.get("primaryCurrency"):
        fields["primaryCurrency"] = currency
    if status := _new_status(body, recipient, facts):
        fields["status"] = UPSTREAM_STATUS.get(status, status)
    if ids:
        fields["governmentIds"] = build_government_id_entries(ids)
    return fields


def _sends_name(body: Mapping[str, JSON], recipient: Recipient) -> bool:
    """Tells if ``name`` must be sent.

    The service derives an individual's name from the first and last name, so ``name`` is sent only
    if it comes alone. A whole object sent back always has all three, even if unchanged ones were
    dropped.
    """
    if body.get("type", recipient.get("type")) == "business":
        return True
    parts = body.get("id") or body.get("firstName") or body.get("lastName")
    return not parts and body["name"] != recipient.get("name")


def derive_status_fact(
    body: Mapping[str, JSON],
    fields: Mapping[str, JSON],
    facts: Facts,
    answered: Mapping[str, JSON],
) -> dict[str, JSON]:
    """Returns the change of the stored legacy status after an update.

    ``answered`` is the recipient in the response of the service, which may have changed its status.
    """
    if "status" not in fields:
        word, status = facts.get("status"), answered.get("status")
        return (
            {"status": None} if word and status and not is_status_word_valid(word, status) else {}
        )
    # "active" means the same on both sides, so nothing needs to be stored for it.
    word = body["status"] if body["status"] != "active" else None
    return {"status": word} if word != facts.get("status") else {}
