"""Capabilities of the service, found at run time; stored, cached, and shared by all processes."""

from typing import Any

import structlog
from sqlalchemy import select

from gateway.payloads import json_codec
from gateway.storage.change_poller import ChangeCounts, increment_change_count
from gateway.storage.database import Transaction
from gateway.storage.sql import build_upsert_statement
from gateway.storage.store import Store
from gateway.storage.tables import capabilities

CHANGES = "capabilities"
"""The name of their change count."""

_UPSERT = build_upsert_statement(capabilities, ("value", "learned_at"))

log = structlog.get_logger()


class CapabilityCache:
    """Capabilities by environment and name. Reads use memory only.

    Without a database they are remembered for this process.
    """

    def __init__(self, store: Store | None = None) -> None:
        self._store = store
        self._values: dict[tuple[str, str], Any] = {}
        self._change_count = -1

    def get(self, environment: str, name: str) -> Any | None:
        return self._values.get((environment, name))

    async def put(self, environment: str, name: str, value: Any) -> None:
        """Stores a value; if the database is unavailable, only this process uses it."""
        self._values[environment, name] = value
        if self._store is not None:
            try:
                await _save_capability(self._store, environment, name, value)
            except Exception as error:  # noqa: BLE001 - the client's answer matters more than this
                error_type = {"error.type": type(error).__name__}
                log.warning("capability_not_saved", name=name, **error_type)

    async def reload_if_changed(self, counts: ChangeCounts) -> None:
        """Listens to the change poller; raises StoreUnavailable."""
        if (change_count := counts.get(CHANGES, 0)) != self._change_count:
            await self.reload()
            self._change_count = change_count

    async def reload(self) -> None:
        """Loads what other processes and commands have found; raises StoreUnavailable."""
        if self._store is not None:
            for row in await self._store.fetch(select(capabilities)):
                self._values[row.environment, row.name] = json_codec.loads_trusted(row.value)


async def load_capabilities(store: Store) -> CapabilityCache:
    cache = CapabilityCache(store)
    await cache.reload()
    return cache


async def _save_capability(store: Store, environment: str, name: str, value: Any) -> None:
    row = {
        "environment": environment,
        "name": name,
        "value": json_codec.dumps_trusted(value).decode(),
        "learned_at": store.clock(),
    }

    async def upsert_row(tx: Transaction) -> None:
        await increment_change_count(tx, CHANGES)
        await tx.execute(_UPSERT, row)

    await store.write(upsert_row)
