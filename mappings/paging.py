"""Pages: which one a client asked for, and the ``build_meta`` it gets (legacy interface, sections 4, 8)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mappings.grammar import JSON

T = TypeVar("T")

FIRST = 1
SIZE = 10


@dataclass(frozen=True, slots=True)
class Page:
    number: int
    size: int

    def query(self) -> dict[str, str]:
        return {"page": str(self.number), "pageSize": str(self.size)}

    def of(
        self, rows: Sequence[T], records: int | None = None
    ) -> tuple[Sequence[T], dict[str, int]]:
        """Its rows of a list that is all here, and the ``build_meta``; or of the first of so many ``records``."""
        start, records = (self.number - 1) * self.size, len(rows) if records is None else records
        counts = build_meta(self.number, math.ceil(records / self.size), records)
        return rows[start : start + self.size], counts


def parse_page_params(query: Mapping[str, str]) -> Page:
    """The page asked for; what makes no sense is the default, as these lists have no 406."""
    return Page(_count(query.get("page"), FIRST), _count(query.get("pageSize"), SIZE))


def _count(text: str | None, default: int) -> int:
    # Nine digits: more would be no page of anything, and some services fall over them.
    if text is not None and re.fullmatch("[0-9]{1,9}", text) and int(text) > 0:
        return int(text)
    return default


def select_page_params(query: Mapping[str, str]) -> dict[str, str]:
    """Page parameters for a list that the service pages, only as far as the client gave any."""
    page = parse_page_params(query)
    return {name: value for name, value in page.query().items() if query.get(name)}


def build_meta(page: int, pages: int, records: int) -> dict[str, int]:
    return {"page": page, "pages": pages, "records": records}


def complete_meta(given: JSON, page: Page, rows: int) -> dict[str, int]:
    """The service's ``build_meta``, with what it leaves out filled in."""
    given = given if isinstance(given, dict) else {}
    return build_meta(
        parse_count(given.get("page"), page.number),
        parse_count(given.get("pages"), 1),
        parse_count(given.get("records"), rows),
    )


def count_pages_to_read(body: Mapping[str, JSON], number: int, *, is_new: bool) -> int:
    """How far to read a list of which page ``number`` is read: as the service says, or else one more.

    No further once a page brought nothing new: some services do not page at all and give the same
    rows again, and some tell of pages that there are not.
    """
    if not is_new:
        return 0
    given = body.get("meta")
    return parse_count(given.get("pages") if isinstance(given, dict) else None, number + 1)


def parse_count(value: JSON, default: int) -> int:
    """A count as services write it, a number or its text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch("[0-9]{1,18}", value):
        return int(value)
    return default
