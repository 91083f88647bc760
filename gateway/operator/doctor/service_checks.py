"""Checks each configured environment, with the credentials of its first active key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from gateway.auth.key_rows import ListedKey, load_credentials, load_listed_keys
from gateway.config.settings import Settings
from gateway.operator.doctor.findings import Finding, State
from gateway.operator.doctor.remote_checks import Asking, is_service
from gateway.storage import Store
from gateway.upstream.capability_cache import CapabilityCache
from gateway.upstream.client import Upstream
from gateway.upstream.clock import NOTEWORTHY
from gateway.upstream.optional_endpoints import LACKING, InferredOperations, describe_endpoint
from gateway.upstream.signed_target import NAME
from mappings.current import ENDPOINTS
from mappings.grammar import JSON, Call, Failure, Refused, Unreachable

SIGNED = "signature scope"
LISTING = "GET /batches"
A_LIST = Call("GET", "/batches", query={"page": "1", "pageSize": "1"}, witness=())
"""The only optional endpoint that can be tried safely: a read that needs no batch."""


async def check_service(
    settings: Settings, store: Store, upstream: Upstream, learned: CapabilityCache
) -> list[Finding]:
    keys = [key for key in await load_listed_keys(store) if key.revoked_at is None]
    configured = settings.environments.configured()
    # First: these keys are in no environment that is checked below.
    found = list(_homeless(keys, configured))
    for name in configured:
        # One key is enough: all credentials of an environment are signed in the same way.
        key = next((key for key in keys if key.environment == name), None)
        pair = await load_credentials(store, key.owner) if key else None
        asking = Asking(settings, upstream, name, pair, key.name if key else "")
        found += await asking.called()
        found += _signature(asking, settings, learned)
        found += _clock(asking, upstream)
        found += [one async for one in _inferred(asking, settings, learned)]
    return found


def _homeless(keys: Sequence[ListedKey], configured: Mapping[str, object]) -> Iterator[Finding]:
    """Reports keys of environments that are not configured: their clients get 403."""
    is_usable = any(key.environment in configured for key in keys)
    for name in dict.fromkeys(key.environment for key in keys if key.environment not in configured):
        those = ", ".join(key.name for key in keys if key.environment == name)
        said = f"clients of {those} get 403, because [environments.{name}] is not configured"
        do = f"set environments.{name}.base_url, or import the key with another environment"
        if not is_usable:
            yield Finding(name, "keys", "error", said, do)
        else:
            yield Finding(
                name, "keys", "warning", said, f"{do}, or revoke unused keys with `keys revoke`"
            )


def _signature(asking: Asking, settings: Settings, learned: CapabilityCache) -> Iterator[Finding]:
    """Reports whether signatures cover the query. A refused form was already reported by ``probe``."""
    name, form, setting = asking.name, asking.form, settings.upstream.signed_target
    if asking.accepted:
        how = "" if setting == "auto" else " as configured,"
        yield Finding(name, SIGNED, "ok", f"{form}:{how} accepted just now")
    elif setting != "auto":
        if not asking.form_is_refused:
            said = f"{form}, as configured; {_untried(asking)}"
            yield Finding(name, SIGNED, "skipped", said, asking.first)
    elif form:
        since = format_check_time(learned.since(name, NAME))
        said = f"{form}, detected{since}; {_untried(asking)}"
        yield Finding(name, SIGNED, "skipped", said, asking.first)
    else:
        said = f"not detected yet; {_untried(asking)}"
        yield Finding(name, SIGNED, "skipped", said, asking.first)


def _untried(asking: Asking) -> str:
    return f"skipped: {asking.why_not}"


def format_check_time(when: datetime | None) -> str:
    return f" since {when:%Y-%m-%d %H:%M} UTC" if when else ""


def _clock(asking: Asking, upstream: Upstream) -> Iterator[Finding]:
    name, offset = asking.name, upstream.clock.offset(asking.name)
    if abs(offset) >= NOTEWORTHY:
        do = "the gateway corrects for it, but synchronize this machine's clock (NTP)"
        where = "behind" if offset > 0 else "ahead of"
        said = f"this machine is {abs(offset):.0f} s {where} the service"
        yield Finding(name, "clock", "error", said, do)
    elif asking.accepted is None:
        said = f"skipped: {asking.why_not}"
        yield Finding(name, "clock", "skipped", said, asking.first)
    elif "Date" not in asking.accepted.headers:
        do = "nothing while calls are accepted; keep this machine's clock synchronized (NTP)"
        yield Finding(name, "clock", "warning", "the service's answers have no Date header", do)
    else:
        yield Finding(name, "clock", "ok", "in sync with the service")


async def _inferred(
    asking: Asking, settings: Settings, learned: CapabilityCache
) -> AsyncIterator[Finding]:
    name, setting = asking.name, settings.upstream.inferred_operations
    if setting == "avoid":
        told = f"not used: upstream.inferred_operations is {setting!r}"
        yield Finding(name, "optional endpoints", "ok", told)
        return
    if setting == "use":
        yield await _used(asking)
        return
    for endpoint in ENDPOINTS:
        if endpoint.inferred:
            one = f"{endpoint.method} {endpoint.path}"
            known = learned.get(name, f"inferred {one}")
            told_now = await _listing(asking, learned) if one == LISTING else None
            yield told_now or _of_endpoint(name, one, known)


async def _listing(asking: Asking, learned: CapabilityCache) -> Finding | None:
    """Tries the list now. The result is stored, so running gateways use it too."""
    if asking.accepted is None:
        return None
    inferred = InferredOperations("auto", learned)
    was_there = (learned.get(asking.name, f"inferred {LISTING}") or {}).get("present")
    refusals: list[int] = []

    async def make(call: Call) -> JSON:
        reply = await asking.asked(f"/v1{call.path}?{urlencode(call.query)}")
        if reply is None:
            raise Unreachable("no answer")
        if 200 <= reply.status < 300 and is_service(reply):
            return {}
        # find_out also sends a documented read, to tell a missing path from a service that is down.
        if call is A_LIST:
            refusals.append(reply.status)
        raise Refused(reply.status)

    try:
        # Stores the result, so that running gateways use it too.
        is_there = await inferred.find_out(A_LIST, asking.name, make)
    except Failure:
        if not refusals:
            return None
        said = f"inconclusive: status {refusals[-1]}, tried just now"
        do = (
            "check which server answers at this address, and run `doctor` again; until then GET "
            "/v1/batches is 500"
        )
        return Finding(asking.name, LISTING, "warning", said, do)
    if is_there:
        return Finding(asking.name, LISTING, "ok", "available: tried just now")
    said = (
        f"not available (status {refusals[-1]}, just now): batches are listed from the "
        "gateway's records"
    )
    if not was_there:
        return Finding(asking.name, LISTING, "ok", said)
    said += ". It was available before: batches created elsewhere are no longer listed"
    do = "if a proxy in front of the service gave this answer, fix the proxy and run `doctor` again"
    return Finding(asking.name, LISTING, "warning", said, do)


async def _used(asking: Asking) -> Finding:
    """Checks the setting "use", which requires all optional endpoints: tries the one that is a
    read.
    """
    name, looked_at = asking.name, "optional endpoints"
    set_so = 'upstream.inferred_operations is "use"'
    target = f"/v1{A_LIST.path}?{urlencode(A_LIST.query)}"
    reply = await asking.asked(target) if asking.accepted else None
    is_there = reply is not None and 200 <= reply.status < 300 and is_service(reply)
    if reply is None or not (is_there or reply.status in LACKING):
        why = (
            _untried(asking)
            if asking.accepted is None
            else f"the answer to {LISTING} is inconclusive"
        )
        state: State = "skipped" if asking.accepted is None else "warning"
        return Finding(name, looked_at, state, f"{set_so}; {why}", asking.first)
    if not is_there:
        said = f"{LISTING} is not available (status {reply.status}, just now), but {set_so}"
        do = 'set upstream.inferred_operations to "auto"'
        return Finding(name, looked_at, "error", said, do)
    return Finding(name, looked_at, "ok", f"{set_so}; {LISTING} is available: tried just now")


def _of_endpoint(name: str, endpoint: str, known: Mapping[str, Any] | None) -> Finding:
    if known is not None:
        at = format_check_time(datetime.fromtimestamp(known["at"], UTC))
        return Finding(
            name, endpoint, "ok", f"{describe_endpoint(known)}, detected{at}; not tried now"
        )
    do = "nothing: the gateway tries it when it first needs it"
    return Finding(name, endpoint, "skipped", "not tried yet", do)
