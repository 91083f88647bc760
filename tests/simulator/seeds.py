"""Sample recipients, reproducible by seed."""

import random
import re
import string
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from schwifty import IBAN

from gateway.simulator.accounts import (
    ACCOUNT_ID_LENGTH,
    BANK_TRANSFER,
    CHECK,
    MOBILE_WALLET,
    attach_account,
)
from gateway.simulator.recipients import refresh_status
from gateway.simulator.state import Account, Recipient, Tenant
from gateway.simulator.validation import JsonObject

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
    Place("US", "USD", "+1", "San José", {"accountNum": "#" * 10, "branchId": "#" * 9}, 9),
    Place("CA", "CAD", "+1", "Québec", {"accountNum": "#" * 7, "bankId": "#" * 3, "branchId": "#" * 5}),
    Place("GB", "GBP", "+44", "Leeds", {"accountNum": "#" * 8, "branchId": "#" * 6}),
    Place("AU", "AUD", "+61", "Perth", {"accountNum": "#" * 9, "branchId": "#" * 6}),
    Place("NZ", "NZD", "+64", "Whangārei", {"accountNum": "#" * 10, "branchId": "#" * 6}),
    Place("IN", "INR", "+91", "Pune", {"accountNum": "#" * 12, "branchId": "HRBR0######"}),
    Place("DE", "EUR", "+49", "Köln", {"iban": "#" * 18}),
    Place("FR", "EUR", "+33", "Nîmes", {"iban": "#" * 23}),
    Place("NL", "EUR", "+31", "Utrecht", {"iban": "HRBR##########"}),
    Place("PL", "PLN", "+48", "Łódź", {"iban": "#" * 24}),
    Place("MX", "MXN", "+52", "León", {"accountNum": "#" * 18}),
    Place("JP", "JPY", "+81", "大阪", {"accountNum": "#" * 7}),
    Place("BR", "BRL", "+55", "São Paulo", {"accountNum": "#" * 9}, 11),
    Place("CO", "COP", "+57", "Bogotá", {"accountNum": "#" * 11}, 10),
)  # fmt: skip

# Creation dates are spread over two years from here, and updates follow within a year. All are in
# the past, so that objects a test creates later are newer.
FIRST_CREATED = datetime(2022, 1, 1, tzinfo=UTC)
ONE_YEAR_SECONDS = 365 * 24 * 3600

COMPLIANCE_WEIGHTS = {"pending": 5, "verified": 10, "review": 3, "blocked": 1}
STATUS_WEIGHTS = {"": 16, "suspended": 2, "archived": 2}


def seed_recipients(tenant: Tenant, count: int, seed: int) -> list[Recipient]:
    # Seeded by text: the same seed gives the same data in every process and version.
    rng = random.Random(f"recipients {seed}")  # sample data protects nothing
    new_recipients = [_build_recipient(tenant, rng, position) for position in range(count)]
    # Without `insert_recipient`: seeded objects do not count as created by a test.
    tenant.recipients |= {recipient.id: recipient for recipient in new_recipients}
    return new_recipients


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
    created_at = updated_at = _generate_timestamp(rng, FIRST_CREATED, 2 * ONE_YEAR_SECONDS)
    if rng.random() > 0.2:
        updated_at = _generate_timestamp(rng, created_at, ONE_YEAR_SECONDS)
    id_ = tenant.register_legacy_id(_generate_id(rng, "R-", tenant.options.recipient_id_length))
    recipient = Recipient(id_, _build_fields(rng, place, position), created_at, updated_at)
    for account_type in _choose_account_types(rng, tenant, place):
        fields = _build_account_fields(rng, recipient, place, account_type)
        account_id = _generate_id(rng, "A-", ACCOUNT_ID_LENGTH)
        attach_account(recipient, Account(account_id, account_type, False, fields))
    # Then some are suspended or archived, as in a real list.
    refresh_status(recipient)
    recipient.status = _choose_weighted(rng, STATUS_WEIGHTS) or recipient.status
    recipient.compliance_status = _choose_weighted(rng, COMPLIANCE_WEIGHTS)
    if recipient.compliance_status != "pending":
        recipient.compliance_checked_at = created_at
    return recipient


def _build_fields(rng: random.Random, place: Place, position: int) -> JsonObject:
    id_type = "SSN" if place.country == "US" else "other"
    id_value = _fill_digits(rng, "#" * place.government_id_digits)
    # No businesses in most countries with government ids: theirs have other numbers of digits.
    is_business = (id_type == "SSN" or not id_value) and rng.random() < 0.25
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
        "governmentIds": (
            [{"country": place.country, "type": id_type, "value": id_value}] if id_value else []
        ),
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
            ids["iban"] = str(IBAN.from_bban(place.country, ids["iban"]))
        country = {"currency": place.currency, "country": place.country}
        return {**country, "accountHolderName": name, **ids}
    mailing = {"name": name, "street1": f"{rng.randint(1, 250)} High Street", "city": place.city}
    mailing |= {"region": "OR", "country": "US", "postal": _fill_digits(rng, "#####")}
    own_fields: dict[str, JsonObject] = {
        CHECK: {"mailing": mailing},
        MOBILE_WALLET: {"phoneNumber": _fill_digits(rng, "+1##########")},
    }
    wallet_fields = {"emailAddress": recipient.fields["email"]}
    return {"currency": "USD", **own_fields.get(account_type, wallet_fields)}
