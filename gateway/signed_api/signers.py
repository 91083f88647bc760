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

from gateway.auth.key_rows import AnyRow, decrypt_credentials, select_keys_by_access_key
from gateway.auth.keys import Address, ApiKeyStore, Network, is_address_allowed, parse_network
from gateway.auth.signing import Credentials
from gateway.auth.single_flight import SingleFlight
from gateway.storage import Store, Tenant

_KNOWN = 10_000
_UNKNOWN = 10_000
_UNKNOWN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Signer:
    """A tenant's credentials, with the address lists and hourly limits of its active API keys.

    A limit is None for a key without its own.
    """

    owner: Tenant
    pair: Credentials = field(repr=False)
    allowed: tuple[tuple[Network, ...], ...]
    limits: tuple[int | None, ...]

    @property
    def is_revoked(self) -> bool:
        return not self.allowed

    def admits(self, address: Address | None) -> bool:
        return any(is_address_allowed(networks, address) for networks in self.allowed)

    def requests_per_hour(self, default: int) -> int:
        return max(one or default for one in self.limits)


class Signers:
    """Finds signers by access key; an async context manager.

    An access key is unique within an environment, and may exist in both.
    """

    def __init__(self, store: Store, keyring: ApiKeyStore) -> None:
        self._store = store
        self._keyring = keyring
        self._known: LRUCache[str, tuple[Signer, ...]] = LRUCache(_KNOWN)
        self._unknown: TTLCache[str, bool] = TTLCache(_UNKNOWN, _UNKNOWN_SECONDS)
        self._asking: SingleFlight[tuple[Signer, ...]] = SingleFlight()
        keyring.watch(self._changed)

    def __repr__(self) -> str:
        return f"SignerStore({len(self._known)} known)"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._asking.end()

    async def find(self, access_key: str) -> tuple[Signer, ...]:
        """Finds the signer of each environment, also revoked ones; raises StoreUnavailable."""
        if self._keyring.is_fresh:
            if signers := self._known.get(access_key):
                return signers
            if access_key in self._unknown:
                return ()
        return await self._asking.ask(access_key, lambda: self._ask(access_key))

    async def _ask(self, access_key: str) -> tuple[Signer, ...]:
        async with self._store.read() as connection:
            rows, count = await select_keys_by_access_key(connection, access_key)
        signers = self._of(rows)
        if count < self._keyring.count:
            # A poll has seen a newer change than this query: a cached result would be stale.
            return signers
        if signers:
            self._known[access_key] = signers
        else:
            # Briefly, so that a flood of unknown keys does not become a flood of queries.
            self._unknown[access_key] = True
        return signers

    def _of(self, rows: Sequence[AnyRow]) -> tuple[Signer, ...]:
        by_owner: dict[Tenant, list[AnyRow]] = defaultdict(list)
        for row in rows:
            by_owner[Tenant(row.merchant, row.environment)].append(row)
        return tuple(self._signer(owner, its) for owner, its in sorted(by_owner.items()))

    def _signer(self, owner: Tenant, rows: Sequence[AnyRow]) -> Signer:
        in_use = [row for row in rows if row.revoked_at is None]
        allowed = tuple(tuple(map(parse_network, row.allowed_ips)) for row in in_use)
        limits = tuple(row.requests_per_hour for row in in_use)
        return Signer(
            owner, decrypt_credentials(rows[0], owner, self._store.encryption), allowed, limits
        )

    def _changed(self, rows: Sequence[AnyRow] | None) -> None:
        # A new key may be among them.
        self._unknown.clear()
        if rows is None:
            self._known.clear()
            return
        owners = {Tenant(row.merchant, row.environment) for row in rows}
        access_keys = {row.access_key for row in rows}
        for access_key, signers in list(self._known.items()):
            if access_key in access_keys or owners & {one.owner for one in signers}:
                del self._known[access_key]
