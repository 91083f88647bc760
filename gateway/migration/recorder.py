"""Records legacy traffic for `compare`; keys and personal data are scrubbed before it is written.

Exchanges wait in a bounded queue; if it is full, they are dropped and counted. What the allow-list
of ``compare.masking`` does not keep is replaced by its type and length.

The sample consists of conversations: all requests of a key within some minutes are recorded, or
none, because a request is of little use without the response that its ids came from.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

import structlog

from gateway.compare.har import HarContent, HarEntry, HarHeader, HarRequest, HarResponse
from gateway.compare.masking import AllowList, Scrubber
from gateway.config.settings import Recording
from gateway.migration.rotating_file import RotatingFile
from gateway.observability import logs, metrics

PLACEHOLDER_ORIGIN = "https://recorded.invalid"
"""HAR requires absolute URLs; the real host is not recorded."""

_MEDIA_TYPE = re.compile(r"[a-z]+/[a-z0-9.+-]+(; ?charset=[A-Za-z0-9-]+)?")

CONVERSATION_SECONDS = 600
MAX_EXCHANGE_BYTES = 256 * 1024
"""Size of request and response; larger exchanges are dropped, because scrubbing them would slow
down requests."""

MIN_SECRET_CHARACTERS = 6
"""Shorter secrets are not scrubbed, because they occur in any text by chance."""

MAX_QUEUED_BYTES = 16 << 20
LOG_INTERVAL_SECONDS = 60
SHUTDOWN_SECONDS = 2

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RecordedExchange:
    """A request and its response; ``secrets`` are scrubbed wherever they occur.

    ``key`` is the name of the API key, empty for a request without one. ``seconds`` is the
    duration of the request.
    """

    operation: str
    key: str
    started_at: datetime
    seconds: float
    method: str
    target: str
    content_type: str
    body: bytes = field(repr=False)
    status: int
    answer: bytes = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)

    @property
    def size(self) -> int:
        return len(self.target) + len(self.body) + len(self.answer)


class Recorder:
    """Writes exchanges in the background if a directory is configured; an async context manager."""

    def __init__(
        self,
        settings: Recording,
        clock: Callable[[], datetime],
        words: frozenset[str] = frozenset(),
        salt: bytes | None = None,
    ) -> None:
        self._settings = settings
        self._allow_list = AllowList(words)
        self._salt = salt or secrets.token_bytes(32)
        directory = Path(settings.directory or ".")
        self._file = RotatingFile(directory, settings.file_bytes, settings.files, clock)
        self._queue: asyncio.Queue[RecordedExchange | None] = asyncio.Queue(settings.queue)
        self._queued_bytes = 0
        self._losses_by_reason: dict[str, int] = {}
        self._logged_at = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self.is_on = False

    async def __aenter__(self) -> Self:
        if self._settings.directory:
            self.is_on = True
            self._task = asyncio.create_task(self._write_queued_exchanges(), name="recorder")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is None:
            return
        try:
            async with asyncio.timeout(SHUTDOWN_SECONDS):
                # Makes the task end after it has written the queued exchanges.
                await self._queue.put(None)
                await asyncio.shield(self._task)
            self._file.close()
        except TimeoutError:
            # A thread may still be writing, so the file stays open until the process ends.
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._log_lost_exchanges()

    def is_selected(self, operation: str, key: str, now: datetime) -> bool:
        """Whether a request is in the sample; ``now`` selects its conversation."""
        settings = self._settings
        if not self._task or (settings.keys and key not in settings.keys):
            return False
        if settings.operations and operation not in settings.operations:
            return False
        period = int(now.timestamp()) // CONVERSATION_SECONDS
        # A hash instead of a random number, so that the decision holds for the whole conversation.
        digest = hmac.digest(self._salt, f"{period}\n{key}".encode(), sha256)
        # The first 48 bits as a number between 0 and 1, compared with the sampling rate.
        return int.from_bytes(digest[:6]) < settings.sample * (1 << 48)

    def enqueue_exchange(self, exchange: RecordedExchange) -> None:
        """Queues an exchange without waiting; called when the client's response is ready."""
        # This never waits, because a recording must not slow down the requests that it records.
        if exchange.size > MAX_EXCHANGE_BYTES:
            self._count_lost_exchange("too_large")
        elif self._queued_bytes + exchange.size > MAX_QUEUED_BYTES or self._queue.full():
            self._count_lost_exchange("dropped")
        else:
            self._queued_bytes += exchange.size
            self._queue.put_nowait(exchange)

    async def _write_queued_exchanges(self) -> None:
        while exchange := await self._queue.get():
            try:
                await asyncio.to_thread(self._write_exchange, exchange)
            except OSError as error:
                self._count_lost_exchange(
                    "failed", **logs.describe_exception(error), errno=error.errno
                )
            except Exception as error:  # noqa: BLE001 - one failure must not end the task
                self._count_lost_exchange("failed", **logs.describe_exception(error))
            else:
                metrics.recorded_requests.labels("written").inc()
            finally:
                self._queued_bytes -= exchange.size

    def _write_exchange(self, exchange: RecordedExchange) -> None:
        sent_secrets = [
            secret for secret in exchange.secrets if len(secret) >= MIN_SECRET_CHARACTERS
        ]
        scrubber = Scrubber(sent_secrets, self._allow_list)
        entry = _build_har_entry(exchange, scrubber)
        self._file.write(entry.model_dump_json(exclude_none=True).encode())

    def _count_lost_exchange(self, reason: str, **log_fields: Any) -> None:
        metrics.recorded_requests.labels(reason).inc()
        self._losses_by_reason[reason] = self._losses_by_reason.get(reason, 0) + 1
        now = asyncio.get_running_loop().time()
        if now - self._logged_at >= LOG_INTERVAL_SECONDS:
            self._logged_at = now
            self._log_lost_exchanges(**log_fields)

    def _log_lost_exchanges(self, **log_fields: Any) -> None:
        """Logs the counts of exchanges lost since the last log line."""
        if self._losses_by_reason:
            log.warning(
                "recording_incomplete", requests_not_recorded=self._losses_by_reason, **log_fields
            )
        self._losses_by_reason = {}


def _build_har_entry(exchange: RecordedExchange, scrubber: Scrubber) -> HarEntry:
    """Builds a scrubbed HAR 1.2 entry. Of the headers only the type of the body is recorded."""
    milliseconds = round(exchange.seconds * 1000, 3)
    target = scrubber.scrub_target(exchange.target)
    request = HarRequest(
        # The client sends the method, so it could contain anything.
        method=re.sub(r"[^A-Z]", "", exchange.method)[:10],
        url=f"{PLACEHOLDER_ORIGIN}{target}",
        queryString=[
            HarHeader(name=unquote(name), value=unquote(value))
            for name, _, value in (
                part.partition("=") for part in target.partition("?")[2].split("&")
            )
            if name
        ],
    )
    if exchange.body:
        # Scrubbing drops a compressed or binary body, because it does not parse as JSON.
        text = scrubber.scrub_body(exchange.body.decode(errors="replace"))
        media_type = exchange.content_type
        is_media_type = _MEDIA_TYPE.fullmatch(media_type)
        request.postData = HarContent(mimeType=media_type if is_media_type else "", text=text)
    answer = scrubber.scrub_body(exchange.answer.decode(errors="replace"))
    content = HarContent(mimeType="application/json", text=answer, size=len(answer.encode()))
    status = exchange.status
    return HarEntry(
        startedDateTime=f"{exchange.started_at:%Y-%m-%dT%H:%M:%S}.{exchange.started_at.microsecond // 1000:03}Z",
        time=milliseconds,
        request=request,
        response=HarResponse(status=status, statusText=HTTPStatus(status).phrase, content=content),
        timings={"send": 0, "wait": milliseconds, "receive": 0},
    )
