"""Holds of payouts (``autoswitch`` and ``holdup``), which are stored and have no effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mappings.banking import build_invalid_field_problem
from mappings.effects import JSON, LegacyOptions
from mappings.failures import Problem
from mappings.objects import Facts, build_legacy_payout_holds
from mappings.payouts import Payout


def collect_changed_payout_holds(payout: Payout, facts: Facts) -> dict[str, JSON]:
    """Collects the holds to store: those that the client changed."""
    holds: dict[str, JSON] = {}
    for name, hold in payout.holds.items():
        previous = build_legacy_payout_holds(facts)[name]
        # A client that sends a whole object back, without changing the hold, did not request one.
        if {**previous, **hold} != previous:
            holds[name] = {**previous, **hold}
    return holds


def find_active_hold_problems(
    payout: Payout, holds: Mapping[str, JSON], options: LegacyOptions
) -> Iterator[Problem]:
    """Yields a problem for each active hold if ``holdup`` is ``refuse``: no payout can be held."""
    for name, hold in holds.items():
        if hold["active"] and options.holdup == "refuse":
            yield build_invalid_field_problem(f"{payout.prefix}{name}.active", "is not supported")


def build_hold_notices(holds: Mapping[str, JSON]) -> tuple[str, ...]:
    return tuple(
        f"{name} was requested; payouts to this recipient are not held"
        for name, hold in holds.items()
        if hold["active"]
    )
