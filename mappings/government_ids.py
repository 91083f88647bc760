"""Translates the government ids of a recipient: ``ssn`` and ``accounts.bank.governmentId``.

The service stores a list, returns its values masked, and replaces the whole list on an update. The
gateway can therefore only send the client's own entries. If this would delete others, the request
is refused, unless ``government_ids`` is set to ``replace``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mappings.banking import build_invalid_field_problem
from mappings.effects import JSON, LegacyOptions
from mappings.failures import Problem
from mappings.objects import GOVERNMENT_ID_TYPES, OTHER_GOVERNMENT_ID


class ClientGovernmentId(NamedTuple):
    """A government id that the client sent, and the field that it was sent in."""

    country: str
    value: str
    field: str


def build_government_id_entries(government_ids: list[ClientGovernmentId]) -> list[dict[str, str]]:
    """Builds ``governmentIds``, with one entry per country and type."""
    values = {country: value for country, value, _ in government_ids}
    return [
        {
            "country": country,
            "type": GOVERNMENT_ID_TYPES.get(country, OTHER_GOVERNMENT_ID),
            "value": value,
        }
        for country, value in values.items()
    ]


def validate_government_ids(
    government_ids: list[ClientGovernmentId],
    recipient: Mapping[str, JSON],
    options: LegacyOptions,
    *,
    is_shown_late: bool = False,
) -> Iterator[Problem]:
    """Refuses government ids that contradict each other, or that may delete another id.

    A recipient that is shown late may have others.
    """
    value_by_country: dict[str, str] = {}
    for country, value, field in government_ids:
        if value_by_country.setdefault(country, value) != value:
            yield build_invalid_field_problem(field, "differs from the ssn sent with it")
    sent_entries = build_government_id_entries(government_ids)
    lost_keys = {
        (entry.get("country"), entry.get("type")) for entry in recipient.get("governmentIds") or ()
    } - {(entry["country"], entry["type"]) for entry in sent_entries}
    may_lose_ids = bool(lost_keys) or is_shown_late
    if government_ids and may_lose_ids and options.government_ids == "keep":
        fault = "cannot be changed: the recipient has other government ids, which would be lost"
        yield build_invalid_field_problem(government_ids[0].field, fault)


def map_government_id_field_names_to_client(
    government_ids: list[ClientGovernmentId],
) -> dict[str, str]:
    """Maps ``governmentIds``, its entries, and ``ssn`` to the client's own fields."""
    if not government_ids:
        return {}
    names = {"governmentIds": government_ids[0].field}
    for index, (_country, _value, field) in enumerate(government_ids):
        names[f"governmentIds[{index}]"] = field
    # Some services report a US id under the name ``ssn``.
    us_field = next((field for country, _, field in government_ids if country == "US"), None)
    return {**names, "ssn": us_field} if us_field else names
