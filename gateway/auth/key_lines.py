"""Parses the input of ``keys import``: one JSON object per line.

Error messages name lines and fields but never quote values, because most values are secrets.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from gateway.auth.signing import Credentials
from gateway.storage.tenants import Tenant


class ImportRefused(Exception):
    """Nothing was imported; the message has the line, the field and the problem."""

    def __init__(self, line: int, field: str, what: str) -> None:
        super().__init__(f"line {line}: {field + ': ' if field else ''}{what}")
        self.line = line


def _word(text: str) -> str:
    if not text.isprintable() or text != text.strip():
        raise ValueError("must be printable text without spaces around it")
    return text


def _token(text: str) -> str:
    if not (text.isascii() and text.isprintable()) or " " in text:
        raise ValueError("must be visible ASCII characters without spaces")
    return text


def _access_key(text: str) -> str:
    if ":" in text:  # a colon separates it from the signature in Authorization
        raise ValueError("must not contain a colon")
    return _token(text)


def _network(text: str) -> str:
    """Normalizes an address or a network; host bits are dropped."""
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        raise ValueError("must be an address or a network such as 192.0.2.0/24") from None


Shape = TypeVar("Shape", bound=BaseModel)
Word = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_word)]
ApiKey = Annotated[str, Field(min_length=1, max_length=512, repr=False), AfterValidator(_token)]
AccessKey = Annotated[
    str, Field(min_length=1, max_length=512, repr=False), AfterValidator(_access_key)
]
Secret = Annotated[str, Field(min_length=1, max_length=4096, repr=False), AfterValidator(_word)]
NetworkText = Annotated[str, AfterValidator(_network)]


class _Checked(BaseModel):
    # Without the input in errors, because most values are secrets.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


class PairLine(_Checked):
    """The input of ``keys rotate-secret``."""

    access_key: AccessKey
    secret_key: Secret

    @property
    def pair(self) -> Credentials:
        return Credentials(self.access_key, self.secret_key)


class KeyLine(PairLine):
    merchant: Word
    environment: Literal["live", "sandbox"]
    api_key: ApiKey
    name: Word | None = None
    requests_per_hour: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    allowed_ips: list[NetworkText] | None = None

    @property
    def owner(self) -> Tenant:
        return Tenant(self.merchant, self.environment)

    def settings(self) -> dict[str, Any]:
        """Returns the limits and addresses that the line has; others stay unchanged."""
        said = {
            "requests_per_hour": self.requests_per_hour,
            "allowed_ips": self.allowed_ips or [],
        }
        return {name: value for name, value in said.items() if name in self.model_fields_set}


@dataclass(frozen=True, slots=True)
class Numbered:
    number: int
    key: KeyLine


def parse_key_lines(data: bytes) -> list[Numbered]:
    """Parses the keys of a file, and checks that they are consistent; raises ImportRefused."""
    lines = [
        Numbered(number, _object(KeyLine, number, line))
        # Some editors write a byte order mark.
        for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1)
        if line.strip()
    ]
    if not lines:
        raise ImportRefused(1, "", "the file has no keys")
    _agree(lines)
    return lines


def parse_credentials(data: bytes) -> Credentials:
    """Parses ``{"access_key": …, "secret_key": …}``; raises ImportRefused."""
    return _object(PairLine, 1, data).pair


def _object(shape: type[Shape], number: int, line: bytes) -> Shape:
    try:
        written = json.loads(line.decode(), object_pairs_hook=_once)
    except UnicodeDecodeError:
        raise ImportRefused(number, "", "not UTF-8 text") from None
    except _Twice as twice:
        raise ImportRefused(number, str(twice), "duplicate field") from None
    except (ValueError, RecursionError):
        raise ImportRefused(number, "", "not JSON") from None
    if not isinstance(written, dict):
        raise ImportRefused(number, "", "not a JSON object")
    try:
        return shape.model_validate(written)
    except ValidationError as error:
        raise _first_of(number, error) from None


class _Twice(Exception):
    pass


def _once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Builds an object, and raises if a member is repeated: ``json`` would keep the last one."""
    found: dict[str, Any] = {}
    for name, value in members:
        if name in found:
            raise _Twice(_printed(name))
        found[name] = value
    return found


def _printed(name: str) -> str:
    return name if name.isprintable() and name.isascii() else ascii(name)


def _first_of(number: int, error: ValidationError) -> ImportRefused:
    # Without the input, which may be a secret.
    problems = error.errors(include_input=False, include_url=False, include_context=False)
    first = problems[0]
    kinds = {"extra_forbidden": "unknown field", "missing": "missing"}
    what = kinds.get(first["type"], first["msg"].removeprefix("Value error, "))
    more = f" (and {len(problems) - 1} more)" if problems[1:] else ""
    return ImportRefused(
        number, ".".join(_printed(str(part)) for part in first["loc"]), what + more
    )


def _agree(lines: list[Numbered]) -> None:
    keys = _Firsts("api_key", "line {line} already has this key")
    pairs = _Firsts(
        "access_key", "line {line} has other credentials for this merchant and environment"
    )
    holders = _Firsts("access_key", "line {line} has this access key for another merchant")
    names = _Firsts("name", "line {line} already has this name")
    for number, key in ((line.number, line.key) for line in lines):
        keys.same(number, key.api_key, number)
        pairs.same(number, key.owner, key.pair)
        holders.same(number, (key.environment, key.access_key), key.merchant)
        if key.name is not None:
            names.same(number, key.name, number)


class _Firsts:
    """Checks that equal values have the same related value in every line."""

    def __init__(self, field: str, otherwise: str) -> None:
        self._field = field
        self._otherwise = otherwise
        self._first: dict[Hashable, tuple[int, Hashable]] = {}

    def same(self, line: int, what: Hashable, beside: Hashable) -> None:
        first, expected = self._first.setdefault(what, (line, beside))
        if beside != expected:
            raise ImportRefused(line, self._field, self._otherwise.format(line=first))
