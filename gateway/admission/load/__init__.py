"""Load shedding: bounds on concurrent requests, buffered bodies and connections.

Each bound applies to the process and, so that one merchant cannot starve another, to each merchant:
running requests (``fair_limiter``), memory for bodies (``MemoryBudget``) and connections
(``connections``). These modules do no I/O; ``admission_slot`` applies them to requests,
``connection_tracker`` to connections.
"""

from gateway.admission.load.admission_slot import (
    AdmissionSlot,
    LoadShedder,
    Overloaded,
    RequestConnection,
)
from gateway.admission.load.connection_tracker import ConnectionTracker
from gateway.admission.load.connections import ConnectionBounds

__all__ = [
    "AdmissionSlot",
    "ConnectionBounds",
    "ConnectionTracker",
    "LoadShedder",
    "Overloaded",
    "RequestConnection",
]
