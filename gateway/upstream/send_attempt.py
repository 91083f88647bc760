"""What an attempt to send a request needs, and how it fails."""

from __future__ import annotations

from typing import Protocol


class ResponseLost(Exception):
    """No usable response arrived; after a connection failure, another connection may succeed."""

    def __init__(self, reason: str, *, is_connection_failure: bool = False) -> None:
        super().__init__(reason)
        self.is_connection_failure = is_connection_failure


class UnusableConnection(ResponseLost):
    """The connection cannot be used, and nothing was sent on it."""


class Fence(Protocol):
    """Guards a write that only one process may send: its fencing token must still be current."""

    @property
    def is_fence_recent(self) -> bool:
        """Whether ownership was confirmed so recently that no other process can have taken it."""

    async def verify_fence(self) -> None:
        """Confirms ownership; raises if another process owns the write."""
