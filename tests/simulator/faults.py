"""Faults for tests of clients and proxies of the service, and the requests that it received."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

InterfaceName = Literal["current", "legacy"]


@dataclass
class Fault:
    """A fault for the next authenticated requests with this method and path.

    It applies `times` times. `*` in a path matches one segment; `*` alone matches any path
    or method. With a `status`, this response replaces the service's, and the operation does not run
    unless `executes` is set. `close` closes the connection before or after the operation runs.
    `delay` is waited before the operation and `answer_delay` after it, in seconds; `answer_after` too.
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
    answer_after: asyncio.Event | None = None
    interface: InterfaceName = "current"
    times: int = 1

    @property
    def runs_operation(self) -> bool:
        if self.close is not None:
            return self.close == "after"
        return self.status is None or self.executes


def match_request(method_pattern: str, path_pattern: str, method: str, path: str) -> bool:
    return method_pattern in ("*", method) and is_path_matching_pattern(path_pattern, path)


def is_path_matching_pattern(pattern: str, path: str) -> bool:
    """Whether a pattern matches a path: `*` is one segment, or any path if it stands alone."""
    if pattern == "*":
        return True
    # `*` must not match across a slash.
    path_pattern = "[^/]*".join(re.escape(part) for part in pattern.split("*"))
    return re.fullmatch(path_pattern, path) is not None


@dataclass
class ReceivedRequest:
    """A received request, recorded for tests.

    `target` is the raw request target with its query. Header names are case-insensitive, and
    secret values are masked. `status` is None if the connection was closed without a response.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    status: int | None = None
    interface: InterfaceName = "current"

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]
