"""`payout-gateway backup` and `restore`: the state and its key file in one archive."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.cli.errors import CommandError
from gateway.cli.options import FILE, config_option, json_option, print_json
from gateway.cli.output import run_to_completion
from gateway.config.settings import Settings
from gateway.storage.backups import mark_as_restored, restore_backup, save_backup


@click.command()
@click.argument("file", type=FILE)
@json_option
@config_option
def backup(*, file: Path, as_json: bool, settings: Settings) -> None:
    """Save the SQLite state and the key file to FILE. Gateways may keep running.

    FILE contains the key file, so anyone who can read FILE can read every stored secret. It is
    created readable by its owner only; store it as safely as the key file itself. The copy is a
    consistent snapshot, and writes wait while it is made.

    PostgreSQL: run pg_dump, then copy the key file; deploy/runbook.md has the commands.
    """
    # Never overwritten: it may be the only backup.
    if file.exists():
        raise CommandError(f"{file} already exists; nothing was written. Choose another file name")
    run_to_completion(save_backup(settings.state, file), "Saving")
    size = file.stat().st_size
    if as_json:
        print_json({"file": str(file), "bytes": size})
        return
    click.echo(f"Saved the state and the key file to {file} ({size} bytes).")
    click.echo("Anyone who can read this file can read every secret that the gateway stores.")


@click.command()
@click.argument("file", type=FILE, required=False)
@click.option("--force", is_flag=True, help="Replace an existing state; its files are renamed.")
@json_option
@config_option
def restore(*, file: Path | None, force: bool, as_json: bool, settings: Settings) -> None:
    """Restore the SQLite state and the key file from FILE, an archive made by `backup`.

    Stop every gateway first. An existing state or key file is replaced only with --force, and kept
    under another name. Without FILE, marks a state that was restored by other means, such as
    pg_restore.

    The restored state does not know of anything that happened after the backup. To prevent double
    payments, no batch is started until `payout-gateway reconcile` has compared it with the service.
    """
    replaced_files: list[Path] = []
    if file:
        work = restore_backup(settings.state, file, force=force)
        replaced_files = run_to_completion(work, "Restoring")
    else:
        run_to_completion(mark_as_restored(settings.state))
    if as_json:
        # The names of JSON keys are older than those in the code; scripts read them.
        print_json({"file": str(file or ""), "put_aside": list(map(str, replaced_files))})
        return
    click.echo(f"Restored the state from {file}." if file else "Marked the state as restored.")
    for path in replaced_files:
        click.echo(f"The previous file was renamed to {path}.")
    click.echo("No batch is started until you run `payout-gateway reconcile`.")
    click.echo(
        "API keys that were revoked after the backup are valid again: check `payout-gateway keys "
        "list` and revoke them again."
    )
