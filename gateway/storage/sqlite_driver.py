"""The driver of SQLite: pysqlite3, which brings a recent SQLite with it, or Python's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3
else:
    try:
        from pysqlite3 import dbapi2 as sqlite3
    except ImportError:  # it has no wheel for this machine
        import sqlite3

__all__ = ["JOURNAL_MODE", "sqlite3"]

# Without an adapter, the driver searches for one for each NULL, which costs more than the row.
# The method of a dictionary is one in C that returns None for None.
sqlite3.register_adapter(type(None), {}.get)  # type: ignore[arg-type]

JOURNAL_MODE = "WAL" if sqlite3.sqlite_version_info >= (3, 51, 3) else "PERSIST"
"""WAL costs one wait for the disk per commit, a rollback journal four. Before SQLite 3.51.3, the
reset of a WAL could lose writes of several connections. PERSIST invalidates the journal in place,
half the disk work of creating it again."""
