"""What was found out about each environment's service, in memory, in the state, and by every process."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from gateway.storage import Ledger

RELOAD_SECONDS = 1.0


class CapabilityCache:
    """Made by ``load_capabilities``; reads never wait for the state."""

    def __init__(self, ledger: Ledger, environments: Iterable[str] = ()) -> None:
        self._ledger = ledger
        self._environments = tuple(environments)
        self._known: dict[tuple[str, str], Any] = {}
        self._since: dict[tuple[str, str], datetime] = {}

    def get(self, environment: str, name: str) -> Any | None:
        return self._known.get((environment, name))

    def since(self, environment: str, name: str) -> datetime | None:
        """When it was found out; None if that was by this process, since it was last reloaded."""
        return self._since.get((environment, name))

    async def put(self, environment: str, name: str, value: Any) -> None:
        """Raises StoreUnavailable; it is known in this process all the same."""
        self._known[environment, name] = value
        self._since.pop((environment, name), None)
        await self._ledger.learn(environment, name, value)

    async def reload(self) -> None:
        """Takes over what other processes and commands found out; raises StoreUnavailable."""
        for environment in self._environments:
            for name, (value, since) in (await self._ledger.learned(environment)).items():
                self._known[environment, name] = value
                self._since[environment, name] = since


async def load_capabilities(ledger: Ledger, environments: Iterable[str]) -> CapabilityCache:
    learned = CapabilityCache(ledger, environments)
    await learned.reload()
    return learned
