"""The rate limit: a sliding window of 3,600 seconds for each API key.

Time is counted in whole seconds. A request counts from its admission until the start of the 3,601st
second after its own. So no 3,600-second window ever contains more than ``limit`` requests, and a
request is refused only if ``limit`` requests were admitted in the last 3,601 s. The error of up to
one second is on the strict side.

``memory://`` counts in one process. ``redis://`` counts for all processes on all hosts, by Redis's
own clock; ``in_redis`` describes the guarantees during a Redis outage. That module is imported only
if Redis is configured, because its client accounts for a tenth of the start-up time.

Requests without a valid key are counted by client address, in each process separately and apart
from the keys. At most ``MAX_ADDRESSES`` are kept, so a million addresses can neither exhaust the
memory, nor evict the counts of keys, nor fill Redis.
"""

from gateway.admission.limits.factory import find_rate_limit_setting_problems, open_rate_limiter
from gateway.admission.limits.in_process import (
    MAX_ADDRESSES,
    Admission,
    InProcessRateLimiter,
    RateLimiter,
)

__all__ = [
    "MAX_ADDRESSES",
    "Admission",
    "InProcessRateLimiter",
    "RateLimiter",
    "find_rate_limit_setting_problems",
    "open_rate_limiter",
]
