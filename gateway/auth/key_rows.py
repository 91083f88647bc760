"""Database rows of API keys and credentials; secrets are decrypted only when needed."""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, or_, select, update

from gateway.auth.signing import Credentials
from gateway.config import OperatorError
from gateway.storage.audit_log import record_audit_event
from gateway.storage.change_poller import increment_change_count
from gateway.storage.database import Transaction, UniqueViolation
from gateway.storage.encryption import Digest, EncryptionContext, EncryptionKeys
from gateway.storage.sql import Statement
from gateway.storage.store import Store
from gateway.storage.tables import api_keys, counters, tenant_credentials
from gateway.storage.tenants import Tenant

AnyRow = Any

CHANGES = "keys"
"""The name of their change count."""

REVOKED_EVENT, REPLACED_EVENT = "revoked the key", "replaced the credentials"


def generate_key_id() -> str:
    return secrets.token_hex(8)


def build_secret_encryption_context(tenant: Tenant) -> EncryptionContext:
    return EncryptionContext("pairs", tenant.merchant, tenant.environment, "secret")


@dataclass(frozen=True, slots=True)
class ListedKey:
    """An API key as operators see it. Times are in UTC; empty ``allowed_ips`` admit any address."""

    id: str = field(repr=False)
    name: str
    prefix: str
    merchant: str
    environment: str
    access_key: str = field(repr=False)
    requests_per_hour: int | None
    allowed_ips: tuple[str, ...]
    created_at: datetime
    revoked_at: datetime | None

    @property
    def tenant(self) -> Tenant:
        return Tenant(self.merchant, self.environment)


async def load_listed_keys(store: Store) -> list[ListedKey]:
    """Loads all keys, also revoked ones, ordered by merchant, environment and name."""
    columns = [column for column in api_keys.c if column.name in ListedKey.__dataclass_fields__]
    query = select(*columns, tenant_credentials.c.access_key).join_from(
        api_keys, tenant_credentials
    )
    query = query.order_by(api_keys.c.merchant, api_keys.c.environment, api_keys.c.name)
    rows = await store.fetch(query)
    return [ListedKey(**{**row._asdict(), "allowed_ips": tuple(row.allowed_ips)}) for row in rows]


async def load_active_key_names(store: Store) -> set[str]:
    """Loads the names of all keys that are not revoked; no two keys have the same name."""
    return {key.name for key in await load_listed_keys(store) if key.revoked_at is None}


MIN_PREFIX_CHARACTERS = 4
"""Fewer characters of a key do not identify the key to revoke."""


def find_single_key(listed_keys: Sequence[ListedKey], name_or_prefix: str) -> ListedKey:
    """Finds the key with this name or, if there is none, with this beginning; raises OperatorError.

    Active keys take precedence over revoked ones with the same beginning. A beginning of one key
    with which the name of another starts is ambiguous.
    """
    matches = [key for key in listed_keys if key.name == name_or_prefix]
    is_prefix = any(key.prefix.startswith(name_or_prefix) for key in listed_keys)
    if not matches and is_prefix and len(name_or_prefix) >= MIN_PREFIX_CHARACTERS:
        matches = [
            key
            for key in listed_keys
            if key.prefix.startswith(name_or_prefix) or key.name.startswith(name_or_prefix)
        ]
        matches = [key for key in matches if key.revoked_at is None] or matches
    # Messages lack the word, which may be a whole key.
    if not matches:
        raise OperatorError(
            "no key has this name or prefix; `payout-gateway keys list` shows the keys"
        )
    if len(matches) > 1:
        names = ", ".join(key.name for key in matches)
        raise OperatorError(f"{len(matches)} keys have this prefix: {names}; use the name")
    return matches[0]


async def revoke_key(store: Store, key_id: str) -> None:
    """Revokes a key; running gateways refuse it after their next poll."""

    async def revoke(tx: Transaction) -> None:
        # Done first: the row lock of the counter makes changes visible in the order of their
        # numbers.
        change = await increment_change_count(tx, CHANGES)
        rows = await tx.fetch(
            update(api_keys)
            # A key that is already revoked keeps its time of revocation.
            .where(api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None))
            .values(revoked_at=store.clock(), changed=change)
            .returning(api_keys.c.name, api_keys.c.merchant, api_keys.c.environment)
        )
        for row in rows:
            tenant = Tenant(row.merchant, row.environment)
            await record_audit_event(store, tx, f"{REVOKED_EVENT} {row.name}", tenant)

    await store.write(revoke)


async def load_tenants_with_credentials(store: Store) -> list[Tenant]:
    """Loads all tenants that have credentials, sorted."""
    query = select(tenant_credentials.c.merchant, tenant_credentials.c.environment)
    rows = await store.fetch(query)
    return sorted(Tenant(row.merchant, row.environment) for row in rows)


async def load_credentials(store: Store, tenant: Tenant) -> Credentials:
    """Loads the credentials of a tenant, which must exist; raises StoreUnavailable."""
    query = select(tenant_credentials).filter_by(**tenant._asdict())
    (row,) = await store.fetch(query)
    return decrypt_credentials(row, tenant, store.encryption)


def decrypt_credentials(row: AnyRow, tenant: Tenant, encryption: EncryptionKeys) -> Credentials:
    """Decrypts credentials in a row with ``access_key`` and ``secret``; raises StoreUnavailable."""
    secret_key = encryption.decrypt(row.secret, build_secret_encryption_context(tenant))
    return Credentials(row.access_key, secret_key, tenant.merchant)


async def replace_credentials(store: Store, tenant: Tenant, credentials: Credentials) -> None:
    """Replaces a tenant's credentials, and deletes the old secret.

    Raises OperatorError if another tenant of the environment has this access key.
    """
    # The context binds the ciphertext to its tenant: moved to another row it cannot be decrypted.
    context = build_secret_encryption_context(tenant)
    secret = store.encryption.encrypt(credentials.secret_key, context)
    new = {"access_key": credentials.access_key, "secret": secret, "created_at": store.clock()}

    async def replace(tx: Transaction) -> None:
        change = await increment_change_count(tx, CHANGES)
        await tx.execute(update(tenant_credentials).filter_by(**tenant._asdict()).values(new))
        await record_audit_event(store, tx, REPLACED_EVENT, tenant)
        # Gateways cache credentials with each key, so the poll must see the keys as changed.
        await tx.execute(update(api_keys).filter_by(**tenant._asdict()).values(changed=change))

    try:
        await store.write(replace)
    # The row exists, so only the uniqueness of the access key can be violated.
    except UniqueViolation:
        message = "this access key already belongs to another merchant; nothing was replaced"
        raise OperatorError(message) from None


# Queries of ApiKeyStore

_KEY_COLUMNS = (*api_keys.c, tenant_credentials.c.access_key, tenant_credentials.c.secret)


_CHANGE_COUNT_STATEMENT = Statement(select(counters.c.value).where(counters.c.name == CHANGES))


async def fetch_key_change_count(tx: Transaction) -> int:
    return int(await tx.fetch_value(_CHANGE_COUNT_STATEMENT))


async def fetch_keys_changed_since(tx: Transaction, count: int) -> Sequence[AnyRow]:
    """Selects changed keys with their credentials, also revoked ones."""
    # Includes revoked keys, because the caller must remove those from its cache.
    query = select(*_KEY_COLUMNS).join_from(api_keys, tenant_credentials)
    return await tx.fetch(query.where(api_keys.c.changed > count))


async def fetch_active_key_and_change_count(
    tx: Transaction, digests: Iterable[Digest]
) -> tuple[AnyRow | None, int]:
    """Selects the active key with one of the digests, with its credentials.

    Also returns the change count as of this result, in the same statement, because a key could
    change between two.
    """
    conditions = (
        and_(api_keys.c.hash_key_id == key_id, api_keys.c.key_hash == value)
        for key_id, value in digests
    )
    is_active_key = and_(or_(*conditions), api_keys.c.revoked_at.is_(None))
    keys, count = await _fetch_keys_and_change_count(tx, is_active_key)
    return (keys[0] if keys else None), count


async def fetch_keys_with_access_key_and_count(
    tx: Transaction, access_key: str
) -> tuple[Sequence[AnyRow], int]:
    """Selects the keys with this access key, also revoked ones, and the change count.

    The result may have keys of both environments.
    """
    # The index begins with the environment, so naming both lets the database use it.
    access_key_condition = and_(
        tenant_credentials.c.environment.in_(("live", "sandbox")),
        tenant_credentials.c.access_key == access_key,
    )
    return await _fetch_keys_and_change_count(tx, access_key_condition)


async def _fetch_keys_and_change_count(
    tx: Transaction, condition: ColumnElement[bool]
) -> tuple[Sequence[AnyRow], int]:
    query = (
        select(counters.c.value.label("changes"), *_KEY_COLUMNS)
        .select_from(counters)
        # An outer join, so that the count is returned even if no key matches.
        .outerjoin(api_keys.join(tenant_credentials), condition)
        .where(counters.c.name == CHANGES)
    )
    rows = await tx.fetch(query)
    return [row for row in rows if row.id is not None], int(rows[0].changes)
