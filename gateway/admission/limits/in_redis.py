"""The rate limiter that all processes on all hosts with the same Redis share.

One script call (``admit.lua``) decides concurrent requests, by Redis's own clock. Therefore neither
the number of processes nor their clocks matter.

If Redis is unavailable, each process decides locally: it admits its *share* of a key's limit, the
limit divided by the number of processes, at least 1. Redis counts as unavailable after less than
100 ms without a reply. Requests do not wait any longer; one task reconnects once a second. A call
is tried once, because the process can decide locally, while redis-py tries ten times by default.

The guarantee: in any 3,600 s, at most the limit and, for each process that lost Redis in that time,
its share are admitted. If no process was started in that time and the limit is at least the number
of processes, that is at most twice the limit. More is admitted only if Redis loses data: when it
restarts empty (``appendonly`` prevents that), when a replica that lacks the last requests takes
over, and when Redis evicts keys (``REQUIRED_POLICY``).

Redis contains no API keys and no addresses: its keys are digests, keyed with the encryption key of
the database. They expire with their last request.
"""

import asyncio
import hashlib
import hmac
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

import structlog
from msgspec import structs
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoScriptError, RedisError, ResponseError
from redis.maint_notifications import MaintNotificationsConfig

from gateway.admission.limits.in_process import Admission, InProcessRateLimiter

RECONNECT_SECONDS = 1.0
"""Time between attempts to reconnect to Redis."""

MAX_QUESTIONS = 100
"""Requests in one call. It takes a millisecond of Redis's time, for which others wait."""

PROBE_LIMIT = 1_000_000_000
"""The limit of the key that probes Redis; no client has that key."""

COUNT_ONLY = -1
"""The limit with which ``admit.lua`` counts no request, and returns how many count."""

KEY_PREFIX = "payout-gateway:limit:"

DIVIDED_LIMIT = "each process admits its share of the limit"
"""What happens without Redis."""

UNAVAILABLE_MESSAGE = f"Redis does not answer; {DIVIDED_LIMIT} until it does"

LOGIN_REFUSED_MESSAGE = f"Redis refuses the password; {DIVIDED_LIMIT} until it is accepted"

_log = structlog.get_logger(__name__)


AdmissionQuestion = tuple[str, int]
"""Asks whether one more request of a key is admitted: its key in Redis, and the limit."""

AdmissionReply = tuple[bool, int, int]
"""Whether the request is admitted, the remaining requests, and the seconds until more remain."""


@dataclass(slots=True, frozen=True)
class _PendingQuestion:
    question: AdmissionQuestion
    reply: asyncio.Future[AdmissionReply | None]

    def set_reply(self, reply: AdmissionReply | None) -> None:
        """Sets the reply, or None if Redis sent none, unless the request has been cancelled."""
        if not self.reply.done():
            self.reply.set_result(reply)


class RedisRateLimiter:
    """A rate limiter in Redis, used with ``async with``.

    ``process_count`` is the number of processes that share the limit, on all hosts.
    ``local_decision_count`` counts the requests decided without Redis.
    """

    def __init__(self, url: str, naming_key: bytes, process_count: int) -> None:
        self._url = url
        self._naming_key = naming_key
        self._process_count = process_count
        # The probe is counted like a request: a full Redis, or a replica, still answers reads.
        self._probe = self.build_redis_key("trial"), PROBE_LIMIT
        self._local_limiter = InProcessRateLimiter()
        self._connection: Redis | None = None
        """Only the worker task uses it. After a failure it is not used again."""
        self._pending: asyncio.Queue[_PendingQuestion] = asyncio.Queue()
        self._worker_task: asyncio.Task[None] | None = None
        self._outage_started_at: float | None = None
        self._is_password_refused = False
        self._local_decisions_before_outage = 0
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
        question = self.build_redis_key(key), limit
        if (reply := await self._ask_redis_for_admission(question)) is None:
            return await self._admit_locally(key, limit)
        is_admitted, remaining, seconds = reply
        return Admission(is_admitted, limit, remaining, seconds)

    async def list_window_request_counts(self, keys: Sequence[str]) -> list[int] | None:
        counts: list[int] = []
        # In turn with the requests of clients, which do not wait for all keys.
        for start in range(0, len(keys), MAX_QUESTIONS):
            names = map(self.build_redis_key, keys[start : start + MAX_QUESTIONS])
            questions = [(name, COUNT_ONLY) for name in names]
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
        pending = _PendingQuestion(question, asyncio.get_running_loop().create_future())
        self._pending.put_nowait(pending)
        return await pending.reply

    async def _run_send_and_reconnect_loop(self) -> None:
        while True:
            if self._connection:
                await self._send_pending(self._connection)
            else:
                await asyncio.sleep(RECONNECT_SECONDS)
                await self._connect()

    async def _send_pending(self, redis: Redis) -> None:
        """Sends the pending questions to Redis and passes the replies on."""
        batch = [await self._pending.get()]
        while len(batch) < MAX_QUESTIONS and not self._pending.empty():
            batch.append(self._pending.get_nowait())
        replies: Sequence[AdmissionReply | None] = [None] * len(batch)
        failure: Exception | None = None
        try:
            questions = [pending.question for pending in batch]
            replies = await _evaluate_questions(redis, questions)
        except Exception as error:  # noqa: BLE001 - if this task ended, all requests would wait forever
            failure = error
        finally:
            for pending, reply in zip(batch, replies, strict=True):
                pending.set_reply(reply)
        if failure:
            self._record_outage(failure)
            await self._disconnect()

    async def _connect(self) -> None:
        try:
            self._connection = await _connect_to_redis(self._url, self._probe)
        except Exception as error:  # noqa: BLE001 - as above; the error's type is logged
            self._record_outage(error)
        else:
            self._record_recovery()

    async def _disconnect(self) -> None:
        """Closes the connection; pending questions get no reply, and are decided locally."""
        # Cleared first, so that no further question is queued while the close is awaited.
        redis, self._connection = self._connection, None
        while not self._pending.empty():
            self._pending.get_nowait().set_reply(None)
        if redis:
            with suppress(Exception):  # the connection is discarded in any case
                await redis.aclose()

    def _record_outage(self, error: Exception) -> None:
        self._is_password_refused = isinstance(error, AuthenticationError)
        # Logged once per outage, not at each attempt to reconnect.
        if self._outage_started_at is not None:
            return
        self._outage_started_at = time.monotonic()
        self._local_decisions_before_outage = self.local_decision_count
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


async def _evaluate_questions(
    redis: Redis, questions: Sequence[AdmissionQuestion]
) -> list[AdmissionReply]:
    """Returns a reply for each question; raises one of ``REDIS_ERRORS``.

    TimeoutError is raised after ``MAX_POLLS`` polls. One wait for the whole time would be wrong: if
    this process is busy, the reply may have arrived long before the event loop handles it, and Redis
    would be declared unavailable.
    """
    task = asyncio.create_task(_run_admission_script(redis, questions))
    # Retrieves a late reply's exception; asyncio would otherwise report it as never retrieved.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        for _ in range(MAX_POLLS):
            if (await asyncio.wait({task}, timeout=POLL_SECONDS))[0]:
                return task.result()
        raise TimeoutError
    finally:
        task.cancel()


async def _run_admission_script(
    redis: Redis, questions: Sequence[AdmissionQuestion]
) -> list[AdmissionReply]:
    keys, limits = zip(*questions, strict=True)
    arguments = (_SCRIPT_DIGEST, len(keys), *keys, *limits)
    try:
        replies = await redis.evalsha(*arguments)
    except NoScriptError:  # after a restart or a failover
        await redis.script_load(ADMIT_SCRIPT)
        replies = await redis.evalsha(*arguments)
    return [(bool(is_admitted), remaining, seconds) for is_admitted, remaining, seconds in replies]


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


async def _connect_to_redis(url: str, probe: AdmissionQuestion) -> Redis:
    """Opens a connection and probes it with a question; raises one of ``REDIS_ERRORS``."""
    redis = create_redis_client(url)
    try:
        async with asyncio.timeout(2 * CONNECT_SECONDS):
            await redis.script_load(ADMIT_SCRIPT)
        await _evaluate_questions(redis, [probe])
    except BaseException:
        await redis.aclose()
        raise
    return redis


REQUIRED_POLICY = "noeviction"
"""Redis must not evict keys: after an eviction, the full limit is admitted again."""


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
