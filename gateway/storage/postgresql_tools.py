"""Runs ``pg_dump`` and ``pg_restore``.

The address is passed in environment variables: every user of the machine can read a password in
the arguments of a process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from sqlalchemy import URL

from gateway.storage.engine import format_address
from gateway.storage.errors import StoreUnavailable

_ENVIRONMENT_VARIABLES = {
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


def dump_database(address: URL, target: Path) -> None:
    """Dumps a database in pg_dump's custom format; raises StoreUnavailable."""
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    remedy = (
        "install PostgreSQL's client programs of the server's version or later on this machine, or "
        f"save `pg_dump --format=custom --file=gateway.dump {format_address(address)}` and then "
        "the key file yourself"
    )
    _run_program(
        ["pg_dump", "--format=custom", "--no-owner", f"--file={target}"], address, "saved", remedy
    )


def restore_database(address: URL, source: Path) -> None:
    """Restores a dump in one transaction; raises StoreUnavailable."""
    remedy = "install PostgreSQL's client programs of the server's version or later on this machine"
    options = ["--clean", "--if-exists", "--no-owner", "--single-transaction", "--exit-on-error"]
    name = f"--dbname={_build_libpq_environment(address).get('PGDATABASE', '')}"
    _run_program(["pg_restore", *options, name, str(source)], address, "restored", remedy)


def _run_program(command: list[str], address: URL, action: str, remedy: str) -> None:
    if (program := shutil.which(command[0])) is None:
        raise StoreUnavailable(
            f"{command[0]} is not installed", means=f"the database was not {action}", do=remedy
        )
    process = subprocess.run(  # noqa: S603 - no shell, and no argument is user input
        [program, *command[1:]],
        env={**os.environ, **_build_libpq_environment(address)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if process.returncode:
        error_lines = process.stderr.decode(errors="replace").strip().splitlines()
        raise StoreUnavailable(
            f"{command[0]} failed ({' '.join(error_lines[-1:])})",
            means=f"the database at {format_address(address)} was not {action}",
            do=remedy,
        )


def _build_libpq_environment(address: URL) -> dict[str, str]:
    parameters: dict[str, object] = {
        **{name: value for name, value in address.query.items() if name in _ENVIRONMENT_VARIABLES},
        **({"host": address.host} if address.host else {}),
        **({"port": address.port} if address.port else {}),
        **({"user": address.username} if address.username else {}),
        **({"dbname": address.database} if address.database else {}),
    }
    variables = {_ENVIRONMENT_VARIABLES[name]: str(value) for name, value in parameters.items()}
    return variables | ({"PGPASSWORD": str(address.password)} if address.password else {})
