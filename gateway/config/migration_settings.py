"""Sections about the migration of clients: deprecation and shadow traffic."""

from __future__ import annotations

import calendar
from datetime import date
from typing import Literal, Self

from pydantic import Field, model_validator

from gateway.config.section import Section
from gateway.config.value_types import Day, OriginOrEmpty

MONTHS_TO_SUNSET = 3
"""Months from the announcement to the removal (current interface, section 9)."""


class Deprecation(Section):
    announced: Day = None
    sunset: Day = None
    after_sunset: Literal["serve", "refuse"] = "serve"
    page: OriginOrEmpty = ""

    @model_validator(mode="after")
    def _check_dates(self) -> Self:
        if self.sunset and not self.announced:
            raise ValueError("sunset requires announced, the day of the announcement to clients")
        if self.announced and self.sunset and self.sunset < self.announced:
            raise ValueError("sunset is before announced")
        return self

    @property
    def sunset_date(self) -> date | None:
        """The first day without the interface; by default three months after the announcement."""
        if self.sunset or not self.announced:
            return self.sunset
        months = self.announced.month - 1 + MONTHS_TO_SUNSET
        year, month = self.announced.year + months // 12, months % 12 + 1
        # Three months after 30 November is the last day of February.
        last_day = calendar.monthrange(year, month)[1]
        return date(year, month, min(self.announced.day, last_day))


class Comparing(Section):
    """Settings of mode ``compare``: the service that answers, and the share of reads compared."""

    answers: Literal["legacy", "current"] = "legacy"
    sample: float = Field(1.0, gt=0, le=1)

    @property
    def forwarding_modes(self) -> tuple[str, ...]:
        """The modes in which the legacy service answers clients."""
        return ("forward", "compare") if self.answers == "legacy" else ("forward",)
