"""Credentials that may sign requests, cached by access key.

Known access keys need no query. The API key store's poll invalidates entries, and while the
database cannot be read, entries work for as long as API keys do.

Credentials inherit the restrictions of their tenant's API keys: an address is admitted if any
active key admits it, the highest limit applies, and the credentials are revoked if all keys are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from cachetools import LRUCache, TTLCache

from gateway.auth.key_rows import AnyRow, decrypt_credentials, fetch_keys_with_access_key_and_count
from gateway.auth.keys import ApiKeyStore
from gateway.auth.signing import Credentials
from gateway.auth.single_flight import SingleFlight
from gateway.http.client_address import Address, Network, is_address_allowed, parse_networks
from gateway.storage import Store, Tenant

_MAX_KNOWN_KEYS = 10_000
_MAX_UNKNOWN_KEYS = 10_000
_UNKNOWN_TTL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Signer:
    """A tenant's credentials, with the address lists and hourly limits of its active API keys.

    A limit is None for a key without its own.
    """

    tenant: Tenant
    credentials: Credentials = field(repr=False)
    networks_by_key: tuple[tuple[Network, ...], ...]
    limits_by_key: tuple[int | None, ...]

    @property
    def is_revoked(self) -> bool:
        return not self.networks_by_key

    def admits(self, address: Address | None) -> bool:
        return any(is_address_allowed(networks, address) for networks in self.networks_by_key)

    def find_highest_requests_per_hour(self, default: int) -> int:
        return max(limit or default for limit in self.limits_by_key)


class SignerStore:
    """Finds signers by access key; an async context manager.

    An access key is unique within an environment, and may exist in both.
    """

    def __init__(self, store: Store, key_store: ApiKeyStore) -> None:
        self._store = store
        self._key_store = key_store
        self._known: LRUCache[str, tuple[Signer, ...]] = LRUCache(_MAX_KNOWN_KEYS)
        self._unknown: TTLCache[str, bool] = TTLCache(_MAX_UNKNOWN_KEYS, _UNKNOWN_TTL_SECONDS)
        self._lookups: SingleFlight[tuple[Signer, ...]] = SingleFlight()
        key_store.add_key_change_listener(self._invalidate)

    def __repr__(self) -> str:
        return f"SignerStore({len(self._known)} known)"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._lookups.close()

    async def find_signers(self, access_key: str) -> tuple[Signer, ...]:
        """Finds the signer of each environment, also revoked ones; raises StoreUnavailable."""
        if self._key_store.is_fresh:
            if signers := self._known.get(access_key):
                return signers
            if access_key in self._unknown:
                return ()
        return await self._lookups.run(access_key, lambda: self._load_signers(access_key))

    async def _load_signers(self, access_key: str) -> tuple[Signer, ...]:
        rows, count = await self._store.read(
            lambda tx: fetch_keys_with_access_key_and_count(tx, access_key)
        )
        signers = self._build_signers(rows)
        if count < self._key_store.change_count:
            # A poll has seen a newer change than this query: a cached result would be stale.
            return signers
        if signers:
            self._known[access_key] = signers
        else:
            # Cached briefly, so that a flood of unknown keys does not become a flood of queries.
            self._unknown[access_key] = True
        return signers

    def _build_signers(self, rows: Sequence[AnyRow]) -> tuple[Signer, ...]:
        rows_by_tenant: dict[Tenant, list[AnyRow]] = defaultdict(list)
        for row in rows:
            rows_by_tenant[Tenant(row.merchant, row.environment)].append(row)
        return tuple(
            self._build_signer(tenant, tenant_rows)
            for tenant, tenant_rows in sorted(rows_by_tenant.items())
        )

    def _build_signer(self, tenant: Tenant, rows: Sequence[AnyRow]) -> Signer:
        active_rows = [row for row in rows if row.revoked_at is None]
        networks_by_key = tuple(parse_networks(row.allowed_ips) for row in active_rows)
        limits_by_key = tuple(row.requests_per_hour for row in active_rows)
        return Signer(
            tenant,
            decrypt_credentials(rows[0], tenant, self._store.encryption),
            networks_by_key,
            limits_by_key,
        )

    def _invalidate(self, rows: Sequence[AnyRow] | None) -> None:
        # The cached unknown keys may include a new one.
        self._unknown.clear()
        # Any key may have changed, for example because the database was restored.
        if rows is None:
            self._known.clear()
            return
        # Compared by tenant too: after a rotation the cached entry still has the old access key.
        tenants = {Tenant(row.merchant, row.environment) for row in rows}
        access_keys = {row.access_key for row in rows}
        for access_key, signers in list(self._known.items()):
            if access_key in access_keys or tenants & {signer.tenant for signer in signers}:
                del self._known[access_key]
