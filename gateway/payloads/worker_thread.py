"""Runs CPU-bound work in a thread, so that the event loop can serve other requests.

The interpreter switches threads every few milliseconds, and operations on a slice
(``mappings.lazy_sequences``) take no longer than that. There is only one such thread in a process:
because of the interpreter lock several would not be faster, and the event loop would compete with
each.
"""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
Result = TypeVar("Result")

_thread = ThreadPoolExecutor(1, "worker")


async def run_in_thread(work: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
    """Runs work in the thread; returns its result or raises its error.

    The work runs to its end even if the caller is cancelled.
    """
    # The caller's context variables, such as the trace span, must be set in the thread too.
    call = partial(contextvars.copy_context().run, work, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_thread, call)


async def run_in_thread_if(
    is_slow: bool, work: Callable[P, Result], *args: P.args, **kwargs: P.kwargs
) -> Result:
    """Runs slow work in the thread; for short work the switch would cost more than it saves."""
    return await run_in_thread(work, *args, **kwargs) if is_slow else work(*args, **kwargs)
