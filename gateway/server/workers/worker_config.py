"""The configuration that a worker is started with, and the messages between it and the supervisor.

Messages are lines of JSON on a socket pair. The worker sends ``{"accepts": true}`` when it accepts
connections, or ``{"failed": reason}``. The supervisor first sends ``{"session_secret": hex}``, which
must not be an argument, and later ``{"queues": [0, 1]}``, the queues to
accept from, or ``{"retire": true}``. Each notices the exit of the other by the end of the stream.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The argument of the worker's command line; it contains no secrets.

    ``socket_fds`` and ``parent_fd`` are inherited file descriptors: the listening sockets of all
    queues, and the worker's end of the socket pair. ``queue_numbers`` are the queues to accept from
    at first; ``admin_socket`` is the path at which it serves its admin pages.
    """

    config_file: str | None
    socket_fds: list[list[int]]
    queue_numbers: list[int]
    parent_fd: int
    admin_socket: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse_json(cls, text: str) -> Self:
        return cls(**json.loads(text))

    @property
    def config_path(self) -> Path | None:
        return Path(self.config_file) if self.config_file else None


def encode_message(**fields: Any) -> bytes:
    return json.dumps(fields).encode() + b"\n"
