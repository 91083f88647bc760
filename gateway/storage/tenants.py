"""Whose what is remembered is."""

from __future__ import annotations

from typing import NamedTuple


class Tenant(NamedTuple):
    """Whose an object is: facts of one owner are never seen by another."""

    merchant: str
    environment: str

    def __str__(self) -> str:
        return f"{self.merchant} {self.environment}"
