"""Paths of the legacy interface to operations; ids are matched strictly, everything else is 404."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mappings import OPERATIONS
from mappings.grammar import Operation

KINDS = {"recipients": "R-[A-Za-z0-9]{1,64}", "countries": "[A-Za-z]{2}"}
"""What stands below each collection: an id (legacy interface, section 2), or a code."""


@dataclass(frozen=True, slots=True)
class Route:
    """A path and what it can be asked; ``operations`` by method."""

    pattern: re.Pattern[str]
    operations: Mapping[str, Operation]


@dataclass(frozen=True, slots=True)
class Match:
    route: Route
    ids: Mapping[str, str]


def _pattern(path: str) -> re.Pattern[str]:
    parts: list[str] = []
    for part in path.split("/"):
        name = part.strip("{}")
        parts.append(part if name == part else f"(?P<{name}>{KINDS[parts[-1]]})")
    # A trailing slash is as good as none (clients in the field send both).
    return re.compile(f"/v1{'/'.join(parts)}/?")


def _routes() -> tuple[Route, ...]:
    paths: dict[str, dict[str, Operation]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = operation
    return tuple(Route(_pattern(path), operations) for path, operations in paths.items())


ROUTES = _routes()


def match(path: str) -> Match | None:
    """The route of a raw path, as it was sent: an encoded character is in no id and no path."""
    for route in ROUTES:
        if found := route.pattern.fullmatch(path):
            return Match(route, found.groupdict())
    return None
