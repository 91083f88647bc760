"""``python -m tests.bench.counted_gateway serve``: runs the gateway; SIGUSR1 starts and stops a count of its calls.

When the count stops, it is written as JSON to the file that ``COUNTED_CALLS`` names. Before it starts, that file is
removed, so that the process that sent the signal sees when it has been handled.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from gateway.cli import main

OUTPUT = "COUNTED_CALLS"


class CallCounter:
    """Counts calls in all threads; a resumed coroutine or generator counts as a call."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._python_calls: Counter[CodeType] = Counter()
        self._c_call_count = 0
        self._is_counting = False

    def record_event(self, frame: FrameType, event: str, _argument: Any) -> None:
        if not self._is_counting:
            return
        if event == "call":
            self._python_calls[frame.f_code] += 1
        elif event == "c_call":
            self._c_call_count += 1

    def toggle(self, *_: object) -> None:
        if not self._is_counting:
            self._python_calls, self._c_call_count = Counter(), 0
            self._output.unlink(missing_ok=True)
            self._is_counting = True
            return
        self._is_counting = False
        python_calls = [
            [code.co_filename, code.co_qualname, code.co_firstlineno, count]
            for code, count in self._python_calls.items()
        ]
        # Renamed, so that a reader never sees half of it.
        partial = self._output.with_suffix(".partial")
        partial.write_text(json.dumps({"python": python_calls, "c": self._c_call_count}))
        partial.rename(self._output)


if __name__ == "__main__":
    counter = CallCounter(Path(os.environ[OUTPUT]))
    # Profiled from the start, because threads take the function over when they begin.
    threading.setprofile(counter.record_event)
    sys.setprofile(counter.record_event)
    signal.signal(signal.SIGUSR1, counter.toggle)
    main()
