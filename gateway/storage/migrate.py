"""Creates or upgrades the tables when the database is opened."""

from __future__ import annotations

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DBAPIError

from gateway.storage.errors import StoreUnavailable, describe_database_error
from gateway.storage.migrations import find_newest_revision
from gateway.storage.tables import counters, metadata


def migrate(connection: Connection, where: str) -> None:
    """Creates or upgrades the tables in the caller's transaction; raises StoreUnavailable."""
    try:
        revision = find_schema_revision(connection)
        if revision is None:
            _create_schema(connection)
        elif revision != find_newest_revision():
            # alembic takes long to load, and most starts and commands do not need it.
            from gateway.storage.schema_upgrade import upgrade_schema  # noqa: PLC0415

            upgrade_schema(connection, where)
    except DBAPIError as error:
        raise StoreUnavailable(
            f"the tables of the database at {where} cannot be brought up to date "
            f"({describe_database_error(error)})",
            means="this version cannot use them as they are; nothing was changed",
            do="check that the database's user may create tables, that nothing else uses them "
            "and that they belong to this gateway",
        ) from None


def _create_schema(connection: Connection) -> None:
    """Creates the tables as the migrations would leave them, in a fraction of their time."""
    metadata.create_all(connection, checkfirst=False)
    connection.execute(counters.insert().values(name="keys", value=0))
    # As alembic creates it.
    connection.execute(
        text(
            "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, "
            "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
        )
    )
    stamp = text("INSERT INTO alembic_version (version_num) VALUES (:revision)")
    connection.execute(stamp, {"revision": find_newest_revision()})


def find_schema_revision(connection: Connection) -> str | None:
    """Returns the revision of the tables; None if there are none."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return revision
