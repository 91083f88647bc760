"""Names the clients that a fault affects, for pages that require a login: `/readyz` names nobody."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from gateway.observability.plurals import join_names
from gateway.storage import Store
from gateway.storage.mode_rows import COMPARE, FORWARD, list_mode_switches
from gateway.upstream.service_problems import REFUSAL, Refusal, describe_refusals


async def list_switched_keys(
    store: Store, modes: Collection[str] = (FORWARD, COMPARE)
) -> dict[str, set[str]]:
    """Lists the keys in these modes by environment, for operators; raises StoreUnavailable."""
    keys = defaultdict(set)
    for switch in await list_mode_switches(store):
        if switch.mode in modes:
            keys[switch.tenant.environment].add(
                f"key {switch.key} of {switch.tenant.merchant}"
                if switch.key
                else f"every key of {switch.tenant.merchant}"
            )
    return dict(keys)


def name_affected_clients(
    faults: Mapping[str, str],
    refusals: Mapping[str, Sequence[Refusal]],
    switched_keys: Mapping[str, set[str]],
) -> dict[str, str]:
    """Returns the faults of `/readyz` with names; the other arguments are by environment."""
    named = dict(faults)
    for name, fault in faults.items():
        kind, _, environment = name.partition(".")
        if kind == "service" and fault.startswith(REFUSAL) and environment in refusals:
            named[name] = describe_refusals(refusals[environment])
        elif kind == "legacy" and environment in switched_keys:
            named[name] = f"{fault} ({join_names(switched_keys[environment])})"
    return named
