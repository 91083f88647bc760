"""One request, and what becomes of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gateway.simulator.arrived import Arrived

FaceName = Literal["current", "legacy"]


@dataclass
class Exchange:
    """`arrived` is there once the caller is known; `dropped` where nothing is answered."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    address: str
    status: int = 200
    answer: bytes = b""
    answer_headers: Mapping[str, str] = field(default_factory=dict)
    arrived: Arrived | None = None
    dropped: bool = False
    face: FaceName = "current"

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


@dataclass(frozen=True)
class Seen:
    """A request that arrived, as tests look at it.

    `target` is as written, query included; header names are found in any case, and their
    secrets masked. `status` is None where the connection was dropped instead of answered.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    status: int | None
    face: FaceName = "current"

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]
