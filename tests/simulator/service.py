"""The simulated service with the requests that it received, planned faults and more options."""

import random
from collections import ChainMap, Counter, deque
from dataclasses import dataclass
from typing import Any, Literal

from gateway.simulator import DEMO_CREDENTIALS, ServiceCredentials, batches
from gateway.simulator import Service as SimulatorService
from gateway.simulator import ServiceOptions as SimulatorServiceOptions
from gateway.simulator.state import ID_CHARACTERS, Batch, Recipient
from tests.simulator.faults import Fault, InterfaceName, ReceivedRequest, match_request
from tests.simulator.seeds import seed_recipients

MAX_KEPT_REQUESTS = 10_000

Deviation = Literal[
    "account-id", "added-payments", "added-payments/ignored", "creation-date", "date-header",
    "documented-paths", "edits", "edits/deletions", "edits/whole-batches", "list-filters",
    "list-filters/no-rows", "list-order", "list-order/fields", "list-totals", "list-totals/pages",
    "listed-at-once", "memo", "memo/ignored", "pages", "payment-fields", "payment-recipients",
    "primary-account", "quotes", "refused-signature", "request-age", "request-age/a-minute",
    "summary", "target-amounts", "unknown-id", "unknown-id/batches", "update-date",
    "validation-errors", "wallet-account",
]  # fmt: skip
"""Odd behaviour, against the document, each named after the assumption of a rehearsal that finds it,
some in several ways; `tests.simulator.deviations` carries it out."""


@dataclass(frozen=True)
class ServiceOptions(SimulatorServiceOptions):
    """More behaviour that the document leaves open, and behaviour against it.

    answers: responses to writes on batches and payments, which are not shown: "full" responses are
        those of the legacy interface, "bare" ones have an id after a create and no fields
        otherwise. Responses to reads are always complete.
    account_number_with_iban: "required" follows the create table of section 4.2 literally: an
        account needs `accountNum` even if it has an IBAN.
    lists_payments: whether all payments can be listed, which the document does not mention.
    reads_archived: whether deleted recipients can be read by id.
    unknown_recipient: the status if a body names a recipient that does not exist.
    balance_shape: whether balances are an "object" by currency or a "list".
    batch_counts: whether batches show their number of payments as a "number" or as "text".
    validation_status: section 7 says 400; some operation descriptions list 406.
    deviations: switches for odd behaviour, which the document excludes or does not suggest.
    """

    answers: Literal["full", "bare"] = "full"
    account_number_with_iban: Literal["optional", "required"] = "optional"
    lists_payments: bool = True
    reads_archived: bool = True
    unknown_recipient: Literal[404, 400] = 404
    balance_shape: Literal["object", "list"] = "object"
    batch_counts: Literal["number", "text"] = "number"
    validation_status: Literal[400, 406] = 400
    deviations: frozenset[Deviation] = frozenset()


@dataclass(frozen=True)
class BatchStart:
    """An executed start; `started_at` is in seconds of the service's clock."""

    merchant: str
    environment: str
    batch_id: str
    started_at: float


OBJECT_TYPES = {"R-": "recipient", "B-": "batch", "P-": "payment"}


class Service(SimulatorService):
    """A simulated service, for tests that check what reaches it, and that nothing happens twice.

    With a `seed`, generated ids are reproducible.
    `batch_starts` are all executed starts, in order, and `creation_counts` counts created objects
    by type, without seeded ones, and of accounts only those created on their own.
    """

    def __init__(
        self, *, options: ServiceOptions | None = None, seed: int | None = None, **settings: Any
    ) -> None:
        super().__init__(options=options or ServiceOptions(), **settings)
        self.requests: deque[ReceivedRequest] = deque(maxlen=MAX_KEPT_REQUESTS)
        self.faults: list[Fault] = []
        self.batch_starts: list[BatchStart] = []
        self.creation_counts: Counter[str] = Counter()
        self._seed = seed
        self._random_by_prefix: dict[str, random.Random] = {}

    def generate_id(self, prefix: str, length: int) -> str:
        if prefix in OBJECT_TYPES:
            self.creation_counts[OBJECT_TYPES[prefix]] += 1
        # One sequence per prefix: creating one more account must not change the ids of batches.
        if prefix not in self._random_by_prefix:
            seed = None if self._seed is None else f"{self._seed} {prefix}"
            self._random_by_prefix[prefix] = random.Random(seed)
        return prefix + "".join(self._random_by_prefix[prefix].choices(ID_CHARACTERS, k=length))

    def add_credentials(self, credentials: ServiceCredentials) -> None:
        self.credentials[credentials.access_key] = credentials

    def require_recipient(self, recipient_id: str) -> Recipient:
        """Returns a recipient of any tenant, also an archived one. Raises KeyError."""
        return ChainMap(*(tenant.recipients for tenant in self.tenants.values()))[recipient_id]

    def require_batch(self, batch_id: str) -> Batch:
        """Returns a batch of any tenant in its current state. Raises KeyError."""
        for tenant in self.tenants.values():
            batches.finish_due_batches(tenant)
        return ChainMap(*(tenant.batches for tenant in self.tenants.values()))[batch_id]

    def seed_recipients(
        self,
        count: int,
        seed: int = 0,
        *,
        merchant: str = DEMO_CREDENTIALS.merchant,
        environment: str = DEMO_CREDENTIALS.environment,
    ) -> list[Recipient]:
        """Creates varied recipients; the same seed and options give the same recipients."""
        return seed_recipients(self.find_or_create_tenant(merchant, environment), count, seed)

    def list_requests(
        self, method: str = "*", path: str = "*", *, interface: InterfaceName = "current"
    ) -> list[ReceivedRequest]:
        """Lists an interface's recorded requests, oldest first, by method and path pattern."""
        return [
            request
            for request in self.requests
            if interface == request.interface
            and match_request(method, path, request.method, request.path)
        ]

    def take_fault(self, method: str, path: str, interface: InterfaceName) -> Fault | None:
        """Uses the first queued fault that matches a request."""
        for fault in self.faults:
            if fault.interface == interface and match_request(
                fault.method, fault.path, method, path
            ):
                # A fault with several uses stays in the queue until they are used up.
                fault.times -= 1
                if fault.times <= 0:
                    self.faults.remove(fault)
                return fault
        return None
