"""Creates or upgrades the tables when the database is opened."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DBAPIError

from gateway.storage.errors import StoreUnavailable, describe_database_error
from gateway.storage.tables import counters, metadata

# alembic takes long to load, and most starts and commands do not need it.
if TYPE_CHECKING:
    from alembic.config import Config

_SCRIPTS = Path(__file__).parent / "migrations"


@cache
def list_revisions() -> list[str]:
    """Lists the revisions, oldest first, with which the names of their scripts begin."""
    return sorted(file.name.partition("_")[0] for file in _SCRIPTS.glob("versions/*.py"))


def find_newest_revision() -> str:
    return list_revisions()[-1]


def migrate(connection: Connection, where: str) -> None:
    """Creates or upgrades the tables in the caller's transaction; raises StoreUnavailable."""
    try:
        revision = find_schema_revision(connection)
        if revision is None:
            _create_schema(connection)
        elif revision != find_newest_revision():
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


def _upgrade_schema(connection: Connection, location: str, revision: str) -> None:
    """Runs the missing migrations; raises StoreUnavailable if the tables are too old or too new."""
    if revision not in list_revisions():
        is_old = revision < list_revisions()[0]
        raise StoreUnavailable(
            f"the database at {location} is at revision {revision}, unknown to this version",
            means="a development version of before 24 November 2026 has created it"
            if is_old
            else "a newer version of the gateway has upgraded it",
            do="start a version of 24 November 2026 once, which upgrades it, and then this one"
            if is_old
            else "run that version, or restore a backup from before the upgrade",
        )
    from alembic import command  # noqa: PLC0415

    command.upgrade(build_alembic_config(connection), "head")
    # Migrations only drop indexes, so that each is defined once.
    for table in metadata.sorted_tables:
        for index in table.indexes:
            index.create(connection, checkfirst=True)


def build_alembic_config(connection: Connection | None = None) -> Config:
    """Builds the alembic configuration, in place of an ``alembic.ini``."""
    from alembic.config import Config  # noqa: PLC0415

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
