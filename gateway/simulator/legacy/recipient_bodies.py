"""Parsing of recipients in request bodies (section 4.1)."""

from collections.abc import Callable
from functools import partial

from gateway.simulator import values
from gateway.simulator.account_rules import BANK
from gateway.simulator.legacy import government_ids, loose
from gateway.simulator.legacy.payout_views import shown_account
from gateway.simulator.legacy.said import say
from gateway.simulator.refusals import Problems
from gateway.simulator.rules import ON_UPDATE, read_fields
from gateway.simulator.state import LegacyStatus, Recipient
from gateway.simulator.wire import JsonObject

AS_SENT = (
    "referenceId",
    "type",
    "name",
    "firstName",
    "lastName",
    "email",
    "passport",
    "dob",
    "language",
)
ADDRESS = ("street1", "street2", "city", "region", "postalCode", "country", "phone")

# Section 3: statuses that a client may set, with the service's status and the word to show.
STATUSES: dict[str, tuple[str, LegacyStatus | None]] = {
    "active": ("active", None),
    "inactive": ("active", "inactive"),
    "disabled": ("suspended", "disabled"),
    "suspended": ("suspended", None),
}

KeepId = Callable[..., list[JsonObject] | None]


def read_new(problems: Problems, body: JsonObject) -> JsonObject:
    given = {name: each for name, each in body.items() if each is not None}
    fields = _read(problems, _in_service_words(problems, given), body, {})
    if ids := _read_ssn(problems, body, fields, government_ids.added):
        fields["governmentIds"] = ids
    return fields


def read_change(
    problems: Problems, body: JsonObject, recipient: Recipient
) -> tuple[JsonObject, set[str]]:
    """Return the merged fields and the names of those that the request contains."""
    sent = _in_service_words(problems, body)
    fields = _read(problems, sent, body, recipient.fields)
    keep = partial(government_ids.replaced, also=_country_of_another_id(body, recipient))
    if ids := _read_ssn(problems, body, recipient.fields, keep):
        sent["governmentIds"] = fields["governmentIds"] = ids
    return fields, set(sent)


def _country_of_another_id(body: JsonObject, recipient: Recipient) -> str | None:
    """Return the country of the request's bank account if it has a new government id."""
    bank: object = body
    for name in ("payout", "accounts", "bank"):
        bank = bank.get(name) if isinstance(bank, dict) else None
    if not isinstance(bank, dict) or bank.get("governmentId") is None:
        return None
    held = shown_account(recipient, BANK)
    country = str(loose.country(bank.get("country")) or (held and held.fields.get("country")))
    is_new = bank["governmentId"] != government_ids.shown(recipient.fields, country)
    return country if is_new else None


def read_status(problems: Problems, body: JsonObject, now_shown: str) -> str | None:
    """Return a status to set, or None."""
    # Clients send whole objects back, so the current status is not a change.
    wanted = body.get("status")
    if wanted in (None, now_shown, "incomplete"):
        return None
    if isinstance(wanted, str) and wanted in STATUSES:
        return wanted
    problems.invalid("status", f"Must be one of: {', '.join(STATUSES)}")
    return None


def _read(problems: Problems, sent: JsonObject, body: JsonObject, before: JsonObject) -> JsonObject:
    found = Problems()
    fields = read_fields(found, sent, ON_UPDATE, before)
    currency = "currency" if body.get("currency") is not None else "primaryCurrency"
    say(problems, found, {"primaryCurrency": currency})
    return fields


def _in_service_words(problems: Problems, body: JsonObject) -> JsonObject:
    sent: JsonObject = {name: body[name] for name in AS_SENT if name in body}
    for name in ("currency", "primaryCurrency"):
        if body.get(name) is None:  # Responses show null if there is none.
            continue
        code = loose.currency(body[name])
        if "primaryCurrency" in sent and (wrong := values.currency(code)):
            problems.invalid(name, wrong)
        sent.setdefault("primaryCurrency", code)
    if "address" in body:
        sent["address"] = _address(problems, body)
    return sent


def _address(problems: Problems, body: JsonObject) -> JsonObject | None:
    if body["address"] is None:
        return None  # Removes the whole address.
    address = loose.inside(problems, body, "address")
    sent = {name: address[name] for name in ADDRESS if name in address}
    if "country" in sent:
        sent["country"] = loose.country(sent["country"])
    return sent


def _read_ssn(
    problems: Problems, body: JsonObject, fields: JsonObject, keep: KeepId
) -> list[JsonObject] | None:
    """Parse a US SSN without spaces and hyphens; the current value counts as no change."""
    value = body.get("ssn")
    if value is None or value == government_ids.ssn(fields):
        return None
    if isinstance(value, str) and {" ", "-"}.intersection(value):
        problems.invalid("ssn", "Must be without spaces and hyphens")
        return None
    return keep(problems, "ssn", value, government_ids.SSN_COUNTRY, fields)
