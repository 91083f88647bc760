"""The simulated service: its tenants and credentials, and access to its state for tests."""

import random
import string
import time
from collections import ChainMap
from collections.abc import Callable, Iterable
from decimal import Decimal

from gateway.simulator import batches
from gateway.simulator.options import (
    DEMO_CREDENTIALS,
    ServiceCredentials,
    ServiceOptions,
    Vocabulary,
)
from gateway.simulator.state import Batch, Recipient, Tenant


class Service:
    """The state of a simulated service.

    `clock` returns Unix time in seconds. With a `seed`, generated ids are reproducible.
    `wallet_balance` is the initial currency and amount of each merchant's wallet account; without
    it, merchants have none.
    """

    def __init__(
        self,
        *,
        credentials: Iterable[ServiceCredentials] = (DEMO_CREDENTIALS,),
        options: ServiceOptions | None = None,
        vocabulary: Vocabulary | None = None,
        clock: Callable[[], float] = time.time,
        seed: int | None = None,
        wallet_balance: tuple[str, Decimal] | None = None,
    ) -> None:
        self.options = options or ServiceOptions()
        self.vocabulary = vocabulary or Vocabulary()
        self.clock = clock
        self.credentials = {pair.access_key: pair for pair in credentials}
        self.tenants: dict[tuple[str, str], Tenant] = {}
        self._seed = seed
        self._wallet_balance = wallet_balance
        self._random_by_prefix: dict[str, random.Random] = {}

    def add_credentials(self, credentials: ServiceCredentials) -> None:
        self.credentials[credentials.access_key] = credentials

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
        # One sequence per prefix: creating one more account must not change the ids of batches.
        if prefix not in self._random_by_prefix:
            seed = None if self._seed is None else f"{self._seed} {prefix}"
            self._random_by_prefix[prefix] = random.Random(seed)  # noqa: S311  # ids protect nothing here
        return prefix + "".join(
            self._random_by_prefix[prefix].choices(string.ascii_letters + string.digits, k=length)
        )

    def require_recipient(self, recipient_id: str) -> Recipient:
        """Returns a recipient of any tenant, also an archived one. Raises KeyError."""
        return ChainMap(*(tenant.recipients for tenant in self.tenants.values()))[recipient_id]

    def require_batch(self, batch_id: str) -> Batch:
        """Returns a batch of any tenant in its current state. Raises KeyError."""
        for tenant in self.tenants.values():
            batches.finish_due_batches(tenant)
        return ChainMap(*(tenant.batches for tenant in self.tenants.values()))[batch_id]
