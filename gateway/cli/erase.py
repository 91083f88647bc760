"""`payout-gateway erase`: erases the personal data of a recipient."""

from __future__ import annotations

from dataclasses import asdict

import click

from gateway.auth.key_rows import find_single_key, load_listed_keys
from gateway.cli.errors import CommandError
from gateway.cli.options import (
    config_option,
    json_option,
    print_json,
    require_confirmation,
    yes_option,
)
from gateway.cli.output import run_with_store
from gateway.config.settings import Settings
from gateway.observability.plurals import pluralize
from gateway.operator.retention import ErasureCounts, RecipientInUse, erase_recipient
from gateway.storage import Store, Tenant

NOT_ERASED_NOTE = (
    "Not erased: the service's own record (DELETE /v1/recipients/:id archives it there), earlier "
    "backups, and logs, which contain ids."
)


@click.command()
@click.argument("recipient", metavar="RECIPIENT_ID")
@click.option("--key", "word", required=True, help="A key of the merchant, by name or prefix.")
@yes_option
@json_option
@config_option
def erase(*, recipient: str, word: str, yes: bool, as_json: bool, settings: Settings) -> None:
    """Erase the personal data of a recipient: name, address, memos and settings.

    Records without personal data are kept: ids, whether the recipient is deleted or blocked, and
    the history of writes. The command is refused while a write of the merchant is in progress or in
    doubt, or while a draft batch contains the recipient. The audit log records who ran it.
    """
    # Scripts have to pass --yes too: erased data cannot be restored.
    require_confirmation("Permanently erase this recipient's data?", yes=yes)

    async def erase_data(store: Store) -> tuple[ErasureCounts, Tenant]:
        # The key only names the merchant and environment, to which the recipient belongs.
        key = find_single_key(await load_listed_keys(store), word)
        try:
            return await erase_recipient(store, key.tenant, recipient), key.tenant
        except RecipientInUse as in_use:
            raise CommandError(str(in_use)) from None

    erased, owner = run_with_store(settings, erase_data)
    if as_json:
        print_json(asdict(erased))
        return
    if any(asdict(erased).values()):
        payments = pluralize(erased.payments, "payment")
        batches = pluralize(erased.batches, "batch", "batches")
        facts = pluralize(erased.facts, "stored field")
        click.echo(f"Erased from {payments} in {batches}, and {facts} of the recipient.")
    else:
        click.echo(
            f"Nothing to erase: no data of {recipient} is stored for {owner}. Check the id and "
            "the key."
        )
    if erased.answers:
        click.echo(
            f"{erased.answers} answers are still stored, encrypted, for retried requests; they "
            "expire in a day."
        )
    click.echo(NOT_ERASED_NOTE)
