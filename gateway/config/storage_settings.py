"""Sections about stored data: the database, rate limit counters, retention."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from gateway.config.section import KeyFile, Section, UrlSection
from gateway.config.value_types import Days, build_url_scheme_validator


class State(UrlSection):
    url: Annotated[str, AfterValidator(build_url_scheme_validator("sqlite", "postgresql"))] = (
        "sqlite:///gateway.db"
    )
    url_file: KeyFile | None = None
    encryption_key_file: Path = Path("gateway.key")
    mark_file: Path | None = None

    @property
    def is_sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    @property
    def restore_mark_path(self) -> Path:
        """The file with the last sequence number of the database; see storage/restore_marks.py."""
        # Not beside the database, so that a restore of the database does not restore the mark too.
        return self.mark_file or Path(f"{self.encryption_key_file}.mark")


class Limits(UrlSection):
    url: Annotated[str, AfterValidator(build_url_scheme_validator("memory", "redis", "rediss"))] = (
        "memory://"
    )
    url_file: KeyFile | None = None
    requests_per_hour: int = Field(10_000, ge=1)
    # Decides the share of a limit that each process admits while Redis is unavailable.
    hosts: int = Field(1, ge=1)
    body_bytes: int = Field(64 * 1024 * 1024, ge=1024)


class Retention(Section):
    """Retention periods of records, in days; 0 means forever."""

    journal_days: Days = 400
    texts_days: Days = 400
    usage_days: Days = 400
    audit_days: Days = 1095
