"""Kills a gateway process between two steps of a request."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from gateway.storage import Store
from gateway.upstream.send_attempt import SingleSendRequest


def install_kill_point(number: int, armed: Path) -> None:
    """Kills this process at the n-th point of a request, counted while the file ``armed`` exists.

    There is a point before and after each commit, and before and after a request passed on is sent.
    """
    count = 0

    def pass_point() -> None:
        nonlocal count
        if armed.exists():
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

    def with_points(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call_between_points(*arguments: Any, **options: Any) -> Any:
            pass_point()
            result = await method(*arguments, **options)
            pass_point()
            return result

        return call_between_points

    Store.write = with_points(Store.write)  # type: ignore[method-assign]
    SingleSendRequest.send = with_points(SingleSendRequest.send)  # type: ignore[method-assign]
