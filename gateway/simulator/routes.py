"""Route tables of both interfaces."""

import re
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from gateway.simulator.errors import build_not_found_error

Run = TypeVar("Run", bound=Callable[..., object])


class Route(NamedTuple, Generic[Run]):
    method: str
    path_pattern: re.Pattern[str]
    operation: Run


Routes = tuple[Route[Run], ...]


def compile_routes(*routes: tuple[str, str, Run], suffix: str = "") -> Routes[Run]:
    """Compiles paths below `/v1` with placeholders, ``:id``; nothing is decoded before matching."""
    return tuple(
        Route(method, re.compile(f"/v1{pattern}{suffix}"), operation)
        for method, path, operation in routes
        for pattern in [re.sub(":[a-z]+", "([^/]+)", re.escape(path))]
    )


def require_route(table: Routes[Run], method: str, path: str) -> tuple[Run, tuple[str, ...]]:
    """Returns the operation and the ids in the path. Raises ApiError `not_found`."""
    for route in table:
        if route.method == method and (match := route.path_pattern.fullmatch(path)):
            return route.operation, match.groups()
    raise build_not_found_error("Path")
