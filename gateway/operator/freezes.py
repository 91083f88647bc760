"""Resolves the scope of a freeze and lists active freezes."""

from __future__ import annotations

from gateway.auth.key_rows import load_tenants_with_credentials
from gateway.storage import Store, Tenant
from gateway.storage.audit_log import AuditEvent, list_audit_events
from gateway.storage.freezes import WRITES_FROZEN, WRITES_UNFROZEN, Freeze, list_freezes


class UnknownMerchant(Exception):
    """No merchant has this name. The message is one line."""


async def resolve_freeze_scope(store: Store, merchant: str, environment: str) -> Tenant:
    """Returns the tenant to freeze; an empty name means all. Raises UnknownMerchant for an unknown
    merchant, because the freeze would silently have no effect.
    """
    merchants = {owner.merchant for owner in await load_tenants_with_credentials(store)}
    if merchant and merchant not in merchants:
        raise UnknownMerchant("no merchant has this name; `keys list` shows the merchants")
    return Tenant(merchant, environment)


async def load_freezes_and_audit_events(store: Store) -> tuple[list[Freeze], list[AuditEvent]]:
    """Returns active freezes, and the audit log of freezes. Raises StoreUnavailable."""
    events = [
        event
        for event in await list_audit_events(store)
        if event.action in (WRITES_FROZEN, WRITES_UNFROZEN)
    ]
    return await list_freezes(store), events
