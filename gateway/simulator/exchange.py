"""An HTTP exchange in progress."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.simulator.accepted_request import AcceptedRequest


@dataclass
class Exchange:
    """A request and its response; `target` is the raw request target with its query.

    Header names are case-insensitive. `request` is set once the caller is authenticated.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    address: str = ""
    status: int = 200
    response_body: bytes = b""
    response_headers: Mapping[str, str] = field(default_factory=dict)
    request: AcceptedRequest | None = None

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]
