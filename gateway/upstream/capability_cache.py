"""Capabilities of the service, found at run time; stored, cached, and shared by all processes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import structlog

from gateway.storage import ObjectStateStore
from gateway.storage.change_poller import ChangeCounts
from gateway.storage.object_state import CAPABILITY_CHANGES as CHANGES

log = structlog.get_logger()


class CapabilityCache:
    """Capabilities by environment and name, from ``load_capabilities``. Reads use memory only.

    Without a database they are remembered for this process.
    """

    def __init__(
        self, object_state: ObjectStateStore | None = None, environments: Iterable[str] = ()
    ) -> None:
        self._object_state = object_state
        self._environments = tuple(environments)
        self._values: dict[tuple[str, str], Any] = {}
        self._found_at: dict[tuple[str, str], datetime] = {}
        self._change_count = -1

    def get(self, environment: str, name: str) -> Any | None:
        return self._values.get((environment, name))

    def get_discovery_time(self, environment: str, name: str) -> datetime | None:
        """Returns the time of discovery; None if this process made it after the last reload."""
        return self._found_at.get((environment, name))

    async def put(self, environment: str, name: str, value: Any) -> None:
        """Stores a value; if the database is unavailable, only this process uses it."""
        self._values[environment, name] = value
        # The stored time follows when the change poller sees the change.
        self._found_at.pop((environment, name), None)
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
        if self._object_state is None:
            return
        for environment in self._environments:
            for name, (value, found_at) in (
                await self._object_state.load_capabilities(environment)
            ).items():
                self._values[environment, name] = value
                self._found_at[environment, name] = found_at


async def load_capabilities(
    object_state: ObjectStateStore, environments: Iterable[str]
) -> CapabilityCache:
    capabilities = CapabilityCache(object_state, environments)
    await capabilities.reload()
    return capabilities
