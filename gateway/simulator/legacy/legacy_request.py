"""The authenticated request that an operation of the legacy interface gets."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gateway.simulator.errors import Problems, build_not_found_error
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.legacy.id_mapper import IdMapper
from gateway.simulator.paging import Page
from gateway.simulator.state import Batch, Recipient, Tenant

Entry = TypeVar("Entry")


@dataclass
class LegacyRequest:
    """An authenticated request; it is entered in the activity logs of `logged_recipients`."""

    tenant: Tenant
    id_mapper: IdMapper
    path_ids: tuple[str, ...]
    query: Mapping[str, str]
    body: JsonObject
    logged_recipients: list[Recipient]

    def require_path_recipient(self) -> Recipient:
        recipient = self.require_recipient(self.path_ids[0])
        if not any(logged is recipient for logged in self.logged_recipients):
            self.logged_recipients.append(recipient)
        return recipient

    def require_recipient(self, recipient_id: str) -> Recipient:
        """Raises ApiError `not_found`, also for a deleted recipient: deletion is permanent here."""
        recipient = self.tenant.recipients.get(self.id_mapper.resolve_id(recipient_id))
        if recipient is None or recipient.is_archived:
            raise build_not_found_error("Recipient")
        return recipient

    def require_path_batch(self) -> Batch:
        return self.require_batch(self.path_ids[0])

    def require_batch(self, batch_id: str) -> Batch:
        return self.tenant.require_batch(self.id_mapper.resolve_id(batch_id))

    def parse_ids(self) -> list[str]:
        """Parses `ids` without duplicates. Raises ApiError."""
        ids = self.body.get("ids")
        problems = Problems()
        if ids is None or ids == []:
            problems.add_empty_field("ids")
        elif not isinstance(ids, list):
            problems.add_invalid_field("ids", "Must be an array")
        problems.raise_if_any()
        # A value that is not text is kept as text: it matches no id and answers `not_found`.
        return list(dict.fromkeys(map(str, ids or [])))

    def build_page(
        self, key: str, entries: Sequence[Entry], build_entry: Callable[[Entry], JsonObject]
    ) -> JsonObject:
        size = min(_parse_count(self.query, "pageSize", 10), self.tenant.options.max_page_size)
        page = Page(_parse_count(self.query, "page", 1), size)
        return {
            key: [build_entry(entry) for entry in page.select_entries(entries)],
            "meta": page.build_meta(len(entries)),
        }


def _parse_count(query: Mapping[str, str], name: str, default: int) -> int:
    # Lists have no status for an invalid number (section 4.1), so the default applies.
    text = query.get(name, "")
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) and int(text) else default


Operation = Callable[[LegacyRequest], JsonObject]
