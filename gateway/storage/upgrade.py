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


def configuration(connection: Connection | None = None) -> Config:
    """The alembic configuration, in place of an ``alembic.ini``."""
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


@cache
def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(configuration())


def upgrade(connection: Connection, where: str) -> None:
    """Runs the missing migrations; raises StoreUnavailable if a newer version has run its own."""
    at = MigrationContext.configure(connection).get_current_heads()
    scripts = _scripts()
    known = {script.revision for script in scripts.walk_revisions()}
    if newer := [revision for revision in at if revision not in known]:
        raise StoreUnavailable(
            f"the database at {where} is at revision {', '.join(newer)}, unknown to this version",
            means="a newer version of the gateway has upgraded it",
            do="run that version, or restore a backup from before the upgrade",
        )

    def steps(found: Any, _context: MigrationContext) -> Any:
        return scripts._upgrade_revs("head", found)  # noqa: SLF001 - as alembic's own cookbook does

    # Like `command.upgrade`, but without reading every script again.
    with EnvironmentContext(configuration(connection), scripts, fn=steps, destination_rev="head"):
        scripts.run_env()
