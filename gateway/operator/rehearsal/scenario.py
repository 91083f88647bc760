"""The requests of a rehearsal, in chapters; together they run every legacy operation.

Each chapter creates what it needs, so that an interrupted rehearsal continues with the next one.
Texts in braces are values of ``RehearsalRun``: words of the vocabulary, ids that earlier steps have
saved (``{person}`` for clients, ``{person_current}`` for the service), and ``{reference}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mappings import current
from mappings.effects import JSON


class Step(NamedTuple):
    """A legacy request, or a probe: a call that the rehearsal makes itself, which has a ``method``.

    ``name`` is that of the operation, or any for a probe. ``saves`` maps names to places in the
    answer, ``shows`` is a part of the expected answer. A step is skipped if its names are saved.
    ``delay_seconds`` lets the service's timestamps change. A probe may be signed with a wrong
    ``secret``, or with an old timestamp.
    """

    name: str
    target: str
    body: JSON = None
    method: str = ""
    expected: tuple[int, ...] = (200,)
    saves: Mapping[str, str] = {}
    shows: Mapping[str, JSON] = {}
    delay_seconds: float = 0
    secret: str = ""
    age_seconds: float = 0


def probe(name: str, target: str, body: JSON = None, **options: Any) -> Step:
    return Step(name, target, body, "POST" if body else "GET", **options)


def create_recipient(name: str, country: str = "US", **fields: JSON) -> Step:
    names = {"firstName": "Rehearsal", "lastName": "Person", "type": "individual"}
    # A reserved domain (RFC 2606): the service sends mail to recipients.
    email = f"{{reference}}-{name}@example.com"
    address = {"street1": "1 Main Street", "city": "Springfield", "phone": "+12125550100"}
    body = {
        **({"name": "Rehearsal Company", "type": "business"} if country == "DE" else names),
        "email": email,
        "referenceId": f"{{reference}}-{name}",
        "address": address | {"country": country},
        **fields,
    }
    saves, shows = {name: "recipient.id"}, {"recipient": {"email": email}}
    return Step("create_recipient", "/recipients", body, saves=saves, shows=shows)


def build_bank_payout(**bank: JSON) -> dict[str, JSON]:
    primary = {"method": "bank", "currency": bank["currency"]}
    return {"primary": primary, "accounts": {"bank": {"name": "Rehearsal", **bank}}}


def add_bank(name: str, **bank: JSON) -> list[Step]:
    """Creates a recipient, and a bank account in its country."""
    target, body = f"/recipients/{{{name}}}/payout-methods", build_bank_payout(**bank)
    recipient = create_recipient(name, str(bank["country"]))
    return [recipient, Step("create_payout_method", target, body)]


def create_batch(name: str, *payments: JSON) -> Step:
    body = {"sourceCurrency": "USD", "description": f"{{reference}}-{name}", "payments": payments}
    return Step("create_batch", "/batches", body, saves={name: "batch.id"})


def read_batch(name: str) -> Step:
    """Reads a batch of two payments or more, and saves the first one."""
    shows: dict[str, JSON] = {"batch": {"payments": {"payments": [{}, {}]}}}
    saves = {f"{name} payment": "batch.payments.payments.0.id"}
    return Step("read_batch", f"/batches/{{{name}}}", saves=saves, shows=shows)


def edit_batch(name: str, body: JSON, payment: Mapping[str, JSON]) -> list[Step]:
    """Edits a batch of its own: an edited one may be a draft, whose edits need no path.

    ``payment`` is what the edit makes of the first payment; empty if it is deleted.
    """
    batch, path = f"/batches/{{{name}}}", f"/batches/{{{name}}}/payments/{{{name} payment}}"
    expected, shows = (200 if payment else 404,), {"payment": payment} if payment else {}
    return [
        create_batch(name, BY_ID, BY_ID),
        read_batch(name),
        Step(name, path if name.endswith("_payment") else batch, body),
        Step("read_payment", path, expected=expected, shows=shows),
    ]


def delete_batch(name: str, target: str, body: JSON = None) -> list[Step]:
    gone = Step("read_batch", f"/batches/{{{name}}}", expected=(404,))
    return [create_batch(name, BY_ID, BY_ID), Step(name, target, body), gone]


AMOUNT = "35.00"
"""Above the usual minimum of a bank transfer."""

US_BANK = {"country": "US", "currency": "USD", "accountNum": "1234567", "routing": "021000021"}
UK_BANK = {"country": "GB", "currency": "GBP", "accountNum": "38290008", "branchNum": "200415"}
CA_BANK = {"country": "CA", "currency": "CAD", "accountNum": "1234567", "branchNum": "00010"}
BRAZILIAN_BANK = {"country": "BR", "currency": "BRL", "accountNum": "1234567"}
GERMAN_BANK = {"country": "DE", "currency": "EUR", "iban": "DE89370400440532013000"}
BRAZILIAN_ACCOUNT = {"type": current.BANK_TRANSFER, "accountHolderName": "Rehearsal"}
BRAZILIAN_ACCOUNT |= BRAZILIAN_BANK
GERMAN_PAYOUT = build_bank_payout(**GERMAN_BANK)
WALLET: dict[str, JSON] = {
    "primary": {"method": "{wallet}", "currency": "USD"},
    "accounts": {"{wallet}": {"address": "wallet@example.com"}},
}
US_PAYOUT = build_bank_payout(**US_BANK)
US_PAYOUT["accounts"] |= WALLET["accounts"]

UNKNOWN_RECIPIENT = "R-0000000000000000"
BY_ID = {"recipient": {"id": "{payee}"}, "sourceAmount": AMOUNT}
BY_EMAIL = {
    "recipient": {"email": "{reference}-payee-DE@example.com"},
    "targetAmount": AMOUNT,
    "targetCurrency": "EUR",
}
TO_UNKNOWN = {
    "{batch_currency}": "USD",
    "description": "{reference}-unknown",
    "payments": [{"recipient": {"id": UNKNOWN_RECIPIENT}, "amount": AMOUNT, "currency": "USD"}],
}
CHANGE = {"sourceAmount": "36.00"}
EDIT = {"update_payments": [{"id": "{update_batch payment}", **CHANGE}], "payments": [BY_ID]}
MOVE = {"address": {"city": "Albany"}, "status": "inactive"}
BANK_CITY = {"primary": {"method": "bank"}, "accounts": {"bank": {"bankCity": "Berlin"}}}

FILTERS: Mapping[str, list[str]] = {
    "email={reference}-list-wallet@example.com": ["list-wallet"],
    "referenceId={reference}-list-bank": ["list-bank"],
    "country=DE": ["list-bank"],
    "payoutMethod={current_wallet}": ["list-wallet"],
    "payoutMethod=bank-transfer&currency=EUR": ["list-bank"],
    "status=suspended": [],
    "complianceStatus=blocked": [],
    "startDate={tomorrow}": [],
}
ORDERS: Mapping[str, list[str]] = {
    "orderBy=email&sortBy=asc": ["list-bank", "list-wallet"],
    "orderBy=email&sortBy=desc": ["list-wallet", "list-bank"],
}
"""Which recipients each query of the list has to find."""

PERSON, ACCOUNT = "/recipients/{person}", "/recipients/{bank-DE}/payout-methods"
READ = "/batches/{read}"

CHAPTERS: Mapping[str, list[Step]] = {
    "service": [
        probe("balance", "{balance_path}"),
        probe("first page", "/v1/recipients?page=1&pageSize=1"),
        probe("wrong secret", "{balance_path}", secret="a wrong secret"),  # noqa: S106
        probe("old timestamp", "{balance_path}", age_seconds=3600),
        probe("unknown id", f"/v1/recipients/{UNKNOWN_RECIPIENT}"),
        probe("invalid", "/v1/recipients", {"type": "individual", "referenceId": "{reference}-"}),
        Step("read_balances", "/profile/balances"),
        Step("read_service_balances", "/profile/balances/{service}"),
        # 404: the merchant has no wallet account (legacy interface, section 4.5).
        Step("read_wallet_balance", "/profile/balances/{wallet}", expected=(200, 404)),
        Step("read_country", "/geography/countries/CA"),
    ],
    "recipients": [
        create_recipient("person", payout=US_PAYOUT, dob="1990-12-10", passport="X1234567"),
        create_recipient("company", "DE", payout=WALLET),
        probe("new in list", "/v1/recipients?referenceId={reference}-person"),
        probe("before update", "/v1/recipients/{person_current}"),
        Step("update_recipient", PERSON, MOVE, delay_seconds=1.1),
        probe("after update", "/v1/recipients/{person_current}"),
        Step("read_recipient", PERSON, shows={"recipient": MOVE}),
        Step("read_recipient_logs", f"{PERSON}/logs"),
        Step("read_recipient_payments", f"{PERSON}/payments"),
        Step("delete_recipient", "/recipients/{company}"),
        Step("read_recipient", "/recipients/{company}", expected=(404,)),
        probe("archived", "/v1/recipients/{company_current}"),
        probe("archived in list", "/v1/recipients?search={reference}-company"),
        Step("delete_recipients", "/recipients", {"ids": ["{person}"]}),
    ],
    "payout methods": [
        *add_bank("bank-CA", **CA_BANK, institution="003"),
        *add_bank("bank-GB", **UK_BANK),
        *add_bank("bank-DE", **GERMAN_BANK),
        probe("before account update", "/v1/recipients/{bank-DE_current}"),
        Step("update_payout_method", ACCOUNT, BANK_CITY, delay_seconds=1.1),
        probe("after account update", "/v1/recipients/{bank-DE_current}"),
        Step("create_payout_method", ACCOUNT, WALLET),
        Step("read_payout_method", ACCOUNT, shows={"method": "{wallet}"}),
        probe("two accounts", "/v1/recipients/{bank-DE_current}"),
        create_recipient("bank-BR", "BR"),
        # Not through the gateway, which refuses the account itself.
        probe("no government id", "/v1/recipients/{bank-BR_current}/accounts", BRAZILIAN_ACCOUNT),
    ],
    "batches": [
        create_recipient("payee", payout=WALLET),
        create_recipient("payee-DE", "DE", payout=GERMAN_PAYOUT),
        create_batch("read", BY_ID | {"memo": "rehearsal"}, BY_EMAIL),
        # Only if the service refuses the memo.
        create_batch("read", BY_ID, BY_EMAIL),
        read_batch("read"),
        Step("list_batches", "/batches?page=1&pageSize=10"),
        Step("list_batch_payments", f"{READ}/payments"),
        Step("create_payment", f"{READ}/payments", BY_ID, saves={"added": "payment.id"}),
        Step("read_payment", f"{READ}/payments/{{read payment}}"),
        probe("summary", "{read_summary}", saves={"shown": "payments.0.id"}),
        probe("payment", "/v1/payments/{shown}"),
        Step("generate_quote", f"{READ}/generate-quote"),
        Step("generate_quote", f"{READ}/generate-quote"),
        Step("read_batch_summary", f"{READ}/summary"),
        *edit_batch("update_payment", CHANGE, CHANGE),
        *edit_batch("delete_payment", None, {}),
        *edit_batch("update_batch", EDIT, CHANGE),
        *delete_batch("delete_batch", "/batches/{delete_batch}"),
        *delete_batch("delete_batches", "/batches", {"ids": ["{delete_batches}"]}),
        probe("unknown recipient", "/v1/batches", TO_UNKNOWN, saves={"unknown": "batch.id"}),
    ],
    "lists": [
        create_recipient("list-wallet", payout=WALLET),
        create_recipient("list-bank", "DE", payout=GERMAN_PAYOUT),
        Step("list_recipients", "/recipients?search={reference}&orderBy=name&page=1&pageSize=10"),
        *(
            probe(query, f"/v1/recipients?search={{reference}}-list&{query}")
            for query in (*FILTERS, *ORDERS)
        ),
        probe("one row", "/v1/recipients?page=1&pageSize=1"),
        probe("all rows", "/v1/recipients?page=1&pageSize=1000"),
    ],
    "start": [
        create_recipient("payee", payout=WALLET),
        create_batch("start", BY_ID, BY_ID),
        Step("start_batch", "/batches/{start}/start-processing"),
        probe("started", "{start_summary}"),
    ],
}
"""The last one only runs if the operator allows it."""
