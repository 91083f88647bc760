"""A backup as a file: state and key file together, since neither is of use without the other.

A tar file, its owner's alone, with ``manifest.json``, ``state`` (an SQLite database, or what
pg_dump makes in its custom format) and ``key``.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Literal

from gateway.storage.errors import StoreUnavailable

MANIFEST, STATE, KEY = "manifest.json", "state", "key"
FORMAT = 1

Kind = Literal["sqlite", "postgresql"]


@dataclass(frozen=True, slots=True)
class Manifest:
    """``revision`` is that of the tables, ``undertakings`` how far the state had come."""

    made_at: str
    kind: Kind
    revision: str
    undertakings: int
    format: int = FORMAT


@contextmanager
def folder_beside(path: Path) -> Iterator[Path]:
    """A folder of its own, its owner's alone, on the file's own disk; gone afterwards."""
    try:
        with TemporaryDirectory(dir=path.absolute().parent, prefix=f".{path.name}-") as name:
            yield Path(name)
    except OSError as error:
        raise StoreUnavailable(
            f"{_told(error, path)} cannot be written or read ({error.strerror})",
            means="it was not done",
            do="see that the folder exists, has room and may be written by this user",
        ) from None


def _told(error: OSError, path: Path) -> str:
    """The file of an error; of the folder beside it, which nobody named, the one that was named."""
    name = str(error.filename or path)
    return str(path) if Path(name).name.startswith(f".{path.name}-") else name


def pack(path: Path, manifest: Manifest, state: Path, key: Path, within: Path) -> int:
    """Writes an archive in one step, 0600; returns its size in bytes. OSError."""
    packed = within / "archive"
    with os.fdopen(os.open(packed, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            text = json.dumps(asdict(manifest), indent=2).encode()
            archive.addfile(_member(MANIFEST, len(text)), io.BytesIO(text))
            for name, source in ((STATE, state), (KEY, key)):
                with source.open("rb") as content:
                    size = os.fstat(content.fileno()).st_size
                    archive.addfile(_member(name, size), content)
        file.flush()
        os.fsync(file.fileno())
    packed.replace(path)
    sync_folder(path)
    return path.stat().st_size


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    return member


def unpack(path: Path, within: Path) -> tuple[Manifest, Path, Path]:
    """Takes an archive apart; StoreUnavailable. The files are in the folder, 0600."""
    try:
        with tarfile.open(path, mode="r:") as archive:
            manifest = _manifest(archive)
            return manifest, _taken(archive, STATE, within), _taken(archive, KEY, within)
    except FileNotFoundError:
        raise _no_backup(path, "there is no such file") from None
    except (tarfile.TarError, KeyError, ValueError, TypeError, EOFError):
        raise _no_backup(path, "it is not one, or was cut off") from None


def _manifest(archive: tarfile.TarFile) -> Manifest:
    told = json.loads(_content(archive, MANIFEST).read())
    if told["format"] != FORMAT or told["kind"] not in ("sqlite", "postgresql"):
        raise ValueError
    return Manifest(**told)


def _content(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    # By name and into files of our own: an archive may name any path.
    content = archive.extractfile(archive.getmember(name))
    if content is None:
        raise ValueError
    return content


def _taken(archive: tarfile.TarFile, name: str, within: Path) -> Path:
    taken = within / name
    with (
        _content(archive, name) as content,
        os.fdopen(os.open(taken, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file,
    ):
        while chunk := content.read(1 << 20):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return taken


def _no_backup(path: Path, why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{path} is no backup of a gateway ({why})",
        means="nothing was restored",
        do="name a file that `payout-gateway backup` made",
    )


def sync_folder(path: Path) -> None:
    """Has the disk know of a file's new name."""
    with suppress(OSError):
        descriptor = os.open(path.absolute().parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
