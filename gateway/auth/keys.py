"""API keys: cached lookup, and checks of the credentials that they stand for.

A cached key needs no query. A task polls the database once a second for changed keys and loads
them again, so that a key that another process revokes, imports or rotates takes effect here within
about two seconds.

While the database is unavailable, cached keys keep working for ``GRACE_SECONDS``; after that, a
key could have been revoked too long ago. Other keys raise StoreUnavailable.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, Self
from uuid import uuid4

import structlog
from cachetools import LRUCache, TTLCache

from gateway.auth.key_rows import (
    decrypt_credentials,
    load_credentials,
    load_key_change_count,
    select_active_key,
    select_key_change_count,
    select_keys_changed_since,
)
from gateway.auth.signing import Credentials, extract_key_prefix
from gateway.auth.single_flight import SingleFlight
from gateway.observability.logs import describe_exception
from gateway.payloads.compressed_buffer import CompressedBuffer
from gateway.storage import StoreUnavailable
from gateway.storage.tenants import Tenant
from mappings.grammar import Unknown, Unreachable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from gateway.auth.key_rows import AnyRow, ListedKey
    from gateway.storage import Store

GRACE_SECONDS = 600.0
POLL_SECONDS = 1.0
LONGEST_KEY = 512

_KNOWN_KEYS = 10_000
_UNKNOWN_KEYS = 10_000
_UNKNOWN_SECONDS = 5.0

_SIDE_BY_SIDE = 8

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_log = structlog.get_logger(__name__)


def parse_network(text: str) -> Network:
    """Parses a network; IPv4-mapped IPv6 becomes IPv4, as client addresses do."""
    network = ipaddress.ip_network(text)
    mapped = network.network_address.ipv4_mapped if network.version == 6 else None
    if mapped and network.prefixlen >= 96:
        return ipaddress.ip_network(f"{mapped}/{network.prefixlen - 96}")
    return network


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An active API key, without the key itself.

    ``requests_per_hour`` is None for the configured default. Empty ``allowed_ips`` admits any
    address.
    """

    id: str
    name: str
    prefix: str
    merchant: str
    environment: str
    pair: Credentials = field(repr=False)
    requests_per_hour: int | None
    allowed_ips: tuple[Network, ...]
    owner: Tenant = field(init=False, repr=False, compare=False)
    who: str = field(init=False, repr=False, compare=False)
    """The tenant as text, precomputed because every request uses it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "owner", Tenant(self.merchant, self.environment))
        object.__setattr__(self, "who", str(self.owner))

    def admits(self, address: str | Address) -> bool:
        """Whether a client at this address may use the key; False if the text is no address."""
        return is_address_allowed(self.allowed_ips, address)


def is_address_allowed(allowed: Sequence[Network], address: str | Address | None) -> bool:
    """Whether an address is in one of the networks; an empty list admits any address."""
    if not allowed:
        return True
    try:
        client = ipaddress.ip_address(address or "")
    except ValueError:
        return False
    # A dual-stack socket reports an IPv4 client as ::ffff:192.0.2.1.
    client = getattr(client, "ipv4_mapped", None) or client
    return any(client in network for network in allowed)


class Watcher(Protocol):
    def __call__(self, changed: Sequence[AnyRow] | None, /) -> None:
        """Receives the changed keys with their credentials; None if any key may have changed."""


class ApiKeyStore:
    """Finds API keys; an async context manager that polls for changes.

    Unknown keys are cached separately and briefly, so that guessed keys cannot evict real ones.
    """

    def __init__(
        self,
        store: Store,
        *,
        poll_seconds: float = POLL_SECONDS,
        grace_seconds: float = GRACE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._poll_seconds = poll_seconds
        self._grace_seconds = grace_seconds
        self._clock = clock
        # By digest, never by the key itself. No expiry: the poll invalidates changed entries.
        self._known: LRUCache[str, ApiKey] = LRUCache(_KNOWN_KEYS)
        self._unknown: TTLCache[str, bool] = TTLCache(_UNKNOWN_KEYS, _UNKNOWN_SECONDS, clock)
        self._asking: SingleFlight[ApiKey | None] = SingleFlight()
        self._watchers: list[Watcher] = []
        self._ahead: list[Callable[[], Awaitable[None]]] = []
        self._count = -1
        self._confirmed = clock()
        self._readable = True
        self._polling: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"ApiKeyStore({len(self._known)} known)"

    async def __aenter__(self) -> Self:
        await self.refresh()
        self._polling = asyncio.create_task(self._poll(), name="keyring")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._polling:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
        await self._asking.end()

    @property
    def is_fresh(self) -> bool:
        """Whether cached keys may be used: the database was readable within the grace period."""
        return self._clock() - self._confirmed <= self._grace_seconds

    @property
    def count(self) -> int:
        """The change count up to which listeners have been called."""
        return self._count

    def watch(self, watcher: Watcher) -> None:
        """Calls the listener with every change from now on."""
        self._watchers.append(watcher)

    def look_ahead(self, look: Callable[[], Awaitable[None]]) -> None:
        """Awaits the hook before a changed or newly loaded key is used."""
        self._ahead.append(look)

    async def find(self, api_key: str) -> ApiKey | None:
        """Finds an active key; None if there is none. Raises StoreUnavailable."""
        # Cannot be a key, so it costs no query.
        if not 0 < len(api_key) <= LONGEST_KEY or not api_key.isascii():
            return None
        digest = self._store.encryption.digest(api_key)
        if self.is_fresh:
            if key := self._known.get(digest):
                return key
            if digest in self._unknown:
                return None
        return await self._asking.ask(digest, lambda: self._ask(digest, api_key))

    async def refresh(self) -> None:
        """Loads the keys that changed since the last call; raises StoreUnavailable."""
        # Taken before the query: a change during it is seen by the next poll.
        started = self._clock()
        # The common case: one small query, and no key has changed.
        if await load_key_change_count(self._store) == self._count:
            self._confirmed = started
            return
        async with self._store.read() as connection:
            count = await select_key_change_count(connection)
            # On the first call nothing is cached that could have changed.
            news = count > self._count >= 0
            changed = await select_keys_changed_since(connection, self._count) if news else ()
        if count < self._count:  # the database was replaced or restored from a backup
            self._known.clear()
        for look in self._ahead if news else ():
            await look()
        if count != self._count:
            # A new key may be among them.
            self._unknown.clear()
            for watcher in self._watchers:
                watcher(changed if news else None)
        self._renew({row.id: row for row in changed})
        self._count = count
        self._confirmed = started

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._poll_seconds)
            try:
                await self.refresh()
            except StoreUnavailable as error:
                self._hear(readable=False, error=str(error))
            except Exception as error:  # noqa: BLE001 - if this task ended, revoked keys would go on working
                _log.error("key_refresh_failed", **describe_exception(error))
            else:
                self._hear(readable=True)

    def _hear(self, *, readable: bool, error: str = "") -> None:
        if readable != self._readable and readable:
            _log.info("key_refresh_recovered")
        elif readable != self._readable:
            _log.error(
                "key_refresh_failed", reason=error, cached_keys_valid_seconds=self._grace_seconds
            )
        self._readable = readable

    def _renew(self, rows: dict[str, AnyRow]) -> None:
        for digest, key in list(self._known.items()) if rows else ():
            if row := rows.get(key.id):
                # Removed first, so that no stale key stays if the new row cannot be decrypted.
                del self._known[digest]
                if row.revoked_at is None:
                    with contextlib.suppress(StoreUnavailable):  # raised when the key is next used
                        self._known[digest] = self._key(row)

    async def _ask(self, digest: str, api_key: str) -> ApiKey | None:
        digests = self._store.encryption.digests(api_key)
        async with self._store.read() as connection:
            row, count = await select_active_key(connection, digests)
        key = self._key(row) if row else None
        for look in self._ahead if key else ():
            await look()
        if count < self._count:
            # A poll has seen a newer change than this query: a cached result would be stale.
            return key
        if key:
            self._known[digest] = key
        else:
            self._unknown[digest] = True
        return key

    def _key(self, row: AnyRow) -> ApiKey:
        return ApiKey(
            id=row.id,
            name=row.name,
            prefix=row.prefix,
            merchant=row.merchant,
            environment=row.environment,
            pair=decrypt_credentials(
                row, Tenant(row.merchant, row.environment), self._store.encryption
            ),
            requests_per_hour=row.requests_per_hour,
            allowed_ips=tuple(map(parse_network, row.allowed_ips)),
        )


# Checks which account credentials open. They only send reads.

OLDEST = "/v1/recipients?orderBy=createdAt&sortBy=asc&page=1&pageSize=10"
"""The oldest recipients, which identify an account: new recipients do not change this page."""


class Sends(Protocol):
    """The part of ``gateway.upstream.client.UpstreamClient`` that the checks use."""

    async def send(
        self,
        environment: str,
        pair: Credentials,
        method: str,
        target: str,
        body: bytes | None,
        *,
        request_id: str,
        write: bool,
    ) -> Replied: ...


class Replied(Protocol):
    @property
    def status(self) -> int: ...

    @property
    def body(self) -> bytes | CompressedBuffer: ...


@dataclass(frozen=True, slots=True)
class Sight:
    """The account that credentials open, by the ids of its oldest recipients, or why none opens."""

    result: Literal["accepted", "refused", "unreachable"]
    recipients: tuple[str, ...] = ()
    why: str = ""

    @property
    def told(self) -> str:
        if self.result == "accepted" and not self.recipients:
            return "accepted; the account has no recipients, so it cannot be identified"
        return f"{self.result}, {self.why}" if self.why else self.result


async def look(upstream: Sends, environment: str, pair: Credentials) -> Sight:
    """Fetches the account's oldest recipients."""
    try:
        reply = await upstream.send(
            environment, pair, "GET", OLDEST, None, request_id=uuid4().hex, write=False
        )
    except (Unreachable, Unknown) as error:
        return Sight("unreachable", why=str(error))
    if reply.status in (401, 403):
        return Sight(
            "refused",
            why=f"the service answered {reply.status}: wrong credentials, base_url, clock or vocabulary",
        )
    if reply.status != 200:
        return Sight("unreachable", why=f"the service answered {reply.status}")
    try:
        found = [str(recipient["id"]) for recipient in json.loads(bytes(reply.body))["recipients"]]
    except (ValueError, KeyError, TypeError):
        return Sight("unreachable", why="the response cannot be parsed")
    return Sight("accepted", tuple(found))


def find_shared_accounts(seen: Mapping[Tenant, Sight]) -> list[tuple[Tenant, Tenant]]:
    """Finds pairs of tenants in one environment that open the same account."""
    first: dict[tuple[str, str], Tenant] = {}
    shared: dict[tuple[Tenant, Tenant], None] = {}
    for owner, sight in seen.items():
        for recipient in sight.recipients:
            holder = first.setdefault((owner.environment, recipient), owner)
            if holder != owner:
                shared[holder, owner] = None
    return list(shared)


def why_not_replaced(old: Sight, new: Sight) -> str | None:
    """Returns why new credentials must not replace the old ones; None if they may.

    Both must open the same account, or payments would leave the wrong one.
    """
    if new.result == "refused":
        return "the service refuses the new credentials"
    if old.result == "refused":
        return "the service refuses the stored credentials, so the accounts cannot be compared"
    if "unreachable" in (new.result, old.result):
        return f"the accounts could not be compared: {new.told}"
    if not old.recipients and new.recipients:
        return "the new credentials' account has recipients, but the stored credentials' has none"
    if not set(old.recipients) <= set(new.recipients):
        return (
            "the new credentials' account lacks the stored one's oldest recipients: another account"
        )
    return None


@dataclass(frozen=True, slots=True)
class Checked:
    """The checked credentials of a tenant, with the names of its keys."""

    owner: Tenant
    access_key_prefix: str
    keys: tuple[str, ...]
    sight: Sight


async def check_credentials(
    store: Store, upstream: Sends, those: Iterable[ListedKey]
) -> list[Checked]:
    """Checks the credentials of each key's tenant once, concurrently; raises StoreUnavailable."""
    names: dict[Tenant, list[str]] = {}
    for key in those:
        names.setdefault(key.owner, []).append(key.name)
    # Bounded, to spare the service.
    bound = asyncio.Semaphore(_SIDE_BY_SIDE)

    async def check(owner: Tenant) -> Checked:
        async with bound:
            pair = await load_credentials(store, owner)
            sight = await look(upstream, owner.environment, pair)
        return Checked(owner, extract_key_prefix(pair.access_key), tuple(names[owner]), sight)

    return await asyncio.gather(*map(check, names))


def describe_credential_problems(checked: Sequence[Checked]) -> list[str]:
    """Describes the problems for operators, one line each."""
    wrong = [f"{one.owner}: {one.sight.told}" for one in checked if one.sight.result != "accepted"]
    shared = find_shared_accounts({one.owner: one.sight for one in checked})
    return wrong + [
        f"same account under two merchant names: {one} and {two}" for one, two in shared
    ]
