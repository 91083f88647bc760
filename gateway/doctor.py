"""What `payout-gateway doctor` finds out: reads only, one signed call for each environment."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gateway.learned import Learned
from gateway.settings import Settings
from gateway.signing import Pair
from gateway.store import Store
from gateway.store.key_rows import listed_keys, pair_of
from gateway.upstream import Reply, Upstream
from mappings.current import ENDPOINTS
from mappings.grammar import Unknown, Unreachable

TARGET = "/v1/recipients?page=1&pageSize=1"
CLOCK_SECONDS = 5
"""An offset that deserves the operator's attention; smaller ones are the network's."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; ``do`` says what to do about it, where it is not well."""

    environment: str
    looked_at: str
    state: Literal["well", "unknown", "wrong"]
    said: str
    do: str = ""


async def examine(
    settings: Settings, store: Store, upstream: Upstream, learned: Learned
) -> list[Finding]:
    """Every configured environment, with the pair of its first key in use."""
    keys = [key for key in await listed_keys(store) if key.revoked_at is None]
    found: list[Finding] = []
    for name, environment in settings.environments.configured().items():
        owner = next((key.owner for key in keys if key.environment == name), None)
        if owner is None:
            found.append(
                Finding(name, "keys", "unknown", "no key is imported", "run `keys import`")
            )
            continue
        found += await _call(name, environment.base_url, await pair_of(store, owner), upstream)
        found += _signature(name, upstream)
        found += _clock(name, upstream)
        found += _inferred(name, settings, learned)
    return found


async def _call(name: str, base_url: str, pair: Pair, upstream: Upstream) -> list[Finding]:
    try:
        reply = await upstream.send(
            name, pair, "GET", TARGET, None, request_id="doctor", write=False
        )
    except (Unreachable, Unknown) as failure:
        do = f"see that {base_url} is the service's address, its certificate, and the way out"
        return [Finding(name, "reachable", "wrong", str(failure), do)]
    return [
        Finding(name, "reachable", "well", f"answers in {reply.seconds * 1000:.0f} ms"),
        _pair(name, pair, reply),
    ]


def _pair(name: str, pair: Pair, reply: Reply) -> Finding:
    if 200 <= reply.status < 300 and _is_service(reply):
        return Finding(name, "pair", "well", f"access key {pair.access_key} is accepted")
    if reply.status == 401:
        do = "see that it is this environment's pair; `keys rotate-secret` takes another"
        return Finding(name, "pair", "wrong", f"access key {pair.access_key} is refused", do)
    if reply.status == 403:
        do = "the key lacks permission, or this address is not on the service's allow-list"
        return Finding(name, "pair", "wrong", "not permitted (403)", do)
    do = "see that base_url is the current interface's address, without /v1"
    return Finding(name, "pair", "wrong", f"no answer of the service (status {reply.status})", do)


def _is_service(reply: Reply) -> bool:
    try:
        body: Any = json.loads(reply.body)
    except ValueError:
        return False
    return isinstance(body, Mapping) and "ok" in body


def _signature(name: str, upstream: Upstream) -> Iterator[Finding]:
    if form := upstream.signed_target.known(name):
        yield Finding(name, "signed target", "well", form)
    else:
        yield Finding(name, "signed target", "unknown", "not found out yet: no call was accepted")


def _clock(name: str, upstream: Upstream) -> Iterator[Finding]:
    offset = upstream.clock.offset(name)
    if abs(offset) < CLOCK_SECONDS:
        yield Finding(name, "clock", "well", "agrees with the service's")
    else:
        do = "it is corrected for; set this machine's clock all the same (NTP)"
        yield Finding(name, "clock", "wrong", f"off by {offset:.0f} s", do)


def _inferred(name: str, settings: Settings, learned: Learned) -> Iterator[Finding]:
    if settings.upstream.inferred_operations != "auto":
        told = f"not looked for: inferred_operations is {settings.upstream.inferred_operations!r}"
        yield Finding(name, "inferred operations", "well", told)
        return
    for endpoint in ENDPOINTS:
        if not endpoint.inferred:
            continue
        known = learned.get(name, f"inferred {endpoint.method} {endpoint.path}")
        told = "not needed yet" if known is None else "there" if known["present"] else "not there"
        state: Literal["well", "unknown"] = "unknown" if known is None else "well"
        yield Finding(name, f"{endpoint.method} {endpoint.path}", state, told)
