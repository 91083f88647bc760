"""The authenticated request that an operation of the legacy interface gets."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gateway.simulator.legacy.names import Names
from gateway.simulator.paging import Page
from gateway.simulator.refusals import Problems, not_found
from gateway.simulator.state import Batch, Recipient, World
from gateway.simulator.wire import JsonObject

Entry = TypeVar("Entry")


@dataclass
class Asked:
    """An authenticated request; it is entered in the activity logs of `logged_recipients`."""

    world: World
    names: Names
    ids: tuple[str, ...]
    query: Mapping[str, str]
    body: JsonObject
    touched: list[Recipient]

    def recipient(self) -> Recipient:
        found = self.find_recipient(self.ids[0])
        if not any(each is found for each in self.touched):
            self.touched.append(found)
        return found

    def find_recipient(self, wanted: str) -> Recipient:
        """Raises ApiError `not_found`, also for a deleted recipient: deletion is permanent here."""
        found = self.world.recipients.get(self.names.real(wanted))
        if found is None or found.archived:
            raise not_found("Recipient")
        return found

    def batch(self) -> Batch:
        return self.find_batch(self.ids[0])

    def find_batch(self, wanted: str) -> Batch:
        return self.world.batch(self.names.real(wanted))

    def wanted_ids(self) -> list[str]:
        """Parse `ids` without duplicates. Raises ApiError."""
        ids = self.body.get("ids")
        problems = Problems()
        if ids is None or ids == []:
            problems.empty("ids")
        elif not isinstance(ids, list):
            problems.invalid("ids", "Must be an array")
        problems.refuse_if_any()
        # A value that is not text is kept as text: it matches no id and answers `not_found`.
        return list(dict.fromkeys(map(str, ids or [])))

    def page(
        self, name: str, entries: Sequence[Entry], show: Callable[[Entry], JsonObject]
    ) -> JsonObject:
        size = min(_count(self.query, "pageSize", 10), self.world.switches.max_page_size)
        page = Page(_count(self.query, "page", 1), size)
        return {name: [show(each) for each in page.of(entries)], "meta": page.meta(len(entries))}


def _count(query: Mapping[str, str], name: str, default: int) -> int:
    # Lists have no status for an invalid number (section 4.1), so the default applies.
    given = query.get(name, "")
    return int(given) if re.fullmatch(r"[0-9]{1,9}", given) and int(given) else default


Operation = Callable[[Asked], JsonObject]
