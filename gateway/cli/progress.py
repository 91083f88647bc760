"""A progress bar on stderr for commands that take longer than a moment."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SHOW_AFTER_SECONDS = 2.0
"""Work that ends sooner shows no bar."""

Progress = Callable[[int, int | None], None]
"""Called with the amount done and the total, if the total is known."""


@contextmanager
def show_progress(label: str) -> Iterator[Progress]:
    """Yields the callback that updates the bar; until its first call the bar only shows activity."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as ProgressBar

    bar = ProgressBar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(label, total=None)
    # After a delay, so that short commands do not flicker.
    timer = threading.Timer(SHOW_AFTER_SECONDS, bar.start)
    # The timer must not keep the process alive.
    timer.daemon = True
    timer.start()
    try:
        yield lambda done, total: bar.update(task, completed=done, total=total)
    finally:
        timer.cancel()
        # The timer may be starting the bar right now; stop it only after that.
        timer.join()
        bar.stop()
