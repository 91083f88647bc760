"""Merchants and their keys (current interface, sections 2.9 and 4.4)."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from gateway.simulator.json_codec import JsonObject
from gateway.simulator.options import ServiceCredentials

FIRST_MERCHANT_ID = 1001


@dataclass
class Merchant:
    """A merchant in one environment.

    `merchant_id` identifies its credentials and its tenant; `parent_id` is the merchant id of a
    sub-merchant's parent. No operation returns a merchant, so fields without effect are not stored.
    """

    id: int
    merchant_id: str
    environment: str
    name: str
    primary_currency: str = "USD"
    parent_id: str | None = None
    status: str = "approved"
    website: str = ""
    is_sandbox: bool = False
    country: str | None = None
    onboarding: JsonObject = field(default_factory=dict)
    bank_account: JsonObject = field(default_factory=dict)
    colors: JsonObject = field(default_factory=dict)


@dataclass
class Merchants:
    """All merchants of a service, and the credentials by access key."""

    credentials: dict[str, ServiceCredentials]
    by_tenant: dict[tuple[str, str], Merchant] = field(default_factory=dict)
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(FIRST_MERCHANT_ID))

    def find_or_create_merchant(self, merchant_id: str, environment: str) -> Merchant:
        # No operation created a merchant that is known by its credentials only: its id is its name.
        tenant_key = (merchant_id, environment)
        if tenant_key not in self.by_tenant:
            self.add_merchant(
                Merchant(self.allocate_sequential_id(), merchant_id, environment, name=merchant_id)
            )
        return self.by_tenant[tenant_key]

    def allocate_sequential_id(self) -> int:
        return next(self._ids)

    def add_merchant(self, merchant: Merchant) -> None:
        self.by_tenant[merchant.merchant_id, merchant.environment] = merchant

    def find_credentials_by_api_key(self, api_key: str) -> ServiceCredentials | None:
        """Finds the credentials of an API key of the legacy interface."""
        # Credentials without an API key have an empty one, which must not match an empty header.
        matches = (
            credentials
            for credentials in self.credentials.values()
            if credentials.api_key == api_key
        )
        return next(matches, None) if api_key else None

    def delete_merchant_credentials(self, merchant: Merchant) -> None:
        # Collected first, because the dictionary must not change while it is read.
        access_keys = [
            access_key
            for access_key, credentials in self.credentials.items()
            if (credentials.merchant, credentials.environment)
            == (merchant.merchant_id, merchant.environment)
        ]
        for access_key in access_keys:
            del self.credentials[access_key]
