"""Saving a state with its key file, and putting a saved one in the place of what there is.

A restored state is an older one: nothing is started on it until `payout-gateway reconcile` has
compared it with the service. So the mark (marks.py) is neither saved nor restored.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy import text

from gateway.config.settings import State
from gateway.storage import engine, postgresql_tools
from gateway.storage.archive import Kind, Manifest, folder_beside, pack, sync_folder, unpack
from gateway.storage.errors import StoreUnavailable
from gateway.storage.heartbeats import is_used
from gateway.storage.keyfile import read_key_file
from gateway.storage.restore_marks import NONE, Mark, flag_restored, read_mark, standing
from gateway.storage.store import Store, open_store

RESTORED = "restored a backup"


async def save(state: State, path: Path) -> tuple[Manifest, int]:
    """Saves state and key file to one file while a gateway may run; StoreUnavailable.

    Returns what is in it and its size in bytes.
    """
    address = engine.parsed(state.url)
    source = engine.sqlite_file(address)
    async with open_store(state, create=False) as store:
        manifest = await _manifest(store, "sqlite" if source else "postgresql")
    with folder_beside(path) as within:
        copied = within / "copied"
        if source:
            await asyncio.to_thread(_copy, source, copied)
        else:
            await asyncio.to_thread(postgresql_tools.dump, address, copied)
        # After the state: a key may have been added meanwhile, and none is ever taken away.
        size = await asyncio.to_thread(
            pack, path, manifest, copied, state.encryption_key_file, within
        )
    return manifest, size


async def _manifest(store: Store, kind: Kind) -> Manifest:
    found = await standing(store)
    version = text("SELECT version_num FROM alembic_version")
    revision = str(await store.read(lambda tx: tx.fetch_value(version)))
    made_at = f"{store.clock():%Y-%m-%dT%H:%M:%SZ}"
    return Manifest(made_at, kind, revision, found.mark.number)


def _copy(source: Path, target: Path) -> None:
    """A copy as of one moment. Whoever writes waits until it is made."""
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        with closing(sqlite3.connect(source)) as from_, closing(sqlite3.connect(target)) as to:
            from_.backup(to)
            said = to.execute("PRAGMA quick_check").fetchone()[0]
    except sqlite3.Error as error:
        said = str(error)
    if said != "ok":
        raise StoreUnavailable(
            f"the state at {source} cannot be copied ({said})",
            means="there is no backup of it",
            do="see that nothing else keeps it locked; if it is damaged, restore an earlier backup",
        )


# Restoring


async def restore(state: State, path: Path, *, force: bool) -> tuple[Manifest, list[Path]]:
    """Puts a saved state in its place; StoreUnavailable, also where there is one and not ``force``.

    Returns what was restored, and where what was there before is now.
    """
    address = engine.parsed(state.url)
    target = engine.sqlite_file(address)
    with folder_beside(target or state.encryption_key_file) as within:
        manifest, saved, key = await asyncio.to_thread(unpack, path, within)
        kind = "sqlite" if target else "postgresql"
        if manifest.kind != kind:
            raise _refused(
                f"{path} was made of a {manifest.kind} state, and state.url names {kind}",
                do="restore it where state.url names a database of its kind",
            )
        if target:
            aside = await _restore_file(state, target, saved, key, force=force)
        else:
            aside = await _restore_database(state, manifest, saved, key, force=force)
    return manifest, aside


async def _restore_file(
    state: State, target: Path, saved: Path, key: Path, *, force: bool
) -> list[Path]:
    taken = [one for one in _files(target) if one.exists()]
    if taken:
        await _refuse_running(state, force=force)
    if (taken or _differs(state.encryption_key_file, key)) and not force:
        there = ", ".join(map(str, taken or [state.encryption_key_file]))
        raise _refused(f"{there} is there already", do="--force puts it aside")
    # Made ready before it takes the place: that it fits its key, and that it is an older one.
    ready = State(url=f"sqlite:///{saved}", encryption_key_file=key)
    async with open_store(ready) as store:
        await flag_restored(store, _mark_of(state), RESTORED)
    return [*_key_in_place(state, key), *_state_in_place(target, saved)]


def _state_in_place(target: Path, saved: Path) -> list[Path]:
    taken = [one for one in _files(target) if one.exists()]
    aside = [_aside(one) for one in taken]
    for one in taken:
        if one != target:  # a journal that is left over would be played into the restored file
            one.unlink()
    saved.replace(target)
    sync_folder(target)
    return aside


async def _restore_database(
    state: State, manifest: Manifest, saved: Path, key: Path, *, force: bool
) -> list[Path]:
    address = engine.parsed(state.url)
    revision = await postgresql_tools.revision(address)
    if revision and revision != manifest.revision:
        raise _refused(
            f"{engine.shown(address)} has tables of revision {revision}, the backup of "
            f"{manifest.revision}",
            do="restore it into an empty database",
        )
    if revision:
        await _refuse_running(state, force=force)
    if (revision or _differs(state.encryption_key_file, key)) and not force:
        there = engine.shown(address) if revision else state.encryption_key_file
        raise _refused(
            f"{there} is there already",
            do="--force puts the backup in its place, and keeps nothing of what is there",
        )
    aside = _key_in_place(state, key)
    await asyncio.to_thread(postgresql_tools.load, address, saved)
    async with open_store(state) as store:
        await flag_restored(store, _mark_of(state), RESTORED)
    return aside


def _files(target: Path) -> list[Path]:
    """An SQLite database, and what it may keep beside itself."""
    return [target, *(Path(f"{target}-{what}") for what in ("journal", "wal", "shm"))]


def _differs(there: Path, key: Path) -> bool:
    """Whether a key file is there that does not have every key of the backup's."""
    if not there.exists():
        return False
    return not set(key.read_text().splitlines()) <= set(there.read_text().splitlines())


def _key_in_place(state: State, key: Path) -> list[Path]:
    """One that has more keys stays."""
    there = state.encryption_key_file
    if there.exists() and not _differs(there, key):
        return []
    aside = [_aside(there)] if there.exists() else []
    # Written anew: it may be on another disk than the state.
    made = there.with_name(f".{there.name}-restored")
    made.unlink(missing_ok=True)
    with os.fdopen(_new(made), "wb") as file:
        file.write(key.read_bytes())
        file.flush()
        os.fsync(file.fileno())
    made.replace(there)
    sync_folder(there)
    read_key_file(there)
    return aside


def _aside(path: Path) -> Path:
    """Gives a file a second name that no other has: what is replaced may be needed yet."""
    number = 1
    while True:
        aside = path.with_name(f"{path.name}.before-restore-{number}")
        try:
            _second(path, aside)
        except FileExistsError:
            number += 1
        else:
            return aside


def _second(path: Path, aside: Path) -> None:
    try:
        aside.hardlink_to(path)
    except FileExistsError:
        raise
    except OSError:  # not every disk can give a file two names
        with path.open("rb") as source, os.fdopen(_new(aside), "wb") as file:
            shutil.copyfileobj(source, file)


def _new(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)


def _mark_of(state: State) -> Mark:
    try:
        return read_mark(state.mark)
    except StoreUnavailable:
        return NONE


async def _refuse_running(state: State, *, force: bool) -> None:
    """Under a gateway that runs, it would go on writing to what is not there any more."""
    try:
        async with open_store(state, create=False, as_it_is=True) as store:
            if not await is_used(store):
                return
    except StoreUnavailable:
        return  # what cannot be read nobody runs on
    then = "" if force else "; --force then puts the backup in the place of what is there"
    raise _refused("a gateway runs on the state", do=f"end it first{then}")


def _refused(happened: str, *, do: str) -> StoreUnavailable:
    return StoreUnavailable(happened, means="nothing was restored", do=do)
