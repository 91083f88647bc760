"""The state of the service, per tenant."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Literal

from gateway.simulator.books import Books
from gateway.simulator.legacy_ids import legacy_id
from gateway.simulator.merchants import Merchant, Merchants
from gateway.simulator.money import ZERO, total
from gateway.simulator.refusals import invalid_status, not_found
from gateway.simulator.switches import Switches, Words
from gateway.simulator.wire import JsonObject

ACTIVITIES_KEPT = 200
FUNDED = ("USD", "EUR", "GBP", "CAD", "AUD")
FUNDS = Decimal("1000000.00")
WALLET_FUNDS = ("USD", FUNDS)
"""The initial wallet balance of each merchant in `simulate` and in the demo."""

Outcome = Literal["processed", "failed", "returned"]
LegacyStatus = Literal["inactive", "disabled"]


def no_hold() -> JsonObject:
    return {"limit": 1000, "active": False}


@dataclass
class Account:
    """An account; `fields` are unmasked and have the names that requests use."""

    id: str
    type: str
    primary: bool
    fields: JsonObject


@dataclass
class Recipient:
    """A recipient: the request's `fields`, and what the service adds.

    `overrides` replace or add fields of a response, for tests that need values or fields which the
    document does not have. `outcome` is the final status of payments to this recipient.

    Only the legacy interface shows the rest: `legacy_status` is its own word for the status and is
    cleared when the status changes; `autoswitch` and `holdup` are stored and have no effect.
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
    outcome: Outcome = "processed"
    legacy_status: LegacyStatus | None = None
    autoswitch: JsonObject = field(default_factory=no_hold)
    holdup: JsonObject = field(default_factory=no_hold)

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


@dataclass(frozen=True)
class Terms:
    """Amounts and rate of a payment: one unit of the source currency buys `rate` of the target's.

    `account_type` is None while the recipient has no account.
    """

    method: str | None
    source: Decimal
    source_currency: str
    target: Decimal
    target_currency: str
    rate: Decimal
    fee: Decimal


# Compared by identity: two payments with equal fields are still two payments.
@dataclass(eq=False)
class Payment:
    """A payment; `amount` and `currency` are the request's, `overrides` as for a recipient."""

    id: str
    batch: "Batch" = field(repr=False)
    recipient: Recipient = field(repr=False)
    amount: Decimal
    currency: str
    memo: str
    terms: Terms
    created_at: datetime
    updated_at: datetime
    status: str = "pending"
    processed_at: datetime | None = None
    extra: JsonObject = field(default_factory=dict)


# Compared by identity, like payments.
@dataclass(eq=False)
class Batch:
    """A batch; `state` is `open` until the start; responses show `pending` if funds are missing."""

    id: str
    currency: str
    description: str
    created_at: datetime
    updated_at: datetime
    state: str = "open"
    payments: dict[str, Payment] = field(default_factory=dict)
    quotes: int = 0
    quote_expires_at: datetime | None = None
    sent_at: datetime | None = None
    completed_at: datetime | None = None
    extra: JsonObject = field(default_factory=dict)

    def must_be_open(self) -> None:
        """Raise ApiError `invalid_status` if the batch has been started (section 1, item 8)."""
        if self.state != "open":
            raise invalid_status(f"Batch is {self.state}")

    @property
    def amount(self) -> Decimal:
        return total(each.terms.source for each in self.payments.values())

    @property
    def cost(self) -> Decimal:
        """Amount plus fees (current interface, section 1, item 8)."""
        return total(
            part for each in self.payments.values() for part in (each.terms.source, each.terms.fee)
        )


@dataclass
class World:
    """The state of one tenant: a merchant in one environment, isolated from all others."""

    merchant: str
    environment: str
    switches: Switches
    words: Words
    seconds: Callable[[], float]
    new_id: Callable[[str, int], str]
    books: Books
    merchants: Merchants
    recipients: dict[str, Recipient] = field(default_factory=dict)
    batches: dict[str, Batch] = field(default_factory=dict)
    payments: dict[str, Payment] = field(default_factory=dict)
    processing: list[Batch] = field(default_factory=list)
    balances: dict[str, Decimal] = field(default_factory=lambda: dict.fromkeys(FUNDED, FUNDS))
    wallet_balance: tuple[str, Decimal] | None = None
    subscriptions: dict[str, JsonObject] = field(default_factory=dict)
    legacy_ids: dict[str, str] = field(default_factory=dict)

    @property
    def owner(self) -> Merchant:
        return self.merchants.of(self.merchant, self.environment)

    def know(self, real: str) -> None:
        """Make an id resolvable by the shorter id that legacy clients get, if it has one."""
        if (known_as := legacy_id(self.merchant, real)) != real:
            self.legacy_ids[known_as] = real

    def now(self) -> datetime:
        # Milliseconds, as responses show: a client must find a record by the date it was shown.
        return datetime.fromtimestamp(int(self.seconds() * 1000) / 1000, UTC)

    def recipient(self, recipient_id: str) -> Recipient:
        """Raises ApiError `not_found`, also for an archived recipient unless `reads_archived`."""
        found = self.recipients.get(recipient_id)
        if found is None or (found.archived and not self.switches.reads_archived):
            raise not_found("Recipient")
        return found

    def batch(self, batch_id: str) -> Batch:
        """Raises ApiError `not_found`."""
        if batch_id not in self.batches:
            raise not_found("Batch")
        return self.batches[batch_id]

    def balance(self, currency: str) -> Decimal:
        return self.balances.get(currency, ZERO)


def iso(moment: datetime) -> str:
    """Format as ISO 8601 in UTC with a trailing Z (section 2.1)."""
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
