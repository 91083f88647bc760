"""Answers gone wrong on purpose, for tests of what stands in front of the service."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass
class Fault:
    """What happens to the next `times` accepted requests of a method and path.

    `*` in a path stands for one segment; `*` alone for any path, or any method. With a `status`
    the given answer takes the place of the service's, and the request is not executed unless
    `executes`. `close` drops the connection before or after executing. `delay` is waited before
    executing, `answer_delay` after it, both in seconds.
    """

    method: str
    path: str
    status: int | None = None
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    executes: bool = False
    close: Literal["before", "after"] | None = None
    delay: float = 0
    answer_delay: float = 0
    face: Literal["current", "legacy"] = "current"
    times: int = 1

    def meets(self, method: str, path: str) -> bool:
        return self.method in ("*", method) and same_path(self.path, path)

    @property
    def runs_operation(self) -> bool:
        if self.close is not None:
            return self.close == "after"
        return self.status is None or self.executes


def same_path(pattern: str, path: str) -> bool:
    """`*` stands for one segment; alone, for any path."""
    if pattern == "*":
        return True
    segment_wise = "[^/]*".join(re.escape(part) for part in pattern.split("*"))
    return re.fullmatch(segment_wise, path) is not None
