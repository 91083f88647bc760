"""Pages of lists (current interface, sections 4 and 8)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gateway.simulator.refusals import Problems
from gateway.simulator.wire import JsonObject

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Page:
    number: int
    size: int

    def of(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Return the entries of this page; a page past the end is empty."""
        start = (self.number - 1) * self.size
        return entries[start : start + self.size]

    def meta(self, records: int) -> JsonObject:
        # Rounded up: `-(-a // b)` is ceiling division.
        return {"page": self.number, "pages": -(-records // self.size), "records": records}


def read_page(problems: Problems, query: Mapping[str, str], max_size: int) -> Page:
    number = _read_count(problems, query, "page", 1)
    return Page(number, min(_read_count(problems, query, "pageSize", 10), max_size))


def _read_count(problems: Problems, query: Mapping[str, str], name: str, default: int) -> int:
    given = query.get(name, "")
    if given == "":
        return default
    if re.fullmatch(r"[0-9]{1,9}", given) and int(given):
        return int(given)
    problems.invalid(name, "Must be a whole number from 1")
    return default
