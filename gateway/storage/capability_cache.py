"""Capabilities of the service, found at run time; stored, cached, and shared by all processes."""

from __future__ import annotations

from typing import Any

import structlog

from gateway.storage.change_poller import ChangeCounts
from gateway.storage.object_state import CAPABILITY_CHANGES as CHANGES
from gateway.storage.object_state import ObjectStateStore

log = structlog.get_logger()


class CapabilityCache:
    """Capabilities by environment and name, from ``load_capabilities``. Reads use memory only.

    Without a database they are remembered for this process.
    """

    def __init__(self, object_state: ObjectStateStore | None = None) -> None:
        self._object_state = object_state
        self._values: dict[tuple[str, str], Any] = {}
        self._change_count = -1

    def get(self, environment: str, name: str) -> Any | None:
        return self._values.get((environment, name))

    async def put(self, environment: str, name: str, value: Any) -> None:
        """Stores a value; if the database is unavailable, only this process uses it."""
        self._values[environment, name] = value
        if self._object_state is not None:
            try:
                await self._object_state.save_capability(environment, name, value)
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
        if self._object_state is not None:
            self._values |= await self._object_state.load_capabilities()


async def load_capabilities(object_state: ObjectStateStore) -> CapabilityCache:
    capabilities = CapabilityCache(object_state)
    await capabilities.reload()
    return capabilities
