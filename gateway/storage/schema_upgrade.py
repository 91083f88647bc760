"""Upgrades the schema with the alembic scripts in ``migrations/``."""

from __future__ import annotations

from functools import cache
from typing import Any

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from gateway.storage.errors import StoreUnavailable
from gateway.storage.migrations import FOLDER


def build_alembic_config(connection: Connection | None = None) -> Config:
    """Builds the alembic configuration, in place of an ``alembic.ini``."""
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


@cache
def _load_migration_scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(build_alembic_config())


def upgrade_schema(connection: Connection, location: str) -> None:
    """Runs the missing migrations; raises StoreUnavailable if the tables are too old or too new."""
    current_heads = MigrationContext.configure(connection).get_current_heads()
    scripts = _load_migration_scripts()
    known_revisions = {script.revision for script in scripts.walk_revisions()}
    for revision in current_heads:
        if revision in known_revisions:
            continue
        is_old = revision < min(known_revisions)
        raise StoreUnavailable(
            f"the database at {location} is at revision {revision}, unknown to this version",
            means="a development version of before 24 November 2026 has created it"
            if is_old
            else "a newer version of the gateway has upgraded it",
            do="start a version of 24 November 2026 once, which upgrades it, and then this one"
            if is_old
            else "run that version, or restore a backup from before the upgrade",
        )

    def list_missing_migrations(current: Any, _context: MigrationContext) -> Any:
        return scripts._upgrade_revs("head", current)  # noqa: SLF001 - as in its cookbook

    # Like `command.upgrade`, but without reading every script again.
    with EnvironmentContext(
        build_alembic_config(connection),
        scripts,
        fn=list_missing_migrations,
        destination_rev="head",
    ):
        scripts.run_env()
