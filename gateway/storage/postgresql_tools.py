"""Runs ``pg_dump`` and ``pg_restore``.

The address is passed in environment variables: every user of the machine can read a password in
the arguments of a process.
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
"""Parameters of a database URL, and the environment variables of libpq for them."""


def dump(address: URL, target: Path) -> None:
    """Dumps a database in pg_dump's custom format; raises StoreUnavailable."""
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    do = (
        "install PostgreSQL's client programs of the server's version or later on this machine, or "
        f"save `pg_dump --format=custom --file=gateway.dump {shown(address)}` and then the key file "
        "yourself"
    )
    _run(["pg_dump", "--format=custom", "--no-owner", f"--file={target}"], address, "saved", do)


def load(address: URL, source: Path) -> None:
    """Restores a dump in one transaction; raises StoreUnavailable."""
    do = "install PostgreSQL's client programs of the server's version or later on this machine"
    options = ["--clean", "--if-exists", "--no-owner", "--single-transaction", "--exit-on-error"]
    name = f"--dbname={_variables(address).get('PGDATABASE', '')}"
    _run(["pg_restore", *options, name, str(source)], address, "restored", do)


def _run(command: list[str], address: URL, done: str, do: str) -> None:
    if (program := shutil.which(command[0])) is None:
        raise StoreUnavailable(
            f"{command[0]} is not installed", means=f"the database was not {done}", do=do
        )
    ended = subprocess.run(  # noqa: S603 - no shell, and no argument is user input
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
    """Loads the schema revision of a database; None if it has no tables. Raises StoreUnavailable."""
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
            do="check that it runs and is reachable",
        ) from None
