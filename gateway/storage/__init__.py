"""Persistent storage: the database, its tables, encryption, backups and the audit log."""

from gateway.storage.encryption import EncryptionContext, EncryptionKeys
from gateway.storage.errors import StoreUnavailable
from gateway.storage.object_state import ObjectStateStore
from gateway.storage.store import Store, open_store
from gateway.storage.tenants import Tenant

__all__ = [
    "EncryptionContext",
    "EncryptionKeys",
    "ObjectStateStore",
    "Store",
    "StoreUnavailable",
    "Tenant",
    "open_store",
]
