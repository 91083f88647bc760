"""`payout-gateway migrate`, `backup`, `restore` and `erase`: the database and its key file."""

from pathlib import Path

import click

from gateway.auth.key_rows import find_single_key, load_listed_keys
from gateway.cli import CommandError, options, output
from gateway.config.settings import Settings
from gateway.observability.plurals import pluralize
from gateway.operator.retention import ErasureCounts, erase_recipient
from gateway.storage import Store, Tenant, open_store
from gateway.storage.backups import mark_as_restored, restore_backup, save_backup
from gateway.storage.migrate import find_newest_revision
from gateway.storage.store import load_schema_revision


@click.command()
@options.config_option
def migrate(*, settings: Settings) -> None:
    """Create the database's tables, or bring them up to date for this version.

    Starting the gateway does the same. Run it before an update of several instances, so that they
    find the tables ready. Exit code 0: the tables are up to date. 2: they could not be changed; the
    database is as it was.
    """

    async def migrate_database() -> tuple[str | None, str]:
        old_revision = await load_schema_revision(settings.state)
        async with open_store(settings.state) as store:
            return old_revision, store.database.location

    old_revision, location = output.run_to_completion(migrate_database(), "Migrating")
    revision = find_newest_revision()
    if old_revision == revision:
        click.echo(f"{location} is up to date (revision {revision}); nothing was changed")
    elif old_revision is None:
        click.echo(f"Created the tables of {location} (revision {revision})")
    else:
        click.echo(f"Brought {location} from revision {old_revision} to {revision}")


@click.command()
@click.argument("file", type=options.FILE)
@options.config_option
def backup(*, file: Path, settings: Settings) -> None:
    """Save the SQLite state and the key file to FILE. Gateways may keep running.

    FILE contains the key file, so anyone who can read FILE can read every stored secret. It is
    created readable by its owner only; store it as safely as the key file itself. The copy is a
    consistent snapshot, and writes wait while it is made.

    PostgreSQL: run pg_dump, then copy the key file; deploy/runbook.md has the commands.
    """
    # Never overwritten: it may be the only backup.
    if file.exists():
        raise CommandError(f"{file} already exists; nothing was written. Choose another file name")
    output.run_to_completion(save_backup(settings.state, file), "Saving")
    size = file.stat().st_size
    click.echo(f"Saved the state and the key file to {file} ({size} bytes).")
    click.echo("Anyone who can read this file can read every secret that the gateway stores.")


@click.command()
@click.argument("file", type=options.FILE, required=False)
@click.option("--force", is_flag=True, help="Replace an existing state; its files are renamed.")
@options.yes_option
@options.config_option
def restore(*, file: Path | None, force: bool, yes: bool, settings: Settings) -> None:
    """Restore the SQLite state and the key file from FILE, an archive made by `backup`.

    Stop every gateway first. An existing state or key file is replaced only with --force, and kept
    under another name. Without FILE, marks a state that was restored by other means, such as
    pg_restore, after a confirmation.

    The restored state does not know of anything that happened after the backup. To prevent double
    payments, no batch is started until `payout-gateway reconcile` has compared it with the service.
    """
    replaced_files: list[Path] = []
    if file:
        work = restore_backup(settings.state, file, force=force)
        replaced_files = output.run_to_completion(work, "Restoring")
    else:
        # Scripts have to pass --yes too: an argument that was forgotten would stop payouts.
        question = (
            "No file is named. Mark the state as restored by other means? Gateways then start no "
            "batch until `payout-gateway reconcile` has compared everything."
        )
        options.require_confirmation(question, yes=yes)
        output.run_to_completion(mark_as_restored(settings.state))
    click.echo(f"Restored the state from {file}." if file else "Marked the state as restored.")
    for path in replaced_files:
        click.echo(f"The previous file was renamed to {path}.")
    click.echo("No batch is started until you run `payout-gateway reconcile`.")
    click.echo(
        "As they were at the backup again: API keys, also those revoked since, credentials, modes, "
        "freezes, and what `erase` has deleted since. Check `payout-gateway keys list`, `modes list` "
        "and `freeze --list`, and repeat erasures."
    )


NOT_ERASED_NOTE = (
    "Not erased: the service's own record (DELETE /v1/recipients/:id archives it there), earlier "
    "backups, and logs, which contain ids."
)


@click.command()
@click.argument("recipient", metavar="RECIPIENT_ID", callback=options.require_utf8)
@click.option("--key", "word", required=True, help="A key of the merchant, by name or prefix.")
@options.yes_option
@options.config_option
def erase(*, recipient: str, word: str, yes: bool, settings: Settings) -> None:
    """Erase the personal data of a recipient: name, address, memos and settings.

    Records without personal data are kept: ids, whether the recipient is deleted or blocked, and
    the history of writes. The command is refused while a write of the merchant is in progress or in
    doubt, or while a draft batch contains the recipient. The audit log records who ran it.
    """
    # Scripts have to pass --yes too: erased data cannot be restored.
    options.require_confirmation("Permanently erase this recipient's data?", yes=yes)

    async def erase_data(store: Store) -> tuple[ErasureCounts, Tenant]:
        # The key only names the merchant and environment, to which the recipient belongs.
        key = find_single_key(await load_listed_keys(store), word)
        return await erase_recipient(store, key.tenant, recipient), key.tenant

    erased, owner = output.run_with_store(settings, erase_data)
    if not any(erased):
        raise CommandError(
            f"nothing to erase: no data of {recipient} is stored for {owner}. If it was not erased "
            "before, check the id and the key"
        )
    payments = pluralize(erased.payments, "payment")
    batches = pluralize(erased.batches, "batch", "batches")
    facts = pluralize(erased.facts, "stored field")
    click.echo(f"Erased from {payments} in {batches}, and {facts} of the recipient.")
    if erased.answers:
        responses = pluralize(erased.answers, "encrypted response")
        click.echo(f"Stored for up to a day, for retries of requests: {responses}.")
    click.echo(NOT_ERASED_NOTE)
