"""A connection to Redis that asks about many requests in one pipeline.

redis-py tries ten times by default. Here a call is tried once, because the caller can decide
locally. A connection that failed is not used again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import parse_qs, urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoScriptError, RedisError, ResponseError
from redis.maint_notifications import MaintNotificationsConfig

CONNECT_SECONDS = 1.0
"""Timeout of a new connection; no client request waits for it."""

MAX_POLLS = 18
POLL_SECONDS = 0.005
"""Number and interval of polls for a reply: Redis counts as unavailable after 90 ms."""

ADMIT_SCRIPT = Path(__file__).with_name("admit.lua").read_text("utf-8")
# EVALSHA identifies scripts by their SHA-1 digest.
_SCRIPT_DIGEST = hashlib.sha1(ADMIT_SCRIPT.encode(), usedforsecurity=False).hexdigest()

REDIS_ERRORS = (RedisError, OSError, TimeoutError)
"""Errors that mean that Redis is unavailable."""

Result = TypeVar("Result")


class AdmissionQuestion(NamedTuple):
    """Asks whether one more request of a key is admitted."""

    redis_key: str
    limit: int


AdmissionReply = tuple[bool, int, int]
"""Whether the request is admitted, the remaining requests, and the seconds until more remain."""


class RedisConnection:
    """An open connection; see ``open_redis_connection``. Only one caller may use it at a time."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def evaluate_admission_questions(
        self, questions: Sequence[AdmissionQuestion]
    ) -> list[AdmissionReply | ResponseError]:
        """Returns a reply or Redis's error for each question; raises one of ``REDIS_ERRORS``."""
        return await await_redis_reply(self._evaluate_with_script_reload(questions))

    async def close(self) -> None:
        await self._redis.aclose()

    async def load_script(self) -> None:
        """Loads the script into Redis's script cache."""
        await self._redis.script_load(ADMIT_SCRIPT)

    async def _evaluate_with_script_reload(
        self, questions: Sequence[AdmissionQuestion]
    ) -> list[AdmissionReply | ResponseError]:
        replies = await self._run_script(questions)
        # After a restart or a failover, Redis does not have the script.
        unknown = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            await self.load_script()
            retried_replies = await self._run_script([questions[i] for i in unknown])
            for i, reply in zip(unknown, retried_replies, strict=True):
                replies[i] = reply
        return replies

    async def _run_script(
        self, questions: Sequence[AdmissionQuestion]
    ) -> list[AdmissionReply | ResponseError]:
        # No MULTI: each script is atomic by itself, and the questions do not depend on each other.
        pipe = self._redis.pipeline(transaction=False)
        for redis_key, limit in questions:
            pipe.evalsha(_SCRIPT_DIGEST, 1, redis_key, limit)
        return [_parse_reply(raw_reply) for raw_reply in await pipe.execute(raise_on_error=False)]


def _parse_reply(raw_reply: Any) -> AdmissionReply | ResponseError:
    if isinstance(raw_reply, ResponseError):
        return raw_reply
    is_admitted, remaining, seconds = raw_reply
    return bool(is_admitted), int(remaining), int(seconds)


async def await_redis_reply(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Returns the coroutine's result; raises TimeoutError after ``MAX_POLLS`` polls.

    One wait for the whole time would be wrong: if this process is busy, the reply may have arrived
    long before the event loop handles it, and Redis would be declared unavailable.
    """
    task = asyncio.ensure_future(coroutine)
    task.add_done_callback(_mark_exception_retrieved)
    try:
        for _ in range(MAX_POLLS):
            if (await asyncio.wait({task}, timeout=POLL_SECONDS))[0]:
                return task.result()
        raise TimeoutError
    finally:
        task.cancel()


def _mark_exception_retrieved(task: asyncio.Future[Any]) -> None:
    """Retrieves a late reply's exception; asyncio would otherwise report it as never retrieved."""
    if not task.cancelled():
        task.exception()


def describe_redis_error(error: BaseException) -> str:
    """Returns the type of an error and Redis's error code; its text may hold data."""
    error_code = str(error).partition(" ")[0]
    if isinstance(error, ResponseError) and error_code.isupper() and error_code.isalpha():
        return f"{type(error).__name__} {error_code}"
    return type(error).__name__


def create_redis_client(url: str) -> Redis:
    """Creates a client with one connection, no retries, and RESP2, which all servers support."""
    # A retry could count a request twice: the first try may have been executed.
    client: Redis = Redis.from_url(
        url,
        protocol=2,
        max_connections=1,
        retry=Retry(NoBackoff(), 0),
        socket_connect_timeout=CONNECT_SECONDS,
        socket_timeout=CONNECT_SECONDS,
        maint_notifications_config=MaintNotificationsConfig(enabled=False),
    )
    return client


ALLOWED_URL_PARAMETERS = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname"}


def find_redis_url_problems(url: str) -> Iterator[str]:
    """Yields the problems of a redis:// or rediss:// URL, without repeating its password."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises if it is not a number
    except ValueError:
        yield "is not a valid URL; in a password, write / # ? @ : as %2F %23 %3F %40 %3A"
        return
    if parts.path.removeprefix("/") and not parts.path.removeprefix("/").isdecimal():
        yield "the path must be empty or a database number (redis://host:6379/0)"
    parameters = {*parse_qs(parts.query, keep_blank_values=True)}
    if parameters - ALLOWED_URL_PARAMETERS or parts.fragment:
        yield f"may have only these parameters: {', '.join(sorted(ALLOWED_URL_PARAMETERS))}"
    elif parts.query and parts.scheme != "rediss":
        yield "ssl_… parameters require a rediss:// URL"


async def open_redis_connection(url: str, probe: AdmissionQuestion) -> RedisConnection:
    """Opens a connection and probes it with a question; raises one of ``REDIS_ERRORS``."""
    connection = RedisConnection(create_redis_client(url))
    try:
        async with asyncio.timeout(2 * CONNECT_SECONDS):
            await connection.load_script()
        for reply in await connection.evaluate_admission_questions([probe]):
            if isinstance(reply, ResponseError):
                raise reply  # noqa: TRY301 - an error reply means that the probe failed
    except BaseException:
        await connection.close()
        raise
    return connection


REQUIRED_POLICY = "noeviction"
"""Redis must not evict keys: after an eviction, the full limit is admitted again."""


DIVIDED_LIMIT = "each process admits its share of the limit"
"""What happens without Redis."""


class EvictionCheck(NamedTuple):
    """The result of a check of the policy; ``hint`` is the remedy if the state is not ``ok``."""

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
        return EvictionCheck("error", f"Redis refuses the password; {DIVIDED_LIMIT}", hint)
    except ResponseError as response_error:
        hint = f"make sure that maxmemory-policy is {REQUIRED_POLICY}: with others the limit may not hold"
        result = f"Redis does not report its policy ({describe_redis_error(response_error)})"
        # Only a warning: some managed services forbid INFO, and the policy may be right.
        return EvictionCheck("warning", result, hint)
    except REDIS_ERRORS as error:
        result = f"Redis does not answer ({describe_redis_error(error)}); {DIVIDED_LIMIT}"
        hint = "check that Redis runs and that limits.url is its address"
        return EvictionCheck("error", result, hint)
    return assess_redis_eviction_policy(memory_info.get("maxmemory_policy"))


def assess_redis_eviction_policy(policy: str | None) -> EvictionCheck:
    """Assesses the policy; only ``noeviction`` is accepted.

    The volatile-… policies evict request counts too, and evict them first, because they expire.
    """
    if policy is None:
        hint = f"{REQUIRED_POLICY} is required"
        return EvictionCheck("warning", "Redis does not report its policy", hint)
    if policy == REQUIRED_POLICY:
        return EvictionCheck("ok", f"reachable, does not evict keys ({policy})")
    hint = f"set maxmemory-policy to {REQUIRED_POLICY}, or use a separate Redis for the rate limit"
    result = f"may evict request counts when its memory is full ({policy})"
    return EvictionCheck("error", result, hint)
