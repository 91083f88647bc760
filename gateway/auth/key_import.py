"""Imports API keys from a file, in one transaction."""

import hmac
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from sqlalchemy import bindparam, insert, select, update

from gateway.auth.key_lines import ImportRefused, KeyLine, NumberedLine
from gateway.auth.key_rows import (
    CHANGES,
    AnyRow,
    build_secret_encryption_context,
    decrypt_credentials,
    generate_key_id,
)
from gateway.auth.signing import Credentials, extract_displayable_key_prefix
from gateway.config.settings import State
from gateway.observability.plurals import pluralize
from gateway.storage.audit_log import record_audit_event
from gateway.storage.change_poller import increment_change_count
from gateway.storage.database import Transaction
from gateway.storage.mode_rows import copy_modes
from gateway.storage.store import Store, open_store
from gateway.storage.tables import api_keys, tenant_credentials
from gateway.storage.tenants import Tenant


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

    async def run_import(tx: Transaction) -> ImportResult:
        # Done first, because it locks out other writers of keys until this transaction ends.
        change_count = await increment_change_count(tx, CHANGES)
        rows = await tx.fetch(select(api_keys)), await tx.fetch(select(tenant_credentials))
        key_import = _KeyImport(store, change_count, *rows)
        # Named keys first, so that a generated name does not take a name that a later line has.
        for line in sorted(lines, key=lambda line: line.key.name is None):
            key_import.add_line(line, reactivate=reactivate)
        await key_import.write_rows(tx)
        new, changed = len(key_import.new_keys), len(key_import.changed_keys)
        counts = Counter(line.key.tenant for line in lines)
        return ImportResult(counts, new, changed, len(lines) - new - changed)

    return await store.write(run_import)


async def import_only_key(
    state: State, tenant: Tenant, credentials: Credentials, api_key: str, name: str
) -> None:
    """Imports the key of a gateway with a database of its own, as a demo's; raises StoreUnavailable."""
    key = KeyLine(
        **tenant._asdict(),
        api_key=api_key,
        access_key=credentials.access_key,
        secret_key=credentials.secret_key,
        name=name,
    )
    async with open_store(state) as store:
        await import_keys(store, [NumberedLine(1, key)])


class _KeyImport:
    """Checks the lines against what is stored, and collects the rows to write after all checks."""

    def __init__(
        self,
        store: Store,
        change_count: int,
        key_rows: Sequence[AnyRow],
        credential_rows: Sequence[AnyRow],
    ) -> None:
        self._store, self._encryption = store, store.encryption
        self._change_count = change_count
        self._stored_keys = {(row.hash_key_id, row.key_hash): row for row in key_rows}
        self._key_ids_by_name = {row.name: row.id for row in key_rows}
        self._credentials = {Tenant(row.merchant, row.environment): row for row in credential_rows}
        self._tenants_by_access_key = {
            (tenant.environment, row.access_key): tenant
            for tenant, row in self._credentials.items()
        }
        self._new_credentials: dict[Tenant, dict[str, Any]] = {}
        self.new_keys: list[dict[str, Any]] = []
        self.changed_keys: list[dict[str, Any]] = []
        self._changes_by_tenant = Counter[Tenant]()
        self._renames: list[tuple[Tenant, str, str]] = []
        """Tenant, old name and new name; modes are stored by name and follow the key."""

    def add_line(self, line: NumberedLine, *, reactivate: bool) -> None:
        key = line.key
        # One digest per encryption key, because rows hashed with an older one must be found too.
        digests = self._encryption.list_api_key_digests(key.api_key)
        stored = next(filter(None, map(self._stored_keys.get, digests)), None)
        # Moving a key would let its clients act on another merchant's account.
        if stored and (stored.merchant, stored.environment) != key.tenant:
            problem = "the key already belongs to another merchant or environment"
            raise ImportRefused(line.number, "api_key", problem)
        credentials_id = self._find_or_add_credentials(line)
        if stored and stored.revoked_at and not reactivate:
            problem = f"the key was revoked at {stored.revoked_at:%Y-%m-%dT%H:%M:%SZ}"
            hint = "use `--reactivate` to reactivate it"
            raise ImportRefused(line.number, "api_key", f"{problem}; {hint}")
        id_ = stored.id if stored else generate_key_id()
        name = key.name or (stored.name if stored else self._generate_name(key.tenant))
        if self._key_ids_by_name.setdefault(name, id_) != id_:
            raise ImportRefused(line.number, "name", "another key has this name")
        if stored:
            self._update_key(stored, key, name)
            return
        self._changes_by_tenant[key.tenant] += 1
        self.new_keys.append(
            {
                "id": id_,
                "name": name,
                **key.tenant._asdict(),
                "key_hash": digests[0].value,
                "hash_key_id": digests[0].key_id,
                "prefix": extract_displayable_key_prefix(key.api_key),
                "credentials_id": credentials_id,
                "requests_per_hour": key.requests_per_hour,
                "allowed_ips": key.allowed_ips,
                "created_at": self._store.clock(),
                "revoked_at": None,
                "changed": self._change_count,
            }
        )

    def _find_or_add_credentials(self, line: NumberedLine) -> str:
        """Returns the id of the tenant's credentials, which have to be those of the line."""
        tenant, new = line.key.tenant, line.key.credentials
        if row := self._credentials.get(tenant):
            stored = decrypt_credentials(row, tenant, self._encryption)
            secrets = stored.secret_key.encode(), new.secret_key.encode()
            # The comparison takes constant time, as for all secrets.
            if stored.access_key != new.access_key or not hmac.compare_digest(*secrets):
                problem = "other credentials are stored for this merchant and environment"
                hint = "replace them with `payout-gateway keys rotate-secret`"
                raise ImportRefused(line.number, "access_key", f"{problem}; {hint}")
            return str(row.id)
        # Two tenants with one account would see each other's recipients.
        access_key = tenant.environment, new.access_key
        if self._tenants_by_access_key.setdefault(access_key, tenant) != tenant:
            problem = "another merchant already has this access key"
            raise ImportRefused(line.number, "access_key", problem)
        if tenant not in self._new_credentials:
            context = build_secret_encryption_context(tenant)
            self._new_credentials[tenant] = {
                "id": generate_key_id(),
                **tenant._asdict(),
                "access_key": new.access_key,
                "secret": self._encryption.encrypt(new.secret_key, context),
                "created_at": self._store.clock(),
            }
        return str(self._new_credentials[tenant]["id"])

    def _generate_name(self, tenant: Tenant) -> str:
        """Generates ``merchant-environment``, with the first suffix that makes it unique."""
        base_name = f"{tenant.merchant}-{tenant.environment}"
        names = chain([base_name], (f"{base_name}-{number}" for number in count(2)))
        return next(name for name in names if name not in self._key_ids_by_name)

    def _update_key(self, stored: AnyRow, key: KeyLine, name: str) -> None:
        new_values = {
            "name": name,
            "requests_per_hour": stored.requests_per_hour,
            "allowed_ips": stored.allowed_ips,
            # What the line omits stays unchanged.
            **key.model_dump(include={"requests_per_hour", "allowed_ips"}, exclude_unset=True),
            "revoked_at": None,
        }
        # An unchanged key is not written, so that importing a file twice reloads nothing.
        if all(getattr(stored, column) == value for column, value in new_values.items()):
            return
        if name != stored.name:
            self._renames.append((key.tenant, stored.name, name))
        self.changed_keys.append({"key": stored.id, "changed": self._change_count, **new_values})
        self._changes_by_tenant[key.tenant] += 1

    async def write_rows(self, tx: Transaction) -> None:
        update_key = update(api_keys).where(api_keys.c.id == bindparam("key"))
        # Written in this order, because keys refer to credentials.
        for statement, rows in (
            (insert(tenant_credentials), list(self._new_credentials.values())),
            (insert(api_keys), self.new_keys),
            (update_key, self.changed_keys),
        ):
            if rows:
                await tx.execute(statement, *rows)
        for tenant, old_name, new_name in self._renames:
            # A renamed key keeps its modes: they must not change by a rename.
            await copy_modes(tx, tenant, old_name, new_name)
        for tenant, number in self._changes_by_tenant.items():
            event = f"imported {pluralize(number, 'key')}"
            await record_audit_event(self._store, tx, event, tenant)
