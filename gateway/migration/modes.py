"""Modes: which service answers a key's requests for a group of operations.

    translate  the current service: requests are translated to its calls
    forward    the legacy service: requests are forwarded unchanged
    compare    the service that the configuration names; reads are also sent to the other one

Modes are loaded again when they change, so switching needs no restart. A request keeps the mode that
it started with. While the database is unavailable, the last known modes apply, because a wrong
guess would create objects at the other service.
"""

import asyncio
from collections.abc import Mapping

import structlog

from gateway.auth.keys import ApiKey, ApiKeyStore
from gateway.storage import Store, Tenant
from gateway.storage.change_poller import ChangeCounts, ChangePoller, load_change_counts
from gateway.storage.mode_rows import (
    CHANGES,
    TRANSLATE,
    Group,
    Mode,
    ModeSwitch,
    list_mode_switches,
)
from mappings.effects import Operation

log = structlog.get_logger()

_GROUP_BY_MODULE: Mapping[str, Group] = {
    "recipients": "recipients",
    "payout_methods": "recipients",
    "batches": "batches",
    "payments": "batches",
    "balances": "balances",
    "geography": "geography",
}
_BATCHLESS_OPERATIONS = frozenset({"list_payments", "read_any_payment"})
"""They name no batch, so their mode does not depend on that of the batches."""


def find_mode_group(operation: Operation) -> Group:
    """Returns the group that an operation is switched with.

    A batch, its payments, quote, summary and start are one group.
    """
    if operation.name in _BATCHLESS_OPERATIONS:
        return "payments"
    return _GROUP_BY_MODULE[operation.flow.__module__.rpartition(".")[2]]


class Modes:
    """The modes of all tenants, from ``open_modes``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._switches: dict[tuple[Tenant, str, Group], Mode] = {}
        self.switched_tenants: frozenset[Tenant] = frozenset()
        """Only these can have batches at both services."""
        self._switch_count = -1
        self._refresh_lock = asyncio.Lock()

    def find_mode_of_key(self, key: ApiKey, group: Group) -> Mode:
        """Selects the mode of the key, or else that of all keys of its tenant."""
        key_mode = self._switches.get((key.tenant, key.name, group))
        return key_mode or self._switches.get((key.tenant, "", group), TRANSLATE)

    async def refresh(self, counts: ChangeCounts | None = None) -> None:
        """Loads the modes if any has changed by ``counts``, or now; raises StoreUnavailable."""
        # The poll and the key store's hook may run concurrently.
        async with self._refresh_lock:
            # The count is read first, so that the next poll sees a switch between the two queries.
            counts = await load_change_counts(self._store) if counts is None else counts
            if (count := counts.get(CHANGES, 0)) != self._switch_count:
                switches = await list_mode_switches(self._store)
                self._log_changes(switches)
                # Without an await, so that a request never sees half of a switch.
                self._switches = {
                    (switch.tenant, switch.key, switch.group): switch.mode for switch in switches
                }
                self.switched_tenants = frozenset(switch.tenant for switch in switches)
            # Set last: if loading fails, the next poll tries again.
            self._switch_count = count

    def _log_changes(self, switches: list[ModeSwitch]) -> None:
        # Skipped for the first load, which would log every mode as a change.
        for switch in switches if self._switch_count >= 0 else []:
            if self._switches.get((switch.tenant, switch.key, switch.group)) != switch.mode:
                log.warning(
                    "mode_changed",
                    merchant=switch.tenant.merchant,
                    environment=switch.tenant.environment,
                    key=switch.key or None,
                    group=switch.group,
                    mode=switch.mode,
                )


async def open_modes(store: Store, key_store: ApiKeyStore, change_poller: ChangePoller) -> Modes:
    """Loads the modes, and again with every change; raises StoreUnavailable.

    Also before ``key_store`` uses a changed key, because modes refer to keys by name.
    """
    modes = Modes(store)
    await modes.refresh()
    key_store.add_refresh_hook(modes.refresh)
    change_poller.add_listener(modes.refresh)
    return modes
