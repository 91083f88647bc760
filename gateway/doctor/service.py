"""Every configured environment, with the pair of its first key in use."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from gateway.doctor.asking import Asking, is_service
from gateway.doctor.findings import Finding
from gateway.settings import Settings
from gateway.store import Store
from gateway.store.key_rows import ListedKey, listed_keys, pair_of
from gateway.upstream.client import Reply, Upstream
from gateway.upstream.clock import NOTEWORTHY
from gateway.upstream.inferred import LACKING
from gateway.upstream.learned import Learned
from gateway.upstream.signed_target import NAME
from mappings.current import ENDPOINTS

SIGNED = "signed target"
LISTING, A_LIST = "GET /batches", "/v1/batches?page=1&pageSize=1"
"""The one inferred operation that is a read, and of no batch: it can be tried."""


async def examine(
    settings: Settings, store: Store, upstream: Upstream, learned: Learned
) -> list[Finding]:
    keys = [key for key in await listed_keys(store) if key.revoked_at is None]
    configured = settings.environments.configured()
    found = list(_homeless(keys, configured))
    for name in configured:
        key = next((key for key in keys if key.environment == name), None)
        pair = await pair_of(store, key.owner) if key else None
        asking = Asking(settings, upstream, name, pair, key.name if key else "")
        found += await asking.called()
        found += _signature(asking, settings, learned)
        found += _clock(asking, upstream)
        found += [one async for one in _inferred(asking, settings, learned)]
    return found


def _homeless(keys: Sequence[ListedKey], configured: Mapping[str, object]) -> Iterator[Finding]:
    """Keys of environments that are not configured: their clients are answered 403."""
    is_usable = any(key.environment in configured for key in keys)
    for name in dict.fromkeys(key.environment for key in keys if key.environment not in configured):
        those = ", ".join(key.name for key in keys if key.environment == name)
        said = (
            f"of {those}: clients are refused (403), since [environments.{name}] is not configured"
        )
        do = f"set environments.{name}.base_url, or import the key with another environment"
        if not is_usable:
            yield Finding(name, "keys", "wrong", said, do)
        else:
            yield Finding(name, "keys", "unknown", said, f"{do}; or `keys revoke` what is not used")


def _signature(asking: Asking, settings: Settings, learned: Learned) -> Iterator[Finding]:
    """Whether the query of a request is signed with its path; a refused form was told already."""
    name, form, setting = asking.name, asking.form, settings.upstream.signed_target
    if asking.accepted:
        how = "" if setting == "auto" else " as it is set,"
        yield Finding(name, SIGNED, "well", f"{form}:{how} accepted just now")
    elif setting != "auto":
        if not asking.form_is_refused:
            said = f"{form} as it is set; {_untried(asking)}"
            yield Finding(name, SIGNED, "unknown", said, asking.first)
    elif form:
        since = moment(learned.since(name, NAME))
        said = f"{form}, remembered{since}; {_untried(asking)}"
        yield Finding(name, SIGNED, "unknown", said, asking.first)
    else:
        said = f"not found out yet; {_untried(asking)}"
        yield Finding(name, SIGNED, "unknown", said, asking.first)


def _untried(asking: Asking) -> str:
    return f"not tried: {asking.why_not}"


def moment(when: datetime | None) -> str:
    return f" since {when:%Y-%m-%d %H:%M} UTC" if when else ""


def _clock(asking: Asking, upstream: Upstream) -> Iterator[Finding]:
    name, offset = asking.name, upstream.clock.offset(asking.name)
    if abs(offset) >= NOTEWORTHY:
        do = "it is corrected for; set this machine's clock all the same (NTP)"
        where = "behind" if offset > 0 else "ahead of"
        said = f"this machine is {abs(offset):.0f} s {where} the service"
        yield Finding(name, "clock", "wrong", said, do)
    elif asking.accepted is None:
        said = f"not compared with the service's: {asking.why_not}"
        yield Finding(name, "clock", "unknown", said, asking.first)
    elif "Date" not in asking.accepted.headers:
        do = "nothing, while calls are accepted; keep this machine's clock right (NTP)"
        yield Finding(name, "clock", "unknown", "the service's answers do not tell a time", do)
    else:
        yield Finding(name, "clock", "well", "agrees with the service's")


async def _inferred(asking: Asking, settings: Settings, learned: Learned) -> AsyncIterator[Finding]:
    name, setting = asking.name, settings.upstream.inferred_operations
    if setting == "avoid":
        told = f"not looked for: upstream.inferred_operations is {setting!r}"
        yield Finding(name, "inferred operations", "well", told)
        return
    if setting == "use":
        yield await _used(asking)
        return
    for endpoint in ENDPOINTS:
        if endpoint.inferred:
            one = f"{endpoint.method} {endpoint.path}"
            reply = await asking.asked(A_LIST) if one == LISTING and asking.accepted else None
            told_now = _listing(name, reply) if reply else None
            yield told_now or _of_endpoint(name, one, learned.get(name, f"inferred {one}"))


async def _used(asking: Asking) -> Finding:
    """One that can be tried stands for all: under "use" none is done without."""
    name, looked_at = asking.name, "inferred operations"
    set_so = 'upstream.inferred_operations is "use"'
    reply = await asking.asked(A_LIST) if asking.accepted else None
    told = _listing(name, reply) if reply else None
    if told is None or reply is None:
        why = _untried(asking) if asking.accepted is None else f"no answer to {LISTING} tells"
        return Finding(name, looked_at, "unknown", f"{set_so}; {why}", asking.first)
    if reply.status in LACKING:
        said = f"{LISTING} is not there (status {reply.status}, just now), and {set_so}"
        do = 'set upstream.inferred_operations to "auto"'
        return Finding(name, looked_at, "wrong", said, do)
    return Finding(name, looked_at, "well", f"{set_so}; {LISTING} is there: tried just now")


def _listing(name: str, reply: Reply) -> Finding | None:
    if 200 <= reply.status < 300 and is_service(reply):
        return Finding(name, LISTING, "well", "there: tried just now")
    if reply.status in LACKING:
        said = f"not there (status {reply.status}, just now): batches are listed from the ledger"
        return Finding(name, LISTING, "well", said)
    return None


def _of_endpoint(name: str, endpoint: str, known: Mapping[str, Any] | None) -> Finding:
    if known is not None:
        at = moment(datetime.fromtimestamp(known["at"], UTC))
        there = "there" if known["present"] else "not there"
        return Finding(name, endpoint, "well", f"{there}, remembered{at}; not tried now")
    do = "nothing: it is found out when first needed"
    return Finding(name, endpoint, "unknown", "not needed yet", do)
