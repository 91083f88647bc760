"""What `payout-gateway doctor` finds out: reads only, a few signed calls for each environment."""

from __future__ import annotations

from gateway.config.settings import Misconfigured, Settings
from gateway.operator.doctor import legacy_checks, local_checks, service_checks
from gateway.operator.doctor.findings import Finding
from gateway.storage import Ledger, Store, StoreUnavailable, open_store
from gateway.upstream.capability_cache import recall_learned
from gateway.upstream.client import open_upstream

__all__ = ["Finding", "examine"]


async def examine(settings: Settings) -> list[Finding]:
    """This machine, the state, the limit, and every configured environment's services."""
    found = [
        *local_checks.program(),
        *local_checks.configuration(settings),
        *local_checks.certificate(settings.server),
    ]
    found += await local_checks.limits(settings)
    try:
        async with open_store(settings.state, create=False) as store:
            found += await local_checks.state(settings, store)
            found += await local_checks.in_force(store)
            found += await _services(settings, store)
    except StoreUnavailable as unavailable:
        found.append(local_checks.no_state(unavailable))
    except Misconfigured:
        pass  # said under `configuration`; without it there is no way out
    return found


async def _services(settings: Settings, store: Store) -> list[Finding]:
    learned = await recall_learned(Ledger(store), settings.environments.configured())
    async with open_upstream(settings, learned=learned) as upstream:
        found = await service_checks.examine(settings, store, upstream, learned)
    return found + await legacy_checks.examine(settings, store)
