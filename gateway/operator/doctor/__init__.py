"""The checks of `payout-gateway doctor`: reads only, a few signed calls per environment."""

from gateway.config.settings import ConfigurationError, Settings
from gateway.operator.doctor import legacy_checks, local_checks, service_checks
from gateway.operator.doctor.findings import ALL_ENVIRONMENTS, STATES, Finding
from gateway.operator.doctor.local_checks import check_interruptions
from gateway.operator.doctor.service_checks import iter_stored_findings
from gateway.storage import StoreUnavailable, open_store
from gateway.storage.capability_cache import load_capabilities
from gateway.upstream.client import open_upstream_client

__all__ = ["Finding", "check_interruptions", "iter_stored_findings", "run_doctor"]


async def run_doctor(settings: Settings) -> list[Finding]:
    """Checks this machine, the state, the rate limiter, and the services of each environment.

    Errors come first; the findings of one state are in the order of their dependencies.
    """
    findings = [
        *local_checks.check_configuration(settings),
        *local_checks.check_tls_certificate_expiry(settings.server),
    ]
    findings += await local_checks.check_redis_eviction_policy(settings)
    try:
        async with open_store(settings.state, create=False) as store:
            findings += await local_checks.check_state_writable_and_current(settings, store)
            findings += await check_interruptions(settings, store)
            limited = settings.limit_calls_of_checks()
            capabilities = await load_capabilities(store)
            async with open_upstream_client(limited, capabilities=capabilities) as upstream:
                findings += await service_checks.check_service_per_environment(
                    limited, store, upstream, capabilities
                )
            findings += await legacy_checks.check_legacy_services(limited, store)
    # The services cannot be checked either: their credentials are in the state.
    except StoreUnavailable as unavailable:
        problem = f"{unavailable.happened}: {unavailable.means}; the services were not checked"
        findings.append(Finding(ALL_ENVIRONMENTS, "state", "error", problem, unavailable.do))
    except ConfigurationError:
        pass  # already reported by check_configuration; without it no call can be made
    return sorted(findings, key=lambda finding: STATES.index(finding.state))
