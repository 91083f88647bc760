"""``python -m tests.bench.quiet serve``: the gateway, and SIGUSR1 has it leave out its log and metrics.

Or take them up again: one process is measured with and without, so that nothing else differs. The
product has no setting for that.
"""

from __future__ import annotations

import signal

from gateway.cli import main
from gateway.legacy_api import handler
from gateway.observability import metrics


class Nothing:
    def inc(self) -> None: ...

    def dec(self) -> None: ...


def nothing(*_args: object, **_named: object) -> None: ...


# The line of a request, and in it the request's metrics; calls of the service; requests in flight.
_places = [(handler, "_log"), (metrics, "called"), (metrics, "in_flight")]
_others = [nothing, nothing, Nothing()]


def swap(*_: object) -> None:
    for number, (module, name) in enumerate(_places):
        own = getattr(module, name)
        setattr(module, name, _others[number])
        _others[number] = own


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, swap)
    main()
