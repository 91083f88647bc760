"""Who is calling: API keys and the pairs that they stand for.

Looking a key up costs no query once it is known. One task asks the database, once a second,
whether any key changed, and re-reads those that did; so what another process revokes, imports or
rotates is seen here within about two seconds.

While the database cannot be read, known keys go on working for ``GRACE_SECONDS`` after it last
could; longer would let a key live on that was revoked meanwhile. Unknown keys raise
StoreUnavailable, because nobody can say whether they exist.
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
    """A network; one of IPv4-mapped addresses as IPv4's, because clients' addresses are so read."""
    network = ipaddress.ip_network(text)
    mapped = network.network_address.ipv4_mapped if network.version == 6 else None
    if mapped and network.prefixlen >= 96:
        return ipaddress.ip_network(f"{mapped}/{network.prefixlen - 96}")
    return network


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key in use; the key itself is nowhere in it.

    ``requests_per_hour`` None is the configured limit; no network in ``allowed_ips`` is any
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
    """Its owner, as a name."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "owner", Tenant(self.merchant, self.environment))
        object.__setattr__(self, "who", str(self.owner))

    def admits(self, address: str | Address) -> bool:
        """Whether a client at this address may use the key; text that is no address may not."""
        return is_address_allowed(self.allowed_ips, address)


def is_address_allowed(allowed: Sequence[Network], address: str | Address | None) -> bool:
    """Whether an address is in one of the networks, of which none is any address."""
    if not allowed:
        return True
    try:
        client = ipaddress.ip_address(address or "")
    except ValueError:
        return False
    # A socket that serves both kinds shows an IPv4 client as ::ffff:192.0.2.1.
    client = getattr(client, "ipv4_mapped", None) or client
    return any(client in network for network in allowed)


class Watcher(Protocol):
    def __call__(self, changed: Sequence[AnyRow] | None, /) -> None:
        """Hears of the keys that changed, with their pairs; None where anything may have."""


class ApiKeyStore:
    """Finds keys; ``async with`` it, so that it hears of changes.

    What is known is bounded, and what is not known is kept apart and briefly: whoever guesses keys
    can push no real one out.
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
        # By digest, never by the key. No time to live: the poll says when an entry is out of date.
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
        return f"Keyring({len(self._known)} known)"

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
        """Whether what is known may be used: the database could be read not long ago."""
        return self._clock() - self._confirmed <= self._grace_seconds

    @property
    def count(self) -> int:
        """The count of changes up to which watchers were told."""
        return self._count

    def watch(self, watcher: Watcher) -> None:
        """Has it told of every change from now on."""
        self._watchers.append(watcher)

    def look_ahead(self, look: Callable[[], Awaitable[None]]) -> None:
        """Has this done from now on before a key is used that was changed, or not known."""
        self._ahead.append(look)

    async def find(self, api_key: str) -> ApiKey | None:
        """The key in use that a client names; None where there is none; StoreUnavailable."""
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
        """Re-reads the keys that changed since the last time; StoreUnavailable."""
        started = self._clock()
        if await load_key_change_count(self._store) == self._count:
            self._confirmed = started
            return
        async with self._store.read() as connection:
            count = await select_key_change_count(connection)
            # The first time nothing is known yet that could have changed.
            news = count > self._count >= 0
            changed = await select_keys_changed_since(connection, self._count) if news else ()
        if count < self._count:  # the database is another one, or an earlier state of it
            self._known.clear()
        for look in self._ahead if news else ():
            await look()
        if count != self._count:
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
                # Out first: a row that cannot be read must not leave what it replaces.
                del self._known[digest]
                if row.revoked_at is None:
                    with contextlib.suppress(StoreUnavailable):  # told when the key is next used
                        self._known[digest] = self._key(row)

    async def _ask(self, digest: str, api_key: str) -> ApiKey | None:
        digests = self._store.encryption.digests(api_key)
        async with self._store.read() as connection:
            row, count = await select_active_key(connection, digests)
        key = self._key(row) if row else None
        for look in self._ahead if key else ():
            await look()
        if count < self._count:
            return key  # not kept: meanwhile a poll saw a change that this answer does not know of
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


# Whose account a pair opens. Only reads are made.

OLDEST = "/v1/recipients?orderBy=createdAt&sortBy=asc&page=1&pageSize=10"
"""The recipients that an account is told by: the oldest, because new ones come at the other end."""


class Sends(Protocol):
    """The part of ``gateway.upstream.client.Upstream`` that is needed here."""

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
    """What a pair sees: the ids of its account's oldest recipients, or why it sees nothing."""

    result: Literal["accepted", "refused", "unreachable"]
    recipients: tuple[str, ...] = ()
    why: str = ""

    @property
    def told(self) -> str:
        if self.result == "accepted" and not self.recipients:
            return "accepted; the account has no recipients, so it cannot be told from another"
        return f"{self.result}, {self.why}" if self.why else self.result


async def look(upstream: Sends, environment: str, pair: Credentials) -> Sight:
    """Asks the service for the account's oldest recipients."""
    try:
        reply = await upstream.send(
            environment, pair, "GET", OLDEST, None, request_id=uuid4().hex, write=False
        )
    except (Unreachable, Unknown) as error:
        return Sight("unreachable", why=str(error))
    if reply.status in (401, 403):
        return Sight(
            "refused",
            why=f"the service answered {reply.status}: wrong pair, base_url, clock or vocabulary",
        )
    if reply.status != 200:
        return Sight("unreachable", why=f"the service answered {reply.status}")
    try:
        found = [str(recipient["id"]) for recipient in json.loads(bytes(reply.body))["recipients"]]
    except (ValueError, KeyError, TypeError):
        return Sight("unreachable", why="the answer cannot be read")
    return Sight("accepted", tuple(found))


def find_shared_accounts(seen: Mapping[Tenant, Sight]) -> list[tuple[Tenant, Tenant]]:
    """Merchants of one environment that see the same recipient: one account under two names."""
    first: dict[tuple[str, str], Tenant] = {}
    shared: dict[tuple[Tenant, Tenant], None] = {}
    for owner, sight in seen.items():
        for recipient in sight.recipients:
            holder = first.setdefault((owner.environment, recipient), owner)
            if holder != owner:
                shared[holder, owner] = None
    return list(shared)


def why_not_replaced(old: Sight, new: Sight) -> str | None:
    """Why a new pair must not take the old one's place; None where nothing speaks against it."""
    if new.result == "refused":
        return "the service refuses the new pair"
    if old.result == "refused":
        return "the service refuses the stored pair, so the accounts cannot be compared"
    if "unreachable" in (new.result, old.result):
        return f"the accounts could not be compared: {new.told}"
    if not old.recipients and new.recipients:
        return "the new pair sees recipients, and the stored pair's account has none"
    if not set(old.recipients) <= set(new.recipients):
        return "the new pair does not see the stored pair's oldest recipients: another account"
    return None


@dataclass(frozen=True, slots=True)
class Checked:
    """An owner's pair, the names of the keys that stand for it, and what it sees."""

    owner: Tenant
    access_key_prefix: str
    keys: tuple[str, ...]
    sight: Sight


async def check_credentials(
    store: Store, upstream: Sends, those: Iterable[ListedKey]
) -> list[Checked]:
    """Has the pair of each key looked through once, some side by side; StoreUnavailable."""
    names: dict[Tenant, list[str]] = {}
    for key in those:
        names.setdefault(key.owner, []).append(key.name)
    bound = asyncio.Semaphore(_SIDE_BY_SIDE)

    async def check(owner: Tenant) -> Checked:
        async with bound:
            pair = await load_credentials(store, owner)
            sight = await look(upstream, owner.environment, pair)
        return Checked(owner, extract_key_prefix(pair.access_key), tuple(names[owner]), sight)

    return await asyncio.gather(*map(check, names))


def describe_credential_problems(checked: Sequence[Checked]) -> list[str]:
    """What an operator has to see to, one line each."""
    wrong = [f"{one.owner}: {one.sight.told}" for one in checked if one.sight.result != "accepted"]
    shared = find_shared_accounts({one.owner: one.sight for one in checked})
    return wrong + [
        f"same account under two merchant names: {one} and {two}" for one, two in shared
    ]
