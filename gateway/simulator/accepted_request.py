"""The authenticated request that an operation gets, and pages of lists (sections 4 and 8)."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from gateway.simulator.errors import Problems
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.state import Batch, Recipient, Tenant

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


@dataclass
class AcceptedRequest:
    """An authenticated request; it is entered in the activity logs of `logged_recipients`.

    In the current interface, `body` includes the query parameters (section 4).
    """

    tenant: Tenant
    query: dict[str, str]
    path_ids: tuple[str, ...] = ()
    body: JsonObject = field(default_factory=dict)
    logged_recipients: list[Recipient] = field(default_factory=list)

    def resolve_id(self, client_id: str) -> str:
        """Returns the service's id for a client's."""
        return client_id

    def require_recipient(self, recipient_id: str) -> Recipient:
        """Raises ApiError `not_found`."""
        return self.tenant.require_recipient(self.resolve_id(recipient_id))

    def require_batch(self, batch_id: str) -> Batch:
        return self.tenant.require_batch(self.resolve_id(batch_id))

    def require_path_recipient(self) -> Recipient:
        recipient = self.require_recipient(self.path_ids[0])
        self.logged_recipients.append(recipient)
        return recipient

    def require_path_batch(self) -> Batch:
        return self.require_batch(self.path_ids[0])

    def parse_ids(self) -> list[str]:
        """Parses `ids` of a request that names several objects. Raises ApiError."""
        ids = self.body.get("ids")
        problems = Problems()
        if ids is None or ids == []:
            problems.add_empty_field("ids")
        # Before any look-up: a list of other values is a mistake in the body, not an unknown
        # object.
        elif not isinstance(ids, list) or not all(isinstance(value, str) for value in ids):
            problems.add_invalid_field("ids", "Must be an array of strings")
        problems.raise_if_any()
        return list(ids or [])

    def parse_page(self) -> Page:
        problems = Problems()
        page = parse_page(problems, self.query, self.tenant.options.max_page_size)
        problems.raise_if_any()
        return page

    def build_page(
        self, key: str, entries: Sequence[Entry], build_entry: Callable[[Entry], JsonObject]
    ) -> JsonObject:
        page = self.parse_page()
        page_entries = [build_entry(entry) for entry in page.select_entries(entries)]
        return {key: page_entries, "meta": page.build_meta(len(entries))}


Operation = Callable[[AcceptedRequest], JsonObject]
