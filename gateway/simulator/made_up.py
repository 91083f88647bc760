"""Sample names and places for seeded recipients."""

import random
import string
from collections.abc import Callable
from dataclasses import dataclass

from gateway.simulator.iban import make_iban
from gateway.simulator.wire import JsonObject

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


def dice(*seed: object) -> random.Random:
    """Create a reproducible random generator."""
    return random.Random(" ".join(map(str, seed)))  # noqa: S311  # sample data protects nothing


def digits(rng: random.Random, n: int) -> str:
    return "".join(rng.choices(string.digits, k=n))


@dataclass(frozen=True)
class Place:
    """A country; `generate_bank_ids` creates account and bank numbers (section 2.6)."""

    country: str
    currency: str
    cities: tuple[str, ...]
    dialling: str
    bank: Callable[[random.Random], JsonObject]
    government_id_digits: int | None = None


def _iban(country: str, length: int, letters: str = "") -> Callable[[random.Random], JsonObject]:
    def bank(rng: random.Random) -> JsonObject:
        return {"iban": make_iban(country, letters + digits(rng, length - 4 - len(letters)))}

    return bank


def _number(length: int, **parts: int) -> Callable[[random.Random], JsonObject]:
    def bank(rng: random.Random) -> JsonObject:
        identified = {name: digits(rng, n) for name, n in parts.items()}
        return {"accountNum": digits(rng, length), **identified}

    return bank


def _indian(rng: random.Random) -> JsonObject:
    return {"accountNum": digits(rng, 12), "branchId": f"HRBR0{digits(rng, 6)}"}


PLACES = (
    Place("US", "USD", ("Portland", "Austin", "San José"), "+1", _number(10, branchId=9)),
    Place("CA", "CAD", ("Montréal", "Québec"), "+1", _number(9, bankId=3, branchId=5)),
    Place("GB", "GBP", ("Leeds", "Bristol"), "+44", _number(8, branchId=6)),
    Place("AU", "AUD", ("Perth", "Hobart"), "+61", _number(9, branchId=6)),
    Place("NZ", "NZD", ("Ōtautahi", "Whangārei"), "+64", _number(10, branchId=6)),
    Place("IN", "INR", ("Pune", "Kochi"), "+91", _indian),
    Place("DE", "EUR", ("Köln", "München"), "+49", _iban("DE", 22)),
    Place("FR", "EUR", ("Besançon", "Nîmes"), "+33", _iban("FR", 27)),
    Place("ES", "EUR", ("A Coruña", "Cádiz"), "+34", _iban("ES", 24)),
    Place("NL", "EUR", ("Utrecht",), "+31", _iban("NL", 18, "HRBR")),
    Place("PL", "PLN", ("Łódź", "Gdańsk"), "+48", _iban("PL", 28)),
    Place("SE", "SEK", ("Malmö", "Göteborg"), "+46", _iban("SE", 24)),
    Place("MX", "MXN", ("Mérida", "León"), "+52", _number(18)),
    Place("JP", "JPY", ("大阪", "Kōbe"), "+81", _number(7)),
    Place("BR", "BRL", ("São Paulo", "Goiânia"), "+55", _number(9), 11),
    Place("CO", "COP", ("Bogotá", "Medellín"), "+57", _number(11), 10),
    Place("PH", "PHP", ("Cebu",), "+63", _number(12)),
)
