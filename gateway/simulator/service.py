"""The simulated service: its tenants and credentials, and access to its state for tests."""

import random
import string
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import TypeVar

from gateway.simulator import batches, money, seeds
from gateway.simulator.errors import build_not_found_error
from gateway.simulator.exchange import (
    Fault,
    InterfaceName,
    ReceivedRequest,
    is_path_matching_pattern,
)
from gateway.simulator.options import (
    DEMO_CREDENTIALS,
    ServiceCredentials,
    ServiceOptions,
    Vocabulary,
)
from gateway.simulator.state import Batch, BatchStart, Effects, Outcome, Payment, Recipient, Tenant

MAX_KEPT_REQUESTS = 10_000

Found = TypeVar("Found")


class Service:
    """The state of a simulated service.

    `clock` returns Unix time in seconds. With a `seed`, generated ids are reproducible.
    `wallet_balance` is the initial currency and amount of each merchant's wallet account; without
    it, a merchant has none until `set_wallet_balance`.
    """

    def __init__(
        self,
        *,
        credentials: Iterable[ServiceCredentials] = (DEMO_CREDENTIALS,),
        options: ServiceOptions | None = None,
        vocabulary: Vocabulary | None = None,
        clock: Callable[[], float] = time.time,
        seed: int | None = None,
        max_kept_requests: int = MAX_KEPT_REQUESTS,
        wallet_balance: tuple[str, Decimal] | None = None,
    ) -> None:
        self.options = options or ServiceOptions()
        self.vocabulary = vocabulary or Vocabulary()
        self.clock = clock
        self.credentials = {pair.access_key: pair for pair in credentials}
        self.tenants: dict[tuple[str, str], Tenant] = {}
        self.requests: deque[ReceivedRequest] = deque(maxlen=max_kept_requests)
        self.faults: list[Fault] = []
        self.effects = Effects()
        self._seed = seed
        self._wallet_balance = wallet_balance
        self._random_by_prefix: dict[str, random.Random] = {}

    def add_credentials(self, credentials: ServiceCredentials) -> None:
        self.credentials[credentials.access_key] = credentials

    def find_credentials_by_api_key(self, api_key: str) -> ServiceCredentials | None:
        """Finds the credentials of an API key of the legacy interface."""
        # Credentials without an API key have an empty one, which must not match an empty header.
        matches = (pair for pair in self.credentials.values() if pair.api_key == api_key)
        return next(matches, None) if api_key else None

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
                self._read_clock,
                self._generate_id,
                self.effects,
                wallet_balance=self._wallet_balance,
            )
        return self.tenants[tenant_key]

    def _read_clock(self) -> float:
        # Tenants get this method instead of the clock: a test may replace `clock` later.
        return self.clock()

    @property
    def batch_starts(self) -> list[BatchStart]:
        """All executed starts, in order."""
        return self.effects.starts

    @property
    def creation_counts(self) -> Counter[str]:
        return self.effects.creation_counts

    def _generate_id(self, prefix: str, length: int) -> str:
        # One sequence per prefix: creating one more account must not change the ids of batches.
        if prefix not in self._random_by_prefix:
            seed = None if self._seed is None else f"{self._seed} {prefix}"
            self._random_by_prefix[prefix] = random.Random(seed)  # noqa: S311  # ids protect nothing here
        return prefix + "".join(
            self._random_by_prefix[prefix].choices(string.ascii_letters + string.digits, k=length)
        )

    def require_recipient(self, recipient_id: str) -> Recipient:
        """Returns a recipient of any tenant, also an archived one. Raises ApiError `not_found`."""
        return _find(recipient_id, *(tenant.recipients for tenant in self.tenants.values()))

    def require_batch(self, batch_id: str) -> Batch:
        """Returns a batch of any tenant in its current state. Raises ApiError `not_found`."""
        self._finish_due_batches()
        return _find(batch_id, *(tenant.batches for tenant in self.tenants.values()))

    def require_payment(self, payment_id: str) -> Payment:
        """Like `require_batch`, for a payment."""
        self._finish_due_batches()
        return _find(payment_id, *(tenant.payments for tenant in self.tenants.values()))

    def _finish_due_batches(self) -> None:
        for tenant in self.tenants.values():
            batches.finish_due_batches(tenant)

    def read_balance(self, merchant: str, currency: str) -> Decimal:
        tenant = self.find_or_create_tenant(merchant)
        batches.finish_due_batches(tenant)
        return tenant.read_balance(currency)

    def set_balance(self, merchant: str, currency: str, amount: Decimal | str) -> None:
        """Sets one balance; initially each merchant has funds in five currencies."""
        rounded_amount = money.round_to_cents(Decimal(amount))
        self.find_or_create_tenant(merchant).balances[currency] = rounded_amount

    def set_wallet_balance(self, merchant: str, currency: str, amount: Decimal | str) -> None:
        rounded_amount = money.round_to_cents(Decimal(amount))
        self.find_or_create_tenant(merchant).wallet_balance = (currency, rounded_amount)

    def set_payment_outcome(self, recipient_id: str, outcome: Outcome) -> None:
        """Sets the final status of the recipient's payments in all batches that finish later."""
        # Batches that are due now must still finish with the previous outcome.
        self._finish_due_batches()
        self.require_recipient(recipient_id).outcome = outcome

    def set_compliance(self, recipient_id: str, status: str) -> None:
        """Sets `pending`, `review`, `verified` or `blocked`, which no operation can change."""
        recipient = self.require_recipient(recipient_id)
        now = self.find_or_create_tenant().now()
        recipient.compliance_status = status
        recipient.compliance_checked_at = None if status == "pending" else now
        recipient.updated_at = now

    def seed_recipients(
        self,
        count: int,
        seed: int = 0,
        *,
        merchant: str = DEMO_CREDENTIALS.merchant,
        environment: str = DEMO_CREDENTIALS.environment,
    ) -> list[Recipient]:
        """Creates varied recipients; the same seed and options give the same recipients."""
        return seeds.seed_recipients(self.find_or_create_tenant(merchant, environment), count, seed)

    def seed_payments(self, recipient_id: str, count: int, seed: int = 0) -> list[Payment]:
        tenant = next(each for each in self.tenants.values() if recipient_id in each.recipients)
        return seeds.seed_payments(tenant, tenant.recipients[recipient_id], count, seed)

    def list_requests(
        self, method: str = "*", path: str = "*", *, interface: InterfaceName = "current"
    ) -> list[ReceivedRequest]:
        """Lists an interface's recorded requests, oldest first, by method and path pattern."""
        return [
            request
            for request in self.requests
            if interface == request.interface
            and method in ("*", request.method)
            and is_path_matching_pattern(path, request.path)
        ]

    def take_fault(
        self, method: str, path: str, interface: InterfaceName = "current"
    ) -> Fault | None:
        # In the order in which tests have queued them.
        for fault in self.faults:
            if fault.interface == interface and fault.matches(method, path):
                # A fault with several uses stays in the queue until they are used up.
                fault.times -= 1
                if fault.times <= 0:
                    self.faults.remove(fault)
                return fault
        return None


def _find(id_: str, *objects: Mapping[str, Found]) -> Found:
    for objects_by_id in objects:
        if id_ in objects_by_id:
            return objects_by_id[id_]
    raise build_not_found_error("Object")
