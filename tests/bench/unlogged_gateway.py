"""``python -m tests.bench.unlogged_gateway serve``: runs the gateway; SIGUSR1 switches its log and metrics off and on.

One process is measured with and without them, so that nothing else differs. The product has no such
setting.
"""

from __future__ import annotations

import signal
from typing import Any

from gateway.cli import main
from gateway.legacy_api import handler
from gateway.observability import metrics


def do_nothing(*_args: object, **_keywords: object) -> None: ...


class DiscardingList(list[Any]):
    def append(self, _record: Any) -> None: ...


# The access log line, which also counts the request; upstream calls.
_places: list[tuple[Any, str]] = [
    (handler, "log_and_count_request"),
    (metrics, "pending_calls"),
]
_replacements: list[Any] = [do_nothing, DiscardingList()]


def toggle_logging(*_: object) -> None:
    for number, (module, name) in enumerate(_places):
        original = getattr(module, name)
        setattr(module, name, _replacements[number])
        _replacements[number] = original


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, toggle_logging)
    main()
