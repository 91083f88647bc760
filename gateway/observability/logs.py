"""Configures logging: JSON lines on standard error, or readable lines on a terminal.

Logs contain no secrets, keys or personal data. Of an exception only the type and the frames are
logged, because its text may hold input.
"""

import asyncio
import json
import logging
import select
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import IO, Any, cast

import msgspec
import structlog


def configure_logging(
    *, level: str = "info", line_format: str = "auto", **common_fields: Any
) -> None:
    """Configures structlog and the standard library; every line has ``common_fields``.

    ``level`` and ``line_format`` are ``logs.level`` and ``logs.format`` of the configuration.
    """
    is_text = sys.stderr.isatty() if line_format == "auto" else line_format == "text"

    def add_common_fields(
        _logger: Any, method: str, fields: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        fields["level"] = method
        fields["timestamp"] = _format_time(time.time())
        fields.update(common_fields)
        return fields

    global _json_stream, _common_members, _min_level  # noqa: PLW0603 - one configuration a process, as structlog's
    _min_level = logging.getLevelNamesMapping()[level.upper()]
    _json_stream = None if is_text else sys.stderr.buffer
    _common_members = f",{encode_members(common_fields)}" if common_fields else ""
    render_text = structlog.dev.ConsoleRenderer(sort_keys=False, colors=sys.stderr.isatty())
    text_renderers = (render_text, lambda _l, _m, text: text.encode(errors="backslashreplace"))
    structlog.configure(
        processors=[add_common_fields, *(text_renderers if is_text else (_render_json,))],
        wrapper_class=structlog.make_filtering_bound_logger(_min_level),
        # A line is written at once, so that the lines of several workers are not mixed.
        logger_factory=structlog.BytesLoggerFactory(cast("Any", _LossyStream(sys.stderr.buffer))),
        cache_logger_on_first_use=True,
    )
    # Libraries log the texts of exceptions, which may contain client data. So may the message that
    # Python writes about an uncaught exception, also in a thread or a finalizer.
    logging.basicConfig(handlers=[_LibraryLogHandler()], level=logging.WARNING, force=True)
    logging.captureWarnings(capture=True)
    sys.excepthook = lambda _type, error, _trace: log_crash(error)
    sys.unraisablehook = lambda unraisable: log_crash(unraisable.exc_value)
    threading.excepthook = lambda hook: log_crash(hook.exc_value)


_json_stream: IO[bytes] | None = None
_common_members = ""
_min_level = logging.NOTSET


def encode_members(fields: Mapping[str, Any]) -> str:
    """Encodes the members of a JSON object, without its braces."""
    return _render_json(None, "", dict(fields))[1:-1].decode()


def write_request_line(members: str, at: float, *, is_error: bool) -> None:
    """Writes the line of a request at a Unix time, the only line that every request causes.

    ``members`` are from ``encode_members``. The line is the same as structlog's, whose processors
    would take a tenth of the time of a read.
    """
    if _json_stream is None:  # on a terminal, or without configuration
        logger = structlog.get_logger()
        (logger.error if is_error else logger.info)("request", **json.loads(f"{{{members}}}"))
    elif is_error or _min_level <= logging.INFO:
        level = "error" if is_error else "info"
        line = (
            f'{{{members},"event":"request","level":"{level}"'
            f',"timestamp":"{_format_time(at)}"{_common_members}}}\n'
        )
        _waiting_lines.append(line.encode())
        if len(_waiting_lines) == 1:
            asyncio.get_running_loop().call_soon(_write_waiting_lines)


_waiting_lines: deque[bytes] = deque()


def _write_waiting_lines() -> None:
    """Writes the lines of the requests that one turn of the event loop has answered.

    One system call for each of them would cost as much as a tenth of a read.
    """
    stream = cast("IO[bytes]", _json_stream)
    while _waiting_lines:
        text = _waiting_lines.popleft()
        # Not more than the system writes to a pipe at once: other workers write to it, too.
        while _waiting_lines and len(text) + len(_waiting_lines[0]) <= select.PIPE_BUF:
            text += _waiting_lines.popleft()
        try:
            stream.write(text)
            stream.flush()
        except OSError:  # a full disk
            continue


_formatted_second: tuple[int, str] = (0, "")


def _format_time(now: float) -> str:
    global _formatted_second  # noqa: PLW0603 - formatting a second costs more than all else here
    second = int(now)
    if second != _formatted_second[0]:
        _formatted_second = second, datetime.fromtimestamp(second, UTC).isoformat()[:19]
    return f"{_formatted_second[1]}.{int((now - second) * 1e6):06d}Z"


# Values of unknown types are logged as their repr, instead of failing the log call.
_JSON_ENCODER = msgspec.json.Encoder(enc_hook=repr)


def _render_json(_logger: Any, _method: str, fields: MutableMapping[str, Any]) -> bytes:
    try:
        return _JSON_ENCODER.encode(fields)
    except UnicodeEncodeError:  # lone surrogates, which a file name may contain
        return json.dumps(fields, default=repr).encode()


class _LossyStream:
    """A stream that drops lines it cannot write, so that a full disk does not fail a request."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def write(self, text: bytes) -> None:
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


class _LibraryLogHandler(logging.Handler):
    """Logs a library's record as one line, without its message, which may hold input."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        structlog.get_logger().warning(
            "library_warning",
            logger=record.name,
            **{"code.file.path": record.filename, "code.line.number": record.lineno},
            **describe_exception(error),
        )


def log_crash(error: BaseException | None) -> None:
    structlog.get_logger().error("unhandled_exception", **describe_exception(error))


def describe_exception(error: BaseException | None) -> dict[str, Any]:
    """Returns the log fields of an exception: its type and frames, but not its text."""
    if error is None:
        return {}
    frames = traceback.extract_tb(error.__traceback__)
    frame_lines = [
        f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames
    ]
    # The last frames are where it was raised; the first are those of the event loop.
    return {"error.type": type(error).__name__, "exception.stacktrace": "\n".join(frame_lines[-6:])}
