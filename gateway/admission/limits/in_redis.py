"""The rate limiter that all processes on all hosts with the same Redis share.

One script call (``admit.lua``) decides a request, by Redis's own clock. So neither the number of
processes nor their clocks matter. Concurrent requests are sent in one pipeline.

If Redis is unavailable, each process decides locally: it admits its *share* of a key's limit, the
limit divided by the number of processes, at least 1. Redis counts as unavailable after less than
100 ms without a reply. Requests do not wait any longer; one task reconnects once a second.

The guarantee: in any 3,600 s, at most the limit and, for each process that lost Redis in that time,
its share are admitted. If no process was started in that time and the limit is at least the number
of processes, that is at most twice the limit. More is admitted only if Redis loses data: when it
restarts empty (``appendonly`` prevents that), when a replica that lacks the last requests takes
over, and when Redis evicts keys (``eviction_policy``).

Redis contains no API keys and no addresses: its keys are digests, keyed with the encryption key of
the database. They expire with their last request.
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
"""Time between attempts to reconnect to Redis."""

TOGETHER = 100
"""Requests in one pipeline. It takes a millisecond of Redis's time, for which others wait."""

TRIALS = 1_000_000_000
"""The limit of the key that probes Redis; no client has that key."""

NAMES = "payout-gateway:limit:"

GONE = "Redis does not answer; each process admits its share of the limit until it does"

REFUSED = (
    "Redis refuses the password; each process admits its share of the limit until it is accepted"
)

_log = structlog.get_logger(__name__)


@dataclass(slots=True, frozen=True)
class _Asked:
    question: Question
    answered: asyncio.Future[Reply | None]

    def answer(self, reply: Reply | None) -> None:
        """Set the reply; None if Redis gave none. The request may have been cancelled."""
        if not self.answered.done():
            self.answered.set_result(reply)


class InRedis:
    """A rate limiter in Redis, used with ``async with``.

    ``process_count`` is the number of processes that share the limit, on all hosts. ``outage_count``
    and ``local_decision_count`` count outages of Redis and the requests decided without it.
    """

    def __init__(self, url: str, naming_key: bytes, processes: int) -> None:
        self._url = url
        self._naming_key = naming_key
        self._processes = processes
        # The probe is counted like a request: a full Redis, or a replica, still answers reads.
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
        await self._connect()  # so that the first requests do not have to wait
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
        """Return the Redis key under which the requests of an API key are counted."""
        return NAMES + hmac.digest(self._naming_key, key.encode(), hashlib.sha256).hex()[:32]

    async def _admit_alone(self, key: str, limit: int) -> Admission:
        self.decided_alone += 1
        # At least 1, so that a low limit does not block a key during an outage.
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
        """Send the pending questions to Redis and pass the replies on."""
        those = [await self._asked.get()]
        while len(those) < TOGETHER and not self._asked.empty():
            those.append(self._asked.get_nowait())
        replies: Sequence[Reply | ResponseError | None] = [None] * len(those)
        failed: Exception | None = None
        try:
            replies = await line.ask([one.question for one in those])
            failed = next((one for one in replies if isinstance(one, ResponseError)), None)
        except Exception as error:  # noqa: BLE001 - if this task ended, all requests would wait forever
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
        except Exception as error:  # noqa: BLE001 - as above; the error's type is logged
            self._tell_gone(error)
        else:
            self._tell_back()

    async def _hang_up(self) -> None:
        """Close the connection; pending questions get no reply, and are decided locally."""
        line, self._line = self._line, None
        while not self._asked.empty():
            self._asked.get_nowait().answer(None)
        if line:
            with suppress(Exception):  # the connection is discarded in any case
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
