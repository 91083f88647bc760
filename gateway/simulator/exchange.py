"""One HTTP exchange: a request and its response."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gateway.simulator.accepted_request import AcceptedRequest

InterfaceName = Literal["current", "legacy"]


@dataclass
class Exchange:
    """An exchange in progress.

    `request` is set once the caller is authenticated. `is_dropped` means that the connection is
    closed without a response.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    address: str
    status: int = 200
    response_body: bytes = b""
    response_headers: Mapping[str, str] = field(default_factory=dict)
    request: AcceptedRequest | None = None
    is_dropped: bool = False
    interface: InterfaceName = "current"

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


@dataclass(frozen=True)
class ReceivedRequest:
    """A received request, recorded for tests.

    `target` is the raw request target with its query. Header names are case-insensitive, and
    secret values are masked. `status` is None if the connection was closed without a response.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    status: int | None
    interface: InterfaceName = "current"

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]
