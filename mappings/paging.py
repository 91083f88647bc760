"""Page parameters and the ``meta`` object of lists (legacy interface, sections 4 and 8)."""

import math
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from mappings.effects import JSON, MAX_PARALLEL_CALLS, Call, Parallel, Step
from mappings.failures import NoSuchOperation, Refused, Unreachable

T = TypeVar("T")

ProbeIds = tuple[str, ...] | None

FIRST_PAGE = 1
DEFAULT_PAGE_SIZE = 10


@dataclass(frozen=True, slots=True)
class Page:
    number: int
    size: int

    def build_query(self) -> dict[str, str]:
        return {"page": str(self.number), "pageSize": str(self.size)}

    def select_rows(
        self, rows: Sequence[T], records: int | None = None
    ) -> tuple[Sequence[T], dict[str, int]]:
        """Returns this page of a complete list, and its ``meta``.

        ``records`` is the total if ``rows`` are only the first of them.
        """
        # Past the end the slice is empty, and an empty page is the answer (contract, section 3).
        start, records = (self.number - 1) * self.size, len(rows) if records is None else records
        meta = build_meta(self.number, math.ceil(records / self.size), records)
        return rows[start : start + self.size], meta


def parse_page_params(query: Mapping[str, str]) -> Page:
    """Parses the page parameters; invalid ones get the default, because these lists have no 406."""
    return Page(
        _parse_positive_integer_or_default(query.get("page"), FIRST_PAGE),
        _parse_positive_integer_or_default(query.get("pageSize"), DEFAULT_PAGE_SIZE),
    )


def _parse_positive_integer_or_default(text: str | None, default: int) -> int:
    # Nine digits suffice for any list, and some services fail on larger numbers.
    if text is not None and re.fullmatch("[0-9]{1,9}", text) and int(text) > 0:
        return int(text)
    return default


def select_page_params(query: Mapping[str, str]) -> dict[str, str]:
    """Selects the page parameters that the client sent, for a list that the service pages."""
    page = parse_page_params(query)
    return {name: value for name, value in page.build_query().items() if query.get(name)}


def build_meta(page: int, pages: int, records: int) -> dict[str, int]:
    return {"page": page, "pages": pages, "records": records}


def complete_page_meta(body: Mapping[str, JSON], page: Page, rows: int) -> dict[str, int]:
    """Completes the ``meta`` of the service with defaults for missing or invalid values.

    Without a count, a full page is not known to be the last one, and clients read on.
    """
    meta = extract_meta(body)
    pages = page.number + (rows >= page.size) if rows else 1
    return build_meta(
        parse_count_or_default(meta.get("page"), page.number),
        parse_count_or_default(meta.get("pages"), pages),
        parse_count_or_default(meta.get("records"), (page.number - 1) * page.size + rows),
    )


def has_counts(body: Mapping[str, JSON]) -> bool:
    """Whether the ``meta`` of a list counts its pages and its rows."""
    return min(_parse_page_count(body, default=-1), parse_record_count(body, -1)) >= 0


def is_past_the_end(body: Mapping[str, JSON], number: int) -> bool:
    """Whether the list has fewer pages than ``number``, according to its ``meta``."""
    return number > max(_parse_page_count(body, default=number), FIRST_PAGE)


def compute_last_page_to_read(body: Mapping[str, JSON], number: int, *, is_new: bool) -> int:
    """Returns the last page to read after page ``number``: from ``meta``, else the next one.

    Returns 0 if the page contained no new row: some services ignore the page parameter and return
    the same rows again, and some announce pages that do not exist.
    """
    if not is_new:
        return 0
    return _parse_page_count(body, default=number + 1)


def _parse_page_count(body: Mapping[str, JSON], *, default: int) -> int:
    return parse_count_or_default(extract_meta(body).get("pages"), default)


def fetch_first_page(
    path: str, query: Mapping[str, str] = MappingProxyType({}), *, probe_ids: ProbeIds = None
) -> Generator[Step, Any, tuple[dict[str, JSON], dict[str, str]]]:
    """Reads the first page of a list; returns the response and the query, for the other pages.

    A page has 100 rows, or as many as the service likes if it refuses that size: the maximum is
    not documented.
    """
    first_query = {**query, "page": str(FIRST_PAGE)}
    sized_query = {**first_query, "pageSize": "100"}
    try:
        return (yield Call("GET", path, query=sized_query, probe_ids=probe_ids)), sized_query
    except Refused as refused:
        if refused.status not in (400, 406):
            raise
    return (yield Call("GET", path, query=first_query, probe_ids=probe_ids)), first_query


class ListedRows:
    """The rows of a list by id, collected from its pages in order."""

    def __init__(self, list_field: str) -> None:
        self.by_id: dict[str, dict[str, JSON]] = {}
        self._list_field = list_field
        self._records = 0

    def add_page(self, body: Mapping[str, JSON], number: int) -> int:
        """Adds the rows of page ``number`` and returns the last page to read.

        Raises Unreachable if the list ends before the service's count of its rows.
        """
        previous_count = len(self.by_id)
        page_rows = (row for row in body.get(self._list_field) or [] if isinstance(row, dict))
        self.by_id |= {str(row.get("id")): row for row in page_rows}
        self._records = parse_record_count(body, self._records)
        # A service that ignores paging would return the same rows forever.
        is_new = len(self.by_id) > previous_count
        if not is_new and len(self.by_id) < self._records:
            raise Unreachable("the service ended its list half-way")
        return compute_last_page_to_read(body, number, is_new=is_new)


def load_all_rows(
    path: str, list_field: str, *, probe_ids: ProbeIds = None
) -> Generator[Step, Any, dict[str, dict[str, JSON]]]:
    """Reads all pages of a list, by id, several in parallel.

    The first page is read alone, since it gives their number.
    """
    rows = ListedRows(list_field)
    first_body, query = yield from fetch_first_page(path, probe_ids=probe_ids)
    bodies: list[Any] = [first_body]
    number, pages = 1, 1
    while number <= pages:
        if number > 1:
            numbers = range(number, min(pages + 1, number + MAX_PARALLEL_CALLS))
            queries = [{**query, "page": str(each)} for each in numbers]
            bodies = yield Parallel(
                [Call("GET", path, query=query, probe_ids=probe_ids) for query in queries]
            )
        for body in bodies:
            # Another request has just found that the service lacks this path. The pages read so far
            # must not count as the whole list.
            if isinstance(body, NoSuchOperation):
                raise Unreachable("the service ended its list half-way")
            if isinstance(body, Exception):
                raise body
            pages = rows.add_page(body, number)
            number += 1
    return rows.by_id


def parse_record_count(body: Mapping[str, JSON], default: int) -> int:
    """Parses the number of rows of the whole list, from the ``meta`` of one page."""
    return parse_count_or_default(extract_meta(body).get("records"), default)


def extract_meta(body: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """Returns the ``meta`` of a list; empty if it has none."""
    meta = body.get("meta")
    return meta if isinstance(meta, dict) else {}


def parse_count_or_default(value: JSON, default: T) -> int | T:
    """Parses a count that services send as a number or as text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch("[0-9]{1,18}", value):
        return int(value)
    return default
