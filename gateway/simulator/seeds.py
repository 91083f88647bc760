"""Sample recipients and payments, reproducible by seed."""

import random
import string
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from gateway.simulator.account_rules import BANK, CHECK, MOBILE_WALLET
from gateway.simulator.accounts import ID_LENGTH, attach
from gateway.simulator.made_up import (
    COMPANIES,
    FIRST_NAMES,
    LAST_NAMES,
    PLACES,
    STREETS,
    TAGS,
    Place,
    dice,
    digits,
)
from gateway.simulator.recipients import settle
from gateway.simulator.state import Account, Recipient, World, iso
from gateway.simulator.wire import JsonObject

# Creation dates are spread over two years from here, and updates follow within a year. All are in
# the past, so that objects a test creates later are newer.
FIRST_CREATED = datetime(2022, 1, 1, tzinfo=UTC)
TWO_YEARS = 2 * 365 * 24 * 3600
ONE_YEAR = 365 * 24 * 3600

COMPLIANCE = {"pending": 5, "verified": 10, "review": 3, "blocked": 1}
STATUSES = {"": 16, "suspended": 2, "archived": 2}


def recipients(world: World, n: int, seed: int) -> list[Recipient]:
    rng = dice("recipients", seed)
    made = [_recipient(world, rng, position) for position in range(n)]
    world.recipients.update((each.id, each) for each in made)
    for each in made:
        world.know(each.id)
    return made


def _one_of(rng: random.Random, weighted: dict[str, int]) -> str:
    return rng.choices(list(weighted), list(weighted.values()))[0]


def _id(rng: random.Random, prefix: str, length: int) -> str:
    return prefix + "".join(rng.choices(string.ascii_letters + string.digits, k=length))


def _moment(rng: random.Random, after: datetime, seconds: int) -> datetime:
    return after + timedelta(milliseconds=rng.randrange(seconds * 1000))


def _recipient(world: World, rng: random.Random, position: int) -> Recipient:
    place = rng.choice(PLACES)
    created = _moment(rng, FIRST_CREATED, TWO_YEARS)
    updated = created if rng.random() < 0.2 else _moment(rng, created, ONE_YEAR)
    recipient_id = _id(rng, "R-", world.switches.recipient_id_length)
    made = Recipient(recipient_id, _fields(rng, place, position), created, updated)
    for kind in _kinds(rng, world, place):
        attach(made, _account(rng, made, place, kind))
    settle(made)
    made.status = _one_of(rng, STATUSES) or made.status
    made.compliance_status = _one_of(rng, COMPLIANCE)
    if made.compliance_status != "pending":
        made.compliance_checked_at = created
    return made


def _fields(rng: random.Random, place: Place, position: int) -> JsonObject:
    # No businesses in countries with government ids: business ids have other numbers of digits.
    business = place.government_id_digits is None and rng.random() < 0.25
    first, last = rng.choice(FIRST_NAMES), rng.choice(LAST_NAMES)
    name = f"{rng.choice(COMPANIES)} {position}" if business else f"{first} {last}"
    mailbox = rng.choice(("pay", "hello", "accounts", "me"))
    fields: JsonObject = {
        "referenceId": None if rng.random() < 0.15 else f"ref-{digits(rng, 3)}-{position}",
        "type": "business" if business else "individual",
        "email": f"{mailbox}.{position}@{rng.choice(('example.com', 'example.org'))}",
        "name": name,
        "firstName": None if business else first,
        "lastName": None if business else last,
        "dob": None if business else f"19{digits(rng, 2)}-0{rng.randint(1, 9)}-1{digits(rng, 1)}",
        "language": rng.choice(("en", "fr", "es", "de", "pt-BR")),
        "governmentIds": _government_ids(rng, place),
        "tags": rng.sample(TAGS, rng.randrange(3)),
    }
    if rng.random() > 0.07:
        fields["address"] = _address(rng, place)
    return fields


def _government_ids(rng: random.Random, place: Place) -> list[JsonObject]:
    if place.government_id_digits is not None:
        value = digits(rng, place.government_id_digits)
        return [{"country": place.country, "type": "other", "value": value}]
    if place.country == "US":
        return [{"country": "US", "type": "SSN", "value": digits(rng, 9)}]
    return []


def _address(rng: random.Random, place: Place) -> JsonObject:
    return {
        "street1": f"{rng.randint(1, 250)} {rng.choice(STREETS)}",
        "street2": None,
        "city": rng.choice(place.cities),
        "region": None,
        "postalCode": digits(rng, 5),
        "country": place.country,
        "phone": f"{place.dialling}{digits(rng, 9)}",
    }


def _kinds(rng: random.Random, world: World, place: Place) -> list[str]:
    """Choose the types of a recipient's accounts, the primary one first."""
    if rng.random() < 0.08:
        return []
    kinds = [BANK, world.words.wallet]
    if place.country == "US":
        kinds += [CHECK, MOBILE_WALLET]
    weights = [6, 3, 1, 1][: len(kinds)]
    first = rng.choices(kinds, weights)[0]
    others = [kind for kind in kinds if kind != first and rng.random() < 0.15]
    return [first, *others]


def _account(rng: random.Random, owner: Recipient, place: Place, kind: str) -> Account:
    fields: JsonObject = {"currency": "USD"}
    if kind == BANK:
        bank = {"accountHolderName": owner.fields["name"], **place.bank(rng)}
        fields = {"currency": place.currency, "country": place.country, **bank}
    elif kind == CHECK:
        fields["mailing"] = {
            "name": owner.fields["name"],
            "street1": f"{rng.randint(1, 250)} {rng.choice(STREETS)}",
            "city": rng.choice(place.cities),
            "region": "OR",
            "country": "US",
            "postal": digits(rng, 5),
        }
    elif kind == MOBILE_WALLET:
        fields["phoneNumber"] = f"{place.dialling}{digits(rng, 10)}"
    else:
        fields["emailAddress"] = owner.fields["email"]
    return Account(_id(rng, "A-", ID_LENGTH), kind, primary=False, fields=fields)


def payments(payee: Recipient, n: int, seed: int) -> list[JsonObject]:
    """Create processed payments, newest first, as JSON of the earlier interface (section 2).

    They have no `recipient`: responses show the recipient in its current state.
    """
    # Seeded per recipient, so that the order of calls does not matter.
    rng = dice("payments", payee.id, seed)
    made = sorted(
        (_payment(rng, payee) for _ in range(n)),
        key=lambda each: str(each["createdAt"]),
        reverse=True,
    )
    payee.payments.extend(made)
    return made


def _payment(rng: random.Random, payee: Recipient) -> JsonObject:
    created = _moment(rng, payee.created_at, ONE_YEAR)
    sent, processed = created + timedelta(hours=2), created + timedelta(days=1)
    cents = Decimal("0.01")
    source = Decimal(rng.randint(500, 500_000)) * cents
    currency = payee.fields.get("primaryCurrency") or "USD"
    rate = Decimal(1) if currency == "USD" else Decimal(rng.randint(50, 2000)) * cents
    fee = Decimal(rng.randint(0, 300)) * cents
    return {
        "id": _id(rng, "P-", 16),
        "status": "processed",
        "sourceAmount": str(source),
        "targetAmount": str((source * rate).quantize(cents)),
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
        "compliance": {"status": "verified", "checkedAt": iso(created)},
        "processedAt": iso(processed),
        "createdAt": iso(created),
        "updatedAt": iso(processed),
        "batch": {
            "id": _id(rng, "B-", 22),
            "createdAt": iso(created),
            "updatedAt": iso(processed),
            "sentAt": iso(sent),
            "completedAt": iso(processed),
        },
    }


def offline_payments(payee: Recipient, n: int, seed: int) -> list[JsonObject]:
    """Create offline payments (section 2.7)."""
    rng = dice("offline payments", payee.id, seed)
    made = [_offline_payment(rng, payee) for _ in range(n)]
    payee.offline_payments.extend(made)
    return made


def _offline_payment(rng: random.Random, payee: Recipient) -> JsonObject:
    created = iso(_moment(rng, payee.created_at, ONE_YEAR))
    return {
        "id": _id(rng, "OP-", 16),
        "recipientId": payee.id,
        "amount": f"{rng.randint(5, 5000)}.00",
        "currency": "USD",
        "category": "services",
        "memo": "paid in cash",
        "externalId": f"ext-{digits(rng, 6)}",
        "tags": [],
        "taxReportable": rng.random() < 0.5,
        "processedAt": created,
        "createdAt": created,
        "updatedAt": created,
        "deletedAt": None,
        "withholdingAmount": "0.00",
        "withholdingCurrency": "USD",
        "equivalentWithholdingAmount": "0.00",
        "equivalentWithholdingCurrency": "USD",
    }
