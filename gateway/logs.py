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
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TextIO, cast

import structlog


def configure(*, level: str = "info", **of_each: Any) -> None:
    """``of_each`` is told in every line."""

    def told_of_each(
        _logger: Any, method: str, line: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        line["level"] = method
        line["timestamp"] = _now()
        line.update(of_each)
        return line

    pretty = sys.stderr.isatty()
    renderer: Any = structlog.dev.ConsoleRenderer(sort_keys=False) if pretty else _as_json
    structlog.configure(
        processors=[told_of_each, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        # A line in one write: those of several workers must not run into each other.
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _Unfailing(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    # Libraries log texts of exceptions, and those can hold what was sent. So can what Python itself
    # writes about an exception that nobody caught, in a thread, a finalizer or anywhere.
    logging.basicConfig(handlers=[_Libraries()], level=logging.WARNING, force=True)
    logging.captureWarnings(capture=True)
    sys.excepthook = lambda _type, error, _trace: crashed(error)
    sys.unraisablehook = lambda unraisable: crashed(unraisable.exc_value)
    threading.excepthook = lambda hook: crashed(hook.exc_value)


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


# One for all lines: json.dumps makes a new one for each.
_JSON = json.JSONEncoder(default=repr)


def _as_json(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> str:
    return _JSON.encode(line)


class _Unfailing:
    """A stream that loses what it cannot write: a full disk is not to cost a client's answer."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._flushes = stream.line_buffering  # with each line that is written

    def write(self, text: str) -> None:
        try:  # noqa: SIM105 - as each request's line is written
            self._stream.write(text)
        except OSError:
            pass

    def flush(self) -> None:
        if not self._flushes:
            with suppress(OSError):
                self._stream.flush()


class _Libraries(logging.Handler):
    """What a library logs, as one line without its arguments."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        structlog.get_logger().warning(
            "library", logger=record.name, at=f"{record.filename}:{record.lineno}", **told(error)
        )


def crashed(error: BaseException | None) -> None:
    structlog.get_logger().error("crashed", **told(error))


def told(error: BaseException | None) -> dict[str, Any]:
    """An exception as a log may tell it: its type and its frames, not its text."""
    if error is None:
        return {}
    frames = traceback.extract_tb(error.__traceback__)
    places = [
        f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames
    ]
    return {"error": type(error).__name__, "raised_at": places[-6:]}
