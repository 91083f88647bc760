"""What the gateway keeps between requests, and between starts: keys, ledger, what was learned."""

from gateway.store.crypto import EncryptionKeys, Place
from gateway.store.errors import StoreUnavailable
from gateway.store.ledger import Ledger
from gateway.store.owners import Owner
from gateway.store.store import Store, open_store

__all__ = [
    "EncryptionKeys",
    "Ledger",
    "Owner",
    "Place",
    "Store",
    "StoreUnavailable",
    "open_store",
]
