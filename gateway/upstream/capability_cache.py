"""Capabilities of the service found at run time: stored, cached, and shared by all processes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from gateway.storage import Ledger

RELOAD_SECONDS = 1.0


class CapabilityCache:
    """Capabilities by environment and name, from ``load_capabilities``. Reads use memory only."""

    def __init__(self, ledger: Ledger, environments: Iterable[str] = ()) -> None:
        self._ledger = ledger
        self._environments = tuple(environments)
        self._known: dict[tuple[str, str], Any] = {}
        self._since: dict[tuple[str, str], datetime] = {}

    def get(self, environment: str, name: str) -> Any | None:
        return self._known.get((environment, name))

    def since(self, environment: str, name: str) -> datetime | None:
        """Returns when it was found; None if this process found it after the last reload."""
        return self._since.get((environment, name))

    async def put(self, environment: str, name: str, value: Any) -> None:
        """Stores a value; if that raises StoreUnavailable, this process uses the value anyway."""
        self._known[environment, name] = value
        # The stored time follows with the next reload.
        self._since.pop((environment, name), None)
        await self._ledger.learn(environment, name, value)

    async def reload(self) -> None:
        """Loads what other processes and commands have found; raises StoreUnavailable."""
        for environment in self._environments:
            for name, (value, since) in (await self._ledger.learned(environment)).items():
                self._known[environment, name] = value
                self._since[environment, name] = since


async def load_capabilities(ledger: Ledger, environments: Iterable[str]) -> CapabilityCache:
    learned = CapabilityCache(ledger, environments)
    await learned.reload()
    return learned
