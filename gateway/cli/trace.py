"""`payout-gateway trace`: shows everything known about an id."""

from __future__ import annotations

import click

from gateway.cli import CommandError
from gateway.cli.options import config_option, environment_option, merchant_option
from gateway.cli.output import run_with_store
from gateway.config.settings import Settings
from gateway.operator.object_trace import find_object_tenants, trace_object
from gateway.storage import Store, Tenant


@click.command()
@click.argument("id_", metavar="ID")
@merchant_option
@environment_option
@config_option
def trace(*, id_: str, merchant: str | None, environment: str | None, settings: Settings) -> None:
    """Show everything known about ID.

    ID is any id of a recipient, account, batch or payment, or the X-Request-Id of a request that
    wrote (request_id in the log). Shows the object's other ids, the gateway's records of it, and,
    in chronological order, each request that changed it, with its key and its calls. No personal
    data is shown. If the id exists under several merchants, add --merchant.
    """

    async def load_trace(store: Store) -> list[str]:
        tenants = [
            tenant
            for tenant in await find_object_tenants(store, id_)
            if merchant in (None, tenant.merchant) and environment in (None, tenant.environment)
        ]
        # Two merchants may have objects with the same id; their records must not be mixed.
        return await trace_object(store, _require_single_tenant(tenants), id_)

    click.echo("\n".join(run_with_store(settings, load_trace)))


def _require_single_tenant(tenants: list[Tenant]) -> Tenant:
    if not tenants:
        raise CommandError(
            "nothing is known about this id. A request that changed nothing, such as a read or a "
            "refused request, is only in the log. For a retry, trace the first request: retry_of "
            "in the log"
        )
    if len(tenants) > 1:
        tenant_list = ", ".join(map(str, tenants))
        raise CommandError(
            f"several tenants have this id: {tenant_list}; choose one with --merchant and --environment"
        )
    return tenants[0]
