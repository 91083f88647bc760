"""Parses the input of ``keys import``: one JSON object per line.

Error messages name lines and fields but never quote values, because most values are secrets.
"""

import ipaddress
import json
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from gateway.auth.signing import Credentials
from gateway.config.section import list_problems
from gateway.config.value_types import (
    Network,
    build_pattern_validator,
    check_printable_text,
    check_visible_ascii,
)
from gateway.payloads import json_codec
from gateway.storage.tenants import Tenant


class ImportRefused(Exception):
    """Raised if nothing was imported; the message has the line, the field and the problem."""

    def __init__(self, line: int, field: str, problem: str) -> None:
        super().__init__(f"line {line}: {field + ': ' if field else ''}{problem}")
        self.line = line


Shape = TypeVar("Shape", bound=BaseModel)
NameText = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(check_printable_text)]
ApiKeyText = Annotated[str, Field(min_length=1, max_length=512, repr=False), check_visible_ascii]
AccessKeyText = Annotated[
    str,
    Field(min_length=1, max_length=512, repr=False),
    # A colon separates it from the signature in Authorization.
    build_pattern_validator("[^:]*", "must not contain a colon"),
    check_visible_ascii,
]
SecretText = Annotated[
    str, Field(min_length=1, max_length=4096, repr=False), AfterValidator(check_printable_text)
]
NetworkText = Annotated[
    Network, AfterValidator(lambda text: str(ipaddress.ip_network(text, strict=False)))
]


class _StrictModel(BaseModel):
    # Errors omit the input, because most values are secrets.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


class CredentialsLine(_StrictModel):
    """The input of ``keys rotate-secret``."""

    access_key: AccessKeyText
    secret_key: SecretText

    @property
    def credentials(self) -> Credentials:
        return Credentials(self.access_key, self.secret_key)


class KeyLine(CredentialsLine):
    merchant: NameText
    environment: Literal["live", "sandbox"]
    api_key: ApiKeyText
    name: NameText | None = None
    requests_per_hour: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    allowed_ips: Annotated[
        list[NetworkText], BeforeValidator(lambda value: [] if value is None else value)
    ] = []

    @property
    def tenant(self) -> Tenant:
        return Tenant(self.merchant, self.environment)


@dataclass(frozen=True, slots=True)
class NumberedLine:
    number: int
    key: KeyLine


def parse_key_lines(data: bytes) -> list[NumberedLine]:
    """Parses the keys of a file, and checks that they are consistent; raises ImportRefused."""
    lines = [
        NumberedLine(number, _parse_object(KeyLine, number, line))
        # Some editors write a byte order mark.
        for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1)
        if line.strip()
    ]
    if not lines:
        raise ImportRefused(1, "", "the file has no keys")
    _check_consistency(lines)
    return lines


def parse_credentials(data: bytes) -> Credentials:
    """Parses ``{"access_key": …, "secret_key": …}``; raises ImportRefused."""
    return _parse_object(CredentialsLine, 1, data).credentials


def _parse_object(shape: type[Shape], number: int, line: bytes) -> Shape:
    try:
        # The decoders' errors hold the input (``doc``, ``object``), so only their kind is reported.
        parsed = json.loads(line.decode(), object_pairs_hook=json_codec.build_unique_object)
    except UnicodeDecodeError:
        raise ImportRefused(number, "", "not UTF-8 text") from None
    except json_codec.DuplicateKeyError as duplicate:
        name = _escape_unprintable_name(duplicate.key)
        raise ImportRefused(number, name, "duplicate field") from None
    except (ValueError, RecursionError):
        raise ImportRefused(number, "", "not JSON") from None
    if not isinstance(parsed, dict):
        raise ImportRefused(number, "", "not a JSON object")
    try:
        return shape.model_validate(parsed)
    except ValidationError as error:
        raise _convert_validation_error(number, error) from None


def _escape_unprintable_name(name: str) -> str:
    return name if name.isprintable() and name.isascii() else ascii(name)


def _convert_validation_error(number: int, error: ValidationError) -> ImportRefused:
    problems = [
        f"{'.'.join(_escape_unprintable_name(str(part)) for part in loc)}: {message}"
        for loc, message in list_problems(error, KeyLine, "field")
    ]
    return ImportRefused(number, "", "; ".join(problems))


def _check_consistency(lines: list[NumberedLine]) -> None:
    first_uses: dict[Hashable, tuple[int, Hashable]] = {}

    def check(line: int, field: str, value: Hashable, related: Hashable, problem: str) -> None:
        """Checks that equal values have the same related value in every line."""
        first_line, expected = first_uses.setdefault((problem, value), (line, related))
        if related != expected:
            raise ImportRefused(line, field, f"line {first_line} {problem}")

    for line, key in ((line.number, line.key) for line in lines):
        # Related to its own line number, so that any second use is a contradiction.
        check(line, "api_key", key.api_key, line, "already has this key")
        problem = "has other credentials for this merchant and environment"
        check(line, "access_key", key.tenant, key.credentials, problem)
        # Per environment: a test account may have the access key of a live one.
        environment_and_access_key = key.environment, key.access_key
        problem = "has this access key for another merchant"
        check(line, "access_key", environment_and_access_key, key.merchant, problem)
        if key.name is not None:
            check(line, "name", key.name, line, "already has this name")
