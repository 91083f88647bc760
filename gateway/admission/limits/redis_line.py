"""A connection to Redis that decides many requests in one pipeline.

redis-py tries ten times by default. Here a call is tried once, because the caller can decide
locally. A connection that failed is not used again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.maint_notifications import MaintNotificationsConfig

CONNECT_SECONDS = 1.0
"""Timeout of a new connection; no client request waits for it."""

LOOKS = 18
LOOK_SECONDS = 0.005
"""A reply is polled so often, at this interval: Redis counts as unavailable after 90 ms."""

SCRIPT = Path(__file__).with_name("admit.lua").read_text("utf-8")
# EVALSHA identifies scripts by their SHA-1 digest.
_DIGEST = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()

Gone = (RedisError, OSError, TimeoutError)
"""Errors that mean that Redis is unavailable."""

Made = TypeVar("Made")


class Question(NamedTuple):
    """Asks whether one more request of a key is admitted."""

    name: str
    limit: int


Reply = tuple[bool, int, int]
"""Whether the request is admitted, the requests that remain, and the seconds until more do."""


class Line:
    """An open connection; see ``open_redis_connection``. Only one caller may use it at a time."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def ask(self, questions: Sequence[Question]) -> list[Reply | ResponseError]:
        """Return a reply or Redis's error for each question; raises one of ``REDIS_ERRORS``."""
        return await await_redis_reply(self._asked(questions))

    async def close(self) -> None:
        await self._redis.aclose()

    async def learn(self) -> None:
        """Load the script into Redis's script cache."""
        await self._redis.script_load(SCRIPT)

    async def _asked(self, questions: Sequence[Question]) -> list[Reply | ResponseError]:
        replies = await self._sent(questions)
        # After a restart or a failover, Redis does not have the script.
        strange = [at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if strange:
            await self.learn()
            again = await self._sent([questions[at] for at in strange])
            for at, reply in zip(strange, again, strict=True):
                replies[at] = reply
        return replies

    async def _sent(self, questions: Sequence[Question]) -> list[Reply | ResponseError]:
        pipe = self._redis.pipeline(transaction=False)
        for name, limit in questions:
            pipe.evalsha(_DIGEST, 1, name, limit)
        return [_reply(one) for one in await pipe.execute(raise_on_error=False)]


def _reply(said: Any) -> Reply | ResponseError:
    if isinstance(said, ResponseError):
        return said
    admitted, remaining, seconds = said
    return bool(admitted), int(remaining), int(seconds)


async def await_redis_reply(work: Coroutine[Any, Any, Made]) -> Made:
    """Return the coroutine's result; raises TimeoutError after ``MAX_POLLS`` polls.

    It does not wait once for the whole time: if this process is busy, the reply may have arrived long
    before the event loop gets to it, and Redis must not be declared unavailable for that.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(_seen)
    try:
        for _ in range(LOOKS):
            if (await asyncio.wait({task}, timeout=LOOK_SECONDS))[0]:
                return task.result()
        raise TimeoutError
    finally:
        task.cancel()


def _seen(task: asyncio.Future[Any]) -> None:
    """Retrieve the exception of a late reply, which asyncio would otherwise report as never retrieved."""
    if not task.cancelled():
        task.exception()


def describe_redis_error(error: BaseException) -> str:
    """Return the type of an error and Redis's error code, without the text, which may hold data."""
    word = str(error).partition(" ")[0]
    said = isinstance(error, ResponseError) and word.isupper() and word.isalpha()
    return f"{type(error).__name__} {word}" if said else type(error).__name__


def create_redis_client(url: str) -> Redis:
    """Create a client with one connection and no retries. It uses RESP2, which all servers support."""
    made: Redis = Redis.from_url(
        url,
        protocol=2,
        max_connections=1,
        retry=Retry(NoBackoff(), 0),
        socket_connect_timeout=CONNECT_SECONDS,
        socket_timeout=CONNECT_SECONDS,
        maint_notifications_config=MaintNotificationsConfig(enabled=False),
    )
    return made


PARAMETERS = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname"}


def find_redis_url_problems(url: str) -> Iterator[str]:
    """Yield the problems of a redis:// or rediss:// URL, without repeating its password."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises if it is not a number
    except ValueError:
        yield "is not a valid URL; in a password, write / # ? @ : as %2F %23 %3F %40 %3A"
        return
    if parts.path.removeprefix("/") and not parts.path.removeprefix("/").isdecimal():
        yield "the path must be empty or a database number (redis://host:6379/0)"
    if set(parse_qs(parts.query, keep_blank_values=True)) - PARAMETERS or parts.fragment:
        yield f"may have only these parameters: {', '.join(sorted(PARAMETERS))}"
    elif parts.query and parts.scheme != "rediss":
        yield "ssl_… parameters require a rediss:// URL"


async def open_redis_connection(url: str, trial: Question) -> Line:
    """Open a connection and probe it with a question; raises one of ``REDIS_ERRORS``."""
    line = Line(create_redis_client(url))
    try:
        async with asyncio.timeout(2 * CONNECT_SECONDS):
            await line.learn()
        for reply in await line.ask([trial]):
            if isinstance(reply, ResponseError):
                raise reply  # noqa: TRY301 - an error reply means that the probe failed
    except BaseException:
        await line.close()
        raise
    return line
