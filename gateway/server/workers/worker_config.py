"""What a parent tells a worker when it starts it, and what the two say to each other after that.

On a socket between them, in lines of JSON: the worker says ``{"accepts": true}`` when it does or
``{"failed": why}``; the parent says ``{"queues": [0, 1]}``, those to take connections from now, or
``{"retire": true}``. Either sees the other's end as the socket's.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Orders:
    """An argument of the worker's command line; nothing in it is secret.

    ``door`` and ``parent`` are file descriptors that the worker inherits: the listening sockets of
    all queues, and its end of the socket to its parent. ``queues`` are the numbers of those that it
    begins with; ``admin`` is where it serves its admin pages.
    """

    config: str | None
    door: list[list[int]]
    queues: list[int]
    parent: int
    admin: str

    def written(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Self:
        return cls(**json.loads(text))

    @property
    def config_path(self) -> Path | None:
        return Path(self.config) if self.config else None


def encode_message(**told: Any) -> bytes:
    return json.dumps(told).encode() + b"\n"
