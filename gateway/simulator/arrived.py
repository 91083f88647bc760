"""The authenticated request that an operation of the current interface gets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from gateway.simulator.paging import read_page
from gateway.simulator.refusals import Problems
from gateway.simulator.state import Batch, Recipient, World
from gateway.simulator.wire import JsonObject

Entry = TypeVar("Entry")


@dataclass
class Arrived:
    """An authenticated request.

    `body` includes the query parameters (section 4). `recipients` are those that the request
    concerns; it is entered in their activity logs.
    """

    world: World
    ids: tuple[str, ...]
    query: dict[str, str]
    body: JsonObject
    touched: list[Recipient] = field(default_factory=list)

    def recipient(self) -> Recipient:
        found = self.world.recipient(self.ids[0])
        self.touched.append(found)
        return found

    def batch(self) -> Batch:
        return self.world.batch(self.ids[0])

    def wanted_ids(self) -> list[str]:
        """Parse `ids` of a request that names several objects. Raises ApiError."""
        ids = self.body.get("ids")
        problems = Problems()
        if ids is None or ids == []:
            problems.empty("ids")
        elif not isinstance(ids, list) or not all(isinstance(each, str) for each in ids):
            problems.invalid("ids", "Must be an array of strings")
        problems.refuse_if_any()
        return list(ids or [])

    def page(
        self, name: str, entries: Sequence[Entry], show: Callable[[Entry], JsonObject]
    ) -> JsonObject:
        problems = Problems()
        page = read_page(problems, self.query, self.world.switches.max_page_size)
        problems.refuse_if_any()
        shown = [show(each) for each in page.of(entries)]
        return {name: shown, "meta": page.meta(len(entries))}


Operation = Callable[[Arrived], JsonObject]
