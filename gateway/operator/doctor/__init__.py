"""The checks of `payout-gateway doctor`: reads only, a few signed calls per environment."""

from __future__ import annotations

from gateway.config.settings import Misconfigured, Settings
from gateway.operator.doctor import legacy_checks, local_checks, service_checks
from gateway.operator.doctor.findings import Finding
from gateway.storage import Ledger, Store, StoreUnavailable, open_store
from gateway.upstream.capability_cache import load_capabilities
from gateway.upstream.client import open_upstream

__all__ = ["Finding", "run_doctor"]


async def run_doctor(settings: Settings) -> list[Finding]:
    """Checks this machine, the state, the rate limiter, and the services of each environment."""
    found = [
        *local_checks.check_program(),
        *local_checks.check_configuration(settings),
        *local_checks.check_certificate(settings.server),
    ]
    found += await local_checks.check_limits(settings)
    try:
        async with open_store(settings.state, create=False) as store:
            found += await local_checks.check_state(settings, store)
            found += await local_checks.check_operator_switches(store)
            found += await _services(settings, store)
    # The services cannot be checked either: their credentials are in the state.
    except StoreUnavailable as unavailable:
        found.append(local_checks.report_unavailable_state(unavailable))
    except Misconfigured:
        pass  # already reported by check_configuration; without it no call can be made
    return found


async def _services(settings: Settings, store: Store) -> list[Finding]:
    learned = await load_capabilities(Ledger(store), settings.environments.configured())
    async with open_upstream(settings, learned=learned) as upstream:
        found = await service_checks.check_service(settings, store, upstream, learned)
    return found + await legacy_checks.check_legacy_services(settings, store)
