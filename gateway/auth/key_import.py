"""Import of API keys from a file, in one transaction."""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import bindparam, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.auth.key_lines import ImportRefused, Numbered
from gateway.auth.key_rows import (
    AnyRow,
    decrypt_credentials,
    increment_key_change_count,
    new_key_id,
    place_of_secret,
)
from gateway.auth.signing import Credentials, extract_key_prefix
from gateway.observability.plurals import pluralize
from gateway.storage.audit_log import note
from gateway.storage.encryption import EncryptionKeys
from gateway.storage.mode_rows import keep_modes
from gateway.storage.store import Store
from gateway.storage.tables import keys, pairs
from gateway.storage.tenants import Tenant

IMPORTED = "imported"


@dataclass(frozen=True, slots=True)
class Imported:
    """Counts of an import: keys of each tenant in the file, and in all new, changed and unchanged."""

    owners: Counter[Tenant]
    new: int
    changed: int
    unchanged: int


async def import_keys(
    store: Store, lines: Sequence[Numbered], *, reactivate: bool = False
) -> Imported:
    """Imports all keys or none; raises ImportRefused and StoreUnavailable."""
    async with store.write() as connection:
        # First, because it locks out other writers of keys until this transaction ends.
        change = await increment_key_change_count(connection)
        there = await _There.read(connection, store.encryption)
        plan = _Plan(there, store, change, reactivate=reactivate)
        # Named keys first, so that a generated name does not take a name that a later line has.
        for line in sorted(lines, key=lambda line: line.key.name is None):
            plan.add(line)
        await plan.carry_out(connection)
    return Imported(
        owners=Counter(line.key.owner for line in lines),
        new=len(plan.new_keys),
        changed=len(plan.changed_keys),
        unchanged=len(lines) - len(plan.new_keys) - len(plan.changed_keys),
    )


@dataclass(frozen=True, slots=True)
class _There:
    """The keys and credentials that the database already holds."""

    encryption: EncryptionKeys
    keys: dict[tuple[str, str], AnyRow]
    names: dict[str, str]
    pairs: dict[Tenant, AnyRow]
    holders: dict[tuple[str, str], Tenant]

    @classmethod
    async def read(cls, connection: AsyncConnection, encryption: EncryptionKeys) -> _There:
        held = (await connection.execute(select(keys))).all()
        paired = (await connection.execute(select(pairs))).all()
        return cls(
            encryption=encryption,
            keys={(row.hash_key_id, row.key_hash): row for row in held},
            names={row.name: row.id for row in held},
            pairs={Tenant(row.merchant, row.environment): row for row in paired},
            holders={
                (row.environment, row.access_key): Tenant(row.merchant, row.environment)
                for row in paired
            },
        )

    def key(self, api_key: str) -> AnyRow | None:
        digests = self.encryption.digests(api_key)
        return next((row for digest in digests if (row := self.keys.get(digest))), None)

    def has(self, row: AnyRow, owner: Tenant, pair: Credentials) -> bool:
        held = decrypt_credentials(row, owner, self.encryption)
        # Constant time, as for every comparison of secrets.
        return held.access_key == pair.access_key and hmac.compare_digest(
            held.secret_key.encode(), pair.secret_key.encode()
        )


@dataclass(slots=True)
class _Plan:
    """The rows to write, collected line by line; nothing is written before all lines are checked."""

    there: _There
    store: Store
    change: int
    reactivate: bool
    new_pairs: dict[Tenant, dict[str, Any]] = field(default_factory=dict)
    new_keys: list[dict[str, Any]] = field(default_factory=list)
    changed_keys: list[dict[str, Any]] = field(default_factory=list)
    changes: Counter[Tenant] = field(default_factory=Counter)
    """Number of new and changed keys, for the audit log."""
    renamed: list[tuple[Tenant, str, str]] = field(default_factory=list)
    """Tenant, old name and new name; modes are stored by name and follow the key."""

    def add(self, line: Numbered) -> None:
        key = line.key
        held = self.there.key(key.api_key)
        # Moving a key would let its clients act on another merchant's account.
        if held and (held.merchant, held.environment) != key.owner:
            raise ImportRefused(
                line.number, "api_key", "the key already belongs to another merchant or environment"
            )
        pair_id = self._pair(line)
        if held:
            self._renew(line, held)
        else:
            self._make(line, pair_id)

    def _pair(self, line: Numbered) -> str:
        owner, pair = line.key.owner, line.key.pair
        if row := self.there.pairs.get(owner):
            if not self.there.has(row, owner, pair):
                raise ImportRefused(
                    line.number,
                    "access_key",
                    "other credentials are stored for this merchant and environment; "
                    "replace them with `payout-gateway keys rotate-secret`",
                )
            return str(row.id)
        # Two tenants with one account would see each other's recipients.
        if self.there.holders.get((owner.environment, pair.access_key), owner) != owner:
            raise ImportRefused(
                line.number, "access_key", "another merchant already has this access key"
            )
        if owner not in self.new_pairs:
            self.new_pairs[owner] = self._sealed(owner, pair)
        return str(self.new_pairs[owner]["id"])

    def _sealed(self, owner: Tenant, pair: Credentials) -> dict[str, Any]:
        return {
            "id": new_key_id(),
            **owner._asdict(),
            "access_key": pair.access_key,
            "secret": self.store.encryption.seal(pair.secret_key, place_of_secret(owner)),
            "created_at": self.store.clock(),
        }

    def _make(self, line: Numbered, pair_id: str) -> None:
        digest = self.store.encryption.digests(line.key.api_key)[0]
        key_id = new_key_id()
        name = line.key.name
        self.changes[line.key.owner] += 1
        self.new_keys.append(
            {
                "id": key_id,
                "name": self._free(line.key.owner, key_id) if name is None else name,
                **line.key.owner._asdict(),
                "key_hash": digest.value,
                "hash_key_id": digest.key_id,
                "prefix": extract_key_prefix(line.key.api_key),
                "pair_id": pair_id,
                "requests_per_hour": line.key.requests_per_hour,
                "allowed_ips": line.key.allowed_ips or [],
                "created_at": self.store.clock(),
                "revoked_at": None,
                "changed": self.change,
            }
        )
        if name is not None:
            self._take(line, name, key_id)

    def _renew(self, line: Numbered, held: AnyRow) -> None:
        if held.revoked_at is not None and not self.reactivate:
            raise ImportRefused(
                line.number,
                "api_key",
                f"the key was revoked at {held.revoked_at:%Y-%m-%dT%H:%M:%SZ}; "
                "use `--reactivate` to reactivate it",
            )
        new = {
            "name": held.name,
            "requests_per_hour": held.requests_per_hour,
            "allowed_ips": held.allowed_ips,
            **line.key.settings(),
            "revoked_at": None,
        }
        if line.key.name is not None:
            self._take(line, line.key.name, held.id)
            new["name"] = line.key.name
            if line.key.name != held.name:
                self.renamed.append((line.key.owner, held.name, line.key.name))
        if any(getattr(held, name) != value for name, value in new.items()):
            self.changed_keys.append({"key": held.id, "changed": self.change, **new})
            self.changes[line.key.owner] += 1

    def _take(self, line: Numbered, name: str, key_id: str) -> None:
        if self.there.names.setdefault(name, key_id) != key_id:
            raise ImportRefused(line.number, "name", "another key has this name")

    def _free(self, owner: Tenant, key_id: str) -> str:
        """Generates ``merchant-environment``, with the first suffix that makes it unique."""
        plain = f"{owner.merchant}-{owner.environment}"
        name, number = plain, 1
        while self.there.names.setdefault(name, key_id) != key_id:
            number += 1
            name = f"{plain}-{number}"
        return name

    async def carry_out(self, connection: AsyncConnection) -> None:
        if self.new_pairs:
            await connection.execute(insert(pairs), list(self.new_pairs.values()))
        if self.new_keys:
            await connection.execute(insert(keys), self.new_keys)
        if self.changed_keys:
            chosen = update(keys).where(keys.c.id == bindparam("key"))
            await connection.execute(chosen, self.changed_keys)
        for owner, name, renamed in self.renamed:
            # A renamed key keeps its modes: they must not change by a rename.
            await keep_modes(self.store, connection, owner, name, renamed)
        for owner, number in self.changes.items():
            what = f"{IMPORTED} {pluralize(number, 'key')}"
            await note(self.store, connection, what, owner)
