"""The tenant, by which all stored data is separated."""

from typing import Any, NamedTuple


class _Names(NamedTuple):
    merchant: str
    environment: str


class Tenant(_Names):
    """A merchant in one environment. Data of one tenant is never visible to another."""

    __slots__ = ()

    def _asdict(self) -> dict[str, Any]:
        # Of nearly every statement: in a quarter of the inherited method's time.
        return {"merchant": self.merchant, "environment": self.environment}

    def __str__(self) -> str:
        return f"{self.merchant} {self.environment}"
