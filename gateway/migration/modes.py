"""Modes: which service answers a key's requests of a group of operations.

    translate  the current one: requests become its calls
    forward    the legacy one, while it lives: requests go to it as they came
    compare    the one that the configuration names; of reads the other is asked too, alongside

They are looked up a few times a second, so switching needs no restart. A request keeps the mode
that it met. While the state cannot be read, what was known last holds: to guess would be to begin
on the other side.
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
"""They name no batch, so they need not go where batches go."""


def find_mode_group(operation: Operation) -> Group:
    """What is switched together: a batch, its payments, quote, summary and start are one."""
    if operation.name in _UNLISTED:
        return "payments"
    return _ROOMS[operation.flow.__module__.rpartition(".")[2]]


class Modes:
    """``async with`` it: it hears of switches from then on, and before a key of ``keyring`` is used
    by another name.
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
        """What is said of the key, else of every key of its merchant."""
        own = self._switches.get((key.owner, key.name, group))
        return own or self._switches.get((key.owner, "", group), TRANSLATE)

    def has(self, owner: Tenant) -> bool:
        """Whether anything of an owner was ever switched: only then can it be on two sides."""
        return owner in self._owners

    @property
    def any(self) -> bool:
        return bool(self._owners)

    async def look(self) -> None:
        """Hears of what was switched up to now."""
        async with self._turn:
            await self._look()

    async def _look(self) -> None:
        # The count first: what is switched between the two is seen the next time.
        count = await count_of_switches(self._store)
        if count == self._count:
            return
        switches = await all_switches(self._store)
        self._tell(switches)
        self._switches = {(one.owner, one.key, one.group): one.mode for one in switches}
        self._owners = frozenset(one.owner for one in switches)
        self._count = count

    def _tell(self, switches: list[Switch]) -> None:
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
