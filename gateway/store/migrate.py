"""Bringing the tables up to date at start."""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.store.errors import StoreUnavailable, reason

_SCRIPTS = Path(__file__).with_name("migrations")

# alembic's ``context`` and ``op`` are one for the whole process.
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def migrate(connection: AsyncConnection, where: str) -> None:
    """Makes or updates the tables inside the caller's transaction; raises StoreUnavailable."""
    turn = _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
    async with turn:
        try:
            await connection.run_sync(_upgrade, where)
        except DBAPIError as error:
            raise StoreUnavailable(
                f"the tables of the state at {where} cannot be brought up to date "
                f"({reason(error)})",
                means="this version does not run on them as they are; nothing was changed",
                do="see that the database's user may create tables, that nothing else uses them "
                "and that they are this gateway's",
            ) from None


def configuration(connection: Connection | None = None) -> Config:
    """What alembic would read from a file of its own."""
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


@cache
def _scripts() -> ScriptDirectory:
    """Read once: each start and each command looks whether there is anything to do."""
    return ScriptDirectory.from_config(configuration())


def _upgrade(connection: Connection, where: str) -> None:
    at = MigrationContext.configure(connection).get_current_heads()
    scripts = _scripts()
    if list(at) == scripts.get_heads():
        return
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
