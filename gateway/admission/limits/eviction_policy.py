"""Checks that Redis does not evict keys: after an eviction, the full limit is admitted again."""

from __future__ import annotations

import asyncio
from typing import Literal, NamedTuple

from redis.exceptions import AuthenticationError, ResponseError

from gateway.admission.limits.redis_connection import (
    CONNECT_SECONDS,
    REDIS_ERRORS,
    create_redis_client,
    describe_redis_error,
)

REQUIRED_POLICY = "noeviction"


class EvictionCheck(NamedTuple):
    """The result of the check; ``hint`` is the remedy if the state is not ``ok``."""

    state: Literal["ok", "warning", "error"]
    finding: str
    hint: str = ""


async def probe_redis_eviction_policy(url: str) -> EvictionCheck:
    """Checks which policy Redis applies when its memory is full; for `payout-gateway doctor`."""
    try:
        async with asyncio.timeout(2 * CONNECT_SECONDS), create_redis_client(url) as redis:
            # CONFIG GET is not used, because managed Redis services often forbid it; INFO has the
            # same value.
            memory_info = await redis.info("memory")
    except AuthenticationError:
        hint = "correct the user name and password in limits.url, or in the file named by limits.url_file"
        return EvictionCheck("error", "Redis refuses the password", hint)
    except ResponseError as response_error:
        hint = f"make sure that maxmemory-policy is {REQUIRED_POLICY}: with others the limit may not hold"
        # Only a warning: some managed services forbid INFO, and the policy may be right.
        return EvictionCheck(
            "warning",
            f"Redis does not report its policy ({describe_redis_error(response_error)})",
            hint,
        )
    except REDIS_ERRORS as error:
        hint = "check that Redis runs and that limits.url is its address"
        return EvictionCheck(
            "error", f"Redis does not answer ({describe_redis_error(error)})", hint
        )
    return assess_redis_eviction_policy(memory_info.get("maxmemory_policy"))


def assess_redis_eviction_policy(policy: str | None) -> EvictionCheck:
    """Assesses the policy; only ``noeviction`` is accepted.

    The volatile-… policies evict request counts too, and evict them first, because they expire.
    """
    if policy is None:
        return EvictionCheck(
            "warning", "Redis does not report its policy", f"{REQUIRED_POLICY} is required"
        )
    if policy == REQUIRED_POLICY:
        return EvictionCheck("ok", f"reachable, does not evict keys ({policy})")
    hint = f"set maxmemory-policy to {REQUIRED_POLICY}, or use a separate Redis for the rate limit"
    return EvictionCheck(
        "error", f"may evict request counts when its memory is full ({policy})", hint
    )
