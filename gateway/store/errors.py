"""The one way in which the store says that it cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout


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
    if isinstance(error, DBAPIError) or isinstance(original, asyncpg.PostgresError):
        return str(original).partition("\n")[0]
    return type(original).__name__


@contextmanager
def telling(where: str) -> Iterator[None]:
    """Turns what a database or its network does wrong into StoreUnavailable.

    A statement that is wrong in itself is a mistake in the code and passes as it is. The cause is
    not chained: a driver's own text may quote the address that it was given.
    """
    try:
        yield
    except (IntegrityError, ProgrammingError, DataError):
        raise
    except (
        DBAPIError,
        PoolTimeout,
        OSError,
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
    ) as error:
        raise StoreUnavailable(
            f"the state at {where} cannot be used ({reason(error)})",
            means="what needs it is refused until it can be",
            do="see that the database runs, can be reached and has room, and who else uses it",
        ) from None
