"""`payout-gateway ids`: what legacy clients call objects."""

from __future__ import annotations

from typing import BinaryIO

import click

from gateway.cli.configured import config_option
from gateway.cli.mistakes import Mistake
from gateway.cli.output import completed
from gateway.settings import Settings


@click.group()
def ids() -> None:
    """The ids that legacy clients know objects by."""


@ids.command("import")
@click.argument("file", type=click.File("rb"))
@click.option("--merchant", required=True, help="Whose objects they are.")
@click.option("--environment", required=True, type=click.Choice(["live", "sandbox"]))
@config_option
def import_(*, file: BinaryIO, merchant: str, environment: str, settings: Settings) -> None:
    """Import pairs of ids from FILE (- is stdin), CSV of legacy_id,current_id: all, or none.

    Of an object that clients stored under another id than the service has for it now. From then
    on, within a minute, answers call it by its legacy id; requests may use either.
    """
    from gateway.store import Owner, open_store
    from gateway.store.id_lines import PairsRefused, read_id_pairs
    from gateway.store.id_rows import Collision, keep
    from gateway.store.key_rows import listed_keys

    owner = Owner(merchant, environment)

    async def done() -> None:
        pairs = read_id_pairs(file.read())
        async with open_store(settings.state, create=False) as store:
            if owner not in {key.owner for key in await listed_keys(store)}:
                raise Mistake(f"there is no key of {owner}; `keys list` shows what there is")
            try:
                names = {legacy_id: current_id for legacy_id, (_, current_id) in pairs.items()}
                await keep(store, owner, names, imported=True)
            except Collision as collision:
                raise PairsRefused(pairs[collision.legacy_id][0], str(collision)) from None
        click.echo(f"Imported {len(pairs)} pairs of ids: {owner}")

    try:
        completed(done())
    except PairsRefused as error:
        name = getattr(file, "name", "<stdin>")
        raise Mistake(f"{name}: {error}; nothing was imported") from None
