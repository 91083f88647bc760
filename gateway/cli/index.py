"""`payout-gateway index`: drops the recipient cache that running gateways keep in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gateway.cli.errors import CommandError
from gateway.cli.options import (
    FullHelpGroup,
    config_option,
    environment_option,
    json_option,
    merchant_option,
    print_json,
)
from gateway.cli.output import run_with_store
from gateway.config.settings import Settings

if TYPE_CHECKING:
    from gateway.storage import Store, Tenant


@click.group(cls=FullHelpGroup)
def index() -> None:
    """Manage the recipient cache that running gateways keep in memory (`lists.index`)."""


@index.command()
@merchant_option
@environment_option
@json_option
@config_option
def drop(
    *, merchant: str | None, environment: str | None, as_json: bool, settings: Settings
) -> None:
    """Drop the recipient cache of running gateways, by default of every merchant.

    Takes effect within seconds. The next request that needs the cache reads the whole list from the
    service. With `lists.index = false` there is no cache.
    """
    from gateway.operator.freezes import UnknownMerchant, resolve_freeze_scope
    from gateway.reads.recipient_cache import invalidate_recipient_caches
    from gateway.storage.audit_log import describe_scope

    async def drop_recipient_caches_of_scope(store: Store) -> Tenant:
        # As for freezes, a misspelt merchant must not go unnoticed.
        scope = await resolve_freeze_scope(store, merchant or "", environment or "")
        await invalidate_recipient_caches(store, scope)
        return scope

    try:
        scope = run_with_store(settings, drop_recipient_caches_of_scope)
    except UnknownMerchant as error:
        raise CommandError(str(error)) from None
    if as_json:
        print_json({"merchant": scope.merchant or None, "environment": scope.environment or None})
        return
    click.echo(f"Recipient caches to drop, within seconds: {describe_scope(scope)}.")
