"""`payout-gateway migrate`: creates the tables of the database or brings them up to date."""

from __future__ import annotations

import click

from gateway.cli.options import config_option
from gateway.cli.output import run_to_completion
from gateway.config.settings import Settings
from gateway.storage import open_store
from gateway.storage.migrations import find_newest_revision
from gateway.storage.store import load_schema_revision


@click.command()
@config_option
def migrate(*, settings: Settings) -> None:
    """Create the database's tables, or bring them up to date for this version.

    Starting the gateway does the same. Run it before an update of several instances, so that they
    find the tables ready. Exit code 0: the tables are up to date. 2: they could not be changed; the
    database is as it was.
    """

    async def migrate_database() -> tuple[str | None, str]:
        old_revision = await load_schema_revision(settings.state)
        async with open_store(settings.state) as store:
            return old_revision, store.where

    old_revision, location = run_to_completion(migrate_database(), "Migrating")
    revision = find_newest_revision()
    if old_revision == revision:
        click.echo(f"{location} is up to date (revision {revision}); nothing was changed")
    elif old_revision is None:
        click.echo(f"Created the tables of {location} (revision {revision})")
    else:
        click.echo(f"Brought {location} from revision {old_revision} to {revision}")
