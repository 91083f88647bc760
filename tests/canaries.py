"""Secrets and personal data that occur nowhere else, and requests that contain them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tests.running_gateway import GatewayUnderTest

API_KEY = "canary-api-key-7f3a9c"
ACCESS_KEY = "CANARYACCESSKEY4D1"
SECRET_KEY = "canary-secret-key-b82e61"
SSN = "907154263"
PASSPORT = "CANARYPASSPORT77"
IBAN = "DE89370400440532013000"
ACCOUNT = "7203914486"
EMAIL = "canary.mail@canary-mail.example"
FIRST_NAME, LAST_NAME, COMPANY = "Canaryfirst", "Canarylast", "Canary Company"
STREET, PHONE, DOB, REFERENCE = "Canary Street 12", "+15550147963", "1971-03-29", "canary-ref-55"
CITY, POSTAL, BANK_ADDRESS = "Canaryville", "CNRY-7714", "Canary Bank Road 9"
CPF = "52998224725"
WALLET_ADDRESS = "canary.wallet@canary-pay.example"
MEMO, DESCRIPTION = "canary memo zq9", "canary description zq8"

SECRETS = (API_KEY, ACCESS_KEY, SECRET_KEY)
PERSONAL = (
    SSN,
    PASSPORT,
    IBAN,
    ACCOUNT,
    EMAIL,
    FIRST_NAME,
    LAST_NAME,
    COMPANY,
    STREET,
    PHONE,
    DOB,
    REFERENCE,
    CITY,
    POSTAL,
    BANK_ADDRESS,
    CPF,
    WALLET_ADDRESS,
    MEMO,
    DESCRIPTION,
)
CANARIES = (*SECRETS, *PERSONAL)

PERSON = {
    "type": "individual",
    "firstName": FIRST_NAME,
    "lastName": LAST_NAME,
    "name": COMPANY,
    "email": EMAIL,
    "referenceId": REFERENCE,
    "ssn": SSN,
    "passport": PASSPORT,
    "dob": DOB,
    "language": "en",
    "address": {
        "street1": STREET,
        "city": CITY,
        "region": "NY",
        "postalCode": POSTAL,
        "country": "US",
        "phone": PHONE,
    },
}
BANK = {
    "country": "US",
    "accountNum": ACCOUNT,
    "routing": "021000021",
    "name": FIRST_NAME,
    "bankAddress": BANK_ADDRESS,
    "bankCity": CITY,
    "bankPostalCode": POSTAL,
    "governmentId": SSN,
}
PAYOUT = {"primary": {"method": "bank", "currency": "USD"}, "accounts": {"bank": BANK}}
GERMAN = {
    "primary": {"method": "bank", "currency": "EUR"},
    "accounts": {
        "bank": {"country": "DE", "iban": IBAN, "name": LAST_NAME},
        "wallet": {"address": WALLET_ADDRESS},
    },
    "autoswitch": {"limit": 5, "active": True},
}
BRAZILIAN = {
    "primary": {"method": "bank", "currency": "BRL"},
    "accounts": {
        "bank": {"country": "BR", "accountNum": ACCOUNT, "governmentId": CPF, "name": LAST_NAME}
    },
}

HEADERS = [
    f"Authorization: Bearer {SECRET_KEY}",
    f"Cookie: session={API_KEY}; email={EMAIL}",
    f"User-Agent: {FIRST_NAME}/{SSN}",
    f"Referer: https://shop.example/?email={EMAIL}&iban={IBAN}",
    f"Origin: https://{EMAIL.partition('@')[2]}",
    f"X-Forwarded-For: {LAST_NAME}, {ACCOUNT}",
    f"X-Own: {' '.join(CANARIES)}",
    f"{API_KEY}: {SECRET_KEY}",
    f"Content-Type: {PASSPORT}/{IBAN}",
    f"Accept: {COMPANY}",
    f"From: {EMAIL}",
    f"X-Request-Id: {EMAIL}",
]


@dataclass(frozen=True)
class Objects:
    """Ids of a recipient and of a batch with a payment to it."""

    recipient: str
    batch: str
    payment: str


def build_payment(recipient: str, amount: str = "5.00") -> dict[str, Any]:
    return {"recipient": {"id": recipient}, "sourceAmount": amount, "memo": MEMO}


def build_batch(recipient: str) -> dict[str, Any]:
    payments = [build_payment(recipient), build_payment(recipient, "6.00")]
    return {"sourceCurrency": "USD", "description": DESCRIPTION, "payments": payments}


async def create_objects(gateway: GatewayUnderTest) -> Objects:
    create_response = await gateway.request("POST", "/v1/recipients", PERSON | {"payout": PAYOUT})
    recipient = create_response.body["recipient"]["id"]
    batch = (await gateway.request("POST", "/v1/batches", build_batch(recipient))).body["batch"][
        "id"
    ]
    list_response = await gateway.request("GET", f"/v1/batches/{batch}/payments")
    return Objects(recipient, batch, list_response.body["payments"][0]["id"])


def build_query(*names: str) -> str:
    """A query string with canaries in these parameters and in unknown ones."""
    values = (EMAIL, STREET, LAST_NAME, SSN, DOB, IBAN, ACCOUNT, PASSPORT)
    pairs = [*zip(names, values, strict=False), (API_KEY, SECRET_KEY), ("page", SSN)]
    return "&".join(f"{name}={quote(value)}" for name, value in pairs)


def list_requests(objects: Objects) -> list[tuple[str, str, Any]]:
    """Requests of all operations with every canary that they can carry; deletions last."""
    recipient, batch = f"/recipients/{objects.recipient}", f"/batches/{objects.batch}"
    payment = f"{batch}/payments/{objects.payment}"
    filters = build_query(
        "search", "city", "status", "orderBy", "startDate", "country", "payoutMethod",
        "payoutCurrency",
    )  # fmt: skip
    by_address = {"recipient": {"email": EMAIL}, "sourceAmount": "7.00", "memo": MEMO}
    return [
        ("POST", "/recipients", PERSON | {"payout": PAYOUT}),
        ("GET", f"/recipients?{filters}", b""),
        ("GET", recipient, b""),
        ("PATCH", recipient, PERSON | {"payout": GERMAN}),
        ("GET", f"{recipient}/logs?{build_query('page')}", b""),
        ("GET", f"{recipient}/payments?{build_query('search')}", b""),
        ("POST", f"{recipient}/payout-methods", PAYOUT),
        ("PATCH", f"{recipient}/payout-methods", GERMAN),
        ("POST", f"{recipient}/payout-methods", BRAZILIAN),
        ("GET", f"{recipient}/payout-methods", b""),
        ("POST", "/batches", build_batch(objects.recipient)),
        ("POST", "/batches", {"sourceCurrency": "USD", "payments": [by_address]}),
        ("GET", f"/batches?{build_query('search')}", b""),
        ("GET", batch, b""),
        ("PATCH", batch, {
            "payments": [build_payment(objects.recipient, "8.00")],
            "update_payments": [{"id": objects.payment, "memo": f"{MEMO} again"}],
        }),
        ("POST", f"{batch}/payments", build_payment(objects.recipient, "9.00")),
        ("POST", f"{batch}/payments", by_address),
        ("GET", f"{batch}/payments?{build_query('search')}", b""),
        ("GET", payment, b""),
        ("PATCH", payment, {"sourceAmount": "10.00", "memo": MEMO}),
        ("POST", f"{batch}/generate-quote", b""),
        ("GET", f"{batch}/summary", b""),
        ("GET", f"/payments?{build_query('search')}", b""),
        ("GET", f"/payments/{objects.payment}", b""),
        ("GET", "/profile/balances", b""),
        ("GET", "/profile/balances/service", b""),
        ("GET", "/profile/balances/wallet", b""),
        ("GET", f"/geography/countries/CA?{build_query('search')}", b""),
        ("DELETE", payment, b""),
        ("POST", f"{batch}/start-processing", b""),
        ("DELETE", batch, b""),
        ("DELETE", "/batches", {"ids": [objects.batch, MEMO, f"B-{SSN}"]}),
        ("DELETE", recipient, b""),
        ("DELETE", "/recipients", {"ids": [objects.recipient, EMAIL, f"R-{SSN}"]}),
    ]  # fmt: skip


def assert_no_canary(text: str, canaries: tuple[str, ...] = CANARIES) -> None:
    small = text.lower()
    for canary in canaries:
        for encoded_canary in (
            canary,
            quote(canary),
            quote(canary, safe=""),
            json.dumps(canary)[1:-1],
        ):
            assert encoded_canary.lower() not in small, canary
