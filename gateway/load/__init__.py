"""How much is done at once, and what is shed when more is asked for than that.

Three things are bounded, each in all and each so that one merchant cannot take it from another:
the requests that are carried out (``shares``), the memory that bodies take (``holding``) and the
connections (``connections``, which know no merchants: who waits longest goes first). These are pure;
``stay`` puts requests to them, and ``guests`` connections.
"""

from gateway.load.connections import Bounds
from gateway.load.guests import Guests
from gateway.load.stay import Load, Overloaded, Stay

__all__ = ["Bounds", "Guests", "Load", "Overloaded", "Stay"]
