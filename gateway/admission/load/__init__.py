"""Load shedding: bounds on concurrent requests, buffered bodies and connections.

Each bound applies to the process and, so that one merchant cannot starve another, to each merchant:
running requests (``fair_limiter``), memory for bodies (``MemoryBudget``) and connections
(``connections``). ``admission_slot`` applies the first two to requests.
"""

from gateway.admission.load.admission_slot import AdmissionSlot, LoadShedder, Overloaded
from gateway.admission.load.connections import (
    ConnectionBounds,
    ConnectionTracker,
    TrackedConnection,
)

__all__ = [
    "AdmissionSlot",
    "ConnectionBounds",
    "ConnectionTracker",
    "LoadShedder",
    "Overloaded",
    "TrackedConnection",
]
