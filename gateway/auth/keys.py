"""API keys: cached lookup.

A cached key needs no query. Changed keys are loaded again, so that a key that another process
revokes, imports or rotates takes effect here within about two seconds.

While the database is unavailable, cached keys keep working for ``GRACE_SECONDS``; after that, a
key could have been revoked too long ago. Other keys raise StoreUnavailable.
"""

import contextlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

from cachetools import TTLCache

from gateway.auth.key_rows import (
    CHANGES,
    AnyRow,
    decrypt_credentials,
    fetch_active_key_and_change_count,
    fetch_key_change_count,
    fetch_keys_changed_since,
)
from gateway.auth.signing import Credentials
from gateway.auth.single_flight import SingleFlight
from gateway.http.client_address import Address, Network, is_address_allowed, parse_networks
from gateway.observability.request_series import RequestSource
from gateway.storage import Store, StoreUnavailable
from gateway.storage.change_poller import ChangeCounts
from gateway.storage.database import Transaction
from gateway.storage.tenants import Tenant

GRACE_SECONDS = 600.0
MAX_KEY_CHARACTERS = 512

_MAX_KNOWN_KEYS = 10_000
_MAX_UNKNOWN_KEYS = 10_000
_UNKNOWN_TTL_SECONDS = 5.0


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

    def admits(self, address: Address | None) -> bool:
        """Whether a client at this address may use the key."""
        return is_address_allowed(self.allowed_ips, address)


class ApiKeyStore:
    """Finds API keys; an async context manager.

    Unknown keys are cached separately and briefly, so that guessed keys cannot evict real ones.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        # Keyed by digest, never by the key itself. Entries do not expire: the poll invalidates
        # changed ones.
        self._known: OrderedDict[str, ApiKey] = OrderedDict()
        """The least recently used first."""
        self._unknown: TTLCache[str, bool] = TTLCache(
            _MAX_UNKNOWN_KEYS, _UNKNOWN_TTL_SECONDS, clock
        )
        self._lookups: SingleFlight[ApiKey | None] = SingleFlight()
        self._listeners: list[Callable[[Sequence[AnyRow] | None], None]] = []
        self._refresh_hooks: list[Callable[[], Awaitable[None]]] = []
        self.change_count = -1
        """The change count up to which listeners have been called."""
        self._confirmed_at = clock()

    async def __aenter__(self) -> Self:
        await self.refresh()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._lookups.close()

    @property
    def is_fresh(self) -> bool:
        """Whether cached keys may be used: the database was readable within the grace period."""
        return self._clock() - self._confirmed_at <= GRACE_SECONDS

    def add_key_change_listener(self, listener: Callable[[Sequence[AnyRow] | None], None]) -> None:
        """Calls the listener with the rows of every change; with None if any key may have changed."""
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
        if key is None or self._clock() - self._confirmed_at > GRACE_SECONDS:
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
        if counts.get(CHANGES, 0) == self.change_count:
            self._confirmed_at = self._clock()
        else:
            await self.refresh()

    async def refresh(self) -> None:
        """Loads the keys that changed since the last call; raises StoreUnavailable."""
        # Taken before the query, so that the next poll sees a change during it.
        start_time = self._clock()
        known_count = self.change_count

        async def load(tx: Transaction) -> tuple[int, Sequence[AnyRow]]:
            count = await fetch_key_change_count(tx)
            # On the first call nothing is cached that could have changed.
            if not count > known_count >= 0:
                return count, ()
            return count, await fetch_keys_changed_since(tx, known_count)

        count, changed_rows = await self._store.read(load)
        has_changes = count > known_count >= 0
        if count < self.change_count:  # the database was replaced or restored from a backup
            self._known.clear()
        # Awaited before the keys change: modes refer to keys by name, and a renamed key must not
        # lose its mode in between.
        for hook in self._refresh_hooks if has_changes else ():
            await hook()
        if count != self.change_count:
            # The cached unknown keys may include a new one.
            self._unknown.clear()
            for listener in self._listeners:
                listener(changed_rows if has_changes else None)
        # Set last, after the listeners: if any of this fails, the next poll repeats all of it.
        self._update_cached_keys({row.id: row for row in changed_rows})
        self.change_count = count
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
        if count < self.change_count:
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
            allowed_ips=parse_networks(row.allowed_ips),
        )
