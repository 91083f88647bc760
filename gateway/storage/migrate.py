"""Creates or upgrades the tables when the database is opened."""

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DBAPIError

from gateway.storage.errors import StoreUnavailable, describe_database_error
from gateway.storage.schema_upgrade import upgrade_tables
from gateway.storage.tables import counters, metadata

OLDEST_REVISION, NEWEST_REVISION = "0017", "0035"
"""The revision of the tables of 23 November 2026, the oldest that are upgraded; and that of
``tables.py``, which each change there increases."""


def migrate(connection: Connection, where: str) -> None:
    """Creates or upgrades the tables in the caller's transaction; raises StoreUnavailable."""
    try:
        revision = find_schema_revision(connection)
        if revision is None:
            _create_schema(connection)
        elif revision != NEWEST_REVISION:
            _upgrade_schema(connection, where, revision)
    except DBAPIError as error:
        raise StoreUnavailable(
            f"the tables of the database at {where} cannot be brought up to date "
            f"({describe_database_error(error)})",
            means="this version cannot use them as they are; nothing was changed",
            do="check that the database's user may create tables, that nothing else uses them "
            "and that they belong to this gateway",
        ) from None


def _create_schema(connection: Connection) -> None:
    metadata.create_all(connection, checkfirst=False)
    connection.execute(counters.insert().values(name="keys", value=0))
    # As alembic created it, which made the tables of earlier revisions.
    connection.execute(
        text(
            "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, "
            "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
        )
    )
    stamp = text("INSERT INTO alembic_version (version_num) VALUES (:revision)")
    connection.execute(stamp, {"revision": NEWEST_REVISION})


def find_schema_revision(connection: Connection) -> str | None:
    """Returns the revision of the tables; None if there are none."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return revision


def _upgrade_schema(connection: Connection, location: str, revision: str) -> None:
    """Upgrades the tables; raises StoreUnavailable if they are too old or too new."""
    if not OLDEST_REVISION <= revision < NEWEST_REVISION:
        is_old = revision < OLDEST_REVISION
        raise StoreUnavailable(
            f"the database at {location} is at revision {revision}, unknown to this version",
            means="a development version of before 24 November 2026 has created it"
            if is_old
            else "a newer version of the gateway has upgraded it",
            do="start a version of 24 November 2026 once, which upgrades it, and then this one"
            if is_old
            else "run that version, or restore a backup from before the upgrade",
        )
    upgrade_tables(connection, revision)
    stamp = text("UPDATE alembic_version SET version_num = :revision")
    connection.execute(stamp, {"revision": NEWEST_REVISION})
