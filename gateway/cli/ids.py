"""`payout-gateway ids`: imports the ids that legacy clients use for existing objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import BinaryIO

import click

from gateway.auth.key_rows import load_listed_keys
from gateway.cli import CommandError
from gateway.cli.options import FullHelpGroup, config_option
from gateway.cli.output import run_to_completion
from gateway.config.settings import Settings
from gateway.observability.plurals import pluralize
from gateway.storage import Tenant, open_store
from gateway.storage.id_csv import InvalidIdPairsError, parse_id_pairs
from gateway.storage.id_rows import IdCollisionError, save_legacy_ids


@click.group(cls=FullHelpGroup)
def ids() -> None:
    """Import the ids that legacy clients use for existing objects."""


@ids.command("import")
@click.argument("file", type=click.File("rb"))
@click.option(
    "--merchant", help="The owner of the objects. Default: the only merchant that has keys."
)
@click.option(
    "--environment",
    type=click.Choice(["live", "sandbox"]),
    help="Default: the only environment in which the merchant has keys.",
)
@config_option
def import_ids(
    *, file: BinaryIO, merchant: str | None, environment: str | None, settings: Settings
) -> None:
    """Import pairs of ids from FILE, a CSV of legacy_id,current_id (- is stdin).

    For objects that clients stored under a different id than the service uses now. Within a minute,
    answers show the legacy id; requests may use either. Either all pairs are imported or none.
    """

    async def save_ids(pairs: Mapping[str, tuple[int, str]]) -> None:
        async with open_store(settings.state, create=False) as store:
            tenant = _select_tenant(
                {key.tenant for key in await load_listed_keys(store)}, merchant, environment
            )
            # The line number is only known here.
            try:
                current_ids = {
                    legacy_id: current_id for legacy_id, (_, current_id) in pairs.items()
                }
                await save_legacy_ids(store, tenant, current_ids, imported=True)
            except IdCollisionError as collision:
                raise InvalidIdPairsError(pairs[collision.legacy_id][0], str(collision)) from None
        click.echo(f"Imported {pluralize(len(pairs), 'pair')} of ids: {tenant}")

    try:
        run_to_completion(save_ids(parse_id_pairs(file.read())), "Importing")
    except InvalidIdPairsError as error:
        name = getattr(file, "name", "<stdin>")
        raise CommandError(f"{name}: {error}; nothing was imported") from None


def _select_tenant(tenants: set[Tenant], merchant: str | None, environment: str | None) -> Tenant:
    """Returns the tenant of the ids. Raises CommandError if the options match none or several."""
    matches = {
        tenant
        for tenant in tenants
        if merchant in (None, tenant.merchant) and environment in (None, tenant.environment)
    }
    if len(matches) == 1:
        return matches.pop()
    if matches:
        tenant_list = ", ".join(sorted(map(str, matches)))
        raise CommandError(
            f"several tenants match; choose one with --merchant and --environment: {tenant_list}"
        )
    filters = " ".join(word for word in (merchant, environment) if word) or "any merchant"
    raise CommandError(f"there is no key of {filters}; `keys list` shows the keys")
