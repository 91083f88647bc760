"""Parsing of request bodies (sections 2 and 4), apart from payout methods.

It is lenient with values that clients send although the document is stricter.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Self

import pycountry

from gateway.simulator import batches, money, validation, views
from gateway.simulator.accounts import BANK_TRANSFER
from gateway.simulator.batches import SentAmount
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
from gateway.simulator.requests import AcceptedRequest
from gateway.simulator.state import Batch, LegacyStatus, Payment, PaymentTerms, Recipient
from gateway.simulator.validation import JsonObject, Problems, is_blank


# The text is needed because 10.0 and 10.00 are equal numbers, but only 10.00 is a valid amount.
class JsonNumber(Decimal):
    """A JSON number with a point or an exponent; `written` is its original text."""

    written: str

    def __new__(cls, written: str) -> Self:
        number = super().__new__(cls, written)
        number.written = written
        return number


EMPTY_TEXT_FIELD = "street2"  # section 2, Recipient


def drop_empty_and_stringify_integers(value: Any) -> Any:
    """Normalizes a body: removes empty texts, and converts whole numbers to text.

    An empty text counts as a missing field. Clients send account numbers and similar fields as
    numbers or as text.
    """
    if isinstance(value, dict):
        return {
            name: drop_empty_and_stringify_integers(item)
            for name, item in value.items()
            if item != "" or name == EMPTY_TEXT_FIELD
        }
    if isinstance(value, list):
        return [drop_empty_and_stringify_integers(item) for item in value]
    # A bool is an int in Python, but clients mean true and false.
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def parse_object(problems: Problems, body: JsonObject, name: str) -> JsonObject:
    """Returns an object in a body; null counts as missing, and a missing one as empty."""
    value = body.get(name)
    if isinstance(value, dict | None):
        return value or {}
    problems.add_invalid_field(name, "Must be an object")
    return {}


def parse_boolean(value: Any) -> bool | None:
    """Parses true or false, also as a word; returns None for any other value."""
    return {"true": True, "false": False}.get(str(value).lower())


def parse_integer(value: Any) -> int | None:
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,12}", value) else None


def normalize_country(value: Any) -> Any:
    """Returns an upper-case alpha-2 code; alpha-3 is accepted, as in an example of section 2."""
    if not isinstance(value, str):
        return value
    code = value.upper()
    match = pycountry.countries.get(alpha_3=code) if len(code) == 3 else None
    return code if match is None else match.alpha_2


def normalize_currency(value: Any) -> Any:
    """Returns an upper-case currency code, from a code or from the object that responses have."""
    code = value.get("code") if isinstance(value, dict) else value
    return code.upper() if isinstance(code, str) else code


def translate_problems(
    problems: Problems, found_problems: Problems, client_names: Mapping[str, str], path: str = ""
) -> None:
    """Adds `found_problems` to `problems` under the client's field names.

    `client_names` maps the service's names to the client's; other fields get `path` as a prefix.
    """
    for problem in found_problems.collected:
        name = problem.field or ""
        problems.add_problem(problem.code, client_names.get(name, path + name), problem.message)


def parse_batch_currency(request: AcceptedRequest, problems: Problems) -> str:
    """Parses a new batch's currency, or takes it from the first payment that has one."""
    sent_currencies = [(problems, normalize_currency(request.body.get("sourceCurrency")))]
    # Payments that disagree are reported with each payment, when it is parsed.
    for nested_problems, entry in Problems().iter_objects(request.body, "payments"):
        code = normalize_currency(entry.get("sourceCurrency"))
        sent_currencies.append((Problems(problems.collected, nested_problems.prefix), code))
    found = (sent for sent in sent_currencies if not is_blank(sent[1]))
    problems, code = next(found, sent_currencies[0])
    return batches.parse_currency(problems, "sourceCurrency", code)


def parse_changed_currency(request: AcceptedRequest, problems: Problems, batch: Batch) -> str:
    currency = normalize_currency(request.body.get("sourceCurrency"))
    currency = batch.currency if is_blank(currency) else currency
    parsed = batches.parse_currency(problems, "sourceCurrency", currency)
    if currency != batch.currency and batch.payments:
        message = "Can be changed only while there are no payments"
        problems.add_invalid_field("sourceCurrency", message)
    return parsed


def parse_payment(
    request: AcceptedRequest, problems: Problems, body: JsonObject, batch: Batch
) -> Payment | None:
    """Parses a new payment; the result is valid only if no problem was added."""
    payee = _resolve_recipient(request, problems, body)
    # Each payment may name the source currency, but a batch has only one.
    source_currency = normalize_currency(body.get("sourceCurrency"))
    if batch.currency and source_currency not in (None, batch.currency):
        problems.add_invalid_field("sourceCurrency", "Is not the batch's")
    amount = _parse_amount(problems, body, batch.currency, is_required=True)
    memo = batches.parse_text(problems, body, "memo")
    payment = batches.build_draft_payment(problems, batch, payee, amount, memo)
    if payment is not None and amount is not None and body["recipient"].get("id") is None:
        _check_minimum_amount(problems, payment.recipient, amount)
    return payment


def parse_payment_change(
    _request: AcceptedRequest, problems: Problems, body: JsonObject, payment: Payment
) -> Payment:
    """Parses a changed payment; recipient and source currency cannot change (section 4.4).

    Without another amount the terms stay, because only quotes compute new rates (section 1, item
    6). An amount that equals the shown one is no change: clients send whole objects back.
    """
    body = _remove_unchanged_amounts(body, payment.terms)
    # After the unchanged amounts are gone: a whole object sent back has both.
    amount = _parse_amount(problems, body, payment.batch.currency, is_required=False)
    memo = batches.parse_text(problems, {"memo": payment.memo, **body}, "memo")
    return batches.copy_changed_payment(problems, payment, amount, memo)


def _remove_unchanged_amounts(body: JsonObject, terms: PaymentTerms) -> JsonObject:
    remaining_fields = dict(body)
    if _is_same_amount(remaining_fields.get("sourceAmount"), terms.source_amount):
        del remaining_fields["sourceAmount"]
    currency = normalize_currency(remaining_fields.get("targetCurrency"))
    if currency in (None, terms.target_currency) and _is_same_amount(
        remaining_fields.get("targetAmount"), terms.target_amount
    ):
        del remaining_fields["targetAmount"]
    return remaining_fields


def _is_same_amount(value: Any, amount: Decimal) -> bool:
    text = str(getattr(value, "written", value))
    return bool(re.fullmatch(r"[0-9]+(\.[0-9]+)?", text)) and Decimal(text) == amount


def _parse_amount(
    problems: Problems, body: JsonObject, currency: str, *, is_required: bool
) -> SentAmount | None:
    names = [name for name in ("sourceAmount", "targetAmount") if not is_blank(body.get(name))]
    if len(names) == 2:
        message = "Only one of sourceAmount and targetAmount can be given"
        problems.add_invalid_field("targetAmount", message)
    if not names and is_required:
        problems.add_empty_field("sourceAmount")
    if len(names) != 1:
        return None
    # The original text, because 1.50 is a valid amount and 1.5 is not.
    value: Any = getattr(body[names[0]], "written", body[names[0]])
    error = money.find_amount_problem(value)
    if error:
        problems.add_invalid_field(names[0], "Must be a positive number with two decimals or none")
    if names[0] == "targetAmount":
        code = normalize_currency(body.get("targetCurrency"))
        currency = batches.parse_currency(problems, "targetCurrency", code)
    return SentAmount(names[0], Decimal(value), currency) if currency and not error else None


def _resolve_recipient(
    request: AcceptedRequest, problems: Problems, body: JsonObject
) -> Recipient | None:
    reference = parse_object(problems, body, "recipient")
    if not isinstance(body.get("recipient"), dict | None):
        return None
    is_email = reference.get("id") is None and reference.get("email") is not None
    name = "email" if is_email else "id"
    value, recipients = reference.get(name), request.tenant.recipients
    if is_blank(value):
        problems.add_empty_field("recipient.id")
        return None
    if is_email:  # Exact, and without deleted recipients.
        matches = [
            recipient
            for recipient in recipients.values()
            if recipient.fields["email"] == value and not recipient.is_archived
        ]
    else:
        service_id = request.resolve_id(str(value))
        matches = [recipients[service_id]] if service_id in recipients else []
    return batches.select_payee(problems, f"recipient.{name}", matches, "invalid_field")


def _check_minimum_amount(problems: Problems, payee: Recipient, amount: SentAmount) -> None:
    # Only for recipients given by email, which this request looked up; others are checked at the
    # start. The minimum is that of bank transfers.
    account = payee.primary_account
    if account is None or account.type != BANK_TRANSFER:
        return
    minimum = Decimal(views.find_route_minimum(payee) or 0)
    if amount.currency == payee.fields.get("primaryCurrency") and amount.value < minimum:
        problems.add_invalid_field(amount.field_name, f"Is less than the least amount, {minimum}")


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
        code = normalize_currency(body[name])
        if "primaryCurrency" in sent_fields:
            problems.check(name, code, validation.find_currency_problem)
        sent_fields.setdefault("primaryCurrency", code)
    if "address" in body:
        sent_fields["address"] = _parse_address(problems, body)
    nested_problems = Problems()
    fields = merge_recipient_fields(nested_problems, sent_fields, UPDATE_CHECKS, previous_fields)
    currency_field = "currency" if body.get("currency") is not None else "primaryCurrency"
    translate_problems(problems, nested_problems, {"primaryCurrency": currency_field})
    return fields, set(sent_fields)


def _parse_address(problems: Problems, body: JsonObject) -> JsonObject | None:
    if body["address"] is None:
        return None  # Removes the whole address.
    sent_address = parse_object(problems, body, "address")
    address = {name: sent_address[name] for name in ADDRESS_CHECKS if name in sent_address}
    if "country" in address:
        address["country"] = normalize_country(address["country"])
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
    reported_fields = {problem.field for problem in problems.collected}
    if others and problems.prefix + field not in reported_fields:
        problems.add_invalid_field(field, "Recipient has a government id of another country")
    recipient["governmentIds"] = [*others, *entries.values()]
    return True
