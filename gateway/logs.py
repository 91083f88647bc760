"""Logs: JSON lines on standard error, readable ones on a terminal.

No secret, key or personal data: what is logged of an exception is its type and where it was
raised, never its text.
"""

from __future__ import annotations

import logging
import sys
import traceback
from typing import Any

import structlog

_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def configure(*, level: str = "info") -> None:
    pretty = sys.stderr.isatty()
    renderer: Any = (
        structlog.dev.ConsoleRenderer(sort_keys=False)
        if pretty
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[*_SHARED, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    # Libraries log texts of exceptions, and those can hold what was sent.
    logging.basicConfig(handlers=[_Libraries()], level=logging.WARNING, force=True)


class _Libraries(logging.Handler):
    """What a library logs, as one line without its arguments."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        structlog.get_logger().warning(
            "library", logger=record.name, at=f"{record.filename}:{record.lineno}", **told(error)
        )


def told(error: BaseException | None) -> dict[str, Any]:
    """An exception as a log may tell it: its type and its frames, not its text."""
    if error is None:
        return {}
    frames = traceback.extract_tb(error.__traceback__)
    places = [
        f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames
    ]
    return {"error": type(error).__name__, "raised_at": places[-6:]}
