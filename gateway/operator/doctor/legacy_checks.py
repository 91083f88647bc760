"""Checks the legacy service of environments with switched keys, by reading a country.

That read needs no API key.
"""

from __future__ import annotations

from multidict import CIMultiDict

from gateway.config.settings import Settings
from gateway.operator.doctor.findings import Finding, advise_unreachable
from gateway.payloads import json_codec
from gateway.storage import Store
from gateway.storage.mode_rows import TRANSLATE, all_switches
from gateway.upstream.client import USER_AGENT, create_breakers
from gateway.upstream.passthrough import PassthroughClient, PassthroughRequest, open_passthrough
from gateway.upstream.send_attempt import ResponseLost
from mappings.grammar import Unreachable

LOOKED_AT = "legacy service"
TARGET = "/v1/geography/countries/CA"
MOST = 1 << 20


async def check_legacy_services(settings: Settings, store: Store) -> list[Finding]:
    """Checks each environment in which a key is switched to `forward` or `compare`."""
    switched = {one.owner.environment for one in await all_switches(store) if one.mode != TRANSLATE}
    configured = settings.environments.configured()
    origins = {
        name: one.legacy_base_url
        for name, one in configured.items()
        if name in switched and one.legacy_base_url
    }
    found = [_homeless(name) for name in sorted(switched - origins.keys())]
    async with open_passthrough(settings, origins, create_breakers(settings)) as passing:
        return found + [await _asked(passing, name, url) for name, url in origins.items()]


def _homeless(name: str) -> Finding:
    said = "keys are switched to `forward` or `compare`, but legacy_base_url is not set"
    do = (
        f"set environments.{name}.legacy_base_url, or run `modes set … translate` (see "
        "`modes list`)"
    )
    return Finding(name, LOOKED_AT, "error", said, do)


async def _asked(passing: PassthroughClient, name: str, url: str) -> Finding:
    headers = CIMultiDict({"User-Agent": USER_AGENT, "Accept": "application/json"})
    passage = PassthroughRequest(name, "GET", TARGET, headers, None, write=False)
    try:
        async with passing.sent(passage) as passed:
            body = b""
            async for part in passed.parts():
                # An unknown server answers: read no more than a legacy answer can need.
                body = (body + part)[:MOST]
            status = passed.status
    except (Unreachable, ResponseLost) as failure:
        do = advise_unreachable(str(failure), url).replace("base_url", "legacy_base_url")
        return Finding(name, LOOKED_AT, "error", str(failure), do)
    if _is_legacy(status, body):
        return Finding(name, LOOKED_AT, "ok", "answers as the legacy interface")
    said = f"the answer is not of the legacy interface (status {status})"
    do = f"check that {url} is the legacy address, without /v1, and not the current interface"
    return Finding(name, LOOKED_AT, "error", said, do)


def _is_legacy(status: int, body: bytes) -> bool:
    """Whether an answer has the legacy shape. 403 counts: some services want a key for this read."""
    try:
        told = json_codec.read(body)
    except json_codec.Unreadable:
        return False
    return status in (200, 403) and isinstance(told, dict) and "ok" in told
