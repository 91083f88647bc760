"""The one way in which the store says that it cannot be used."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import asyncpg
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError

from gateway.observability import metrics


class StoreUnavailable(Exception):
    """The state cannot be used; the text is one line for the operator and holds no secret."""

    def __init__(self, happened: str, *, means: str, do: str) -> None:
        super().__init__(f"{happened}: {means}; {do}")
        self.happened = happened
        self.means = means
        self.do = do


def reason(error: BaseException) -> str:
    """What a database said, in one line.

    Only kinds whose text cannot quote a value or an address's password are quoted; of the others
    the kind is named.
    """
    cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
    original = cause.__cause__ or cause
    if isinstance(original, OSError):
        return original.strerror or str(original) or type(original).__name__
    if isinstance(original, asyncpg.InterfaceError):
        return type(original).__name__
    if isinstance(error, DBAPIError) or isinstance(original, _QUOTED):
        return str(original).partition("\n")[0]
    return type(original).__name__


_QUOTED = (asyncpg.PostgresError, sqlite3.DatabaseError)


_MISTAKES = (
    *(IntegrityError, ProgrammingError, DataError),
    *(sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.DataError),
    *(asyncpg.IntegrityConstraintViolationError, asyncpg.DataError),
)


@contextmanager
def telling(where: str, note: Callable[[str], None] | None = None) -> Iterator[None]:
    """Turns what a database or its network does wrong into StoreUnavailable.

    A value that does not fit its table is a mistake in the code and passes as it is. The cause is
    not chained: a driver's own text may quote the address that it was given. ``note`` is told
    the reason: where something was to be written, whoever asks for it later may want to know.
    """
    try:
        yield
    except _MISTAKES:
        raise
    except (
        DBAPIError,
        OSError,
        sqlite3.DatabaseError,
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
    ) as error:
        metrics.database_errors.inc()
        why = reason(error)
        if note is not None:
            note(why)
        raise StoreUnavailable(
            f"the state at {where} cannot be used ({why})",
            means="what needs it is refused until it can be",
            do=_remedy(error),
        ) from None


OTHERWISE = "see that the database runs, can be reached and has room, and who else uses it"
SPOILT = (
    "the file is spoilt, or another one: see that state.url names the right one, and if it does, "
    "put a backup in its place with `payout-gateway restore`"
)


NOT_THERE = "make that database, empty (`createdb`), or name another in state.url"
REFUSED = "see that the user and the password of state.url are right, and that this user may log in"


def _remedy(error: Exception) -> str:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
    original = cause.__cause__ or cause
    if isinstance(original, asyncpg.InvalidCatalogNameError):
        return NOT_THERE
    if isinstance(original, asyncpg.InvalidAuthorizationSpecificationError):
        return REFUSED
    code = getattr(original, "sqlite_errorcode", 0)
    spoilt = code & 0xFF in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
    return SPOILT if spoilt else OTHERWISE


def unwritable(where: str, why: str) -> StoreUnavailable:
    """Of a state that may be read all the same."""
    return StoreUnavailable(
        f"the state at {where} cannot be written ({why})",
        means="no write of a client goes out until it can be; reads may go on",
        do="see that its disk has room, that the database runs, and who else uses it; "
        "nothing needs to be started anew",
    )
