"""The authenticated request that an operation gets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from gateway.simulator.errors import Problems
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.paging import Page, parse_page
from gateway.simulator.state import Batch, Recipient, Tenant

Entry = TypeVar("Entry")


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
