"""A progress bar on stderr for commands that take longer than a moment."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SHOWN_AFTER = 2.0
"""Seconds. Work that ends sooner shows no bar."""

Progress = Callable[[int, int | None], None]
"""Called with the amount done and the total, if the total is known."""


@contextmanager
def show_progress(what: str) -> Iterator[Progress]:
    """Yields the callback that updates the bar; until its first call the bar only shows activity."""
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
    # After a delay, so that short commands do not flicker.
    showing = threading.Timer(SHOWN_AFTER, bars.start)
    # The timer must not keep the process alive.
    showing.daemon = True
    showing.start()
    try:
        yield lambda done, of: bars.update(task, completed=done, total=of)
    finally:
        showing.cancel()
        # The timer may be starting the bar right now; stop it only after that.
        showing.join()
        bars.stop()
