"""Load shedding: bounds on concurrent requests, buffered bodies and connections.

Each bound applies to the process and, so that one merchant cannot starve another, to each merchant:
running requests (``fair_limiter``), memory for bodies (``memory_budget``) and connections
(``connections``). These modules do no I/O; ``admission_slot`` applies them to requests and
``connection_tracker`` to connections.
"""

from gateway.admission.load.connection_tracker import ConnectionTracker
from gateway.admission.load.connections import Bounds
from gateway.admission.load.slot import AdmissionSlot, Load, Overloaded, RequestConnection

__all__ = [
    "AdmissionSlot",
    "Bounds",
    "ConnectionTracker",
    "Load",
    "Overloaded",
    "RequestConnection",
]
