"""Authentication and rate limits of signed requests, and a cache of the credentials for them."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from cachetools import LRUCache, TTLCache

from gateway.admission.limits import Admission, RateLimiter
from gateway.auth.key_rows import AnyRow, decrypt_credentials, fetch_keys_with_access_key_and_count
from gateway.auth.keys import ApiKeyStore
from gateway.auth.signing import Credentials
from gateway.auth.single_flight import SingleFlight
from gateway.config.settings import Settings
from gateway.http.client_address import (
    Address,
    Network,
    format_address_rate_limit_name,
    is_address_allowed,
    parse_networks,
)
from gateway.signed_api.credentials import SignatureHeader
from gateway.signed_api.replies import Refusal, build_invalid_key_refusal
from gateway.storage import Store, Tenant
from gateway.upstream.clock import ServiceClock
from mappings import errors

_MAX_KNOWN_KEYS = 10_000
_MAX_UNKNOWN_KEYS = 10_000
_UNKNOWN_TTL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Signer:
    """A tenant's credentials, with the address lists and hourly limits of its active API keys.

    They inherit the restrictions of these keys: an address is admitted if any key admits it, the
    highest limit applies, and the credentials are revoked if all keys are. A limit is None for a key
    without its own.
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

    An access key is unique within an environment, and may exist in both. Known access keys need no
    query. The API key store's poll invalidates entries, and while the database cannot be read,
    entries work for as long as API keys do.
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


class SenderAuthenticator:
    def __init__(
        self,
        settings: Settings,
        signers: SignerStore,
        limits: RateLimiter,
        clock: ServiceClock,
        *,
        unauthenticated_limits: RateLimiter,
    ) -> None:
        self._signers = signers
        self._limits = limits
        self._unauthenticated_limits = unauthenticated_limits
        self._clock = clock
        self._requests_per_hour = settings.limits.requests_per_hour
        forwards_unknown_keys = settings.signed.unknown_keys == "forward"
        self.unknown_key_environment = settings.signed.environment if forwards_unknown_keys else ""
        """The environment to which requests with unknown access keys are forwarded, if they are."""

    async def load_admissible_signers(
        self, signature_header: SignatureHeader, address: Address | None
    ) -> list[Signer]:
        """Finds the signers that may have signed a request.

        Returns an empty list if the access key is unknown and is forwarded. Raises Refusal for the
        key, the address and the timestamp, in this order, and StoreUnavailable.
        """
        signers = await self._signers.find_signers(signature_header.access_key)
        active_signers = [signer for signer in signers if not signer.is_revoked]
        # A revoked key does not count as unknown: an unknown key may be forwarded, a revoked one
        # never.
        if signers and not active_signers:
            raise build_invalid_key_refusal("every API key with these credentials is revoked")
        if not signers and not self.unknown_key_environment:
            raise build_invalid_key_refusal("the access key is unknown")
        admitted_signers = [signer for signer in active_signers if signer.admits(address)]
        if active_signers and not admitted_signers:
            reason = (
                "the client's address is not in the allowed_ips of any key with these credentials"
            )
            raise Refusal(errors.NOT_AUTHORIZED, reason)
        fresh_signers = [
            signer
            for signer in admitted_signers
            if self._is_fresh(signature_header, signer.tenant.environment)
        ]
        if not fresh_signers and (
            signers or not self._is_fresh(signature_header, self.unknown_key_environment)
        ):
            raise build_invalid_key_refusal(
                "the timestamp is more than 30 seconds old or in the future"
            )
        return fresh_signers

    def _is_fresh(self, signature_header: SignatureHeader, environment: str) -> bool:
        # The service checks the timestamp again, so its clock decides; this machine's clock is
        # used until a response has shown how far the two are apart.
        return signature_header.is_fresh(self._clock.wall() + self._clock.offset(environment))

    def select_matching_signer(
        self, signers: Sequence[Signer], matches: Sequence[bool]
    ) -> Signer | None:
        """Returns the signer whose secret matches, given the result for each; None without signers.

        The signature of an unknown access key cannot be verified here; the service does. Raises
        Refusal if no secret matches, or more than one.
        """
        if not signers:
            return None
        matching_signers = [
            candidate for candidate, is_match in zip(signers, matches, strict=True) if is_match
        ]
        # Guessing could move money in the live environment for a request meant as a test.
        if len(matching_signers) > 1:  # the same credentials in both environments: ambiguous
            raise build_invalid_key_refusal("the signature is valid in both environments")
        if not matching_signers:
            raise build_invalid_key_refusal("the signature does not match")
        return matching_signers[0]

    async def admit(
        self,
        signer: Signer | None,
        signature_header: SignatureHeader,
        address: Address | None,
    ) -> Admission:
        """Counts the request, and returns the tightest limit that applies to it.

        A tenant has one limit for all its signed requests: the highest limit among its API keys.
        A request with an unknown key counts against its address first, and then against the key.
        """
        if signer is not None:
            limit = signer.find_highest_requests_per_hour(self._requests_per_hour)
            return await self._limits.admit(f"signed {signer.tenant}", limit)
        name = f"signed address {format_address_rate_limit_name(address)}"
        admission = await self._unauthenticated_limits.admit(name, self._requests_per_hour)
        if not admission.is_admitted:
            return admission
        # Hashed, so that listings of limits do not show access keys of strangers.
        key = hashlib.sha256(signature_header.access_key.encode()).hexdigest()[:32]
        name = f"signed key {self.unknown_key_environment} {key}"
        key_admission = await self._unauthenticated_limits.admit(name, self._requests_per_hour)
        # A refusal sorts before any admission.
        return min(
            admission, key_admission, key=lambda result: (result.is_admitted, result.remaining)
        )
