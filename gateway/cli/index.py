"""`payout-gateway index`: the index of recipients that running gateways keep in memory."""

from __future__ import annotations

import click

from gateway.cli.command_group import Commands, document, environment_option, json_option
from gateway.cli.errors import Mistake
from gateway.cli.options import config_option
from gateway.cli.output import run_to_completion
from gateway.config.settings import Settings


@click.group(cls=Commands)
def index() -> None:
    """The index of recipients that running gateways keep in memory (`[lists] index`)."""


@index.command()
@click.option("--merchant", metavar="NAME", help="Of this merchant alone.")
@environment_option
@json_option
@config_option
def drop(
    *, merchant: str | None, environment: str | None, as_json: bool, settings: Settings
) -> None:
    """Have running gateways forget it, within seconds; default: of every merchant.

    The next question that needs one reads the whole list anew. With `lists.index = false` there is none.
    """
    from gateway.operator.freezes import NoMerchant, resolve_freeze_scope
    from gateway.reads.index import invalidate_indexes as drop_index
    from gateway.storage import Tenant, open_store
    from gateway.storage.audit_log import told_scope

    async def done() -> Tenant:
        async with open_store(settings.state, create=False) as store:
            scope = await resolve_freeze_scope(store, merchant or "", environment or "")
            await drop_index(store, scope)
            return scope

    try:
        scope = run_to_completion(done())
    except NoMerchant as why:
        raise Mistake(str(why)) from None
    if as_json:
        document({"merchant": scope.merchant or None, "environment": scope.environment or None})
        return
    click.echo(f"Dropped within seconds in running gateways: {told_scope(scope)}.")
