"""The error of the storage layer, StoreUnavailable, and its messages for operators."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import asyncpg
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError

from gateway.config import OperatorError
from gateway.observability import metrics
from gateway.storage.sqlite_driver import sqlite3


class StoreUnavailable(OperatorError):
    """The database cannot be used."""

    def __init__(self, happened: str, *, means: str, do: str) -> None:
        super().__init__(f"{happened}: {means}; {do}")
        self.happened = happened
        self.means = means
        self.do = do


def describe_database_error(error: BaseException) -> str:
    """Describes a database error in one line.

    Only errors whose text cannot contain a stored value or a password are quoted; others are
    described by their class name.
    """
    original = _find_driver_error(error)
    # asyncpg's text is of its own functions. Not of a subclass, whose text is a reason.
    if type(original) is ConnectionError or isinstance(original, asyncpg.InternalClientError):
        return "the connection was lost"
    if isinstance(original, OSError):
        return original.strerror or str(original) or type(original).__name__
    # Its text may quote the arguments of a statement.
    if isinstance(original, asyncpg.InterfaceError):
        return type(original).__name__
    if isinstance(error, DBAPIError) or isinstance(original, _QUOTABLE_ERRORS):
        return str(original).partition("\n")[0]
    return type(original).__name__


def _find_driver_error(error: BaseException) -> BaseException:
    driver_error = error.orig if isinstance(error, DBAPIError) and error.orig else error
    return driver_error.__cause__ or driver_error


_QUOTABLE_ERRORS = (asyncpg.PostgresError, sqlite3.DatabaseError)


_BUGS = (
    *(IntegrityError, ProgrammingError, DataError),
    *(sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.DataError),
)


def find_sqlite_code(error: BaseException) -> int:
    """Returns SQLite's primary result code, which is the low byte of an extended one; 0 if none."""
    code: int = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code


def is_damage(error: BaseException) -> bool:
    """Whether an SQLite file is damaged. With a WAL a connection keeps the pages that it read."""
    return find_sqlite_code(error) in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)


DATABASE_ERRORS = (
    *(DBAPIError, OSError, sqlite3.DatabaseError),
    *(asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError),
)
"""Errors of the database or its network."""


def translate_database_error(
    error: Exception, location: str, record_reason: Callable[[str], None] | None = None
) -> Exception:
    """Translates one of ``DATABASE_ERRORS`` into StoreUnavailable.

    A value that does not fit its table is a bug and returned unchanged. Raise the result from None,
    because the text of a driver may quote the database URL with its password. ``record_reason`` is
    called with the reason.
    """
    if isinstance(error, _BUGS):
        return error
    metrics.database_errors.inc()
    reason = describe_database_error(error)
    if record_reason is not None:
        record_reason(reason)
    return StoreUnavailable(
        f"the database at {location} cannot be used ({reason})",
        means="a gateway that runs refuses requests that need it until it can be used, and no "
        "other can start",
        do=_select_database_error_remedy(error),
    )


@contextmanager
def translate_database_errors(
    location: str, record_reason: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Raises errors of the database as ``translate_database_error`` translates them."""
    try:
        yield
    except DATABASE_ERRORS as error:
        raise translate_database_error(error, location, record_reason) from None


def _select_database_error_remedy(error: Exception) -> str:
    driver_error = _find_driver_error(error)
    if isinstance(driver_error, asyncpg.InvalidCatalogNameError):
        return "create that database, empty (`createdb`), or set state.url to another"
    if isinstance(driver_error, asyncpg.InvalidAuthorizationSpecificationError):
        return "check the user and password in state.url, and that this user may log in"
    if is_damage(driver_error):
        return (
            "the file is damaged or not a database: check state.url, and if it is right, replace "
            "the file with a backup by `payout-gateway restore`"
        )
    return "check that the database runs, is reachable and has free space, and what else uses it"


def build_unwritable_error(location: str, reason: str) -> StoreUnavailable:
    """Builds the error of a database that cannot be written but may still be read."""
    return StoreUnavailable(
        f"the database at {location} cannot be written ({reason})",
        means="writes of clients are refused until it can be written; reads may continue",
        do="check that its disk has free space, that the database runs, and what else uses it; "
        "no restart is needed",
    )
