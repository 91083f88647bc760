"""Names the clients that a fault affects, for pages that require a login: `/readyz` names nobody."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

from gateway.observability.plurals import join_names
from gateway.storage import Store
from gateway.storage.mode_rows import COMPARE, FORWARD, list_mode_switches
from gateway.upstream.service_problems import REFUSAL, Refusal, describe_refusals


async def list_forwarded_keys(
    store: Store, compared_answer: Literal["legacy", "current"]
) -> dict[str, set[str]]:
    """Lists the keys that the legacy service answers, by environment; raises StoreUnavailable.

    ``compared_answer`` is the service that answers keys in mode ``compare``.
    """
    modes = {FORWARD, COMPARE} if compared_answer == "legacy" else {FORWARD}
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
    faults: Mapping[str, str | None],
    refusals: Mapping[str, Sequence[Refusal]],
    forwarded_keys: Mapping[str, set[str]],
) -> dict[str, str | None]:
    """Returns the faults of `/readyz` with names; the other arguments are by environment."""
    named = dict(faults)
    for name, fault in faults.items():
        kind, _, environment = name.partition(".")
        if not fault:
            continue
        if kind == "service" and fault.startswith(REFUSAL) and environment in refusals:
            named[name] = describe_refusals(refusals[environment])
        elif kind == "legacy" and environment in forwarded_keys:
            named[name] = f"{fault} ({join_names(forwarded_keys[environment])})"
    return named
