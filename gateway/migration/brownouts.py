"""Brownouts: time windows in which selected requests are refused on purpose.

They show clients that still depend on the legacy interface before it ends. Windows are loaded again
when they change, so one can be switched off without a restart.
"""

import math
from collections.abc import Callable
from datetime import datetime

from gateway.auth.keys import ApiKey
from gateway.storage import Store
from gateway.storage.brownout_rows import CHANGES, Brownout, list_planned_and_active_brownouts
from gateway.storage.change_poller import ChangeCounts, ChangePoller, load_change_counts
from mappings.errors import ErrorAnswer
from mappings.failures import Problem


class Brownouts:
    """The open brownouts; ``load_brownouts`` creates them."""

    def __init__(self, store: Store, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._clock = clock
        self.open_brownouts: list[Brownout] = []
        self._change_count = -1

    def find_refusal(self, key: ApiKey, operation: str) -> ErrorAnswer | None:
        """Finds the brownout that refuses a request now, the longest of several."""
        now = self._clock()
        ends = [
            brownout.ends_at
            for brownout in self.open_brownouts
            if brownout.is_match(key.merchant, key.name, operation, now)
        ]
        return _build_refusal(max(ends), now) if ends else None

    async def reload_if_changed(self, counts: ChangeCounts) -> None:
        """Listens to the change poller; raises StoreUnavailable."""
        if (change_count := counts.get(CHANGES, 0)) != self._change_count:
            now = self._clock()
            self.open_brownouts = await list_planned_and_active_brownouts(self._store, now)
            self._change_count = change_count


async def load_brownouts(
    store: Store, clock: Callable[[], datetime], change_poller: ChangePoller
) -> Brownouts:
    """Loads the brownouts, and again with every change; raises StoreUnavailable."""
    brownouts = Brownouts(store, clock)
    await brownouts.reload_if_changed(await load_change_counts(store))
    change_poller.add_listener(brownouts.reload_if_changed)
    return brownouts


def _build_refusal(until: datetime, now: datetime) -> ErrorAnswer:
    message = (
        "A planned interruption of this interface, which is going away: "
        f"it answers again at {until:%Y-%m-%dT%H:%M:%SZ}. This request changed nothing. "
        "An earlier one that had no answer may have been carried out."
    )
    seconds = math.ceil((until - now).total_seconds())
    return ErrorAnswer(403, (Problem("not_authorized", message),), str(seconds))
