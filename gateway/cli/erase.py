"""`payout-gateway erase`: forgets what is kept of a recipient."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from gateway.cli.command_group import ask_confirmation, document, json_option, yes_option
from gateway.cli.errors import Mistake
from gateway.cli.options import config_option
from gateway.cli.output import run_to_completion
from gateway.config.settings import Settings
from gateway.observability.plurals import pluralize

if TYPE_CHECKING:
    from gateway.operator.retention import Erased
    from gateway.storage import Tenant

ELSEWHERE = (
    "Not here: the service's own record (DELETE /v1/recipients/:id archives it there), backups made "
    "before, and logs, which hold ids."
)


@click.command()
@click.argument("recipient", metavar="RECIPIENT_ID")
@click.option("--key", "word", required=True, help="A key of the merchant's: its name.")
@yes_option
@json_option
@config_option
def erase(*, recipient: str, word: str, yes: bool, as_json: bool, settings: Settings) -> None:
    """Forget what is kept of a recipient: name, address, memos, and what was set for them.

    What stays names nobody: ids, that they are deleted or may not be paid, and which writes were
    made. It is refused while writes of the merchant are unsettled, or a batch that names them is
    still being made. That it was done is kept, and who did it.
    """
    from gateway.cli.keys import find_single_key
    from gateway.operator.retention import InUse
    from gateway.operator.retention import erase_recipient as forget
    from gateway.storage import open_store

    ask_confirmation("Forget this recipient for good?", yes=yes)

    async def done() -> tuple[Erased, Tenant]:
        async with open_store(settings.state, create=False) as store:
            key = await find_single_key(store, word)
            try:
                return await forget(store, key.owner, recipient), key.owner
            except InUse as in_use:
                raise Mistake(str(in_use)) from None

    erased, owner = run_to_completion(done())
    if as_json:
        document(asdict(erased))
        return
    if any(asdict(erased).values()):
        payments = pluralize(erased.payments, "payment")
        batches = pluralize(erased.batches, "batch", "batches")
        facts = pluralize(erased.facts, "fact")
        click.echo(f"Erased from {payments} in {batches}; {facts} forgotten.")
    else:
        click.echo(
            f"Of {recipient} nothing is kept under {owner} that could be forgotten; see that both are right."
        )
    if erased.answers:
        click.echo(
            f"{erased.answers} answers are kept for repeated requests, encrypted, and go within a day."
        )
    click.echo(ELSEWHERE)
