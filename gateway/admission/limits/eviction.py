"""Whether Redis keeps what it is told: tallies that are evicted admit the limit once more."""

from __future__ import annotations

import asyncio
from typing import Literal, NamedTuple

from redis.exceptions import AuthenticationError, ResponseError

from gateway.admission.limits.redis_line import (
    CONNECT_SECONDS,
    Gone,
    create_redis_client,
    describe_redis_error,
)

LOSSLESS = "noeviction"


class Eviction(NamedTuple):
    """``said`` of the policy; ``do`` says what to do about it, where it is not well."""

    state: Literal["ok", "warning", "error"]
    said: str
    do: str = ""


async def check_eviction_policy(url: str) -> Eviction:
    """What becomes of tallies when Redis's memory is full; for `payout-gateway doctor`."""
    try:
        async with asyncio.timeout(2 * CONNECT_SECONDS), create_redis_client(url) as redis:
            # Not CONFIG GET, which is the same and which those who rent Redis out often forbid.
            told = await redis.info("memory")
    except AuthenticationError:
        do = "mend the name and the password in limits.url, or in the file that limits.url_file names"
        return Eviction("error", "Redis refuses the password", do)
    except ResponseError as refused:
        do = f"see that maxmemory-policy is {LOSSLESS}: with others the limit may not hold"
        return Eviction(
            "warning", f"Redis does not tell its policy ({describe_redis_error(refused)})", do
        )
    except Gone as error:
        do = "see that Redis runs and that limits.url is its address"
        return Eviction("error", f"Redis does not answer ({describe_redis_error(error)})", do)
    return assess_eviction_policy(told.get("maxmemory_policy"))


def assess_eviction_policy(policy: str | None) -> Eviction:
    """Also volatile-… evicts tallies, and before anything else: they have an expiry."""
    if policy is None:
        return Eviction("warning", "Redis does not tell its policy", f"{LOSSLESS} is needed")
    if policy == LOSSLESS:
        return Eviction("ok", f"answers, and forgets nothing ({policy})")
    do = f"set maxmemory-policy to {LOSSLESS}, or give the limit a Redis of its own"
    return Eviction("error", f"may forget counts when its memory is full ({policy})", do)
