"""Checks the legacy service of environments with switched keys, by reading a country.

That read needs no API key.
"""

from multidict import CIMultiDict

from gateway.config.settings import Settings
from gateway.operator.doctor.findings import Finding, advise_on_unreachable_address
from gateway.operator.mode_switches import list_switched_keys
from gateway.payloads import json_codec
from gateway.storage import Store
from gateway.upstream.client import create_circuit_breakers
from gateway.upstream.http_connection import USER_AGENT, ResponseLost
from gateway.upstream.passthrough import (
    PassthroughClient,
    PassthroughRequest,
    open_passthrough_client,
)
from mappings.failures import Unreachable

CHECK_NAME = "legacy service"
TARGET = "/v1/geography/countries/CA"


async def check_legacy_services(settings: Settings, store: Store) -> list[Finding]:
    """Checks each environment in which a key is switched to `forward` or `compare`."""
    switched_environments = {*await list_switched_keys(store)}
    base_urls = settings.environments.map_legacy_base_urls_by_environment()
    origins = {name: url for name, url in base_urls.items() if name in switched_environments}
    findings = [
        Finding(
            name,
            CHECK_NAME,
            "error",
            "keys are switched to `forward` or `compare`, but legacy_base_url is not set",
            f"set environments.{name}.legacy_base_url, or run `payout-gateway modes set … translate` "
            "(see `payout-gateway modes list`)",
        )
        for name in sorted(switched_environments - origins.keys())
    ]
    async with open_passthrough_client(
        settings, origins, create_circuit_breakers(settings, "legacy")
    ) as client:
        return findings + [
            await _check_legacy_service(client, name, url) for name, url in origins.items()
        ]


async def _check_legacy_service(client: PassthroughClient, name: str, url: str) -> Finding:
    headers = CIMultiDict({"User-Agent": USER_AGENT, "Accept": "application/json"})
    request = PassthroughRequest(name, "GET", TARGET, headers, None, is_write=False)
    try:
        async with client.send(request) as response:
            body, status = await response.read_body(), response.status
    except (Unreachable, ResponseLost) as failure:
        advice = advise_on_unreachable_address(str(failure), url).replace(
            "base_url", "legacy_base_url"
        )
        return Finding(name, CHECK_NAME, "error", str(failure), advice)
    # Some services want a key for this read, and answer 403.
    if status in (200, 403) and "ok" in (json_codec.loads_object(body) or ()):
        return Finding(name, CHECK_NAME, "ok", "answers as the legacy interface")
    problem = f"the answer is not of the legacy interface (status {status})"
    advice = f"check that {url} is the legacy address, without /v1, and not the current interface"
    return Finding(name, CHECK_NAME, "error", problem, advice)
