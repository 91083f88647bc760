"""The tenant, by which all stored data is separated."""

from __future__ import annotations

from typing import NamedTuple


class Tenant(NamedTuple):
    """A merchant in one environment. Data of one tenant is never visible to another."""

    merchant: str
    environment: str

    def __str__(self) -> str:
        return f"{self.merchant} {self.environment}"
