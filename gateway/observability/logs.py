"""Logs: JSON lines on standard error, readable ones on a terminal.

No secret, key or personal data: what is logged of an exception is its type and where it was
raised, never its text.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import traceback
from collections.abc import MutableMapping
from datetime import UTC, datetime
from typing import IO, Any, AnyStr, Generic, cast

import msgspec
import structlog


def configure_logging(*, level: str = "info", **of_each: Any) -> None:
    """``of_each`` is told in every line."""

    def told_of_each(
        _logger: Any, method: str, line: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        line["level"] = method
        line["timestamp"] = _now()
        line.update(of_each)
        return line

    # A line in one write: those of several workers must not run into each other.
    renderer: Any
    loggers: Any
    if sys.stderr.isatty():
        renderer = structlog.dev.ConsoleRenderer(sort_keys=False)
        loggers = structlog.WriteLoggerFactory(cast("Any", _Unfailing(sys.stderr)))
    else:
        renderer = _as_json
        loggers = structlog.BytesLoggerFactory(cast("Any", _Unfailing(sys.stderr.buffer)))
    structlog.configure(
        processors=[told_of_each, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=loggers,
        cache_logger_on_first_use=True,
    )
    # Libraries log texts of exceptions, and those can hold what was sent. So can what Python itself
    # writes about an exception that nobody caught, in a thread, a finalizer or anywhere.
    logging.basicConfig(handlers=[_Libraries()], level=logging.WARNING, force=True)
    logging.captureWarnings(capture=True)
    sys.excepthook = lambda _type, error, _trace: log_crash(error)
    sys.unraisablehook = lambda unraisable: log_crash(unraisable.exc_value)
    threading.excepthook = lambda hook: log_crash(hook.exc_value)


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


_JSON = msgspec.json.Encoder(enc_hook=repr)


def _as_json(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> bytes:
    try:
        return _JSON.encode(line)
    except UnicodeEncodeError:  # halves of a surrogate pair: a file's name may have some
        return json.dumps(line, default=repr).encode()


class _Unfailing(Generic[AnyStr]):
    """A stream that loses what it cannot write: a full disk is not to cost a client's answer."""

    def __init__(self, stream: IO[AnyStr]) -> None:
        self._stream: IO[AnyStr] = stream

    def write(self, text: AnyStr) -> None:
        try:  # noqa: SIM105 - as each request's line is written
            self._stream.write(text)
        except OSError:
            pass

    def flush(self) -> None:
        try:  # noqa: SIM105
            self._stream.flush()
        except OSError:
            pass


class _Libraries(logging.Handler):
    """What a library logs, as one line without its arguments."""

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
    """An exception as a log may tell it: its type and its frames, not its text."""
    if error is None:
        return {}
    frames = traceback.extract_tb(error.__traceback__)
    places = [
        f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames
    ]
    return {"error.type": type(error).__name__, "exception.stacktrace": "\n".join(places[-6:])}
