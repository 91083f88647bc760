"""What was found out about each environment's service, in memory and kept over a restart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from gateway.store import Ledger


class Learned:
    """Made by ``recall_learned``; reads never wait for the state."""

    def __init__(
        self,
        ledger: Ledger,
        known: dict[tuple[str, str], Any],
        since: Mapping[tuple[str, str], datetime] | None = None,
    ) -> None:
        self._ledger = ledger
        self._known = known
        self._since = dict(since or {})

    def get(self, environment: str, name: str) -> Any | None:
        return self._known.get((environment, name))

    def since(self, environment: str, name: str) -> datetime | None:
        """When it was found out, of what was known already when this was made."""
        return self._since.get((environment, name))

    async def put(self, environment: str, name: str, value: Any) -> None:
        """Raises StoreUnavailable; it is known in this process all the same."""
        self._known[environment, name] = value
        self._since.pop((environment, name), None)
        await self._ledger.learn(environment, name, value)


async def recall_learned(ledger: Ledger, environments: Iterable[str]) -> Learned:
    found = {
        (environment, name): fact
        for environment in environments
        for name, fact in (await ledger.learned(environment)).items()
    }
    known = {which: value for which, (value, _) in found.items()}
    return Learned(ledger, known, {which: at for which, (_, at) in found.items()})
