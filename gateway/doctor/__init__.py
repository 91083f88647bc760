"""What `payout-gateway doctor` finds out: reads only, a few signed calls for each environment."""

from __future__ import annotations

from gateway.doctor import here, legacy, service
from gateway.doctor.findings import Finding
from gateway.settings import Misconfigured, Settings
from gateway.store import Ledger, Store, StoreUnavailable, open_store
from gateway.upstream.client import open_upstream
from gateway.upstream.learned import recall_learned

__all__ = ["Finding", "examine"]


async def examine(settings: Settings) -> list[Finding]:
    """This machine, the state, the limit, and every configured environment's services."""
    found = [*here.program(), *here.configuration(settings), *here.certificate(settings.server)]
    found += await here.limits(settings)
    try:
        async with open_store(settings.state, create=False) as store:
            found += await here.state(settings, store)
            found += await here.in_force(store)
            found += await _services(settings, store)
    except StoreUnavailable as unavailable:
        found.append(here.no_state(unavailable))
    except Misconfigured:
        pass  # said under `configuration`; without it there is no way out
    return found


async def _services(settings: Settings, store: Store) -> list[Finding]:
    learned = await recall_learned(Ledger(store), settings.environments.configured())
    async with open_upstream(settings, learned=learned) as upstream:
        found = await service.examine(settings, store, upstream, learned)
    return found + await legacy.examine(settings, store)
