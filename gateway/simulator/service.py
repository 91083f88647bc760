"""The simulated service: its tenants and credentials, and access to its state for tests."""

import random
import string
import time
from collections.abc import Callable, Iterable
from decimal import Decimal

from gateway.simulator.options import (
    DEMO_CREDENTIALS,
    ServiceCredentials,
    ServiceOptions,
    Vocabulary,
)
from gateway.simulator.state import Tenant

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
        self.credentials = {pair.access_key: pair for pair in credentials}
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
