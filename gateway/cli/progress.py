"""How far a command is: a bar on a terminal, on stderr, for what takes more than a moment."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SHOWN_AFTER = 2.0
"""Seconds; what is over sooner needs no bar."""

Progress = Callable[[int, int | None], None]
"""Told how much is done, and of how much."""


@contextmanager
def show_progress(what: str) -> Iterator[Progress]:
    """Until something is told it only shows that something is done."""
    if not sys.stderr.isatty():
        yield lambda _done, _of: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    bars = Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bars.add_task(what, total=None)
    showing = threading.Timer(SHOWN_AFTER, bars.start)
    showing.daemon = True
    showing.start()
    try:
        yield lambda done, of: bars.update(task, completed=done, total=of)
    finally:
        showing.cancel()
        showing.join()
        bars.stop()
