"""Files of recorded traffic: HAR 1.2 as JSON lines, bounded in size and number.

The first line is the header ``{"log": {"version": "1.2", "creator": …}}``; each further line is one
entry of ``log.entries``. ``compare`` can read a file while it is written.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from gateway.compare.har import LINES_BEGIN

PREFIX, SUFFIX = "recording-", ".har.jsonl"


def list_recordings(directory: Path) -> list[Path]:
    """Lists the files in a directory, oldest first; empty if the directory does not exist."""
    return sorted(directory.glob(f"{PREFIX}*{SUFFIX}"))


@dataclass(slots=True)
class RotatingFile:
    """The file that a process writes; ``max_files`` applies to all processes together.

    Methods raise OSError. A partially written line is truncated, so that files have whole lines only.
    """

    directory: Path
    file_bytes: int
    files: int
    clock: Callable[[], datetime]
    _number: int = 0
    _open: int | None = None
    _size: int = field(default=0)

    def write(self, line: bytes) -> None:
        """Appends a line; opens a new file if there is no room in the current one."""
        if self._open is not None and not self._takes(len(line) + 1):
            self.close()
        if self._open is None:
            self._begin()
        self._put(line)

    def close(self) -> None:
        if self._open is not None:
            os.close(self._open)
        self._open = None

    def _takes(self, size: int) -> bool:
        # Another process may have deleted it as the oldest file.
        is_there = os.fstat(self._open or 0).st_nlink > 0
        return is_there and self._size + size <= self.file_bytes

    def _begin(self) -> None:
        # Recordings are scrubbed, but still not for other users of the machine.
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._number += 1
        when = f"{self.clock():%Y%m%dT%H%M%S%fZ}"
        path = self.directory / f"{PREFIX}{when}-{os.getpid()}-{self._number}{SUFFIX}"
        # Never an existing file or a symbolic link that somebody placed there.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._open, self._size = os.open(path, flags, 0o600), 0
        try:
            self._put(LINES_BEGIN.encode())
        except OSError:
            self.close()
            path.unlink(missing_ok=True)
            raise
        # File names begin with the time, so they sort by age.
        for old in list_recordings(self.directory)[: -self.files]:
            old.unlink(missing_ok=True)

    def _put(self, line: bytes) -> None:
        if self._open is None:
            return
        rest = memoryview(line + b"\n")
        try:
            while rest:
                # A write to a nearly full disk may be partial.
                rest = rest[os.write(self._open, rest) :]
        except OSError:
            os.ftruncate(self._open, self._size)
            raise
        self._size += len(line) + 1
