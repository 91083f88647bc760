"""Configures logging: JSON lines on standard error, or readable lines on a terminal.

Logs contain no secrets, keys or personal data. Of an exception only the type and the frames are
logged, because its text may hold input.
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
        fields["timestamp"] = _format_current_time()
        fields.update(common_fields)
        return fields

    # Each line is one write, so that the lines of several workers are not mixed.
    renderer: Any
    logger_factory: Any
    if is_text:
        renderer = structlog.dev.ConsoleRenderer(sort_keys=False, colors=sys.stderr.isatty())
        logger_factory = structlog.WriteLoggerFactory(cast("Any", _LossyStream(sys.stderr)))
    else:
        renderer = _render_json
        logger_factory = structlog.BytesLoggerFactory(cast("Any", _LossyStream(sys.stderr.buffer)))
    structlog.configure(
        processors=[add_common_fields, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=logger_factory,
        cache_logger_on_first_use=True,
    )
    # Libraries log the texts of exceptions, which may contain client data. So may the message that
    # Python writes about an uncaught exception, also in a thread or a finalizer.
    logging.basicConfig(handlers=[_LibraryLogHandler()], level=logging.WARNING, force=True)
    logging.captureWarnings(capture=True)
    sys.excepthook = lambda _type, error, _trace: log_crash(error)
    sys.unraisablehook = lambda unraisable: log_crash(unraisable.exc_value)
    threading.excepthook = lambda hook: log_crash(hook.exc_value)


def _format_current_time() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


# Values of unknown types are logged as their repr, instead of failing the log call.
_JSON_ENCODER = msgspec.json.Encoder(enc_hook=repr)


def _render_json(_logger: Any, _method: str, fields: MutableMapping[str, Any]) -> bytes:
    try:
        return _JSON_ENCODER.encode(fields)
    except UnicodeEncodeError:  # lone surrogates, which a file name may contain
        return json.dumps(fields, default=repr).encode()


class _LossyStream(Generic[AnyStr]):
    """A stream that drops lines it cannot write, so that a full disk does not fail a request."""

    def __init__(self, stream: IO[AnyStr]) -> None:
        self._stream: IO[AnyStr] = stream

    def write(self, text: AnyStr) -> None:
        try:  # noqa: SIM105 - this runs for every request
            self._stream.write(text)
        except OSError:
            pass

    def flush(self) -> None:
        try:  # noqa: SIM105
            self._stream.flush()
        except OSError:
            pass


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
