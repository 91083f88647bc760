"""Translates the government ids of a recipient: ``ssn`` and ``accounts.bank.governmentId``.

The service stores a list, returns its values masked, and replaces the whole list on an update. The
gateway can therefore only send the client's own entries. If this would delete others, the request
is refused, unless ``government_ids`` is set to ``replace``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mappings.banking import build_invalid_field_problem
from mappings.effects import JSON, LegacyOptions
from mappings.failures import Problem
from mappings.objects import GOVERNMENT_ID_TYPES, OTHER_GOVERNMENT_ID


@dataclass(frozen=True, slots=True)
class ClientGovernmentId:
    """A government id that the client sent, and the field that it was sent in."""

    country: str
    value: str
    field: str

    def build_entry(self) -> dict[str, str]:
        return {
            "country": self.country,
            "type": GOVERNMENT_ID_TYPES.get(self.country, OTHER_GOVERNMENT_ID),
            "value": self.value,
        }


def build_government_id_entries(government_ids: list[ClientGovernmentId]) -> list[dict[str, str]]:
    """Builds ``governmentIds``, with one entry per country and type."""
    return list(
        {
            government_id.country: government_id.build_entry() for government_id in government_ids
        }.values()
    )


def validate_government_ids(
    government_ids: list[ClientGovernmentId], recipient: Mapping[str, JSON], options: LegacyOptions
) -> Iterator[Problem]:
    """Refuses government ids that contradict each other, or that would delete another id."""
    value_by_country: dict[str, str] = {}
    for government_id in government_ids:
        if (
            value_by_country.setdefault(government_id.country, government_id.value)
            != government_id.value
        ):
            yield build_invalid_field_problem(
                government_id.field, "differs from the ssn sent with it"
            )
    replaced_keys = {
        (entry["country"], entry["type"]) for entry in build_government_id_entries(government_ids)
    }
    existing = recipient.get("governmentIds") or []
    lost_keys = {
        (government_id.get("country"), government_id.get("type")) for government_id in existing
    } - replaced_keys
    if government_ids and lost_keys and options.government_ids == "keep":
        fault = "cannot be changed: the recipient has other government ids, which would be lost"
        yield build_invalid_field_problem(government_ids[0].field, fault)


def map_government_id_field_names_to_client(
    government_ids: list[ClientGovernmentId],
) -> dict[str, str]:
    """Maps ``governmentIds``, its entries, and ``ssn`` to the client's own fields."""
    if not government_ids:
        return {}
    entry_fields = {
        f"governmentIds[{index}]": government_id.field
        for index, government_id in enumerate(government_ids)
    }
    names = {"governmentIds": government_ids[0].field, **entry_fields}
    # Some services report a US id under the name ``ssn``.
    us_field = next(
        (government_id.field for government_id in government_ids if government_id.country == "US"),
        None,
    )
    return {**names, "ssn": us_field} if us_field else names
