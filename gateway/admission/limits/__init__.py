"""How many requests a key may make: ``limit`` in any 3,600 seconds.

The bound, stated: time is counted in whole seconds, and a request counts from when it was
admitted until the 3,601st second after the one it fell in begins. So there are never more than
``limit`` in any 3,600 s, wherever they begin; and a request is only refused when ``limit`` were
admitted in the last 3,601 s. The error of up to one second is on the strict side.

``memory://`` counts in one process. ``redis://`` counts for all processes on all hosts, by
Redis's own clock; ``in_redis`` says what holds while Redis is gone. It is imported where Redis is
named: its client takes a tenth of a start.

Whoever has no key counts by address, in each process by itself and apart from all keys: a million
addresses take no more memory than ``STRANGERS`` do, and neither keys' tallies nor room in Redis.
"""

from gateway.admission.limits.in_process import STRANGERS, Admission, InProcess, Limits
from gateway.admission.limits.opening import find_limit_problems, open_limits

__all__ = [
    "STRANGERS",
    "Admission",
    "InProcess",
    "Limits",
    "find_limit_problems",
    "open_limits",
]
