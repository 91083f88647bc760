"""How much is done at once, and what is shed when more is asked for than that.

Three things are bounded, each in all and each so that one merchant cannot take it from another:
the requests that are carried out (``shares``), the memory that bodies take (``holding``) and the
connections (``connections``). These are pure; ``slot`` puts requests to them, and ``connection_tracker``
connections.
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
