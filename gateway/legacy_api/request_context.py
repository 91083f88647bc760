"""What is known of a request on its way through the house."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.admission.limits import Admission
from gateway.admission.load import AdmissionSlot
from gateway.http.client_address import Address
from gateway.migration.forwarding import InboundRequest
from gateway.storage.undertakings import OperationRecord
from gateway.writes.player import Caller
from mappings.grammar import Operation


@dataclass(slots=True, weakref_slot=True)
class RequestContext:
    """One request on its way through: what is known of it so far, for the answer and the log."""

    request_id: str
    began: float
    address: Address | None
    """The client's."""
    operation: Operation | None = None
    caller: Caller | None = None
    admission: Admission | None = None
    notices: tuple[str, ...] = ()
    as_sent: dict[str, str] = field(default_factory=dict)
    """The ids of the request, by what they stand for: an answer spells them as it did."""
    named: Mapping[str, str] = field(default_factory=dict)
    """What the ids of a long request stand for, which only the message of a refusal may name."""
    told: dict[str, Any] = field(default_factory=dict)
    stay: AdmissionSlot | None = None
    over: OperationRecord | None = None
    """What is over as soon as the client has its answer."""
    compares: InboundRequest | None = None
    """What the other service is asked too, once the client has its answer."""
    data: bytes | None = field(default=None, repr=False)
    """The body as it came; None where none was read, and the request went no further."""
    is_written: bool = False
    """Whether the whole answer was handed to the connection."""
    has_come: bool = False
    """Whether the connection ended when the client had it."""
