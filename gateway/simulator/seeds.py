"""Sample recipients and payments, reproducible by seed."""

import random
import string
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from gateway.simulator.account_rules import BANK_TRANSFER, CHECK, MOBILE_WALLET
from gateway.simulator.accounts import ACCOUNT_ID_LENGTH, attach_account
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.recipients import refresh_status
from gateway.simulator.sample_values import (
    COMPANIES,
    FIRST_NAMES,
    LAST_NAMES,
    PLACES,
    STREETS,
    TAGS,
    Place,
    create_seeded_random,
    generate_digits,
)
from gateway.simulator.state import Account, Recipient, Tenant, format_timestamp

# Creation dates are spread over two years from here, and updates follow within a year. All are in
# the past, so that objects a test creates later are newer.
FIRST_CREATED = datetime(2022, 1, 1, tzinfo=UTC)
TWO_YEARS_SECONDS = 2 * 365 * 24 * 3600
ONE_YEAR_SECONDS = 365 * 24 * 3600

COMPLIANCE_WEIGHTS = {"pending": 5, "verified": 10, "review": 3, "blocked": 1}
STATUS_WEIGHTS = {"": 16, "suspended": 2, "archived": 2}


def seed_recipients(tenant: Tenant, count: int, seed: int) -> list[Recipient]:
    rng = create_seeded_random("recipients", seed)
    new_recipients = [_build_recipient(tenant, rng, position) for position in range(count)]
    # Without `insert_recipient`: seeded objects do not count as created by a test.
    tenant.recipients.update((recipient.id, recipient) for recipient in new_recipients)
    for recipient in new_recipients:
        tenant.register_legacy_id(recipient.id)
    return new_recipients


def _choose_weighted(rng: random.Random, weights: dict[str, int]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]


def _generate_id(rng: random.Random, prefix: str, length: int) -> str:
    return prefix + "".join(rng.choices(string.ascii_letters + string.digits, k=length))


def _generate_timestamp(rng: random.Random, earliest: datetime, seconds: int) -> datetime:
    return earliest + timedelta(milliseconds=rng.randrange(seconds * 1000))


def _build_recipient(tenant: Tenant, rng: random.Random, position: int) -> Recipient:
    place = rng.choice(PLACES)
    created_at = _generate_timestamp(rng, FIRST_CREATED, TWO_YEARS_SECONDS)
    updated_at = (
        created_at if rng.random() < 0.2 else _generate_timestamp(rng, created_at, ONE_YEAR_SECONDS)
    )
    recipient_id = _generate_id(rng, "R-", tenant.options.recipient_id_length)
    recipient = Recipient(recipient_id, _build_fields(rng, place, position), created_at, updated_at)
    for account_type in _choose_account_types(rng, tenant, place):
        attach_account(recipient, _build_account(rng, recipient, place, account_type))
    # Then some are suspended or archived, as in a real list.
    refresh_status(recipient)
    recipient.status = _choose_weighted(rng, STATUS_WEIGHTS) or recipient.status
    recipient.compliance_status = _choose_weighted(rng, COMPLIANCE_WEIGHTS)
    if recipient.compliance_status != "pending":
        recipient.compliance_checked_at = created_at
    return recipient


def _build_fields(rng: random.Random, place: Place, position: int) -> JsonObject:
    # No businesses in countries with government ids: business ids have other numbers of digits.
    is_business = place.government_id_digits is None and rng.random() < 0.25
    first_name, last_name = rng.choice(FIRST_NAMES), rng.choice(LAST_NAMES)
    name = f"{rng.choice(COMPANIES)} {position}" if is_business else f"{first_name} {last_name}"
    mailbox = rng.choice(("pay", "hello", "accounts", "me"))
    fields: JsonObject = {
        "referenceId": None if rng.random() < 0.15 else f"ref-{generate_digits(rng, 3)}-{position}",
        "type": "business" if is_business else "individual",
        "email": f"{mailbox}.{position}@{rng.choice(('example.com', 'example.org'))}",
        "name": name,
        "firstName": None if is_business else first_name,
        "lastName": None if is_business else last_name,
        "dob": None
        if is_business
        else f"19{generate_digits(rng, 2)}-0{rng.randint(1, 9)}-1{generate_digits(rng, 1)}",
        "language": rng.choice(("en", "fr", "es", "de", "pt-BR")),
        "governmentIds": _build_government_ids(rng, place),
        "tags": rng.sample(TAGS, rng.randrange(3)),
    }
    if rng.random() > 0.07:
        fields["address"] = _build_address(rng, place)
    return fields


def _build_government_ids(rng: random.Random, place: Place) -> list[JsonObject]:
    if place.government_id_digits is not None:
        value = generate_digits(rng, place.government_id_digits)
        return [{"country": place.country, "type": "other", "value": value}]
    if place.country == "US":
        return [{"country": "US", "type": "SSN", "value": generate_digits(rng, 9)}]
    return []


def _build_address(rng: random.Random, place: Place) -> JsonObject:
    return {
        "street1": f"{rng.randint(1, 250)} {rng.choice(STREETS)}",
        "street2": None,
        "city": rng.choice(place.cities),
        "region": None,
        "postalCode": generate_digits(rng, 5),
        "country": place.country,
        "phone": f"{place.dialling_code}{generate_digits(rng, 9)}",
    }


def _choose_account_types(rng: random.Random, tenant: Tenant, place: Place) -> list[str]:
    """Chooses the types of a recipient's accounts, the primary one first."""
    if rng.random() < 0.08:
        return []
    account_types = [BANK_TRANSFER, tenant.vocabulary.wallet]
    if place.country == "US":
        account_types += [CHECK, MOBILE_WALLET]
    weights = [6, 3, 1, 1][: len(account_types)]
    primary_type = rng.choices(account_types, weights)[0]
    other_types = [
        account_type
        for account_type in account_types
        if account_type != primary_type and rng.random() < 0.15
    ]
    return [primary_type, *other_types]


def _build_account(
    rng: random.Random, recipient: Recipient, place: Place, account_type: str
) -> Account:
    fields: JsonObject = {"currency": "USD"}
    if account_type == BANK_TRANSFER:
        bank_fields = {
            "accountHolderName": recipient.fields["name"],
            **place.generate_bank_ids(rng),
        }
        fields = {"currency": place.currency, "country": place.country, **bank_fields}
    elif account_type == CHECK:
        fields["mailing"] = {
            "name": recipient.fields["name"],
            "street1": f"{rng.randint(1, 250)} {rng.choice(STREETS)}",
            "city": rng.choice(place.cities),
            "region": "OR",
            "country": "US",
            "postal": generate_digits(rng, 5),
        }
    elif account_type == MOBILE_WALLET:
        fields["phoneNumber"] = f"{place.dialling_code}{generate_digits(rng, 10)}"
    else:
        fields["emailAddress"] = recipient.fields["email"]
    return Account(
        _generate_id(rng, "A-", ACCOUNT_ID_LENGTH), account_type, is_primary=False, fields=fields
    )


def seed_payments(payee: Recipient, count: int, seed: int) -> list[JsonObject]:
    """Creates processed payments, newest first, as JSON (legacy interface, section 2).

    They have no `recipient`: responses show the recipient in its current state.
    """
    # Seeded per recipient, so that the order of calls does not matter.
    rng = create_seeded_random("payments", payee.id, seed)
    new_payments = sorted(
        (_build_payment(rng, payee) for _ in range(count)),
        key=lambda payment: str(payment["createdAt"]),
        reverse=True,
    )
    payee.payments.extend(new_payments)
    return new_payments


def _build_payment(rng: random.Random, payee: Recipient) -> JsonObject:
    created_at = _generate_timestamp(rng, payee.created_at, ONE_YEAR_SECONDS)
    sent_at, processed_at = created_at + timedelta(hours=2), created_at + timedelta(days=1)
    cents = Decimal("0.01")
    source_amount = Decimal(rng.randint(500, 500_000)) * cents
    currency = payee.fields.get("primaryCurrency") or "USD"
    rate = Decimal(1) if currency == "USD" else Decimal(rng.randint(50, 2000)) * cents
    fee = Decimal(rng.randint(0, 300)) * cents
    return {
        "id": _generate_id(rng, "P-", 16),
        "status": "processed",
        "sourceAmount": str(source_amount),
        "targetAmount": str((source_amount * rate).quantize(cents)),
        "exchangeRate": f"{rate:f}",
        "fxRate": f"{rate:f}",
        "fees": str(fee),
        "recipientFees": "0.00",
        "merchantFees": str(fee),
        "memo": rng.choice(("", "Invoice nº 7", "März", "thank you")),
        "sourceCurrency": "USD",
        "sourceCurrencyName": "US Dollar",
        "targetCurrency": currency,
        "targetCurrencyName": "US Dollar" if currency == "USD" else currency,
        "compliance": {"status": "verified", "checkedAt": format_timestamp(created_at)},
        "processedAt": format_timestamp(processed_at),
        "createdAt": format_timestamp(created_at),
        "updatedAt": format_timestamp(processed_at),
        "batch": {
            "id": _generate_id(rng, "B-", 22),
            "createdAt": format_timestamp(created_at),
            "updatedAt": format_timestamp(processed_at),
            "sentAt": format_timestamp(sent_at),
            "completedAt": format_timestamp(processed_at),
        },
    }


def seed_offline_payments(payee: Recipient, count: int, seed: int) -> list[JsonObject]:
    """Creates offline payments (section 2.7)."""
    rng = create_seeded_random("offline payments", payee.id, seed)
    new_payments = [_build_offline_payment(rng, payee) for _ in range(count)]
    payee.offline_payments.extend(new_payments)
    return new_payments


def _build_offline_payment(rng: random.Random, payee: Recipient) -> JsonObject:
    created_at = format_timestamp(_generate_timestamp(rng, payee.created_at, ONE_YEAR_SECONDS))
    return {
        "id": _generate_id(rng, "OP-", 16),
        "recipientId": payee.id,
        "amount": f"{rng.randint(5, 5000)}.00",
        "currency": "USD",
        "category": "services",
        "memo": "paid in cash",
        "externalId": f"ext-{generate_digits(rng, 6)}",
        "tags": [],
        "taxReportable": rng.random() < 0.5,
        "processedAt": created_at,
        "createdAt": created_at,
        "updatedAt": created_at,
        "deletedAt": None,
        "withholdingAmount": "0.00",
        "withholdingCurrency": "USD",
        "equivalentWithholdingAmount": "0.00",
        "equivalentWithholdingCurrency": "USD",
    }
