"""Kills a gateway process between two steps of a request."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from gateway.storage.operations import OperationRepository
from gateway.upstream.http_connection import UpstreamConnection


def install_kill_point(number: int, armed: Path) -> None:
    """Kills this process at the n-th point of a request, counted while the file ``armed`` exists.

    There is a point after each commit of an operation, after a request passed on is sent, and before
    the delivery of the response is saved. The others are alike: nothing leaves the process between a
    step and the next one's beginning, except the response.
    """
    count = 0

    def pass_point() -> None:
        nonlocal count
        if armed.exists():
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

    def with_point_after(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call_before_point(*arguments: Any, **options: Any) -> Any:
            result = await method(*arguments, **options)
            pass_point()
            return result

        return call_before_point

    def with_point_before(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call_after_point(*arguments: Any, **options: Any) -> Any:
            pass_point()
            return await method(*arguments, **options)

        return call_after_point

    repository: Any = OperationRepository
    repository.save_checkpoint = with_point_after(OperationRepository.save_checkpoint)
    repository.mark_answered = with_point_before(OperationRepository.mark_answered)
    start_streamed_exchange = UpstreamConnection.start_streamed_exchange

    def start_before_point(*arguments: Any) -> Any:
        response = start_streamed_exchange(*arguments)
        pass_point()
        return response

    connection_class: Any = UpstreamConnection
    connection_class.start_streamed_exchange = start_before_point
