"""The requests of a rehearsal: the table ``scenario.md``, and the bodies that it names."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import NamedTuple

from mappings import current
from mappings.effects import JSON


class Step(NamedTuple):
    """A row of ``scenario.md``, with its cells."""

    chapter: str
    row: str
    request: str
    body: str
    answer: str
    saves: str


def load_table(name: str) -> list[list[str]]:
    """Loads the cells of a Markdown table, without its header."""
    text = files("gateway.operator.rehearsal").joinpath(name).read_text("utf-8")
    _header, _rule, *rows = (line for line in text.splitlines() if line.startswith("|"))
    return [[cell.strip() for cell in row[1:-1].split("|")] for row in rows]


STEPS = [Step(*cells) for cells in load_table("scenario.md")]
CHAPTERS = [*dict.fromkeys(step.chapter for step in STEPS)]
LISTS, START = "lists", "start"
"""The chapters that are not always run."""

AMOUNT = "35.00"
"""Above the usual minimum of a bank transfer."""


def build_payout(**bank: JSON) -> dict[str, JSON]:
    primary = {"method": "bank", "currency": bank["currency"]}
    return {"primary": primary, "accounts": {"bank": {"name": "Rehearsal", **bank}}}


def build_address(country: str) -> JSON:
    address = {"street1": "1 Main Street", "city": "Springfield", "phone": "+12125550100"}
    return {"address": {**address, "country": country}}


IBAN = build_payout(country="DE", currency="EUR", iban="DE89370400440532013000")
US_BANK = build_payout(country="US", currency="USD", accountNum="1234567", routing="021000021")
BR_BANK = {"country": "BR", "currency": "BRL", "accountNum": "1234567"}
WALLET: dict[str, JSON] = {
    "primary": {"method": "{wallet}", "currency": "USD"},
    "accounts": {"{wallet}": {"address": "wallet@example.com"}},
}
REFERENCES = {
    "referenceId": "{reference}-{name}",
    # A reserved domain (RFC 2606): the service sends mail to recipients.
    "email": "{reference}-{name}@example.com",
}
NAMES = {"type": "individual", "firstName": "Rehearsal", "lastName": "Person"}
COMPANY = {"type": "business", "name": "Rehearsal Company"}
BY_ID = {"recipient": {"id": "{payee}"}, "sourceAmount": AMOUNT}
IN_EUR = {"targetAmount": AMOUNT, "targetCurrency": "EUR"}
BY_EMAIL = {"recipient": {"email": "{reference}-payee-DE@example.com"}, **IN_EUR}
TO_UNKNOWN = {"recipient": {"id": "R-0000000000000000"}, "amount": AMOUNT, "currency": "USD"}
DESCRIPTION = {"description": "{reference}-{name}"}
CHANGE = {"sourceAmount": "36.00"}

BODIES: Mapping[str, Mapping[str, JSON]] = {
    # Without an email address.
    "invalid": {**NAMES, "referenceId": "{reference}-invalid"},
    "individual": {**NAMES, **REFERENCES, **build_address("US")},
    "business": {**COMPANY, **REFERENCES, **build_address("DE")},
    **{f"in-{country}": build_address(country) for country in ("BR", "CA", "GB")},
    "birth": {"dob": "1990-12-10", "passport": "X1234567"},
    "move": {"address": {"city": "Albany"}, "status": "inactive"},
    "person-ids": {"ids": ["{person}"]},
    "ca-bank": build_payout(
        country="CA", currency="CAD", accountNum="1234567", branchNum="00010", institution="003"
    ),
    "gb-bank": build_payout(
        country="GB", currency="GBP", accountNum="38290008", branchNum="200415"
    ),
    "iban": IBAN,
    "iban-payout": {"payout": IBAN},
    "wallet": WALLET,
    "wallet-payout": {"payout": WALLET},
    "us-payout": {"payout": {**US_BANK, "accounts": {**US_BANK["accounts"], **WALLET["accounts"]}}},
    "bank-city": {"primary": {"method": "bank"}, "accounts": {"bank": {"bankCity": "Berlin"}}},
    "br-account": {"type": current.BANK_TRANSFER, "accountHolderName": "Rehearsal", **BR_BANK},
    "batch": {"sourceCurrency": "USD", **DESCRIPTION, "payments": [BY_ID, BY_ID]},
    "with-memo": {"payments": [{**BY_ID, "memo": "rehearsal"}, BY_EMAIL]},
    "without-memo": {"payments": [BY_ID, BY_EMAIL]},
    "payment": BY_ID,
    "amount": CHANGE,
    "edit": {"update_payments": [{"id": "{in-batch}", **CHANGE}], "payments": [BY_ID]},
    "batch-ids": {"ids": ["{delete_batches}"]},
    "to-unknown": {"{batch_currency}": "USD", **DESCRIPTION, "payments": [TO_UNKNOWN]},
}
"""The bodies of the scenario; a step's is the union of those that it names."""
