"""Modes: which service answers a key's requests for a group of operations.

    translate  the current service: requests are translated to its calls
    forward    the legacy service: requests are forwarded unchanged
    compare    the service that the configuration names; reads are also sent to the other one

Modes are polled a few times a second, so switching needs no restart. A request keeps the mode that
it started with. While the database is unavailable, the last known modes apply, because a wrong
guess would create objects at the other service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Self

import structlog

from gateway.auth.keys import ApiKey, ApiKeyStore
from gateway.storage import Store, Tenant
from gateway.storage.mode_rows import (
    TRANSLATE,
    Group,
    Mode,
    Switch,
    all_switches,
    count_of_switches,
)
from gateway.storage.periodic_tasks import PeriodicTask
from mappings.grammar import Operation

EVERY_SECONDS = 0.3

log = structlog.get_logger()

_ROOMS: Mapping[str, Group] = {
    "recipients": "recipients",
    "payout_methods": "recipients",
    "batches": "batches",
    "payments": "batches",
    "balances": "balances",
    "geography": "geography",
}
_UNLISTED = frozenset({"list_payments", "read_any_payment"})
"""They name no batch, so their mode does not depend on that of the batches."""


def find_mode_group(operation: Operation) -> Group:
    """Returns the group that an operation is switched with.

    A batch, its payments, quote, summary and start are one group.
    """
    if operation.name in _UNLISTED:
        return "payments"
    return _ROOMS[operation.flow.__module__.rpartition(".")[2]]


class Modes:
    """The modes of all tenants; an async context manager that polls for changes.

    Also refreshed before ``key_store`` uses a changed key, because modes refer to keys by name.
    """

    def __init__(self, store: Store, keyring: ApiKeyStore | None = None) -> None:
        self._store = store
        self._keyring = keyring
        self._switches: dict[tuple[Tenant, str, Group], Mode] = {}
        self._owners: frozenset[Tenant] = frozenset()
        self._count = -1
        self._turn = asyncio.Lock()
        self._rounds = PeriodicTask("modes_reload", EVERY_SECONDS, self.look)

    async def __aenter__(self) -> Self:
        await self.look()
        if self._keyring:
            self._keyring.look_ahead(self.look)
        await self._rounds.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._rounds.__aexit__()

    def of(self, key: ApiKey, group: Group) -> Mode:
        """Selects the mode of the key, or else that of all keys of its tenant."""
        own = self._switches.get((key.owner, key.name, group))
        return own or self._switches.get((key.owner, "", group), TRANSLATE)

    def has(self, owner: Tenant) -> bool:
        """Whether a tenant was ever switched: only then can it have batches at both services."""
        return owner in self._owners

    @property
    def any(self) -> bool:
        return bool(self._owners)

    async def look(self) -> None:
        """Loads the modes if any has changed; raises StoreUnavailable."""
        # The poll and the key store's hook may run concurrently.
        async with self._turn:
            await self._look()

    async def _look(self) -> None:
        # The count first: a switch between the two queries is then seen by the next poll.
        count = await count_of_switches(self._store)
        if count == self._count:
            return
        switches = await all_switches(self._store)
        self._tell(switches)
        self._switches = {(one.owner, one.key, one.group): one.mode for one in switches}
        self._owners = frozenset(one.owner for one in switches)
        # Last: if loading fails, the next poll tries again.
        self._count = count

    def _tell(self, switches: list[Switch]) -> None:
        # Not on the first load, which would log every mode as a change.
        for one in switches if self._count >= 0 else []:
            if self._switches.get((one.owner, one.key, one.group)) != one.mode:
                log.warning(
                    "mode_changed",
                    merchant=one.owner.merchant,
                    environment=one.owner.environment,
                    key=one.key or None,
                    group=one.group,
                    mode=one.mode,
                )
