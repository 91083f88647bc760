"""The steps of ``migrations/``, carried out by alembic."""

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
    """What alembic would read from a file of its own."""
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


@cache
def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(configuration())


def upgrade(connection: Connection, where: str) -> None:
    """Carries out what was not yet; StoreUnavailable where a newer version's were."""
    at = MigrationContext.configure(connection).get_current_heads()
    scripts = _scripts()
    known = {script.revision for script in scripts.walk_revisions()}
    if newer := [revision for revision in at if revision not in known]:
        raise StoreUnavailable(
            f"the state at {where} is at revision {', '.join(newer)}, unknown to this version",
            means="a newer version has changed it",
            do="start that version, or restore the backup made before it was started",
        )

    def steps(found: Any, _context: MigrationContext) -> Any:
        return scripts._upgrade_revs("head", found)  # noqa: SLF001 - as alembic's own cookbook does

    # What `command.upgrade` does, but for reading every script anew.
    with EnvironmentContext(configuration(connection), scripts, fn=steps, destination_rev="head"):
        scripts.run_env()
