"""PostgreSQL's own programs, which save a database and load a saved one.

They are told where it is by variables: a password in an argument could be read by everybody.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import asyncpg
from sqlalchemy import URL

from gateway.storage.engine import shown
from gateway.storage.errors import StoreUnavailable, reason

_PARAMETERS = {
    "host": "PGHOST",
    "port": "PGPORT",
    "user": "PGUSER",
    "dbname": "PGDATABASE",
    "sslmode": "PGSSLMODE",
    "sslcert": "PGSSLCERT",
    "sslkey": "PGSSLKEY",
    "sslrootcert": "PGSSLROOTCERT",
    "passfile": "PGPASSFILE",
}
"""Of an address's parameters those that these programs know by a variable."""


def dump(address: URL, target: Path) -> None:
    """pg_dump in its custom format; StoreUnavailable."""
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    do = (
        "install PostgreSQL's client programs here, of the server's version or later, or save both "
        f"yourself: `pg_dump --format=custom --file=gateway.dump {shown(address)}` and, after it, "
        "the key file"
    )
    _run(["pg_dump", "--format=custom", "--no-owner", f"--file={target}"], address, "saved", do)


def load(address: URL, source: Path) -> None:
    """pg_restore, all or nothing; StoreUnavailable."""
    do = "install PostgreSQL's client programs here, of the server's version or later"
    options = ["--clean", "--if-exists", "--no-owner", "--single-transaction", "--exit-on-error"]
    name = f"--dbname={_variables(address).get('PGDATABASE', '')}"
    _run(["pg_restore", *options, name, str(source)], address, "restored", do)


def _run(command: list[str], address: URL, done: str, do: str) -> None:
    if (program := shutil.which(command[0])) is None:
        raise StoreUnavailable(
            f"{command[0]} is not here", means=f"the database was not {done}", do=do
        )
    ended = subprocess.run(  # noqa: S603 - no shell, and no argument is a stranger's
        [program, *command[1:]],
        env={**os.environ, **_variables(address)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if ended.returncode:
        said = ended.stderr.decode(errors="replace").strip().splitlines()
        raise StoreUnavailable(
            f"{command[0]} failed ({' '.join(said[-1:])})",
            means=f"the database at {shown(address)} was not {done}",
            do=do,
        )


def _variables(address: URL) -> dict[str, str]:
    given: dict[str, object] = {
        **{name: value for name, value in address.query.items() if name in _PARAMETERS},
        **({"host": address.host} if address.host else {}),
        **({"port": address.port} if address.port else {}),
        **({"user": address.username} if address.username else {}),
        **({"dbname": address.database} if address.database else {}),
    }
    named = {_PARAMETERS[name]: str(value) for name, value in given.items()}
    return named | ({"PGPASSWORD": str(address.password)} if address.password else {})


async def revision(address: URL) -> str | None:
    """That of the tables which the database has; None where it has none. StoreUnavailable."""
    try:
        connection = await asyncpg.connect(address.render_as_string(hide_password=False), timeout=5)
        try:
            there = await connection.fetchval("SELECT to_regclass('alembic_version') IS NOT NULL")
            if not there:
                return None
            return str(await connection.fetchval("SELECT version_num FROM alembic_version"))
        finally:
            await connection.close()
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError) as error:
        raise StoreUnavailable(
            f"the database at {shown(address)} cannot be used ({reason(error)})",
            means="nothing was restored",
            do="see that it runs and can be reached",
        ) from None
