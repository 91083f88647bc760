"""Database rows of API keys and credentials. Secrets are decrypted only when they are needed."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.auth.signing import Credentials
from gateway.storage.audit_log import note
from gateway.storage.encryption import Digest, EncryptionKeys, Place
from gateway.storage.statements import Statement, Transaction, rows_of
from gateway.storage.store import Store
from gateway.storage.tables import counters, keys, pairs
from gateway.storage.tenants import Tenant

AnyRow = Row[*tuple[Any, ...]]

REVOKED, REPLACED = "revoked the key", "replaced the credentials"


def new_key_id() -> str:
    return secrets.token_hex(8)


def place_of_secret(owner: Tenant) -> Place:
    return Place("pairs", owner.merchant, owner.environment, "secret")


@dataclass(frozen=True, slots=True)
class ListedKey:
    """An API key as operators see it. Times are in UTC; no ``allowed_ips`` admits any address."""

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
    def owner(self) -> Tenant:
        return Tenant(self.merchant, self.environment)


class AccessKeyTaken(Exception):
    """Another tenant of the environment has this access key."""


async def load_listed_keys(store: Store) -> list[ListedKey]:
    """Loads all keys, also revoked ones, ordered by merchant, environment and name."""
    columns = [column for column in keys.c if column.name in ListedKey.__dataclass_fields__]
    those = select(*columns, pairs.c.access_key).join_from(keys, pairs)
    async with store.read() as connection:
        rows = await connection.execute(
            those.order_by(keys.c.merchant, keys.c.environment, keys.c.name)
        )
        return [_listed(row) for row in rows]


def _listed(row: AnyRow) -> ListedKey:
    return ListedKey(**{**row._mapping, "allowed_ips": tuple(row.allowed_ips)})  # noqa: SLF001 - a public name


def find_matching_keys(those: Sequence[ListedKey], word: str) -> list[ListedKey]:
    """Finds keys by name or by the beginning of the key; more than one match is ambiguous.

    Names take precedence over beginnings, and active keys over revoked ones. A beginning shorter
    than ``MIN_PREFIX_CHARACTERS`` matches nothing. One that other keys' names begin with matches
    those too, and so is ambiguous.
    """
    if named := [key for key in those if key.name == word]:
        return named
    begun = [key for key in those if _begins(word, key.prefix)]
    meant = [key for key in those if key in begun or (begun and key.name.startswith(word))]
    # An active key takes precedence over revoked keys with the same beginning.
    return [key for key in meant if key.revoked_at is None] or meant


SHORTEST = 4
"""Fewer characters of a key are too few to say which key to revoke."""


def _begins(word: str, prefix: str) -> bool:
    """Whether a key with this displayed prefix may begin with this word."""
    if len(word) < min(SHORTEST, len(prefix)) or not word:
        return False
    return prefix.startswith(word) or word.startswith(prefix)


async def increment_key_change_count(connection: AsyncConnection) -> int:
    """Increments the change count; other writers of keys wait until the transaction ends."""
    counted = (
        update(counters)
        .where(counters.c.name == "keys")
        .values(value=counters.c.value + 1)
        .returning(counters.c.value)
    )
    return int((await connection.execute(counted)).scalar_one())


async def revoke_key(store: Store, key_id: str) -> None:
    """Revokes a key; running gateways refuse it after their next poll."""
    async with store.write() as connection:
        change = await increment_key_change_count(connection)
        revoked = await connection.execute(
            update(keys)
            # A key that is already revoked keeps its time of revocation.
            .where(keys.c.id == key_id, keys.c.revoked_at.is_(None))
            .values(revoked_at=store.clock(), changed=change)
            .returning(keys.c.name, keys.c.merchant, keys.c.environment)
        )
        if its := revoked.one_or_none():
            owner = Tenant(its.merchant, its.environment)
            await note(store, connection, f"{REVOKED} {its.name}", owner)


async def load_tenants_with_credentials(store: Store) -> list[Tenant]:
    """Loads all tenants that have credentials, sorted."""
    async with store.read() as connection:
        rows = await connection.execute(select(pairs.c.merchant, pairs.c.environment))
        return sorted(Tenant(row.merchant, row.environment) for row in rows)


async def load_tenants_with_active_keys(store: Store) -> set[Tenant]:
    """Loads the tenants that have at least one key that is not revoked."""
    those = select(keys.c.merchant, keys.c.environment).where(keys.c.revoked_at.is_(None))
    async with store.read() as connection:
        rows = await connection.execute(those.distinct())
        return {Tenant(row.merchant, row.environment) for row in rows}


async def load_credentials(store: Store, owner: Tenant) -> Credentials:
    """Loads the credentials of a tenant, which must exist; raises StoreUnavailable."""
    async with store.read() as connection:
        row = (await connection.execute(select(pairs).where(_owned(owner)))).one()
    return decrypt_credentials(row, owner, store.encryption)


def decrypt_credentials(row: AnyRow, owner: Tenant, encryption: EncryptionKeys) -> Credentials:
    """Decrypts the credentials in a row with ``access_key`` and ``secret``; raises StoreUnavailable."""
    return Credentials(row.access_key, encryption.unseal(row.secret, place_of_secret(owner)))


async def replace_credentials(store: Store, owner: Tenant, pair: Credentials) -> None:
    """Replaces a tenant's credentials, and deletes the old secret; raises AccessKeyTaken."""
    sealed = store.encryption.seal(pair.secret_key, place_of_secret(owner))
    new = {"access_key": pair.access_key, "secret": sealed, "created_at": store.clock()}
    async with store.write() as connection:
        change = await increment_key_change_count(connection)
        try:
            await connection.execute(update(pairs).where(_owned(owner)).values(new))
        # The row exists, so only the uniqueness of the access key can be violated.
        except IntegrityError:
            raise AccessKeyTaken from None
        await note(store, connection, REPLACED, owner)
        # Gateways cache credentials with each key, so the poll must see the keys as changed.
        await connection.execute(
            update(keys)
            .where(keys.c.merchant == owner.merchant, keys.c.environment == owner.environment)
            .values(changed=change)
        )


def _owned(owner: Tenant) -> ColumnElement[bool]:
    return and_(pairs.c.merchant == owner.merchant, pairs.c.environment == owner.environment)


# Queries of ApiKeyStore

_WHOLE = (*keys.c, pairs.c.access_key, pairs.c.secret)


def _changes() -> Select[int]:
    return select(counters.c.value).where(counters.c.name == "keys")


_CHANGES = Statement(lambda _kind: _changes())


async def load_key_change_count(store: Store) -> int:
    """Loads the count of all changes of keys; raises StoreUnavailable."""
    rows = await store.looked_up(Transaction(lambda: rows_of(_CHANGES)))
    return int(rows[0][0])


async def select_key_change_count(connection: AsyncConnection) -> int:
    return int((await connection.execute(_changes())).scalar_one())


async def select_keys_changed_since(connection: AsyncConnection, count: int) -> Sequence[AnyRow]:
    """Selects changed keys with their credentials, also revoked ones."""
    those = select(*_WHOLE).join_from(keys, pairs).where(keys.c.changed > count)
    return (await connection.execute(those)).all()


async def select_active_key(
    connection: AsyncConnection, digests: Iterable[Digest]
) -> tuple[AnyRow | None, int]:
    """Selects the active key with one of the digests, with its credentials.

    Also returns the change count as of this result, in the same statement, because a key could
    change between two.
    """
    hashed = or_(
        *(and_(keys.c.hash_key_id == key_id, keys.c.key_hash == value) for key_id, value in digests)
    )
    asked = (
        select(counters.c.value.label("changes"), *_WHOLE)
        .select_from(counters)
        # An outer join, so that the count is returned even if no key matches.
        .outerjoin(keys.join(pairs), and_(hashed, keys.c.revoked_at.is_(None)))
        .where(counters.c.name == "keys")
    )
    row = (await connection.execute(asked)).one()
    return (None if row.id is None else row), int(row.changes)


async def select_keys_by_access_key(
    connection: AsyncConnection, access_key: str
) -> tuple[Sequence[AnyRow], int]:
    """Selects the keys with this access key, also revoked ones, and the change count.

    The result may have keys of both environments.
    """
    # The index begins with the environment, so naming both lets the database use it.
    there = and_(pairs.c.environment.in_(("live", "sandbox")), pairs.c.access_key == access_key)
    asked = (
        select(counters.c.value.label("changes"), *_WHOLE)
        .select_from(counters)
        # An outer join, so that the count is returned even if no key matches.
        .outerjoin(keys.join(pairs), there)
        .where(counters.c.name == "keys")
    )
    rows = (await connection.execute(asked)).all()
    return [row for row in rows if row.id is not None], int(rows[0].changes)
