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

from gateway.compare.har import LINES_HEADER

PREFIX, SUFFIX = "recording-", ".har.jsonl"


def list_recordings(directory: Path) -> list[Path]:
    """Lists the files in a directory, oldest first; empty if the directory does not exist."""
    return sorted(directory.glob(f"{PREFIX}*{SUFFIX}"))


@dataclass(slots=True)
class RotatingFile:
    """The file that a process writes; ``max_files`` applies to all processes together.

    Methods raise OSError. A partially written line is cut off, so that all lines are whole.
    """

    directory: Path
    max_file_bytes: int
    max_files: int
    clock: Callable[[], datetime]
    _file_number: int = 0
    _descriptor: int | None = None
    _file_size: int = field(default=0)

    def write(self, line: bytes) -> None:
        """Appends a line; opens a new file if there is no room in the current one."""
        if self._descriptor is not None and not self._has_room(len(line) + 1):
            self.close()
        if self._descriptor is None:
            self._open_file_and_delete_oldest()
        self._append_line(line)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def _has_room(self, size: int) -> bool:
        # Another process may have deleted it as the oldest file.
        is_linked = os.fstat(self._descriptor or 0).st_nlink > 0
        return is_linked and self._file_size + size <= self.max_file_bytes

    def _open_file_and_delete_oldest(self) -> None:
        # Recordings are scrubbed, but other users of the machine should not read them either.
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file_number += 1
        timestamp = f"{self.clock():%Y%m%dT%H%M%S%fZ}"
        path = self.directory / f"{PREFIX}{timestamp}-{os.getpid()}-{self._file_number}{SUFFIX}"
        # Fails for an existing file or a symbolic link that another user may have placed there.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor, self._file_size = os.open(path, flags, 0o600), 0
        try:
            self._append_line(LINES_HEADER.encode())
        except OSError:
            self.close()
            # A file without its header would be refused by ``compare``.
            path.unlink(missing_ok=True)
            raise
        # File names begin with the time, so they sort by age.
        for oldest in list_recordings(self.directory)[: -self.max_files]:
            oldest.unlink(missing_ok=True)

    def _append_line(self, line: bytes) -> None:
        if self._descriptor is None:
            return
        rest = memoryview(line + b"\n")
        try:
            while rest:
                # A write to a nearly full disk may be partial.
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            # A reader takes each line as JSON, so half a line would spoil the file.
            os.ftruncate(self._descriptor, self._file_size)
            raise
        self._file_size += len(line) + 1
