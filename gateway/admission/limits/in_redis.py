"""The limit of all processes on all hosts that name the same Redis.

One script call decides a request (``admit.lua``), by Redis's own clock, so neither the number of
processes nor their clocks matter. What many requests ask at once goes out together.

While Redis is gone, each process decides alone: it lets its *share* of a key's limit through, the
limit divided by all processes, at least 1. After less than 100 ms of silence it is gone; those who
asked wait no longer, and those who come later not at all: one task tries again, once a second.

The bound, stated: in any 3,600 s no more are admitted than the limit and, for each process that
was without Redis meanwhile, its share; so, with no process started in that time and a limit of at
least one for each, at most twice the limit. More are let through only where Redis forgets: when it
comes back empty (appendonly keeps it from that), when a replica takes its place that had not heard
of the last requests, and when it evicts keys (``eviction``).

No key or address can be read in Redis: tallies are named by a digest that is keyed with the
state's encryption key. A tally expires with its last request.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import structlog
from redis.exceptions import AuthenticationError, ResponseError

from gateway.admission.limits.counting import fetch_request_counts
from gateway.admission.limits.in_process import Admission, InProcess
from gateway.admission.limits.redis_line import (
    Gone,
    Line,
    Question,
    Reply,
    describe_redis_error,
    open_redis_connection,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

PAUSE_SECONDS = 1.0
"""How long Redis is left alone after it failed."""

TOGETHER = 100
"""Questions asked at once: a millisecond of Redis's time, which others wait for."""

TRIALS = 1_000_000_000
"""The limit of a key of no one's, by which it is found out whether Redis can be asked."""

NAMES = "payout-gateway:limit:"

GONE = "Redis does not answer; each process lets its share of a key's limit through meanwhile"

REFUSED = (
    "Redis refuses the password; each process lets its share of a key's limit through meanwhile"
)

_log = structlog.get_logger(__name__)


@dataclass(slots=True, frozen=True)
class _Asked:
    question: Question
    answered: asyncio.Future[Reply | None]

    def answer(self, reply: Reply | None) -> None:
        """None where Redis did not say. Whoever asked may have gone."""
        if not self.answered.done():
            self.answered.set_result(reply)


class InRedis:
    """``async with`` it. ``processes`` is how many share the limit, on all hosts together.

    ``times_gone`` and ``decided_alone`` count since the start: how often Redis was lost, and the
    requests that were decided without it.
    """

    def __init__(self, url: str, naming_key: bytes, processes: int) -> None:
        self._url = url
        self._naming_key = naming_key
        self._processes = processes
        # Counted like a request, because a Redis that is full or a replica still answers reads.
        self._trial = Question(self.name_of("trial"), TRIALS)
        self._alone = InProcess()
        self._line: Line | None = None
        self._asked: asyncio.Queue[_Asked] = asyncio.Queue()
        self._working: asyncio.Task[None] | None = None
        self._gone_since: float | None = None
        self._is_refused = False
        self._alone_before = 0
        self.times_gone = 0
        self.decided_alone = 0

    async def __aenter__(self) -> Self:
        await self._connect()  # so that the first requests find it there
        self._working = asyncio.create_task(self._work(), name="limits")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._working:
            self._working.cancel()
            await asyncio.gather(self._working, return_exceptions=True)
        await self._hang_up()

    async def admit(self, key: str, limit: int) -> Admission:
        reply = await self._ask(Question(self.name_of(key), limit))
        if reply is None:
            return await self._admit_alone(key, limit)
        admitted, remaining, seconds = reply
        return Admission(admitted, limit, remaining, seconds, None if admitted else seconds)

    async def counted(self, keys: Sequence[str]) -> list[int] | None:
        if not keys:
            return []
        try:
            return await fetch_request_counts(self._url, [self.name_of(key) for key in keys])
        except Gone:
            return None

    async def fault(self) -> str | None:
        if await self._ask(self._trial) is not None:
            return None
        return REFUSED if self._is_refused else GONE

    def name_of(self, key: str) -> str:
        """What the tally of a key is called in Redis."""
        return NAMES + hmac.digest(self._naming_key, key.encode(), hashlib.sha256).hex()[:32]

    async def _admit_alone(self, key: str, limit: int) -> Admission:
        self.decided_alone += 1
        share = max(1, limit // self._processes) if limit > 0 else 0
        return replace(await self._alone.admit(key, share), limit=limit)

    async def _ask(self, question: Question) -> Reply | None:
        if not self._line:
            return None
        asked = _Asked(question, asyncio.get_running_loop().create_future())
        self._asked.put_nowait(asked)
        return await asked.answered

    async def _work(self) -> None:
        while True:
            if self._line:
                await self._carry(self._line)
            else:
                await asyncio.sleep(PAUSE_SECONDS)
                await self._connect()

    async def _carry(self, line: Line) -> None:
        """Takes what is asked by now to Redis, and each answer to who asked."""
        those = [await self._asked.get()]
        while len(those) < TOGETHER and not self._asked.empty():
            those.append(self._asked.get_nowait())
        replies: Sequence[Reply | ResponseError | None] = [None] * len(those)
        failed: Exception | None = None
        try:
            replies = await line.ask([one.question for one in those])
            failed = next((one for one in replies if isinstance(one, ResponseError)), None)
        except Exception as error:  # noqa: BLE001 - if this task ended, all requests would wait for ever
            failed = error
        finally:
            for one, reply in zip(those, replies, strict=True):
                one.answer(None if isinstance(reply, ResponseError) else reply)
        if failed:
            self._tell_gone(failed)
            await self._hang_up()

    async def _connect(self) -> None:
        try:
            self._line = await open_redis_connection(self._url, self._trial)
        except Exception as error:  # noqa: BLE001 - as above; what is wrong is told, by its kind
            self._tell_gone(error)
        else:
            self._tell_back()

    async def _hang_up(self) -> None:
        """From here on nobody asks; who did is told that there is no answer."""
        line, self._line = self._line, None
        while not self._asked.empty():
            self._asked.get_nowait().answer(None)
        if line:
            with suppress(Exception):  # it is of no use any more, however it ends
                await line.close()

    def _tell_gone(self, error: Exception) -> None:
        self._is_refused = isinstance(error, AuthenticationError)
        if self._gone_since is not None:
            return
        self._gone_since = time.monotonic()
        self._alone_before = self.decided_alone
        self.times_gone += 1
        _log.error(
            "redis_unavailable",
            reason=describe_redis_error(error),
            local_limit_fraction=round(1 / self._processes, 3),
            hint="check that Redis runs, that limits.url is its address, and its memory settings",
        )

    def _tell_back(self) -> None:
        if self._gone_since is None:
            return
        seconds, self._gone_since = time.monotonic() - self._gone_since, None
        alone = self.decided_alone - self._alone_before
        _log.info(
            "redis_available", outage_seconds=round(seconds, 1), requests_counted_locally=alone
        )
