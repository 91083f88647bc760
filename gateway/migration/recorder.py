"""Records legacy traffic for `compare`; keys and personal data are scrubbed before it is written.

Exchanges wait in a bounded queue; if it is full, they are dropped and counted. ``compare.scrub``
replaces personal data by pseudonyms under a random key that exists only in this process. Nobody
can reverse them, and two processes use different pseudonyms for one person.

The sample consists of conversations: all requests of a key within some minutes are recorded, or
none, because a request is of little use without the response that its ids came from.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import structlog

from gateway.compare.scrub import Scrubber
from gateway.config.settings import Recording
from gateway.migration.rotating_file import RotatingFile
from gateway.observability import logs, metrics

HOST = "https://recorded.invalid"
"""HAR requires absolute URLs; the real host is not recorded."""

CONVERSATION_SECONDS = 600
MOST_BYTES = 256 * 1024
"""Size of request and response; larger exchanges are dropped, because scrubbing them would slow
down requests."""

FEWEST_OF_A_KEY = 6
"""Shorter secrets are not scrubbed, because they occur in any text by chance."""

QUEUED_BYTES = 16 << 20
TELL_EVERY_SECONDS = 60
END_SECONDS = 2

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RecordedExchange:
    """A request and its response; ``secrets`` are scrubbed wherever they occur.

    ``key`` is the name of the API key, empty for a request without one. ``seconds`` is the
    duration of the request.
    """

    operation: str
    key: str
    began: datetime
    seconds: float
    method: str
    target: str
    content_type: str
    body: bytes = field(repr=False)
    status: int
    answer: bytes = field(repr=False)
    keys: tuple[str, ...] = field(repr=False)

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
        self._words = words
        self._salt = salt or secrets.token_bytes(32)
        directory = Path(settings.directory or ".")
        self._tape = RotatingFile(directory, settings.file_bytes, settings.files, clock)
        self._queue: asyncio.Queue[RecordedExchange | None] = asyncio.Queue(settings.queue)
        self._held = 0
        self._lost: dict[str, int] = {}
        self._told_at = float("-inf")
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._settings.directory:
            self._task = asyncio.create_task(self._go_on(), name="recorder")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is None:
            return
        try:
            async with asyncio.timeout(END_SECONDS):
                # Makes the task end after it has written the queued exchanges.
                await self._queue.put(None)
                await asyncio.shield(self._task)
            self._tape.close()
        except TimeoutError:
            # A thread may still be writing, so the file stays open until the process ends.
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._tell()

    @property
    def is_on(self) -> bool:
        return self._task is not None

    def wants(self, operation: str, key: str, now: datetime) -> bool:
        """Whether a request is in the sample; ``now`` selects its conversation."""
        chosen = self._settings
        if not self._task or (chosen.keys and key not in chosen.keys):
            return False
        if chosen.operations and operation not in chosen.operations:
            return False
        part = int(now.timestamp()) // CONVERSATION_SECONDS
        # A hash instead of a random number, so that the decision holds for the whole conversation.
        digest = hmac.digest(self._salt, f"{part}\n{key}".encode(), sha256)
        # The first 48 bits as a number between 0 and 1, compared with the sampling rate.
        return int.from_bytes(digest[:6]) < chosen.sample * (1 << 48)

    def offer(self, heard: RecordedExchange) -> None:
        """Queues an exchange without waiting; called when the client's response is ready."""
        if heard.size > MOST_BYTES:
            self._lose("too_large")
        elif self._held + heard.size > QUEUED_BYTES or self._queue.full():
            self._lose("dropped")
        else:
            self._held += heard.size
            self._queue.put_nowait(heard)

    async def _go_on(self) -> None:
        while heard := await self._queue.get():
            try:
                await asyncio.to_thread(self._write, heard)
            except OSError as error:
                self._lose("failed", **logs.describe_exception(error), errno=error.errno)
            except Exception as error:  # noqa: BLE001 - one failure must not end the task
                self._lose("failed", **logs.describe_exception(error))
            else:
                metrics.recorded.labels("written").inc()
            finally:
                self._held -= heard.size

    def _write(self, heard: RecordedExchange) -> None:
        keys = tuple(one for one in heard.keys if len(one) >= FEWEST_OF_A_KEY)
        scrubber = Scrubber(self._salt, keys, self._words)
        entry = scrubber.entry(_entry(heard))
        self._tape.write(json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode())

    def _lose(self, why: str, **told: Any) -> None:
        metrics.recorded.labels(why).inc()
        self._lost[why] = self._lost.get(why, 0) + 1
        now = asyncio.get_running_loop().time()
        if now - self._told_at >= TELL_EVERY_SECONDS:
            self._told_at = now
            self._tell(**told)

    def _tell(self, **told: Any) -> None:
        """Logs the counts of exchanges lost since the last log line."""
        if self._lost:
            log.warning("recording_incomplete", requests_not_recorded=self._lost, **told)
        self._lost = {}


def _entry(heard: RecordedExchange) -> dict[str, Any]:
    """Builds a HAR 1.2 entry, not scrubbed yet."""
    milliseconds = round(heard.seconds * 1000, 3)
    request: dict[str, Any] = {"method": heard.method, "url": f"{HOST}{heard.target}"}
    if heard.body:
        # Scrubbing drops a compressed or binary body, because it does not parse as JSON.
        text = heard.body.decode(errors="replace")
        request["postData"] = {"mimeType": heard.content_type, "text": text}
    mime = "application/json"
    content = {"mimeType": mime, "text": heard.answer.decode(errors="replace")}
    return {
        "startedDateTime": re.sub(r"\+00:00$", "Z", heard.began.isoformat(timespec="milliseconds")),
        "time": milliseconds,
        "request": request,
        "response": {"status": heard.status, "content": content},
    }
