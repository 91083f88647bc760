"""One connection to Redis, and what is asked over it: many requests' questions at a time.

redis-py tries ten times by default; here once, because the one who asks has another way. A
connection that failed is not used again.
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
"""For a connection; nobody's request waits for it."""

LOOKS = 18
LOOK_SECONDS = 0.005
"""An answer is looked for so often, so long apart: after 90 ms of silence Redis is gone."""

SCRIPT = Path(__file__).with_name("admit.lua").read_text("utf-8")
_DIGEST = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()

Gone = (RedisError, OSError, TimeoutError)
"""What it raises where Redis cannot be asked."""

Made = TypeVar("Made")


class Question(NamedTuple):
    """Whether one more request of a key is admitted; ``name`` is what Redis knows the key by."""

    name: str
    limit: int


Reply = tuple[bool, int, int]
"""Admitted or not, what remains, and the seconds until more does."""


class Line:
    """Made by ``open_redis_connection``; one caller at a time."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def ask(self, questions: Sequence[Question]) -> list[Reply | ResponseError]:
        """An answer to each, or what Redis said instead; raises one of Gone."""
        return await await_redis_reply(self._asked(questions))

    async def close(self) -> None:
        await self._redis.aclose()

    async def learn(self) -> None:
        """Has Redis keep the script."""
        await self._redis.script_load(SCRIPT)

    async def _asked(self, questions: Sequence[Question]) -> list[Reply | ResponseError]:
        replies = await self._sent(questions)
        # A Redis that was emptied or has taken another's place does not know the script.
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
    """What becomes of some work, or TimeoutError when it takes longer than ``LOOKS`` looks.

    Not one wait for the whole time: where this process is busy, an answer may long be there
    before anybody comes to look, and Redis is not to blame.
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
    """What comes too late is looked at all the same, or asyncio reports it as forgotten."""
    if not task.cancelled():
        task.exception()


def describe_redis_error(error: BaseException) -> str:
    """What an error is, without its text; of what Redis says, the word that it begins with."""
    word = str(error).partition(" ")[0]
    said = isinstance(error, ResponseError) and word.isupper() and word.isalpha()
    return f"{type(error).__name__} {word}" if said else type(error).__name__


def create_redis_client(url: str) -> Redis:
    """A client of one connection that asks once. RESP2 is what every Redis and its like speak."""
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
    """What is wrong with a redis:// or rediss:// address; a password in it is not repeated."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises where it is no number
    except ValueError:
        yield "cannot be read as an address; in a password, write / # ? @ : as %2F %23 %3F %40 %3A"
        return
    if parts.path.removeprefix("/") and not parts.path.removeprefix("/").isdecimal():
        yield "after the host comes the number of a database or nothing (redis://host:6379/0)"
    if set(parse_qs(parts.query, keep_blank_values=True)) - PARAMETERS or parts.fragment:
        yield f"may have these parameters and no others: {', '.join(sorted(PARAMETERS))}"
    elif parts.query and parts.scheme != "rediss":
        yield "ssl_… parameters belong to a rediss:// address"


async def open_redis_connection(url: str, trial: Question) -> Line:
    """A connection over which a question was answered, in time; raises one of Gone."""
    line = Line(create_redis_client(url))
    try:
        async with asyncio.timeout(2 * CONNECT_SECONDS):
            await line.learn()
        for reply in await line.ask([trial]):
            if isinstance(reply, ResponseError):
                raise reply  # noqa: TRY301 - what Redis says is its answer here
    except BaseException:
        await line.close()
        raise
    return line
