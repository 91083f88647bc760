"""Persistent storage: the database, its tables, encryption, backups and the audit log."""

from gateway.storage.encryption import EncryptionKeys, Place
from gateway.storage.errors import StoreUnavailable
from gateway.storage.ledger import Ledger
from gateway.storage.store import Store, open_store
from gateway.storage.tenants import Tenant

__all__ = [
    "EncryptionKeys",
    "Ledger",
    "Place",
    "Store",
    "StoreUnavailable",
    "Tenant",
    "open_store",
]
