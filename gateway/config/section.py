"""The base classes of sections, their problems, files, and keys whose value is read from a file."""

import stat
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from gateway.config import OperatorError


class ConfigurationError(OperatorError):
    """Raised if the configuration is invalid; each problem is one line for the operator."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")  # editors of Windows write a byte order mark
    except FileNotFoundError:
        location = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise ConfigurationError([f"{path}: there is no such file{location}"]) from None
    except OSError as error:
        raise ConfigurationError([f"{path}: {error.strerror or error}"]) from None
    except UnicodeDecodeError:
        raise ConfigurationError([f"{path}: not UTF-8 text"]) from None


def read_secret_file(path: Path) -> str:
    text = read_text(path)
    status = path.stat()
    # The group may read it, as in a Kubernetes volume with fsGroup. A pipe's mode is ignored.
    if stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IRWXO:
        raise ConfigurationError([f"{path}: every user can read it; run `chmod o= {path}`"])
    return text


class Section(BaseModel):
    """A section. A key of which it has ``<key>_file`` too can be read from that file."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _insert_values_from_files(cls, section: Any) -> Any:
        for name in cls.model_fields:
            if f"{name}_file" in cls.model_fields:
                section = _insert_value_from_file(section, name)
        return section

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_boolean_as_number_and_nul(cls, value: Any, info: ValidationInfo) -> Any:
        # Python, and so pydantic, takes true for 1: a port `true` would be port 1.
        if (
            isinstance(value, bool)
            and cls.model_fields[str(info.field_name)].annotation in _NUMBERS
        ):
            raise ValueError("must be a number, not true or false")
        if isinstance(value, str) and "\0" in value:
            raise ValueError("must not contain a NUL character")
        return value


_NUMBERS = (int, float)

Location = tuple[int | str, ...]

_MESSAGES = {
    "missing": "missing",
    "model": "must be a section with keys, not a value",
    "bool": "must be true or false",
    "int": "must be a whole number",
    "float": "must be a number",
    "finite": "must be a finite number",
    "decimal": "must be a number",
    "dict": "must be a section with keys, not a value",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be {ge} or more",
    "less_than_equal": "must be {le} or less",
    "string": "must be text, in quotes",
    "string_pattern_mismatch": "must be a name: letters, digits, - and _",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "path": "must be a path, in quotes",
    "tuple": "must be a list, in square brackets",
    "list": "must be a list, in square brackets",
    "literal": "must be {expected}",
}
"""What to write instead, by the type of pydantic's error or its first word; names are of its context."""


def map_section_fields(model: Any, section: Location) -> Mapping[str, FieldInfo]:
    """Returns the fields of a section of a model by name; empty if it is no section."""
    # An index is of a list, whose items all have the same fields.
    for name in (part for part in section if isinstance(part, str)):
        field = model.model_fields.get(name)
        annotation = field and field.annotation
        # The section is an argument of `Environment | None` or `list[Step]`.
        candidates = (annotation, *get_args(annotation))
        model = next((each for each in candidates if hasattr(each, "model_fields")), None)
        if model is None:
            return {}
    fields: Mapping[str, FieldInfo] = model.model_fields
    return fields


def list_problems(error: ValidationError, model: Any, noun: str) -> list[tuple[Location, str]]:
    """Lists the places and messages of a validation error, unknown keys first.

    A missing key that follows from a misspelt one is left out. Messages omit the input, which may
    be a secret.
    """
    problems = error.errors(include_input=False, include_url=False)
    similar = {
        problem["loc"]: get_close_matches(
            str(problem["loc"][-1]), map_section_fields(model, problem["loc"][:-1]), 1
        )
        for problem in problems
        if problem["type"] == "extra_forbidden"
    }
    misspelt = {(*loc[:-1], name) for loc, names in similar.items() for name in names}
    listed = []
    for problem in sorted(problems, key=lambda item: item["loc"] not in similar):
        loc, message = problem["loc"], problem["msg"].removeprefix("Value error, ")
        kind = problem["type"]
        if template := _MESSAGES.get(kind) or _MESSAGES.get(kind.partition("_")[0]):
            message = template.format(**problem.get("ctx", {}))
        if problem["type"] == "missing" and loc in misspelt:
            continue
        if loc in similar:
            message = f"unknown {noun}" + "".join(
                f"; did you mean {name}?" for name in similar[loc]
            )
        listed.append((loc, message))
    return listed


def _insert_value_from_file(section: Any, name: str) -> Any:
    """Returns the section with the content of the file that ``<name>_file`` names as ``name``."""
    key = f"{name}_file"
    file_name = section.get(key) if isinstance(section, dict) else None
    if file_name and isinstance(file_name, str | Path):
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
