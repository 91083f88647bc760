"""Pages of lists (current interface, sections 4 and 8)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gateway.simulator.errors import Problems
from gateway.simulator.json_codec import JsonObject

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Page:
    number: int
    size: int

    def select_entries(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Returns the entries of this page; a page past the end is empty."""
        start = (self.number - 1) * self.size
        return entries[start : start + self.size]

    def build_meta(self, record_count: int) -> JsonObject:
        # Rounded up: `-(-a // b)` is ceiling division.
        return {
            "page": self.number,
            "pages": -(-record_count // self.size),
            "records": record_count,
        }


def parse_page(problems: Problems, query: Mapping[str, str], max_size: int) -> Page:
    number = _parse_count(problems, query, "page", 1)
    return Page(number, min(_parse_count(problems, query, "pageSize", 10), max_size))


def _parse_count(problems: Problems, query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, "")
    if text == "":
        return default
    if re.fullmatch(r"[0-9]{1,9}", text) and int(text):
        return int(text)
    problems.add_invalid_field(name, "Must be a whole number from 1")
    return default
