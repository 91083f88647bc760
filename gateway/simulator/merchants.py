"""Merchants and their keys (current interface, sections 2.9 and 4.4)."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from gateway.simulator.switches import Key
from gateway.simulator.wire import JsonObject

FIRST_ID = 1001


@dataclass
class Merchant:
    """A merchant in one environment.

    `merchant_id` identifies its credentials and its tenant; `parent_id` is the merchant id of a
    sub-merchant's parent. No operation returns a merchant, so fields without effect are not kept.
    """

    id: int
    merchant_id: str
    environment: str
    name: str
    primary_currency: str = "USD"
    parent_id: str | None = None
    status: str = "approved"
    website: str = ""
    sandbox: bool = False
    country: str | None = None
    onboarding: JsonObject = field(default_factory=dict)
    bank_account: JsonObject = field(default_factory=dict)
    colors: JsonObject = field(default_factory=dict)


@dataclass
class Merchants:
    """All merchants of a service, and the credentials by access key."""

    keys: dict[str, Key]
    known: dict[tuple[str, str], Merchant] = field(default_factory=dict)
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(FIRST_ID))

    def of(self, merchant_id: str, environment: str) -> Merchant:
        # No operation created a merchant that is known by its credentials only: its id is its name.
        at = (merchant_id, environment)
        if at not in self.known:
            self.add(Merchant(self.new_id(), merchant_id, environment, name=merchant_id))
        return self.known[at]

    def new_id(self) -> int:
        return next(self._ids)

    def add(self, merchant: Merchant) -> None:
        self.known[merchant.merchant_id, merchant.environment] = merchant

    def with_api_key(self, api_key: str) -> Key | None:
        """Find the credentials of an API key of the legacy interface."""
        # Credentials without an API key have an empty one, which must not match an empty header.
        found = (key for key in self.keys.values() if key.api_key == api_key)
        return next(found, None) if api_key else None

    def remove_keys(self, merchant: Merchant) -> None:
        gone = [
            access_key
            for access_key, key in self.keys.items()
            if (key.merchant, key.environment) == (merchant.merchant_id, merchant.environment)
        ]
        for access_key in gone:
            del self.keys[access_key]
