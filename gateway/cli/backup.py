"""`payout-gateway backup` and `restore`: the state and its key file in one archive."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.cli.command_group import json_option, print_json
from gateway.cli.errors import CommandError
from gateway.cli.options import config_option
from gateway.cli.output import run_to_completion
from gateway.config.settings import Settings

if TYPE_CHECKING:
    from gateway.storage.archive import Manifest

file_argument = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))


@click.command()
@file_argument
@json_option
@config_option
def backup(*, file: Path, as_json: bool, settings: Settings) -> None:
    """Save the state and the key file to FILE. Gateways may keep running.

    FILE contains the key file, so anyone who can read FILE can read every stored secret. It is
    created readable by its owner only; store it as safely as the key file itself.

    SQLite: the copy is a consistent snapshot, and writes wait while it is made. PostgreSQL: the
    copy is made by pg_dump, which must be installed on this machine.
    """
    from gateway.storage.backups import save_backup

    # Never overwritten: it may be the only backup.
    if file.exists():
        raise CommandError(f"{file} already exists; nothing was written. Choose another file name")

    async def write_archive() -> tuple[Manifest, int]:
        return await save_backup(settings.state, file)

    manifest, size = run_to_completion(write_archive(), "Saving")
    if as_json:
        print_json({"file": str(file), "bytes": size, **_build_manifest_json(manifest)})
        return
    click.echo(f"Saved the state and the key file to {file} ({size} bytes).")
    click.echo("Anyone who can read this file can read every secret that the gateway stores.")


@click.command()
@file_argument
@click.option(
    "--force",
    is_flag=True,
    help="Replace an existing state. On PostgreSQL the existing data is lost.",
)
@json_option
@config_option
def restore(*, file: Path, force: bool, as_json: bool, settings: Settings) -> None:
    """Restore the state and the key file from FILE, an archive made by `backup`.

    Stop every gateway first. An existing state or key file is replaced only with --force: SQLite
    and key files are renamed and kept, but the data of a PostgreSQL state is lost, so run `backup`
    first.

    The restored state does not know of anything that happened after the backup. To prevent double
    payments, no batch is started until `payout-gateway reconcile` has compared it with the service.
    """
    from gateway.storage.backups import restore_backup

    async def restore_archive() -> tuple[Manifest, list[Path]]:
        return await restore_backup(settings.state, file, force=force)

    manifest, replaced_files = run_to_completion(restore_archive(), "Restoring")
    if as_json:
        print_json(
            {
                "file": str(file),
                # The names of JSON keys are older than those in the code; scripts read them.
                "put_aside": list(map(str, replaced_files)),
                **_build_manifest_json(manifest),
            }
        )
        return
    click.echo(f"Restored the state of {manifest.made_at} from {file}.")
    for path in replaced_files:
        click.echo(f"The previous file was renamed to {path}.")
    click.echo("No batch is started until you run `payout-gateway reconcile`.")
    click.echo(
        "API keys that were revoked after the backup are valid again: check `payout-gateway keys "
        "list` and revoke them again."
    )


def _build_manifest_json(manifest: Manifest) -> dict[str, object]:
    return {
        "made_at": manifest.made_at,
        "state": manifest.kind,
        "revision": manifest.revision,
        "requests": manifest.undertakings,
    }
