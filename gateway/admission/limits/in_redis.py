"""The rate limiter that all processes on all hosts with the same Redis share.

One script call (``admit.lua``) decides a request, by Redis's own clock. Therefore neither the
number of processes nor their clocks matter. Concurrent requests are sent in one pipeline.

If Redis is unavailable, each process decides locally: it admits its *share* of a key's limit, the
limit divided by the number of processes, at least 1. Redis counts as unavailable after less than
100 ms without a reply. Requests do not wait any longer; one task reconnects once a second.

The guarantee: in any 3,600 s, at most the limit and, for each process that lost Redis in that time,
its share are admitted. If no process was started in that time and the limit is at least the number
of processes, that is at most twice the limit. More is admitted only if Redis loses data: when it
restarts empty (``appendonly`` prevents that), when a replica that lacks the last requests takes
over, and when Redis evicts keys (``REQUIRED_POLICY``).

Redis contains no API keys and no addresses: its keys are digests, keyed with the encryption key of
the database. They expire with their last request.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

import structlog
from msgspec import structs
from redis.exceptions import AuthenticationError, ResponseError

from gateway.admission.limits.in_process import Admission, InProcessRateLimiter
from gateway.admission.limits.redis_connection import (
    DIVIDED_LIMIT,
    AdmissionQuestion,
    AdmissionReply,
    RedisConnection,
    describe_redis_error,
    open_redis_connection,
)

RECONNECT_SECONDS = 1.0
"""Time between attempts to reconnect to Redis."""

MAX_PIPELINED = 100
"""Requests in one pipeline. It takes a millisecond of Redis's time, for which others wait."""

PROBE_LIMIT = 1_000_000_000
"""The limit of the key that probes Redis; no client has that key."""

COUNT_ONLY = -1
"""The limit with which ``admit.lua`` counts no request, and returns how many count."""

KEY_PREFIX = "payout-gateway:limit:"

UNAVAILABLE_MESSAGE = f"Redis does not answer; {DIVIDED_LIMIT} until it does"

LOGIN_REFUSED_MESSAGE = f"Redis refuses the password; {DIVIDED_LIMIT} until it is accepted"

_log = structlog.get_logger(__name__)


_PendingReply = asyncio.Future[AdmissionReply | None]
"""The reply to a request; None if Redis sends none."""


class RedisRateLimiter:
    """A rate limiter in Redis, used with ``async with``.

    ``process_count`` is the number of processes that share the limit, on all hosts.
    ``outage_count`` and ``local_decision_count`` count outages of Redis and the requests decided
    without it.
    """

    def __init__(self, url: str, naming_key: bytes, process_count: int) -> None:
        self._url = url
        self._naming_key = naming_key
        self._process_count = process_count
        # The probe is counted like a request: a full Redis, or a replica, still answers reads.
        self._probe = AdmissionQuestion(self.build_redis_key("trial"), PROBE_LIMIT)
        self._local_limiter = InProcessRateLimiter()
        self._connection: RedisConnection | None = None
        self._pending: asyncio.Queue[tuple[AdmissionQuestion, _PendingReply]] = asyncio.Queue()
        self._worker_task: asyncio.Task[None] | None = None
        self._outage_started_at: float | None = None
        self._is_password_refused = False
        self._local_decisions_before_outage = 0
        self.outage_count = 0
        self.local_decision_count = 0

    async def __aenter__(self) -> Self:
        await self._connect()  # saves the first requests the wait
        self._worker_task = asyncio.create_task(self._run_send_and_reconnect_loop(), name="limits")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._worker_task:
            self._worker_task.cancel()
            await asyncio.gather(self._worker_task, return_exceptions=True)
        await self._disconnect()

    async def admit(self, key: str, limit: int) -> Admission:
        question = AdmissionQuestion(self.build_redis_key(key), limit)
        if (reply := await self._ask_redis_for_admission(question)) is None:
            return await self._admit_locally(key, limit)
        is_admitted, remaining, seconds = reply
        return Admission(is_admitted, limit, remaining, seconds, None if is_admitted else seconds)

    async def list_window_request_counts(self, keys: Sequence[str]) -> list[int] | None:
        counts: list[int] = []
        # In turn with the requests of clients, which do not wait for all keys.
        for start in range(0, len(keys), MAX_PIPELINED):
            questions = [
                AdmissionQuestion(self.build_redis_key(key), COUNT_ONLY)
                for key in keys[start : start + MAX_PIPELINED]
            ]
            for reply in await asyncio.gather(*map(self._ask_redis_for_admission, questions)):
                if reply is None:
                    return None
                counts.append(reply[1])
        return counts

    async def find_limiter_problem(self) -> str | None:
        if await self._ask_redis_for_admission(self._probe) is not None:
            return None
        return LOGIN_REFUSED_MESSAGE if self._is_password_refused else UNAVAILABLE_MESSAGE

    def build_redis_key(self, key: str) -> str:
        """Returns the Redis key under which the requests of an API key are counted."""
        return KEY_PREFIX + hmac.digest(self._naming_key, key.encode(), hashlib.sha256).hex()[:32]

    async def _admit_locally(self, key: str, limit: int) -> Admission:
        self.local_decision_count += 1
        # At least 1, so that a low limit does not block a key during an outage.
        share = max(1, limit // self._process_count) if limit > 0 else 0
        # The headers still show the configured limit, which holds again when Redis is back.
        return structs.replace(await self._local_limiter.admit(key, share), limit=limit)

    async def _ask_redis_for_admission(self, question: AdmissionQuestion) -> AdmissionReply | None:
        if not self._connection:
            return None
        reply: _PendingReply = asyncio.get_running_loop().create_future()
        self._pending.put_nowait((question, reply))
        return await reply

    async def _run_send_and_reconnect_loop(self) -> None:
        while True:
            if self._connection:
                await self._send_pending(self._connection)
            else:
                await asyncio.sleep(RECONNECT_SECONDS)
                await self._connect()

    async def _send_pending(self, connection: RedisConnection) -> None:
        """Sends the pending questions to Redis and passes the replies on."""
        batch = [await self._pending.get()]
        while len(batch) < MAX_PIPELINED and not self._pending.empty():
            batch.append(self._pending.get_nowait())
        replies: Sequence[AdmissionReply | ResponseError | None] = [None] * len(batch)
        failure: Exception | None = None
        try:
            questions = [question for question, _reply in batch]
            replies = await connection.evaluate_admission_questions(questions)
            failure = next((each for each in replies if isinstance(each, ResponseError)), None)
        except Exception as error:  # noqa: BLE001 - if this task ended, all requests would wait forever
            failure = error
        finally:
            for (_question, pending), reply in zip(batch, replies, strict=True):
                _set_reply(pending, None if isinstance(reply, ResponseError) else reply)
        if failure:
            self._record_outage(failure)
            await self._disconnect()

    async def _connect(self) -> None:
        try:
            self._connection = await open_redis_connection(self._url, self._probe)
        except Exception as error:  # noqa: BLE001 - as above; the error's type is logged
            self._record_outage(error)
        else:
            self._record_recovery()

    async def _disconnect(self) -> None:
        """Closes the connection; pending questions get no reply, and are decided locally."""
        # Cleared first, so that no further question is queued while the close is awaited.
        connection, self._connection = self._connection, None
        while not self._pending.empty():
            _set_reply(self._pending.get_nowait()[1], None)
        if connection:
            with suppress(Exception):  # the connection is discarded in any case
                await connection.close()

    def _record_outage(self, error: Exception) -> None:
        self._is_password_refused = isinstance(error, AuthenticationError)
        # Logged once per outage, not at each attempt to reconnect.
        if self._outage_started_at is not None:
            return
        self._outage_started_at = time.monotonic()
        self._local_decisions_before_outage = self.local_decision_count
        self.outage_count += 1
        _log.error(
            "redis_unavailable",
            reason=describe_redis_error(error),
            local_limit_fraction=round(1 / self._process_count, 3),
            hint="check that Redis runs, that limits.url is its address, and its memory settings",
        )

    def _record_recovery(self) -> None:
        if self._outage_started_at is None:
            return
        outage_seconds, self._outage_started_at = time.monotonic() - self._outage_started_at, None
        local_decisions = self.local_decision_count - self._local_decisions_before_outage
        _log.info(
            "redis_available",
            outage_seconds=round(outage_seconds, 1),
            requests_counted_locally=local_decisions,
        )


def _set_reply(pending: _PendingReply, reply: AdmissionReply | None) -> None:
    if not pending.done():  # the request was cancelled
        pending.set_result(reply)
