"""Checks that Redis does not evict keys: after an eviction, the full limit is admitted again."""

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
    """The result of the check; ``hint`` is the remedy if the state is not ``ok``."""

    state: Literal["ok", "warning", "error"]
    said: str
    do: str = ""


async def check_eviction_policy(url: str) -> Eviction:
    """Check which policy Redis applies when its memory is full; for `payout-gateway doctor`."""
    try:
        async with asyncio.timeout(2 * CONNECT_SECONDS), create_redis_client(url) as redis:
            # Not CONFIG GET, which managed Redis services often forbid; INFO has the same value.
            told = await redis.info("memory")
    except AuthenticationError:
        do = "correct the user name and password in limits.url, or in the file named by limits.url_file"
        return Eviction("error", "Redis refuses the password", do)
    except ResponseError as refused:
        do = f"make sure that maxmemory-policy is {LOSSLESS}: with others the limit may not hold"
        return Eviction(
            "warning", f"Redis does not report its policy ({describe_redis_error(refused)})", do
        )
    except Gone as error:
        do = "check that Redis runs and that limits.url is its address"
        return Eviction("error", f"Redis does not answer ({describe_redis_error(error)})", do)
    return assess_eviction_policy(told.get("maxmemory_policy"))


def assess_eviction_policy(policy: str | None) -> Eviction:
    """Accept only ``noeviction``.

    The volatile-… policies evict request counts too, and evict them first, because they expire.
    """
    if policy is None:
        return Eviction("warning", "Redis does not report its policy", f"{LOSSLESS} is required")
    if policy == LOSSLESS:
        return Eviction("ok", f"reachable, does not evict keys ({policy})")
    do = f"set maxmemory-policy to {LOSSLESS}, or use a separate Redis for the rate limit"
    return Eviction("error", f"may evict request counts when its memory is full ({policy})", do)
