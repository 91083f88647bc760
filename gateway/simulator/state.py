"""What the service remembers."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gateway.simulator.refusals import not_found
from gateway.simulator.switches import Switches, Words
from gateway.simulator.wire import JsonObject

ACTIVITIES_KEPT = 200


@dataclass
class Account:
    """`fields` as written: nothing masked, `bankRegion` under its request name."""

    id: str
    type: str
    primary: bool
    fields: JsonObject


@dataclass
class Recipient:
    """`fields` as written; the rest is what the service adds.

    `extra` is laid over the answers last, for tests that want a field to read otherwise, or a
    field that the document does not have.
    """

    id: str
    fields: JsonObject
    created_at: datetime
    updated_at: datetime
    status: str = "incomplete"
    compliance_status: str = "pending"
    compliance_checked_at: datetime | None = None
    accounts: list[Account] = field(default_factory=list)
    payments: list[JsonObject] = field(default_factory=list)
    offline_payments: list[JsonObject] = field(default_factory=list)
    activities: deque[JsonObject] = field(default_factory=lambda: deque(maxlen=ACTIVITIES_KEPT))
    extra: JsonObject = field(default_factory=dict)

    @property
    def archived(self) -> bool:
        return self.status == "archived"

    @property
    def primary(self) -> Account | None:
        return next((account for account in self.accounts if account.primary), None)

    @property
    def address(self) -> JsonObject:
        address: JsonObject = self.fields.get("address") or {}
        return address


@dataclass
class World:
    """All that belongs to one merchant in one environment; nothing in it is seen from another."""

    merchant: str
    environment: str
    switches: Switches
    words: Words
    seconds: Callable[[], float]
    new_id: Callable[[str, int], str]
    recipients: dict[str, Recipient] = field(default_factory=dict)

    def now(self) -> datetime:
        """To the millisecond, which is what answers show, so that a shown date finds its record."""
        return datetime.fromtimestamp(int(self.seconds() * 1000) / 1000, UTC)

    def recipient(self, recipient_id: str) -> Recipient:
        """Raises Refusal `not_found`, for an archived recipient too unless those can be read."""
        found = self.recipients.get(recipient_id)
        if found is None or (found.archived and not self.switches.reads_archived):
            raise not_found("Recipient")
        return found


def iso(moment: datetime) -> str:
    """Section 2.1: ISO 8601 in UTC with trailing Z."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
