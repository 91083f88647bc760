"""Sample names and places for seeded recipients."""

import random
import string
from collections.abc import Callable
from dataclasses import dataclass

from gateway.simulator.iban import build_iban
from gateway.simulator.json_codec import JsonObject

FIRST_NAMES = (
    "Ana", "Björn", "Chloé", "Dmitrij", "Éloïse", "Fatima", "Grace", "Hiroshi", "Íris", "João",
    "Kāla", "Łukasz", "Mei", "Nuño", "Øyvind", "Priya", "Renée", "Søren", "Tomáš", "Zoë", "李", "Юлия",
)  # fmt: skip
LAST_NAMES = (
    "Andersson", "Błaszczyk", "Castañeda", "D'Angelo", "Egger", "Fernández", "García-Núñez",
    "Højgaard", "Iyer", "Jansen", "Kowalska", "Lefèvre", "Müller", "Nakamura", "O'Neill",
    "Peña", "Şahin", "Tran", "van der Berg", "Wójcik", "小林", "Ковалёва",
)  # fmt: skip
COMPANIES = (
    "Atelier Ünlü", "Bright Cove Studio", "Café Orléans", "Dos Ríos Media", "Étoile Textiles",
    "Fjord & Sons", "Grünwald Tools", "Harbour Lights", "İzmir Design", "Nordström Works",
)  # fmt: skip
STREETS = (
    "High Street",
    "Rue de l'Église",
    "Calle Mayor",
    "Lindenstraße",
    "ulica Długa",
    "5th Ave",
)
TAGS = ("designer", "2024 cohort", "équipe", "priority", "seller")


def create_seeded_random(*seed_parts: object) -> random.Random:
    """Creates a reproducible random generator."""
    # Seeded by text: the same seed gives the same data in every process and version.
    return random.Random(" ".join(map(str, seed_parts)))  # noqa: S311  # sample data protects nothing


def generate_digits(rng: random.Random, count: int) -> str:
    return "".join(rng.choices(string.digits, k=count))


@dataclass(frozen=True)
class Place:
    """A country; `generate_bank_ids` creates account and bank numbers (section 2.6)."""

    country: str
    currency: str
    cities: tuple[str, ...]
    dialling_code: str
    generate_bank_ids: Callable[[random.Random], JsonObject]
    government_id_digits: int | None = None


def _create_iban_generator(
    country: str, length: int, letters: str = ""
) -> Callable[[random.Random], JsonObject]:
    def generate_iban(rng: random.Random) -> JsonObject:
        return {
            "iban": build_iban(country, letters + generate_digits(rng, length - 4 - len(letters)))
        }

    return generate_iban


def _create_account_number_generator(
    length: int, **id_lengths: int
) -> Callable[[random.Random], JsonObject]:
    def generate_account_number(rng: random.Random) -> JsonObject:
        bank_ids = {
            name: generate_digits(rng, digit_count) for name, digit_count in id_lengths.items()
        }
        return {"accountNum": generate_digits(rng, length), **bank_ids}

    return generate_account_number


def _generate_indian_bank_ids(rng: random.Random) -> JsonObject:
    return {"accountNum": generate_digits(rng, 12), "branchId": f"HRBR0{generate_digits(rng, 6)}"}


PLACES = (
    Place(
        "US",
        "USD",
        ("Portland", "Austin", "San José"),
        "+1",
        _create_account_number_generator(10, branchId=9),
    ),
    Place(
        "CA",
        "CAD",
        ("Montréal", "Québec"),
        "+1",
        _create_account_number_generator(9, bankId=3, branchId=5),
    ),
    Place(
        "GB", "GBP", ("Leeds", "Bristol"), "+44", _create_account_number_generator(8, branchId=6)
    ),
    Place("AU", "AUD", ("Perth", "Hobart"), "+61", _create_account_number_generator(9, branchId=6)),
    Place(
        "NZ",
        "NZD",
        ("Ōtautahi", "Whangārei"),
        "+64",
        _create_account_number_generator(10, branchId=6),
    ),
    Place("IN", "INR", ("Pune", "Kochi"), "+91", _generate_indian_bank_ids),
    Place("DE", "EUR", ("Köln", "München"), "+49", _create_iban_generator("DE", 22)),
    Place("FR", "EUR", ("Besançon", "Nîmes"), "+33", _create_iban_generator("FR", 27)),
    Place("ES", "EUR", ("A Coruña", "Cádiz"), "+34", _create_iban_generator("ES", 24)),
    Place("NL", "EUR", ("Utrecht",), "+31", _create_iban_generator("NL", 18, "HRBR")),
    Place("PL", "PLN", ("Łódź", "Gdańsk"), "+48", _create_iban_generator("PL", 28)),
    Place("SE", "SEK", ("Malmö", "Göteborg"), "+46", _create_iban_generator("SE", 24)),
    Place("MX", "MXN", ("Mérida", "León"), "+52", _create_account_number_generator(18)),
    Place("JP", "JPY", ("大阪", "Kōbe"), "+81", _create_account_number_generator(7)),
    Place("BR", "BRL", ("São Paulo", "Goiânia"), "+55", _create_account_number_generator(9), 11),
    Place("CO", "COP", ("Bogotá", "Medellín"), "+57", _create_account_number_generator(11), 10),
    Place("PH", "PHP", ("Cebu",), "+63", _create_account_number_generator(12)),
)
