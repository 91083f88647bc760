"""What was found out about each environment's service, in memory and kept over a restart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gateway.store import Ledger


class Learned:
    """Made by ``recall_learned``; reads never wait for the state."""

    def __init__(self, ledger: Ledger, known: dict[tuple[str, str], Any]) -> None:
        self._ledger = ledger
        self._known = known

    def get(self, environment: str, name: str) -> Any | None:
        return self._known.get((environment, name))

    async def put(self, environment: str, name: str, value: Any) -> None:
        """Raises StoreUnavailable; it is known in this process all the same."""
        self._known[environment, name] = value
        await self._ledger.learn(environment, name, value)


async def recall_learned(ledger: Ledger, environments: Iterable[str]) -> Learned:
    known = {
        (environment, name): value
        for environment in environments
        for name, (value, _learned_at) in (await ledger.learned(environment)).items()
    }
    return Learned(ledger, known)
