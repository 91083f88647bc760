"""API keys: cached lookup, and checks of the credentials that they stand for.

A cached key needs no query. Changed keys are loaded again, so that a key that another process
revokes, imports or rotates takes effect here within about two seconds.

While the database is unavailable, cached keys keep working for ``GRACE_SECONDS``; after that, a
key could have been revoked too long ago. Other keys raise StoreUnavailable.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import time
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, Self
from uuid import uuid4

from cachetools import TTLCache

from gateway.auth.key_rows import (
    CHANGES,
    decrypt_credentials,
    fetch_active_key_and_change_count,
    fetch_key_change_count,
    fetch_keys_changed_since,
    load_credentials,
)
from gateway.auth.signing import Credentials
from gateway.auth.single_flight import SingleFlight
from gateway.storage import StoreUnavailable
from gateway.storage.tenants import Tenant
from mappings.failures import CircuitOpen, Unknown, Unreachable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from gateway.auth.key_rows import AnyRow, ListedKey
    from gateway.observability.request_series import RequestSource
    from gateway.storage import Store
    from gateway.storage.change_poller import ChangeCounts
    from gateway.storage.database import Transaction

GRACE_SECONDS = 600.0
MAX_KEY_CHARACTERS = 512

_MAX_KNOWN_KEYS = 10_000
_MAX_UNKNOWN_KEYS = 10_000
_UNKNOWN_TTL_SECONDS = 5.0

_MAX_CONCURRENT_CHECKS = 8
"""Limits the load on a service."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def parse_network(text: str) -> Network:
    """Parses a network; IPv4-mapped IPv6 becomes IPv4, as client addresses do."""
    network = ipaddress.ip_network(text)
    ipv4_address = network.network_address.ipv4_mapped if network.version == 6 else None
    if ipv4_address and network.prefixlen >= 96:
        return ipaddress.ip_network(f"{ipv4_address}/{network.prefixlen - 96}")
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
    credentials: Credentials = field(repr=False)
    requests_per_hour: int | None
    allowed_ips: tuple[Network, ...]
    tenant: Tenant = field(init=False, repr=False, compare=False)
    tenant_name: str = field(init=False, repr=False, compare=False)
    """The tenant as text, precomputed because every request uses it."""
    request_sources: dict[str, RequestSource] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    """What the requests of the key have in common, by operation."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tenant", Tenant(self.merchant, self.environment))
        object.__setattr__(self, "tenant_name", str(self.tenant))

    def admits(self, address: str | Address) -> bool:
        """Whether a client at this address may use the key; False if the text is no address."""
        return is_address_allowed(self.allowed_ips, address)


def is_address_allowed(networks: Sequence[Network], address: str | Address | None) -> bool:
    """Whether an address is in one of the networks; an empty list admits any address."""
    if not networks:
        return True
    try:
        client = ipaddress.ip_address(address or "")
    except ValueError:
        return False
    # A dual-stack socket reports an IPv4 client as ::ffff:192.0.2.1.
    client = getattr(client, "ipv4_mapped", None) or client
    return any(client in network for network in networks)


class KeyChangeListener(Protocol):
    def __call__(self, changed_rows: Sequence[AnyRow] | None, /) -> None:
        """Receives the changed keys with their credentials; None if any key may have changed."""


class ApiKeyStore:
    """Finds API keys; an async context manager.

    Unknown keys are cached separately and briefly, so that guessed keys cannot evict real ones.
    """

    def __init__(
        self,
        store: Store,
        *,
        grace_seconds: float = GRACE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._grace_seconds = grace_seconds
        self._clock = clock
        # Keyed by digest, never by the key itself. Entries do not expire: the poll invalidates
        # changed ones.
        self._known: OrderedDict[str, ApiKey] = OrderedDict()
        """The least recently used first."""
        self._unknown: TTLCache[str, bool] = TTLCache(
            _MAX_UNKNOWN_KEYS, _UNKNOWN_TTL_SECONDS, clock
        )
        self._lookups: SingleFlight[ApiKey | None] = SingleFlight()
        self._listeners: list[KeyChangeListener] = []
        self._refresh_hooks: list[Callable[[], Awaitable[None]]] = []
        self._change_count = -1
        self._confirmed_at = clock()

    def __repr__(self) -> str:
        return f"ApiKeyStore({len(self._known)} known)"

    async def __aenter__(self) -> Self:
        await self.refresh()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._lookups.close()

    @property
    def is_fresh(self) -> bool:
        """Whether cached keys may be used: the database was readable within the grace period."""
        return self._clock() - self._confirmed_at <= self._grace_seconds

    @property
    def change_count(self) -> int:
        """The change count up to which listeners have been called."""
        return self._change_count

    def add_key_change_listener(self, listener: KeyChangeListener) -> None:
        """Calls the listener with every change from now on."""
        self._listeners.append(listener)

    def add_refresh_hook(self, hook: Callable[[], Awaitable[None]]) -> None:
        """Awaits the hook before a changed or newly loaded key is used."""
        self._refresh_hooks.append(hook)

    def digest_key(self, api_key: str) -> str:
        """Returns the digest by which a key is found; empty if the text cannot be a key."""
        if not 0 < len(api_key) <= MAX_KEY_CHARACTERS or not api_key.isascii():
            return ""
        return self._store.encryption.digest_api_key(api_key)

    def find_cached_key(self, digest: str) -> ApiKey | None:
        """Finds a key that was active within the grace period; None if it must be loaded."""
        key = self._known.get(digest)
        if key is None or self._clock() - self._confirmed_at > self._grace_seconds:
            return None
        self._known.move_to_end(digest)
        return key

    async def find_active_key(self, api_key: str) -> ApiKey | None:
        """Finds an active key; None if there is none. Raises StoreUnavailable."""
        if not (digest := self.digest_key(api_key)):
            return None
        if key := self.find_cached_key(digest):
            return key
        if self.is_fresh and digest in self._unknown:
            return None
        # Clients open many connections at once after a restart; their key is loaded only once.
        return await self._lookups.run(digest, lambda: self._load_key(digest, api_key))

    async def reload_if_changed(self, counts: ChangeCounts) -> None:
        """Listens to the change poller; raises StoreUnavailable."""
        if counts.get(CHANGES, 0) == self._change_count:
            self._confirmed_at = self._clock()
        else:
            await self.refresh()

    async def refresh(self) -> None:
        """Loads the keys that changed since the last call; raises StoreUnavailable."""
        # Taken before the query, so that the next poll sees a change during it.
        start_time = self._clock()
        known_count = self._change_count

        async def load(tx: Transaction) -> tuple[int, Sequence[AnyRow]]:
            count = await fetch_key_change_count(tx)
            # On the first call nothing is cached that could have changed.
            if not count > known_count >= 0:
                return count, ()
            return count, await fetch_keys_changed_since(tx, known_count)

        count, changed_rows = await self._store.read(load)
        has_changes = count > known_count >= 0
        if count < self._change_count:  # the database was replaced or restored from a backup
            self._known.clear()
        # Awaited before the keys change: modes refer to keys by name, and a renamed key must not
        # lose its mode in between.
        for hook in self._refresh_hooks if has_changes else ():
            await hook()
        if count != self._change_count:
            # The cached unknown keys may include a new one.
            self._unknown.clear()
            for listener in self._listeners:
                listener(changed_rows if has_changes else None)
        # Set last, after the listeners: if any of this fails, the next poll repeats all of it.
        self._update_cached_keys({row.id: row for row in changed_rows})
        self._change_count = count
        self._confirmed_at = start_time

    def _update_cached_keys(self, rows_by_id: dict[str, AnyRow]) -> None:
        for digest, key in list(self._known.items()) if rows_by_id else ():
            if row := rows_by_id.get(key.id):
                # Removed first, so that no stale key stays if the new row cannot be decrypted.
                del self._known[digest]
                if row.revoked_at is None:
                    with contextlib.suppress(StoreUnavailable):  # raised when the key is next used
                        self._known[digest] = self._build_key(row)

    async def _load_key(self, digest: str, api_key: str) -> ApiKey | None:
        digests = self._store.encryption.list_api_key_digests(api_key)
        row, count = await self._store.read(
            lambda tx: fetch_active_key_and_change_count(tx, digests)
        )
        key = self._build_key(row) if row else None
        for hook in self._refresh_hooks if key else ():
            await hook()
        if count < self._change_count:
            # A poll has seen a newer change than this query: a cached result would be stale.
            return key
        if key:
            self._known[digest] = key
            if len(self._known) > _MAX_KNOWN_KEYS:
                self._known.popitem(last=False)
        else:
            self._unknown[digest] = True
        return key

    def _build_key(self, row: AnyRow) -> ApiKey:
        return ApiKey(
            id=row.id,
            name=row.name,
            prefix=row.prefix,
            merchant=row.merchant,
            environment=row.environment,
            credentials=decrypt_credentials(
                row, Tenant(row.merchant, row.environment), self._store.encryption
            ),
            requests_per_hour=row.requests_per_hour,
            allowed_ips=tuple(map(parse_network, row.allowed_ips)),
        )


# Checks of which account credentials open; these only send reads.

OLDEST_RECIPIENTS_TARGET = "/v1/recipients?orderBy=createdAt&sortBy=asc&page=1&pageSize=10"
"""The oldest recipients, which identify an account: new recipients do not change this page."""


FORBIDDEN_ADVICE = (
    "grant the access key its permissions, or add this machine's address to the service's "
    "allow-list"
)
"""What to do about a 403 of the service, which has accepted the signature."""


class SignedClient(Protocol):
    """The part of ``gateway.upstream.client.UpstreamClient`` that the checks use."""

    async def send(
        self,
        environment: str,
        credentials: Credentials,
        method: str,
        target: str,
        body: bytes | None,
        *,
        request_id: str,
        write: bool,
    ) -> SignedReply: ...


class SignedReply(Protocol):
    @property
    def status(self) -> int: ...

    @property
    def body(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class AccountProbe:
    """The account that credentials open, by the ids of its oldest recipients, or why none opens."""

    result: Literal["accepted", "refused", "unreachable"]
    recipients: tuple[str, ...] = ()
    reason: str = ""

    @property
    def description(self) -> str:
        if self.result == "accepted" and not self.recipients:
            return "accepted; the account has no recipients, so it cannot be identified"
        return f"{self.result}, {self.reason}" if self.reason else self.result


async def probe_account(
    upstream: SignedClient, environment: str, credentials: Credentials
) -> AccountProbe:
    """Fetches the account's oldest recipients."""
    try:
        reply = await upstream.send(
            environment,
            credentials,
            "GET",
            OLDEST_RECIPIENTS_TARGET,
            None,
            request_id=uuid4().hex,
            write=False,
        )
    except CircuitOpen:
        return AccountProbe("unreachable", reason="not tried after a call without an answer")
    except (Unreachable, Unknown) as error:
        return AccountProbe("unreachable", reason=f"GET /v1/recipients: {error}")
    if reply.status == 403:
        return AccountProbe("refused", reason=f"the service answered 403: {FORBIDDEN_ADVICE}")
    if reply.status == 401:
        cause = (
            "access_key and secret_key look swapped"
            if credentials.look_swapped
            else "wrong credentials, base_url, clock or vocabulary"
        )
        return AccountProbe("refused", reason=f"the service answered 401: {cause}")
    if reply.status != 200:
        return AccountProbe("unreachable", reason=f"the service answered {reply.status}")
    try:
        recipient_ids = [
            str(recipient["id"]) for recipient in json.loads(bytes(reply.body))["recipients"]
        ]
    except (ValueError, KeyError, TypeError):
        return AccountProbe("unreachable", reason="the response cannot be parsed")
    return AccountProbe("accepted", tuple(recipient_ids))


def find_tenant_pairs_sharing_account(
    probes: Mapping[Tenant, AccountProbe],
) -> list[tuple[Tenant, Tenant]]:
    """Finds pairs of tenants in one environment that open the same account."""
    tenant_by_recipient: dict[tuple[str, str], Tenant] = {}
    shared_accounts: dict[tuple[Tenant, Tenant], None] = {}
    for tenant, probe in probes.items():
        for recipient in probe.recipients:
            first_tenant = tenant_by_recipient.setdefault((tenant.environment, recipient), tenant)
            if first_tenant != tenant:
                shared_accounts[first_tenant, tenant] = None
    return list(shared_accounts)


def find_credentials_replacement_problem(
    old_probe: AccountProbe, new_probe: AccountProbe
) -> str | None:
    """Returns why new credentials must not replace the old ones; None if they may.

    Both must open the same account, or payments would leave the wrong one.
    """
    if new_probe.result == "refused":
        return "the service refuses the new credentials"
    if old_probe.result == "refused":
        return "the service refuses the stored credentials, so the accounts cannot be compared"
    if "unreachable" in (new_probe.result, old_probe.result):
        return f"the accounts could not be compared: {new_probe.description}"
    # An empty stored account proves nothing about the identity of a filled one.
    if not old_probe.recipients and new_probe.recipients:
        return "the new credentials' account has recipients, but the stored credentials' has none"
    if not set(old_probe.recipients) <= set(new_probe.recipients):
        return (
            "the new credentials' account lacks the stored one's oldest recipients: another account"
        )
    return None


@dataclass(frozen=True, slots=True)
class CredentialCheck:
    """The checked credentials of a tenant, with the names of its keys."""

    tenant: Tenant
    access_key_prefix: str
    key_names: tuple[str, ...]
    probe: AccountProbe


async def probe_tenant_credentials(
    store: Store, upstream: SignedClient, listed_keys: Iterable[ListedKey]
) -> list[CredentialCheck]:
    """Checks the credentials of each key's tenant once, concurrently; raises StoreUnavailable."""
    key_names: dict[Tenant, list[str]] = {}
    for key in listed_keys:
        key_names.setdefault(key.tenant, []).append(key.name)
    # By environment, so that one that hangs does not delay the checks of the other.
    semaphores: defaultdict[str, asyncio.Semaphore] = defaultdict(
        lambda: asyncio.Semaphore(_MAX_CONCURRENT_CHECKS)
    )

    async def check(tenant: Tenant) -> CredentialCheck:
        async with semaphores[tenant.environment]:
            credentials = await load_credentials(store, tenant)
            probe = await probe_account(upstream, tenant.environment, credentials)
        return CredentialCheck(
            tenant,
            credentials.access_key_prefix,
            tuple(key_names[tenant]),
            probe,
        )

    return await asyncio.gather(*map(check, key_names))


def describe_credential_problems(checks: Sequence[CredentialCheck]) -> list[str]:
    """Describes the problems for operators, one line each."""
    problems = [
        f"{check.tenant}: {check.probe.description}"
        for check in checks
        if check.probe.result != "accepted"
    ]
    shared_accounts = find_tenant_pairs_sharing_account(
        {check.tenant: check.probe for check in checks}
    )
    return problems + [
        f"same account under two merchant names: {first_tenant} and {second_tenant}"
        for first_tenant, second_tenant in shared_accounts
    ]
