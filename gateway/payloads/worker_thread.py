"""Long work without I/O, done aside: in a thread, while the loop serves everybody else.

The interpreter goes from one thread to the other every few milliseconds, and whenever what is in hand
is a slice (``mappings.lazy_sequences``) nothing takes longer than that. There is one such thread in a process:
several would not be faster together, and the loop would have to wait for each of them.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
Made = TypeVar("Made")

_thread = ThreadPoolExecutor(1, "aside")


async def run_in_thread(work: Callable[P, Made], *args: P.args, **named: P.kwargs) -> Made:
    """What the work returns or raises. It is done to its end also where nobody waits any more."""
    own = partial(contextvars.copy_context().run, work, *args, **named)
    return await asyncio.get_running_loop().run_in_executor(_thread, own)


async def run_in_thread_if(
    is_long: bool, work: Callable[P, Made], *args: P.args, **named: P.kwargs
) -> Made:
    """What is short is not worth the way there and back."""
    return await run_in_thread(work, *args, **named) if is_long else work(*args, **named)
