"""Government ids of a recipient: ``ssn`` and ``accounts.bank.governmentId``.

The service stores a list, returns its values masked, and replaces the whole list on an update. The
gateway can therefore only send the client's own entries. If this would delete others, the request
is refused, unless ``government_ids`` is set to ``replace``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mappings.banking import invalid
from mappings.grammar import JSON, LegacyOptions, Problem
from mappings.objects import determine_government_id_type


@dataclass(frozen=True, slots=True)
class Sent:
    """A government id that the client sent, and the field that it was sent in."""

    country: str
    value: str
    field: str

    def entry(self) -> dict[str, str]:
        return {
            "country": self.country,
            "type": determine_government_id_type(self.country),
            "value": self.value,
        }


def build_government_id_entries(sent: list[Sent]) -> list[dict[str, str]]:
    """Builds ``governmentIds``, with one entry per country and type."""
    return list({one.country: one.entry() for one in sent}.values())


def validate_government_ids(
    sent: list[Sent], recipient: Mapping[str, JSON], manners: LegacyOptions
) -> Iterator[Problem]:
    """Refuses government ids that contradict each other, or that would delete another id."""
    seen: dict[str, str] = {}
    for one in sent:
        if seen.setdefault(one.country, one.value) != one.value:
            yield invalid(one.field, "differs from the ssn sent with it")
    replaced = {(entry["country"], entry["type"]) for entry in build_government_id_entries(sent)}
    held = recipient.get("governmentIds") or []
    lost = {(one.get("country"), one.get("type")) for one in held} - replaced
    if sent and lost and manners.government_ids == "keep":
        told = "cannot be changed: the recipient has other government ids, which would be lost"
        yield invalid(sent[0].field, told)


def map_government_id_fields(sent: list[Sent]) -> dict[str, str]:
    """Maps ``governmentIds``, its entries, and ``ssn`` to the client's own fields."""
    if not sent:
        return {}
    places = {f"governmentIds[{place}]": one.field for place, one in enumerate(sent)}
    names = {"governmentIds": sent[0].field, **places}
    of_us = next((one.field for one in sent if one.country == "US"), None)
    return {**names, "ssn": of_us} if of_us else names
