"""Freezes as an operator handles them: what may be stopped, and what is."""

from __future__ import annotations

from gateway.auth.key_rows import load_tenants_with_credentials
from gateway.storage import Store, Tenant
from gateway.storage.audit_log import AuditEvent, acts_of
from gateway.storage.freezes import FROZE, UNFROZE, Freeze, frozen


class NoMerchant(Exception):
    """Nobody has this name; one line."""


async def resolve_freeze_scope(store: Store, merchant: str, environment: str) -> Tenant:
    """Empty is every one. Raises NoMerchant: a freeze of nobody would only look like one."""
    known = {owner.merchant for owner in await load_tenants_with_credentials(store)}
    if merchant and merchant not in known:
        raise NoMerchant("there is no merchant of this name; `keys list` shows what there is")
    return Tenant(merchant, environment)


async def load_freeze_status(store: Store) -> tuple[list[Freeze], list[AuditEvent]]:
    """What is frozen, and who froze and unfroze what; StoreUnavailable."""
    acts = [act for act in await acts_of(store) if act.what in (FROZE, UNFROZE)]
    return await frozen(store), acts
