"""Bringing the tables up to date at start."""

from __future__ import annotations

import asyncio
from pathlib import Path
from weakref import WeakKeyDictionary

from alembic import command
from alembic.config import Config
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


def _upgrade(connection: Connection, where: str) -> None:
    config = configuration(connection)
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    at = MigrationContext.configure(connection).get_current_heads()
    if newer := [revision for revision in at if revision not in known]:
        raise StoreUnavailable(
            f"the state at {where} is at revision {', '.join(newer)}, unknown to this version",
            means="a newer version has changed it",
            do="start that version, or restore the backup made before it was started",
        )
    command.upgrade(config, "head")
