"""`payout-gateway backup` and `restore`: state and key file together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.cli.command_group import document, json_option
from gateway.cli.errors import Mistake
from gateway.cli.options import config_option
from gateway.cli.output import run_to_completion
from gateway.config.settings import Settings

if TYPE_CHECKING:
    from gateway.storage.archive import Manifest

_file = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))


@click.command()
@_file
@json_option
@config_option
def backup(*, file: Path, as_json: bool, settings: Settings) -> None:
    """Save the state and the key file to FILE, while a gateway may be running.

    Neither is of use without the other. Whoever has FILE can read every secret: it is made
    readable by its owner only, and belongs where the key file may be. An SQLite state is copied as
    of one moment, and writes wait for that long; of a PostgreSQL state pg_dump, which has to be
    here, makes the copy.
    """
    from gateway.storage.backups import save

    if file.exists():
        raise Mistake(f"{file} is there already; nothing was written")

    async def done() -> tuple[Manifest, int]:
        return await save(settings.state, file)

    manifest, size = run_to_completion(done(), "Saving")
    if as_json:
        document({"file": str(file), "bytes": size, **_told(manifest)})
        return
    click.echo(f"Saved the state and the key file to {file} ({size} bytes).")
    click.echo("Whoever has it can read every secret that the gateway keeps.")


@click.command()
@_file
@click.option(
    "--force",
    is_flag=True,
    help="Also where there is a state already: PostgreSQL keeps none of it.",
)
@json_option
@config_option
def restore(*, file: Path, force: bool, as_json: bool, settings: Settings) -> None:
    """Put the state and key file of FILE, made by `backup`, in their place. End the gateway first.

    What is there already is only replaced with --force. An SQLite state and a key file stay beside
    it under another name; of a PostgreSQL state nothing stays: `backup` saves it first. What was
    done since the backup the restored state does not know: no batch is started on it until
    `payout-gateway reconcile` has compared it with the service.
    """
    from gateway.storage.backups import restore as put_back

    async def done() -> tuple[Manifest, list[Path]]:
        return await put_back(settings.state, file, force=force)

    manifest, aside = run_to_completion(done(), "Restoring")
    if as_json:
        document({"file": str(file), "put_aside": list(map(str, aside)), **_told(manifest)})
        return
    click.echo(f"Restored the state of {manifest.made_at} from {file}.")
    for path in aside:
        click.echo(f"What was there before is in {path}.")
    click.echo("No batch is started on it before `payout-gateway reconcile` was run.")
    click.echo(
        "API keys that were revoked since are valid again: look at `payout-gateway keys list`, and "
        "revoke them anew."
    )


def _told(manifest: Manifest) -> dict[str, object]:
    return {
        "made_at": manifest.made_at,
        "state": manifest.kind,
        "revision": manifest.revision,
        "requests": manifest.undertakings,
    }
