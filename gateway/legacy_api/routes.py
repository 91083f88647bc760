"""Maps paths of the legacy interface to operations.

Ids match a strict pattern; every other path is answered with 404.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from gateway.http.request_paths import redact_path
from mappings import OPERATIONS, UNLISTED
from mappings.effects import Operation, Vocabulary

ID_PATTERNS = {
    "recipients": "R-[A-Za-z0-9]{1,64}",
    "batches": "B-[A-Za-z0-9]{1,64}",
    "payments": "P-[A-Za-z0-9]{1,64}",
    "countries": "[A-Za-z]{2}",
}
"""Pattern of the path segment below each collection (legacy interface, section 2)."""


@dataclass(frozen=True, slots=True)
class Route:
    """A path and its operations by HTTP method."""

    pattern: re.Pattern[str]
    operations: Mapping[str, Operation]


class RouteMatch(msgspec.Struct, frozen=True):
    route: Route
    ids: Mapping[str, str]


class Routes:
    """The route table, with the configured words in paths."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        words = {"wallet": vocabulary.legacy_wallet, "service": vocabulary.legacy_service}
        paths: dict[str, dict[str, Operation]] = {}
        for operation in (*OPERATIONS, *UNLISTED):
            # Grouped by path, because a preflight lists all methods of a path.
            paths.setdefault(operation.path, {})[operation.method] = operation
        self.routes = tuple(
            Route(_compile_path_template(path, words), operations)
            for path, operations in paths.items()
        )
        self._routes_by_slashes: dict[int, list[Route]] = {}
        # ``/v1`` has one slash more, and so may the end.
        for additional_count in (1, 2):
            for path, route in zip(paths, self.routes, strict=True):
                count = path.count("/") + additional_count
                self._routes_by_slashes.setdefault(count, []).append(route)

    def match(self, path: str) -> RouteMatch | None:
        """Finds the route of a raw path.

        The path is not decoded first: no id and no route holds an encoded character, so
        ``..%2F`` and its like never match.
        """
        for route in self._routes_by_slashes.get(path.count("/"), ()):
            if path_match := route.pattern.fullmatch(path):
                return RouteMatch(route, path_match.groupdict())
        return None

    def redact_path(self, path: str) -> str:
        """Formats an unknown path for the log; segments that are no interface words are masked."""
        known_words = {
            "v1",
            *(part for operation in OPERATIONS for part in operation.path.split("/")),
        }
        return redact_path(path, known_words)


def _compile_path_template(path: str, words: Mapping[str, str]) -> re.Pattern[str]:
    parts: list[str] = []
    for part in path.split("/"):
        name = part.strip("{}<>")
        if part.startswith("{"):
            # The segment before an id says what kind of id it is.
            parts.append(f"(?P<{name}>{ID_PATTERNS[parts[-1]]})")
        else:
            parts.append(re.escape(words[name]) if part.startswith("<") else part)
    # Existing clients send paths with and without a trailing slash.
    return re.compile(f"/v1{'/'.join(parts)}/?")
