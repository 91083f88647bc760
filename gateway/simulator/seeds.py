"""Sample recipients and payments, reproducible by seed."""

import random
import re
import string
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from gateway.simulator.accounts import (
    ACCOUNT_ID_LENGTH,
    BANK_TRANSFER,
    CHECK,
    MOBILE_WALLET,
    attach_account,
)
from gateway.simulator.countries import build_iban
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.recipients import refresh_status
from gateway.simulator.state import Account, Recipient, Tenant

FIRST_NAMES = (
    "Ana", "Björn", "Chloé", "Dmitrij", "Éloïse", "Fatima", "Grace", "Hiroshi", "João", "Kāla",
    "Łukasz", "Mei", "Nuño", "Øyvind", "Priya", "Renée", "Søren", "Tomáš", "Zoë", "李", "Юлия",
)  # fmt: skip
LAST_NAMES = (
    "Błaszczyk", "Castañeda", "D'Angelo", "Egger", "García-Núñez", "Højgaard", "Iyer", "Jansen",
    "Kowalska", "Lefèvre", "Müller", "Nakamura", "Şahin", "van der Berg", "小林", "Ковалёва",
)  # fmt: skip
COMPANIES = ("Atelier Ünlü", "Café Orléans", "Dos Ríos Media", "Fjord & Sons", "İzmir Design")
STREETS = ("High Street", "Rue de l'Église", "Calle Mayor", "Lindenstraße", "ulica Długa")


class Place(NamedTuple):
    """A country; in ``bank_ids`` (section 2.6) each # is a digit, and an IBAN has no check digits."""

    country: str
    currency: str
    dialling_code: str
    city: str
    bank_ids: Mapping[str, str]
    government_id_digits: int = 0


PLACES = (
    Place("US", "USD", "+1", "San José", {"accountNum": "##########", "branchId": "#########"}),
    Place(
        "CA", "CAD", "+1", "Québec", {"accountNum": "#######", "bankId": "###", "branchId": "#####"}
    ),
    Place("GB", "GBP", "+44", "Leeds", {"accountNum": "########", "branchId": "######"}),
    Place("AU", "AUD", "+61", "Perth", {"accountNum": "#########", "branchId": "######"}),
    Place("NZ", "NZD", "+64", "Whangārei", {"accountNum": "##########", "branchId": "######"}),
    Place("IN", "INR", "+91", "Pune", {"accountNum": "############", "branchId": "HRBR0######"}),
    Place("DE", "EUR", "+49", "Köln", {"iban": "##################"}),
    Place("FR", "EUR", "+33", "Nîmes", {"iban": "#######################"}),
    Place("NL", "EUR", "+31", "Utrecht", {"iban": "HRBR##########"}),
    Place("PL", "PLN", "+48", "Łódź", {"iban": "########################"}),
    Place("MX", "MXN", "+52", "León", {"accountNum": "##################"}),
    Place("JP", "JPY", "+81", "大阪", {"accountNum": "#######"}),
    Place("BR", "BRL", "+55", "São Paulo", {"accountNum": "#########"}, 11),
    Place("CO", "COP", "+57", "Bogotá", {"accountNum": "###########"}, 10),
)

# Creation dates are spread over two years from here, and updates follow within a year. All are in
# the past, so that objects a test creates later are newer.
FIRST_CREATED = datetime(2022, 1, 1, tzinfo=UTC)
ONE_YEAR_SECONDS = 365 * 24 * 3600

COMPLIANCE_WEIGHTS = {"pending": 5, "verified": 10, "review": 3, "blocked": 1}
STATUS_WEIGHTS = {"": 16, "suspended": 2, "archived": 2}


def seed_recipients(tenant: Tenant, count: int, seed: int) -> list[Recipient]:
    rng = _create_seeded_random("recipients", seed)
    new_recipients = [_build_recipient(tenant, rng, position) for position in range(count)]
    # Without `insert_recipient`: seeded objects do not count as created by a test.
    for recipient in new_recipients:
        tenant.recipients[recipient.id] = recipient
        tenant.register_legacy_id(recipient.id)
    return new_recipients


def _create_seeded_random(*seed_parts: object) -> random.Random:
    # Seeded by text: the same seed gives the same data in every process and version.
    return random.Random(" ".join(map(str, seed_parts)))  # noqa: S311  # sample data protects nothing


def _choose_weighted(rng: random.Random, weights: Mapping[str, int]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]


def _fill_digits(rng: random.Random, template: str) -> str:
    return re.sub("#", lambda _: rng.choice(string.digits), template)


def _generate_id(rng: random.Random, prefix: str, length: int) -> str:
    return prefix + "".join(rng.choices(string.ascii_letters + string.digits, k=length))


def _generate_timestamp(rng: random.Random, earliest: datetime, seconds: int) -> datetime:
    return earliest + timedelta(milliseconds=rng.randrange(seconds * 1000))


def _build_recipient(tenant: Tenant, rng: random.Random, position: int) -> Recipient:
    place = rng.choice(PLACES)
    created_at = _generate_timestamp(rng, FIRST_CREATED, 2 * ONE_YEAR_SECONDS)
    is_changed = rng.random() > 0.2
    updated_at = (
        _generate_timestamp(rng, created_at, ONE_YEAR_SECONDS) if is_changed else created_at
    )
    id_ = _generate_id(rng, "R-", tenant.options.recipient_id_length)
    recipient = Recipient(id_, _build_fields(rng, place, position), created_at, updated_at)
    for account_type in _choose_account_types(rng, tenant, place):
        fields = _build_account_fields(rng, recipient, place, account_type)
        account_id = _generate_id(rng, "A-", ACCOUNT_ID_LENGTH)
        attach_account(
            recipient, Account(account_id, account_type, is_primary=False, fields=fields)
        )
    # Then some are suspended or archived, as in a real list.
    refresh_status(recipient)
    recipient.status = _choose_weighted(rng, STATUS_WEIGHTS) or recipient.status
    recipient.compliance_status = _choose_weighted(rng, COMPLIANCE_WEIGHTS)
    if recipient.compliance_status != "pending":
        recipient.compliance_checked_at = created_at
    return recipient


def _build_fields(rng: random.Random, place: Place, position: int) -> JsonObject:
    # No businesses in countries with government ids: business ids have other numbers of digits.
    is_business = not place.government_id_digits and rng.random() < 0.25
    first_name, last_name = rng.choice(FIRST_NAMES), rng.choice(LAST_NAMES)
    name = f"{rng.choice(COMPANIES)} {position}" if is_business else f"{first_name} {last_name}"
    fields: JsonObject = {
        "referenceId": None if rng.random() < 0.15 else _fill_digits(rng, f"ref-###-{position}"),
        "type": "business" if is_business else "individual",
        "email": f"pay.{position}@{rng.choice(('example.com', 'example.org'))}",
        "name": name,
        "firstName": None if is_business else first_name,
        "lastName": None if is_business else last_name,
        "dob": None if is_business else f"19{rng.randint(50, 99)}-0{rng.randint(1, 9)}-17",
        "language": rng.choice(("en", "fr", "es", "de", "pt-BR")),
        "governmentIds": _build_government_ids(rng, place),
        "tags": rng.sample(("designer", "2024 cohort", "équipe", "seller"), rng.randrange(3)),
    }
    if rng.random() > 0.07:
        fields["address"] = {
            "street1": f"{rng.randint(1, 250)} {rng.choice(STREETS)}",
            "city": place.city,
            "postalCode": _fill_digits(rng, "#####"),
            "country": place.country,
            "phone": _fill_digits(rng, f"{place.dialling_code}#########"),
        }
    return fields


def _build_government_ids(rng: random.Random, place: Place) -> list[JsonObject]:
    if place.government_id_digits:
        value = _fill_digits(rng, "#" * place.government_id_digits)
        return [{"country": place.country, "type": "other", "value": value}]
    if place.country == "US":
        return [{"country": "US", "type": "SSN", "value": _fill_digits(rng, "#########")}]
    return []


def _choose_account_types(rng: random.Random, tenant: Tenant, place: Place) -> list[str]:
    """Chooses the types of a recipient's accounts, the primary one first."""
    if rng.random() < 0.08:
        return []
    weights = {BANK_TRANSFER: 6, tenant.vocabulary.wallet: 3}
    if place.country == "US":
        weights |= {CHECK: 2, MOBILE_WALLET: 2}
    primary_type = _choose_weighted(rng, weights)
    return [primary_type, *(t for t in weights if t != primary_type and rng.random() < 0.15)]


def _build_account_fields(
    rng: random.Random, recipient: Recipient, place: Place, account_type: str
) -> JsonObject:
    name = recipient.fields["name"]
    if account_type == BANK_TRANSFER:
        ids = {field: _fill_digits(rng, template) for field, template in place.bank_ids.items()}
        if "iban" in ids:
            ids["iban"] = build_iban(place.country, ids["iban"])
        country = {"currency": place.currency, "country": place.country}
        return {**country, "accountHolderName": name, **ids}
    if account_type == CHECK:
        mailing = {
            "name": name,
            "street1": f"{rng.randint(1, 250)} High Street",
            "city": place.city,
        }
        mailing |= {"region": "OR", "country": "US", "postal": _fill_digits(rng, "#####")}
        return {"currency": "USD", "mailing": mailing}
    if account_type == MOBILE_WALLET:
        return {"currency": "USD", "phoneNumber": _fill_digits(rng, "+1##########")}
    return {"currency": "USD", "emailAddress": recipient.fields["email"]}
