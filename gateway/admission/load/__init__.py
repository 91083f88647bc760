"""Load shedding: bounds on concurrent requests, buffered bodies and connections.

Each bound applies to the process and, so that one merchant cannot starve another, to each merchant:
running requests (``FairLimiter``), memory for bodies (``MemoryBudget``) and connections
(``connections``). ``AdmissionSlot`` applies the first two to requests.
"""

from gateway.admission.load.connections import (
    ConnectionBounds,
    ConnectionTracker,
    TrackedConnection,
)
from gateway.admission.load.requests import AdmissionSlot, LoadShedder, Overloaded

__all__ = [
    "AdmissionSlot",
    "ConnectionBounds",
    "ConnectionTracker",
    "LoadShedder",
    "Overloaded",
    "TrackedConnection",
]
