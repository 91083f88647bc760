"""The state of the service, per tenant, and its credentials."""

import base64
import hashlib
import random
import string
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Literal

from gateway.simulator.money import ZERO, sum_amounts
from gateway.simulator.options import (
    DEMO_CREDENTIALS,
    ServiceCredentials,
    ServiceOptions,
    Vocabulary,
)
from gateway.simulator.validation import JsonObject, build_invalid_status_error

MAX_ACTIVITIES = 200
FUNDED_CURRENCIES = ("USD", "EUR", "GBP", "CAD", "AUD")
INITIAL_FUNDS = Decimal("1000000.00")
WALLET_FUNDS = ("USD", INITIAL_FUNDS)
"""The initial wallet balance of each merchant in `simulate` and in the demo."""

MAX_LEGACY_SUFFIX_LENGTH = 16  # Legacy interface, section 2.

Outcome = Literal["processed", "failed", "returned"]
LegacyStatus = Literal["inactive", "disabled"]


def build_default_hold() -> JsonObject:
    return {"limit": 1000, "active": False}


@dataclass
class Account:
    """An account; `fields` are unmasked and have the names that requests use."""

    id: str
    type: str
    is_primary: bool
    fields: JsonObject


@dataclass
class Recipient:
    """A recipient: the request's `fields`, and what the service adds.

    `outcome` is the final status of payments to this recipient.

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
    activities: deque[JsonObject] = field(default_factory=lambda: deque(maxlen=MAX_ACTIVITIES))
    outcome: Outcome = "processed"
    legacy_status: LegacyStatus | None = None
    autoswitch: JsonObject = field(default_factory=build_default_hold)
    holdup: JsonObject = field(default_factory=build_default_hold)

    @property
    def is_archived(self) -> bool:
        return self.status == "archived"

    @property
    def primary_account(self) -> Account | None:
        return next((account for account in self.accounts if account.is_primary), None)

    @property
    def address(self) -> JsonObject:
        address: JsonObject = self.fields.get("address") or {}
        return address


def copy_recipient(recipient: Recipient) -> Recipient:
    """Copies a recipient with its accounts, to be changed and dropped if the request is refused."""
    accounts = [replace(account) for account in recipient.accounts]
    return replace(recipient, fields=dict(recipient.fields), accounts=accounts)


@dataclass(frozen=True)
class PaymentTerms:
    """Amounts and rate of a payment: one unit of the source currency buys `rate` of the target's.

    `account_type` is None while the recipient has no account.
    """

    account_type: str | None
    source_amount: Decimal
    source_currency: str
    target_amount: Decimal
    target_currency: str
    rate: Decimal
    fee: Decimal


# Compared by identity: two payments with equal fields are still two payments.
@dataclass(eq=False)
class Payment:
    """A payment; `amount` and `currency` are the request's.

    `overrides` replace or add fields of a response, for tests that need values or fields which the
    document does not have.
    """

    id: str
    batch: "Batch" = field(repr=False)
    recipient: Recipient = field(repr=False)
    amount: Decimal
    currency: str
    memo: str
    terms: PaymentTerms
    created_at: datetime
    updated_at: datetime
    status: str = "pending"
    processed_at: datetime | None = None
    overrides: JsonObject = field(default_factory=dict)


# Compared by identity, like payments.
@dataclass(eq=False)
class Batch:
    """A batch; `state` is `open` until the start; responses show `pending` if funds are missing.

    `overrides` as for a payment.
    """

    id: str
    currency: str
    description: str
    created_at: datetime
    updated_at: datetime
    state: str = "open"
    payments: dict[str, Payment] = field(default_factory=dict)
    quote_count: int = 0
    quote_expires_at: datetime | None = None
    sent_at: datetime | None = None
    completed_at: datetime | None = None
    overrides: JsonObject = field(default_factory=dict)

    def check_open(self) -> None:
        """Raises ApiError `invalid_status` if the batch has been started (section 1, item 8)."""
        if self.state != "open":
            raise build_invalid_status_error("Batch has been started")

    @property
    def amount(self) -> Decimal:
        return sum_amounts(payment.terms.source_amount for payment in self.payments.values())

    @property
    def cost(self) -> Decimal:
        """Amount plus fees (current interface, section 1, item 8)."""
        return sum_amounts(
            part
            for payment in self.payments.values()
            for part in (payment.terms.source_amount, payment.terms.fee)
        )


@dataclass
class Tenant:
    """The state of one tenant: a merchant in one environment, isolated from all others."""

    merchant: str
    environment: str
    options: ServiceOptions
    vocabulary: Vocabulary
    clock: Callable[[], float]
    generate_id: Callable[[str, int], str]
    recipients: dict[str, Recipient] = field(default_factory=dict)
    batches: dict[str, Batch] = field(default_factory=dict)
    payments: dict[str, Payment] = field(default_factory=dict)
    processing_batches: list[Batch] = field(default_factory=list)
    balances: dict[str, Decimal] = field(
        default_factory=lambda: dict.fromkeys(FUNDED_CURRENCIES, INITIAL_FUNDS)
    )
    wallet_balance: tuple[str, Decimal] | None = None
    service_ids_by_legacy_id: dict[str, str] = field(default_factory=dict)

    def create_id(self, prefix: str, length: int) -> str:
        return self.register_legacy_id(self.generate_id(prefix, length))

    def register_legacy_id(self, service_id: str) -> str:
        """Makes an id resolvable by the one that legacy clients get. Returns the id."""
        self.service_ids_by_legacy_id[build_legacy_id(self.merchant, service_id)] = service_id
        return service_id

    def now(self) -> datetime:
        # Milliseconds, as responses show: a client must find a record by the date it was shown.
        return datetime.fromtimestamp(int(self.clock() * 1000) / 1000, UTC)

    def list_newest_payments(self, payee: Recipient | None = None) -> list[Payment]:
        """Lists the payments of all batches, newest first, or those to one recipient."""
        # Reversed after the sort: of payments with equal dates, the last created comes first.
        newest = sorted(self.payments.values(), key=lambda payment: payment.created_at)[::-1]
        return [payment for payment in newest if payee is None or payment.recipient is payee]

    def read_balance(self, currency: str) -> Decimal:
        return self.balances.get(currency, ZERO)

    def has_balance_for_batch(self, batch: Batch) -> bool:
        return self.read_balance(batch.currency) >= batch.cost

    def add_to_balance(self, currency: str, amount: Decimal) -> None:
        self.balances[currency] = sum_amounts((self.read_balance(currency), amount))


def format_timestamp(timestamp: datetime | None) -> str | None:
    """Formats as ISO 8601 in UTC with a trailing Z (section 2.1)."""
    if timestamp is None:
        return None
    return timestamp.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def build_legacy_id(merchant: str, service_id: str) -> str:
    """Returns an id for legacy clients: unchanged if it fits, otherwise a shorter one derived from it."""
    prefix, dash, suffix = service_id.partition("-")
    if len(suffix) <= MAX_LEGACY_SUFFIX_LENGTH:
        return service_id
    # A hash, so that the id never changes: clients store it in their databases.
    # The merchant is part of it: two merchants must not see that they share an object's id.
    digest = hashlib.sha256(f"{merchant} {service_id}".encode()).digest()
    return prefix + dash + base64.b32encode(digest).decode()[:MAX_LEGACY_SUFFIX_LENGTH]


ID_CHARACTERS = string.ascii_letters + string.digits


class Service:
    """The state of a simulated service.

    `clock` returns Unix time in seconds. `wallet_balance` is the initial currency and amount of each
    merchant's wallet account; without it, merchants have none.
    """

    def __init__(
        self,
        *,
        credentials: Iterable[ServiceCredentials] = (DEMO_CREDENTIALS,),
        options: ServiceOptions | None = None,
        vocabulary: Vocabulary | None = None,
        clock: Callable[[], float] = time.time,
        wallet_balance: tuple[str, Decimal] | None = None,
    ) -> None:
        self.options = options or ServiceOptions()
        self.vocabulary = vocabulary or Vocabulary()
        self.clock = clock
        self.credentials: dict[str, ServiceCredentials] = {}
        for pair in credentials:
            is_known = pair.access_key in self.credentials
            # Further API keys of an access key; no access key contains a space.
            entry = f"{pair.access_key} {pair.api_key}" if is_known else pair.access_key
            self.credentials[entry] = pair
        self.tenants: dict[tuple[str, str], Tenant] = {}
        self._wallet_balance = wallet_balance

    def find_or_create_tenant(
        self,
        merchant: str = DEMO_CREDENTIALS.merchant,
        environment: str = DEMO_CREDENTIALS.environment,
    ) -> Tenant:
        # Created on first use, so that tests need not announce their merchants.
        tenant_key = (merchant, environment)
        if tenant_key not in self.tenants:
            self.tenants[tenant_key] = Tenant(
                merchant,
                environment,
                self.options,
                self.vocabulary,
                self.clock,
                self.generate_id,
                wallet_balance=self._wallet_balance,
            )
        return self.tenants[tenant_key]

    def generate_id(self, prefix: str, length: int) -> str:
        return prefix + "".join(random.choices(ID_CHARACTERS, k=length))  # noqa: S311 - protects nothing
