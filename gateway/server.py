"""aiohttp's low-level server, without its own pages and its own log lines.

Its pages are plain text, and its 400 page and its log repeat a malformed header, a key included.
Here every answer is the legacy interface's, and what is logged holds nothing a client sent.
"""

from __future__ import annotations

import re
import secrets
from typing import Any

import structlog
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMethod
from aiohttp.web_protocol import RequestHandler, _ErrInfo

from gateway import answers, logs
from mappings import errors
from mappings.grammar import Problem

IDLE_SECONDS = 75
"""How long a connection may wait for its next request; more than common proxies wait."""

MALFORMED = Problem("invalid_field", "The request is not well-formed HTTP.")

NO_ACCESS_LOG: Any = None
"""The handler writes the one line that a request leaves; aiohttp's types know no None here."""

log = structlog.get_logger()


_WELL_FORMED = re.compile(r"b'[A-Z]{1,20} /\S* HTTP/1\.[01]")


class Connection(RequestHandler):
    """One client connection."""

    __slots__ = ()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # aiohttp queues the error behind the running request, and does not tell its body.
        running = self._current_request
        failed = self._messages and isinstance(self._messages[-1][0], _ErrInfo)
        if running and failed and not running.content.is_eof():
            running.content.set_exception(web.RequestPayloadError("malformed"))

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - it repeats what the client sent
    ) -> web.StreamResponse:
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun; no other can be sent")
        request_id = secrets.token_hex(12)
        problem = MALFORMED if status < 500 else errors.INTERNAL
        if isinstance(exc, BadHttpMethod) and _WELL_FORMED.search(str(exc)):
            problem = errors.NOT_FOUND  # a method that no path has
        said = answers.refusal(errors.of(problem), closes=True)
        log.warning(
            "malformed", request_id=request_id, status=said.status, error=type(exc).__name__
        )
        return answers.response(said, request_id)

    def log_exception(self, *_args: Any, **named: Any) -> None:
        error = named.get("exc_info")
        log.error("connection", **logs.told(error if isinstance(error, BaseException) else None))


class Server(web.Server):
    """Makes a Connection for each client."""

    def __call__(self) -> RequestHandler:
        return Connection(
            self,
            loop=self._loop,
            access_log=NO_ACCESS_LOG,
            keepalive_timeout=IDLE_SECONDS,
        )
