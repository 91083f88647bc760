"""Types of single values, with the checks that pydantic runs on them."""

import ipaddress
import json
import re
from contextlib import suppress
from datetime import date
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field


def _check_origin(text: str) -> str:
    parts = urlsplit(text)
    is_readable = text.isprintable() and not re.search(r"\s", text)
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_readable:
        raise ValueError("must be an address such as https://service.example")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError("must have a port from 1 to 65535, or none")
    if parts.query or parts.fragment or parts.username:
        raise ValueError("must be an address without query, fragment or credentials")
    if parts.path.rstrip("/").endswith("/v1"):
        raise ValueError("must be the address without /v1; the gateway adds it")
    # Paths are appended, and a double slash would be signed and sent.
    return text.rstrip("/")


def build_url_scheme_validator(*schemes: str) -> AfterValidator:
    beginnings = [f"{scheme}://" for scheme in schemes]
    return build_pattern_validator(
        f"({'|'.join(beginnings)}).*", f"must begin with {' or '.join(beginnings)}"
    )


def build_pattern_validator(pattern: str, message: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(message)
        return text

    return AfterValidator(check)


_RESERVED_HEADERS = frozenset(
    {
        *("authorization", "connection", "content-length", "content-type", "cookie", "date"),
        *("expect", "host", "te", "trailer", "transfer-encoding", "upgrade", "user-agent"),
    }
)
"""Headers that HTTP or the gateway itself uses, which a signature would overwrite."""


def _check_header_not_reserved(name: str) -> str:
    if name.lower() in _RESERVED_HEADERS:
        raise ValueError("must be a header of the service's own, such as X-Timestamp")
    return name


def check_printable_text(text: str) -> str:
    if text != text.strip() or not text.isprintable():
        raise ValueError("must be printable text without spaces around it")
    return text


_NON_WALLET_METHODS = frozenset(
    ["bank", "bank-transfer", "check", "mobile-wallet", "mobile-money", "cash", "debit-card"]
)
"""The payout methods other than a wallet (legacy and current interface, section 1)."""

_WALLET_WORD_HINT = "set the word that the service uses for its wallet"


def _check_wallet_word(word: str) -> str:
    """Refuses a wallet word that is another method or a currency: accounts would be confused."""
    if word.lower() in _NON_WALLET_METHODS:
        raise ValueError(f"is the name of another payout method; {_WALLET_WORD_HINT}")
    if re.fullmatch("[A-Z]{3}", word):
        raise ValueError(
            f"looks like a currency, and balances are keyed by currency; {_WALLET_WORD_HINT}"
        )
    return word


def build_unused_field_name_validator(shape: type, own_name: str) -> AfterValidator:
    """Returns a validator that refuses the names of the other fields of an object."""
    used_names = shape.__annotations__.keys() - {own_name}

    def check_field_name(word: str) -> str:
        if word in used_names:
            raise ValueError("is the name of another field of the same object")
        return word

    return AfterValidator(check_field_name)


def _check_ip_network(text: str) -> str:
    try:
        # Host bits may be set: 192.0.2.7/24 means the network of that address.
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError("must be an address or a network such as 192.0.2.0/24") from None
    return text


def is_loopback_host(host: str) -> bool:
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def parse_list(value: Any) -> Any:
    """Parses the list in an environment variable: separated by commas, or JSON."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        with suppress(ValueError):
            return json.loads(value)
        raise ValueError('must be separated by commas, or a JSON list such as ["192.0.2.0/24"]')
    return [part.strip() for part in value.split(",") if part.strip()]


def _parse_day(value: Any) -> Any:
    # isinstance would accept a datetime too, but a sunset has no time of day.
    if value == "" or value is None or type(value) is date:
        return value or None
    if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value):
        with suppress(ValueError):
            return date.fromisoformat(value)
    raise ValueError('must be a day, written as "2026-11-30"')


MIN_RETENTION_DAYS = 30
"""Younger records may still be needed to determine a write's outcome, or to replay an answer."""


def _check_retention_days(days: int) -> int:
    if 0 < days < MIN_RETENTION_DAYS:
        raise ValueError(f"must be {MIN_RETENTION_DAYS} or more, or 0 to keep records forever")
    return days


Origin = Annotated[str, AfterValidator(_check_origin)]
# A union with the empty text would report both of its members, under names that are no keys.
OriginOrEmpty = Annotated[str, AfterValidator(lambda text: text and _check_origin(text))]
# Of a page, unlike of a service, any path and query, and a final slash, belong to the address. In a
# header it is between angle brackets.
PageAddressOrEmpty = Annotated[
    str,
    build_pattern_validator(
        "(https?://[!#-;=?-~]+)?", "must be an address such as https://docs.example/migration"
    ),
]
# The scheme first, because the example of an address has another one.
HttpOriginOrEmpty = Annotated[
    str,
    build_pattern_validator("(http://.*)?", "must begin with http://"),
    AfterValidator(lambda text: text and _check_origin(text)),
]

Network = Annotated[str, AfterValidator(_check_ip_network)]

Token = Annotated[
    str,
    # A token of RFC 9110, section 5.6.2.
    build_pattern_validator(
        r"[!#$%&'*+.^_`|~0-9A-Za-z-]+",
        "must be an HTTP token: letters, digits and some punctuation, without spaces",
    ),
]
HeaderName = Annotated[Token, AfterValidator(_check_header_not_reserved)]

check_visible_ascii = build_pattern_validator(
    "[!-~]+", "must be visible ASCII characters without spaces"
)

NeutralWord = Annotated[str, check_visible_ascii]

Label = Annotated[str, AfterValidator(check_printable_text)]

WalletWord = Annotated[NeutralWord, AfterValidator(_check_wallet_word)]

Day = Annotated[date | None, BeforeValidator(_parse_day)]

Days = Annotated[int, Field(ge=0), AfterValidator(_check_retention_days)]
