"""Imports API keys from a file, in one transaction."""

from __future__ import annotations

import hmac
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import bindparam, insert, select, update

from gateway.auth.key_lines import ImportRefused, NumberedLine, parse_key_lines
from gateway.auth.key_rows import (
    AnyRow,
    build_secret_encryption_context,
    decrypt_credentials,
    generate_key_id,
    increment_key_change_count,
)
from gateway.auth.signing import Credentials, extract_displayable_key_prefix
from gateway.config.settings import State
from gateway.observability.plurals import pluralize
from gateway.storage.audit_log import record_audit_event
from gateway.storage.database import Transaction
from gateway.storage.encryption import EncryptionKeys
from gateway.storage.mode_rows import copy_modes
from gateway.storage.store import Store, open_store
from gateway.storage.tables import api_keys, tenant_credentials
from gateway.storage.tenants import Tenant

IMPORTED_EVENT = "imported"


@dataclass(frozen=True, slots=True)
class ImportResult:
    """Counts of an import: keys in the file by tenant; new, changed and unchanged keys in total."""

    keys_by_tenant: Counter[Tenant]
    new: int
    changed: int
    unchanged: int


async def import_keys(
    store: Store, lines: Sequence[NumberedLine], *, reactivate: bool = False
) -> ImportResult:
    """Imports all keys or none; raises ImportRefused and StoreUnavailable."""

    async def run_import(tx: Transaction) -> _ImportPlan:
        # Done first, because it locks out other writers of keys until this transaction ends.
        change_count = await increment_key_change_count(tx)
        existing = await _ExistingKeys.load(tx, store.encryption)
        plan = _ImportPlan(existing, store, change_count, reactivate=reactivate)
        # Named keys first, so that a generated name does not take a name that a later line has.
        for line in sorted(lines, key=lambda line: line.key.name is None):
            plan.add_line(line)
        await plan.execute(tx)
        return plan

    plan = await store.write(run_import)
    return ImportResult(
        keys_by_tenant=Counter(line.key.tenant for line in lines),
        new=len(plan.new_keys),
        changed=len(plan.changed_keys),
        unchanged=len(lines) - len(plan.new_keys) - len(plan.changed_keys),
    )


async def import_only_key(
    state: State, tenant: Tenant, credentials: Credentials, api_key: str, name: str
) -> None:
    """Imports the key of a gateway with a database of its own, as a demo's; raises StoreUnavailable."""
    key_line = {
        **tenant._asdict(),
        "api_key": api_key,
        "access_key": credentials.access_key,
        "secret_key": credentials.secret_key,
        "name": name,
    }
    async with open_store(state) as store:
        await import_keys(store, parse_key_lines(json.dumps(key_line).encode()))


@dataclass(frozen=True, slots=True)
class _ExistingKeys:
    """The keys and credentials that the database already holds."""

    encryption: EncryptionKeys
    keys: dict[tuple[str, str], AnyRow]
    names: dict[str, str]
    credentials: dict[Tenant, AnyRow]
    tenant_by_access_key: dict[tuple[str, str], Tenant]

    @classmethod
    async def load(cls, tx: Transaction, encryption: EncryptionKeys) -> _ExistingKeys:
        key_rows = await tx.fetch(select(api_keys))
        credential_rows = await tx.fetch(select(tenant_credentials))
        return cls(
            encryption=encryption,
            keys={(row.hash_key_id, row.key_hash): row for row in key_rows},
            names={row.name: row.id for row in key_rows},
            credentials={Tenant(row.merchant, row.environment): row for row in credential_rows},
            tenant_by_access_key={
                (row.environment, row.access_key): Tenant(row.merchant, row.environment)
                for row in credential_rows
            },
        )

    def find_key(self, api_key: str) -> AnyRow | None:
        # One digest per encryption key, because rows hashed with an older one must be found too.
        digests = self.encryption.list_api_key_digests(api_key)
        return next((row for digest in digests if (row := self.keys.get(digest))), None)

    def has_same_credentials(self, row: AnyRow, tenant: Tenant, credentials: Credentials) -> bool:
        stored = decrypt_credentials(row, tenant, self.encryption)
        # The comparison takes constant time, as for all secrets.
        return stored.access_key == credentials.access_key and hmac.compare_digest(
            stored.secret_key.encode(), credentials.secret_key.encode()
        )


@dataclass(slots=True)
class _ImportPlan:
    """The rows to write, collected line by line; they are written after all lines are checked."""

    existing: _ExistingKeys
    store: Store
    change_count: int
    reactivate: bool
    new_credentials: dict[Tenant, dict[str, Any]] = field(default_factory=dict)
    new_keys: list[dict[str, Any]] = field(default_factory=list)
    changed_keys: list[dict[str, Any]] = field(default_factory=list)
    changed_keys_by_tenant: Counter[Tenant] = field(default_factory=Counter)
    """Number of new and changed keys, for the audit log."""
    renames: list[tuple[Tenant, str, str]] = field(default_factory=list)
    """Tenant, old name and new name; modes are stored by name and follow the key."""

    def add_line(self, line: NumberedLine) -> None:
        key = line.key
        existing_row = self.existing.find_key(key.api_key)
        # Moving a key would let its clients act on another merchant's account.
        if existing_row and (existing_row.merchant, existing_row.environment) != key.tenant:
            raise ImportRefused(
                line.number, "api_key", "the key already belongs to another merchant or environment"
            )
        credentials_id = self._ensure_credentials_row_id(line)
        if existing_row:
            self._update_key(line, existing_row)
        else:
            self._add_new_key(line, credentials_id)

    def _ensure_credentials_row_id(self, line: NumberedLine) -> str:
        tenant, credentials = line.key.tenant, line.key.credentials
        if row := self.existing.credentials.get(tenant):
            if not self.existing.has_same_credentials(row, tenant, credentials):
                raise ImportRefused(
                    line.number,
                    "access_key",
                    "other credentials are stored for this merchant and environment; "
                    "replace them with `payout-gateway keys rotate-secret`",
                )
            return str(row.id)
        # Two tenants with one account would see each other's recipients.
        if (
            self.existing.tenant_by_access_key.get(
                (tenant.environment, credentials.access_key), tenant
            )
            != tenant
        ):
            raise ImportRefused(
                line.number, "access_key", "another merchant already has this access key"
            )
        if tenant not in self.new_credentials:
            self.new_credentials[tenant] = self._build_credentials_row(tenant, credentials)
        return str(self.new_credentials[tenant]["id"])

    def _build_credentials_row(self, tenant: Tenant, credentials: Credentials) -> dict[str, Any]:
        return {
            "id": generate_key_id(),
            **tenant._asdict(),
            "access_key": credentials.access_key,
            "secret": self.store.encryption.encrypt(
                credentials.secret_key, build_secret_encryption_context(tenant)
            ),
            "created_at": self.store.clock(),
        }

    def _add_new_key(self, line: NumberedLine, credentials_id: str) -> None:
        digest = self.store.encryption.list_api_key_digests(line.key.api_key)[0]
        key_id = generate_key_id()
        name = line.key.name
        self.changed_keys_by_tenant[line.key.tenant] += 1
        self.new_keys.append(
            {
                "id": key_id,
                "name": self._generate_name(line.key.tenant, key_id) if name is None else name,
                **line.key.tenant._asdict(),
                "key_hash": digest.value,
                "hash_key_id": digest.key_id,
                "prefix": extract_displayable_key_prefix(line.key.api_key),
                "credentials_id": credentials_id,
                "requests_per_hour": line.key.requests_per_hour,
                "allowed_ips": line.key.allowed_ips or [],
                "created_at": self.store.clock(),
                "revoked_at": None,
                "changed": self.change_count,
            }
        )
        if name is not None:
            self._reserve_unique_key_name(line, name, key_id)

    def _update_key(self, line: NumberedLine, existing_row: AnyRow) -> None:
        if existing_row.revoked_at is not None and not self.reactivate:
            raise ImportRefused(
                line.number,
                "api_key",
                f"the key was revoked at {existing_row.revoked_at:%Y-%m-%dT%H:%M:%SZ}; "
                "use `--reactivate` to reactivate it",
            )
        new_values = {
            "name": existing_row.name,
            "requests_per_hour": existing_row.requests_per_hour,
            "allowed_ips": existing_row.allowed_ips,
            **line.key.map_given_settings_by_name(),
            "revoked_at": None,
        }
        if line.key.name is not None:
            self._reserve_unique_key_name(line, line.key.name, existing_row.id)
            new_values["name"] = line.key.name
            if line.key.name != existing_row.name:
                self.renames.append((line.key.tenant, existing_row.name, line.key.name))
        # An unchanged key is not written, so that importing a file twice reloads nothing.
        if any(getattr(existing_row, name) != value for name, value in new_values.items()):
            self.changed_keys.append(
                {"key": existing_row.id, "changed": self.change_count, **new_values}
            )
            self.changed_keys_by_tenant[line.key.tenant] += 1

    def _reserve_unique_key_name(self, line: NumberedLine, name: str, key_id: str) -> None:
        if self.existing.names.setdefault(name, key_id) != key_id:
            raise ImportRefused(line.number, "name", "another key has this name")

    def _generate_name(self, tenant: Tenant, key_id: str) -> str:
        """Generates ``merchant-environment``, with the first suffix that makes it unique."""
        base_name = f"{tenant.merchant}-{tenant.environment}"
        name, number = base_name, 1
        while self.existing.names.setdefault(name, key_id) != key_id:
            number += 1
            name = f"{base_name}-{number}"
        return name

    async def execute(self, tx: Transaction) -> None:
        # Written in this order, because keys refer to credentials.
        if self.new_credentials:
            await tx.execute(insert(tenant_credentials), *self.new_credentials.values())
        if self.new_keys:
            await tx.execute(insert(api_keys), *self.new_keys)
        if self.changed_keys:
            statement = update(api_keys).where(api_keys.c.id == bindparam("key"))
            await tx.execute(statement, *self.changed_keys)
        for tenant, old_name, new_name in self.renames:
            # A renamed key keeps its modes: they must not change by a rename.
            await copy_modes(tx, tenant, old_name, new_name)
        for tenant, number in self.changed_keys_by_tenant.items():
            event = f"{IMPORTED_EVENT} {pluralize(number, 'key')}"
            await record_audit_event(self.store, tx, event, tenant)
