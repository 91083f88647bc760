"""Freezes and brownouts: their scope, the usage that they affect, and how they are described."""

import shlex
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from gateway.auth.key_rows import ListedKey, find_single_key, load_tenants_with_credentials
from gateway.operator import UNKNOWN_MERCHANT, ActionRefused
from gateway.storage import Store, Tenant
from gateway.storage.brownout_rows import Brownout
from gateway.storage.request_counts import load_usage


async def resolve_freeze_scope(
    store: Store, merchant: str | None, environment: str | None
) -> Tenant:
    """Returns the tenant to freeze; no name means all. Raises ActionRefused for an unknown
    merchant, because the freeze would silently have no effect.
    """
    await require_known_merchant(store, merchant)
    return Tenant(merchant or "", environment or "")


async def require_known_merchant(store: Store, merchant: str | None) -> None:
    """Raises ActionRefused if no merchant has this name; no name means all."""
    merchants = {owner.merchant for owner in await load_tenants_with_credentials(store)}
    if merchant and merchant not in merchants:
        raise ActionRefused(UNKNOWN_MERCHANT)


def format_unfreeze_command(scope: Tenant) -> str:
    """Formats the command that ends the freeze of exactly this scope."""
    options = [f"--{name} {shlex.quote(value)}" for name, value in scope._asdict().items() if value]
    return f"payout-gateway unfreeze {' '.join(options) or '--all'}"


USAGE_PERIOD = timedelta(days=7)


def resolve_window_key(window: Brownout, keys: Iterable[ListedKey]) -> Brownout:
    """Returns the window with the key's full name and its merchant.

    Raises OperatorError if no key matches, because the window would affect no request.
    """
    merchant_keys = [key for key in keys if window.merchant in ("", key.merchant)]
    if window.merchant and not merchant_keys:
        raise ActionRefused(f"--merchant: {UNKNOWN_MERCHANT}")
    if not window.key:
        return window
    key = find_single_key(merchant_keys, window.key)
    return replace(window, key=key.name, merchant=key.merchant)


async def load_usage_affected_by_window(store: Store, window: Brownout) -> list[list[object]]:
    """Returns the usage of the last week that a window affects: merchant, environment, key,
    operation, requests and the time of the last. Raises StoreUnavailable.
    """
    return [
        [*usage.tenant, usage.key, operation, counts.requests, counts.last_at]
        for usage in await load_usage(store, (store.clock() - USAGE_PERIOD).date())
        for operation, counts in usage.operations.items()
        if usage.key
        and window.is_match(usage.tenant.merchant, usage.key, operation, window.begins_at)
    ]


def describe_window_scope(window: Brownout) -> str:
    """Returns the merchant, key and operations that a window affects."""
    return (
        ", ".join(filter(None, (window.merchant, window.key, *window.operations))) or "everything"
    )


def describe_window_state(window: Brownout, now: datetime) -> str:
    if window.ended:
        return "switched off"
    if now >= window.ends_at:
        return "over"
    return "under way" if now >= window.begins_at else "to come"
