"""Route tables of both interfaces."""

import re
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

Run = TypeVar("Run", bound=Callable[..., object])


class Route(NamedTuple, Generic[Run]):
    method: str
    path_pattern: re.Pattern[str]
    operation: Run


def compile_routes(
    *routes: tuple[str, str, Run], prefix: str = "", suffix: str = ""
) -> tuple[Route[Run], ...]:
    """Compiles paths with placeholders, ``{id}`` or ``:id``; nothing is decoded before matching."""
    return tuple(
        Route(method, re.compile(f"{prefix}{pattern}{suffix}"), operation)
        for method, path, operation in routes
        for pattern in [re.sub(r"\\\{[A-Za-z]+\\\}|:[a-z]+", "([^/]+)", re.escape(path))]
    )


def find_route(
    table: tuple[Route[Run], ...], method: str, path: str
) -> tuple[Run, tuple[str, ...]] | None:
    """Returns the operation and the ids in the path."""
    for route in table:
        if route.method == method and (match := route.path_pattern.fullmatch(path)):
            return route.operation, match.groups()
    return None
