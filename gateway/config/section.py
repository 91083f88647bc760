"""The base classes of sections, and keys whose value is read from a separate file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from gateway.config.files import ConfigurationError, read_secret_file


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def insert_value_from_file(section: Any, name: str) -> Any:
    """Returns the section with the content of the file that ``<name>_file`` names as ``name``."""
    key = f"{name}_file"
    if isinstance(section, dict) and (file_name := section.get(key)):
        try:
            return {**section, name: read_secret_file(Path(file_name)).strip()}
        except ConfigurationError as error:
            return {**section, key: error}  # reported with the key's location, see KeyFile
    return section


def _raise_if_file_error(value: Any) -> Any:
    if isinstance(value, ConfigurationError):
        raise ValueError(str(value))  # noqa: TRY004 - pydantic reports ValueErrors with their location
    return value


KeyFile = Annotated[Path, BeforeValidator(_raise_if_file_error)]
"""A file with the value of another key, read once, since it may be a pipe."""


class UrlSection(Section):
    """A section whose ``url`` may contain a password, and can therefore be read from a file."""

    @model_validator(mode="before")
    @classmethod
    def _insert_url_from_file(cls, section: Any) -> Any:
        return insert_value_from_file(section, "url")
