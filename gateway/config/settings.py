"""The configuration: gateway.toml, overridden by environment variables.

Each key can also be set with an environment variable (``PAYOUT_GATEWAY_SERVER__PORT``). Unknown keys
are errors. Error messages name the key and its line in the file.
"""

from __future__ import annotations

import calendar
import ipaddress
import json
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args
from urllib.parse import parse_qsl, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from mappings import current, legacy
from mappings.effects import LegacyOptions, Vocabulary

ENVIRONMENT_PREFIX = "PAYOUT_GATEWAY_"

DEFAULT_CONFIG_FILE = Path("gateway.toml")
"""The file that is read if no other is given."""


class ConfigurationError(Exception):
    """The configuration is invalid; each problem is one line for the operator."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def _check_origin(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an address such as https://service.example")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError("must have a port from 0 to 65535, or none") from None
    if parts.query or parts.fragment or parts.username:
        raise ValueError("must be an address without query, fragment or credentials")
    if parts.path.rstrip("/").endswith("/v1"):
        raise ValueError("must be the address without /v1; the gateway adds it")
    return text.rstrip("/")


def _require_scheme(*schemes: str) -> Callable[[str], str]:
    def check_scheme(text: str) -> str:
        if text.partition("://")[0] not in schemes or "://" not in text:
            raise ValueError(f"must begin with {' or '.join(f'{scheme}://' for scheme in schemes)}")
        return text

    return check_scheme


def _check_token(text: str) -> str:
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", text):
        raise ValueError("must be a word that an HTTP header can have")
    return text


def _check_word(text: str) -> str:
    if not re.fullmatch(r"[!-~]+", text):
        raise ValueError("must be a word")
    return text


def _check_label(text: str) -> str:
    if text != text.strip() or not text.isprintable():
        raise ValueError("must be one line of text")
    return text


_NON_WALLET_METHODS = frozenset(
    ["bank", "bank-transfer", "check", "mobile-wallet", "mobile-money", "cash", "debit-card"]
)
"""The payout methods other than a wallet (both documents, section 1)."""


def _check_wallet_word(word: str) -> str:
    """Refuse the name of another method or a currency: a wallet would be taken for a bank account."""
    if word.lower() in _NON_WALLET_METHODS:
        raise ValueError(f"is the name of another payout method; {_WALLET_WORD_HINT}")
    if re.fullmatch("[A-Z]{3}", word):
        raise ValueError(
            f"looks like a currency, and balances are keyed by currency; {_WALLET_WORD_HINT}"
        )
    return word


_WALLET_WORD_HINT = "set the word that the service uses for its wallet"


def _require_unused_field(*shapes: type, neutral_name: str) -> Callable[[str], str]:
    """Return a validator that refuses the names of other fields of the same objects.

    ``neutral_name`` is the field's own name in ``shapes``.
    """
    used_names = frozenset(name for shape in shapes for name in shape.__annotations__) - {
        neutral_name
    }

    def check_field_name(word: str) -> str:
        if word in used_names:
            raise ValueError("is the name of another field of the same object")
        return word

    return check_field_name


def _check_network(text: str) -> str:
    ipaddress.ip_network(text, strict=False)
    return text


def _parse_list(value: Any) -> Any:
    """Parse the list in an environment variable: separated by commas, or JSON."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return json.loads(value)
    return [part.strip() for part in value.split(",") if part.strip()]


Origin = Annotated[str, AfterValidator(_check_origin)]
Network = Annotated[str, AfterValidator(_check_network)]
Token = Annotated[str, AfterValidator(_check_token)]
NeutralWord = Annotated[str, AfterValidator(_check_word)]
Label = Annotated[str, AfterValidator(_check_label)]
WalletWord = Annotated[NeutralWord, AfterValidator(_check_wallet_word)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _read_key_file(section: Any, name: str) -> Any:
    """Return the section with the content of the file that ``<name>_file`` names as ``name``."""
    key = f"{name}_file"
    if isinstance(section, dict) and (file_name := section.get(key)):
        try:
            return {**section, name: _read_secret(Path(file_name)).strip()}
        except ConfigurationError as error:
            return {**section, key: error}  # reported with the key's location, see KeyFile
    return section


def _check_was_read(value: Any) -> Any:
    if isinstance(value, ConfigurationError):
        raise ValueError(str(value))  # noqa: TRY004 - pydantic reports ValueErrors with their location
    return value


KeyFile = Annotated[Path, BeforeValidator(_check_was_read)]
"""A file with the value of another key. It is read only once (``_read_key_file``): it may be a pipe."""


class Server(Section):
    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65535)
    admin_host: str = "127.0.0.1"
    admin_port: int = Field(8081, ge=0, le=65535)
    workers: int = Field(1, ge=1)
    public_urls: Annotated[tuple[Origin, ...], BeforeValidator(_parse_list)] = ()
    """The URLs at which clients reach the gateway, for openapi.json; default: where it listens."""
    trusted_proxies: Annotated[tuple[Network, ...], BeforeValidator(_parse_list)] = ()
    tls_certificate_file: Path | None = None
    tls_key_file: Path | None = None
    admin_token: SecretStr = SecretStr("")
    admin_token_file: KeyFile | None = None

    @model_validator(mode="before")
    @classmethod
    def _load_admin_token(cls, section: Any) -> Any:
        return _read_key_file(section, "admin_token")

    @model_validator(mode="after")
    def _check_server(self) -> Self:
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_certificate_file and tls_key_file need each other")
        token = self.admin_token.get_secret_value()
        if (token or self.admin_token_file) and not re.fullmatch(r"[!-~]{16,}", token):
            raise ValueError(
                "the admin token must be at least 16 visible characters, without spaces"
            )
        return self

    @property
    def scheme(self) -> str:
        return "https" if self.tls_certificate_file else "http"


def _is_clear_text(address: str) -> bool:
    """Return whether requests to the address cross a network unencrypted."""
    parts = urlsplit(address)
    if parts.scheme != "http" or parts.hostname == "localhost":
        return False
    try:
        return not ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return True


class Environment(Section):
    # Declared before the URLs, because their validators read it.
    allow_http: bool = False
    base_url: Origin
    ca_file: Path | None = None
    legacy_base_url: Literal[""] | Origin = ""

    @field_validator("base_url", "legacy_base_url")
    @classmethod
    def _check_encryption(cls, address: str, info: ValidationInfo) -> str:
        if _is_clear_text(address) and not info.data.get("allow_http"):
            raise ValueError(
                "API keys and personal data would cross a network in clear text; use https://, "
                "or set allow_http = true on a private network"
            )
        return address


class Environments(Section):
    live: Environment | None = None
    sandbox: Environment | None = None

    def select_configured(self) -> dict[str, Environment]:
        environments = {"live": self.live, "sandbox": self.sandbox}
        return {name: environment for name, environment in environments.items() if environment}


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        location = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise ConfigurationError([f"{path}: there is no such file{location}"]) from None
    except OSError as error:
        raise ConfigurationError([f"{path}: {error.strerror or error}"]) from None
    except UnicodeDecodeError:
        raise ConfigurationError([f"{path}: not UTF-8 text"]) from None


def _read_secret(path: Path) -> str:
    text = _read_text(path)
    status = path.stat()
    if stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IRWXO:
        raise ConfigurationError([f"{path}: every user can read it; run `chmod o= {path}`"])
    return text


class UrlSection(Section):
    """A section whose ``url`` may contain a password, and can therefore be read from a file."""

    @model_validator(mode="before")
    @classmethod
    def _load_url(cls, section: Any) -> Any:
        return _read_key_file(section, "url")


class State(UrlSection):
    url: Annotated[str, AfterValidator(_require_scheme("sqlite", "postgresql"))] = (
        "sqlite:///gateway.db"
    )
    url_file: KeyFile | None = None
    encryption_key_file: Path = Path("gateway.key")
    mark_file: Path | None = None

    @property
    def is_sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    @property
    def mark_path(self) -> Path:
        """The file with the last sequence number of the database; see storage/restore_marks.py."""
        return self.mark_file or Path(f"{self.encryption_key_file}.mark")


class Limits(UrlSection):
    url: Annotated[str, AfterValidator(_require_scheme("memory", "redis", "rediss"))] = "memory://"
    url_file: KeyFile | None = None
    requests_per_hour: int = Field(10_000, ge=1)
    hosts: int = Field(1, ge=1)
    body_bytes: int = Field(64 * 1024 * 1024, ge=1024)


class Load(Section):
    """Load limits of each process; timeouts and bytes are the maximum that a client may use."""

    in_flight: int = Field(128, ge=1)
    in_flight_per_merchant: int = Field(32, ge=1)
    queue: int = Field(512, ge=0)
    queue_per_merchant: int = Field(128, ge=0)
    queue_seconds: float = Field(5, gt=0, le=60)
    connections: int = Field(2000, ge=16)
    head_seconds: float = Field(10, gt=0)
    idle_seconds: float = Field(75, gt=0)
    pressed_seconds: float = Field(5, gt=0)
    body_seconds: float = Field(8, gt=0)
    body_bytes_per_second: int = Field(16 * 1024, ge=0)
    held_bytes: int = Field(256 * 1024 * 1024, ge=1024 * 1024)

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.in_flight_per_merchant > self.in_flight:
            raise ValueError("in_flight_per_merchant exceeds in_flight, the total")
        if self.queue_per_merchant > self.queue:
            raise ValueError("queue_per_merchant exceeds queue, the total")
        return self


class Upstream(Section):
    timeout_seconds: float = Field(25, gt=0)
    bytes_per_second: int = Field(256 * 1024, ge=0)
    connections: int = Field(100, ge=1)
    ca_file: Path | None = None
    proxy: Literal[""] | Annotated[Origin, AfterValidator(_require_scheme("http"))] = ""
    proxy_credentials: SecretStr = SecretStr("")
    proxy_credentials_file: KeyFile | None = None
    breaker_failures: int = Field(10, ge=0)
    breaker_seconds: float = Field(5, gt=0)
    signed_target: Literal["auto", "path", "path-and-query"] = "auto"
    inferred_operations: Literal["auto", "use", "avoid"] = "auto"
    abandoned_check_seconds: float = Field(3600, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _load_proxy_credentials(cls, section: Any) -> Any:
        return _read_key_file(section, "proxy_credentials")

    @model_validator(mode="after")
    def _check_proxy(self) -> Self:
        credentials = self.proxy_credentials.get_secret_value()
        if credentials and not self.proxy:
            raise ValueError("proxy_credentials need proxy")
        if credentials and ":" not in credentials:
            raise ValueError("proxy_credentials must be name:password")
        return self


class Lists(Section):
    """The recipient caches of each process, for list queries that only the legacy interface has."""

    index: bool = True
    index_seconds: float = Field(3600, ge=60)
    index_recipients: int = Field(250_000, ge=1)


MONTHS_TO_SUNSET = 3
"""Months from the announcement to the removal (current interface, section 9)."""


def _parse_day(value: Any) -> Any:
    if value == "" or value is None or type(value) is date:
        return value or None
    if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value):
        with suppress(ValueError):
            return date.fromisoformat(value)
    raise ValueError('must be a day, written as "2026-11-30"')


Day = Annotated[date | None, BeforeValidator(_parse_day)]


class Deprecation(Section):
    announced: Day = None
    sunset: Day = None
    after_sunset: Literal["serve", "refuse"] = "serve"
    page: Literal[""] | Origin = ""

    @model_validator(mode="after")
    def _check_dates(self) -> Self:
        if self.sunset and not self.announced:
            raise ValueError("sunset needs announced, the day of the announcement to clients")
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
        last_day = calendar.monthrange(year, month)[1]
        return date(year, month, min(self.announced.day, last_day))


class LegacyWords(Section):
    wallet: WalletWord = "wallet"
    # The default is validated too, because a configured wallet word may be equal to it.
    service: NeutralWord = Field("service", validate_default=True)
    service_total: Annotated[
        NeutralWord,
        AfterValidator(_require_unused_field(legacy.Summary, neutral_name="ServiceTotal")),
    ] = "ServiceTotal"
    avatar_url: Annotated[
        NeutralWord,
        AfterValidator(_require_unused_field(legacy.Recipient, neutral_name="avatarUrl")),
    ] = "avatarUrl"
    wallet_method_display: Label = ""
    bank_method_display: Label = "Bank Transfer"
    wallet_display_name: Label = ""
    bank_display_name: Label = "Bank Transfer"
    wallet_account_type: Label = ""
    service_account_type: Label = ""

    @field_validator("service")
    @classmethod
    def _check_service_word(cls, word: str, info: ValidationInfo) -> str:
        if word == info.data.get("wallet"):
            raise ValueError("is the wallet's word; the two balances would have the same name")
        return word


class CurrentWords(Section):
    scheme: Token = "svcsign"
    timestamp_header: Token = "X-SVC-Timestamp"
    wallet: WalletWord = "wallet"
    avatar_url: Annotated[
        NeutralWord,
        AfterValidator(_require_unused_field(current.Recipient, neutral_name="avatarUrl")),
    ] = "avatarUrl"
    balance_path: str = Field("/v1/balance", pattern=r"^/v1/")
    summary_path: str = Field("/v1/batch/{id}/summary", pattern=r"^/v1/.*\{id\}")
    batch_currency: Annotated[
        NeutralWord,
        AfterValidator(_require_unused_field(current.BatchCreate, neutral_name="currency")),
    ] = "currency"


class Words(Section):
    legacy: LegacyWords = LegacyWords()
    current: CurrentWords = CurrentWords()

    def build_vocabulary(self) -> Vocabulary:
        signing_names = {"scheme", "timestamp_header"}
        return Vocabulary(
            **{f"legacy_{name}": word for name, word in self.legacy},
            **{f"current_{name}": word for name, word in self.current if name not in signing_names},
        )


class Legacy(Section):
    stand_ins: Literal["all", "batches", "none"] = "all"
    verify_before_start: Literal["warn", "refuse", "off"] = "warn"
    government_ids: Literal["keep", "replace"] = "keep"
    holdup: Literal["remember", "refuse"] = "remember"
    primary_currency: Literal["both", "flat", "nested"] = "both"
    account_number_from_iban: Literal["auto", "always", "never"] = "auto"
    send_memo: bool = True
    undeclared_charset: Literal["utf-8", "latin-1"] = "utf-8"

    def build_legacy_options(self) -> LegacyOptions:
        return LegacyOptions(
            government_ids=self.government_ids,
            holdup=self.holdup,
            primary_currency=self.primary_currency,
            account_number_from_iban=self.account_number_from_iban,
            verify_before_start=self.verify_before_start,
            send_memo=self.send_memo,
        )


class Writes(Section):
    """Which requests count as retries of a write."""

    identical_in_flight: Literal["retry", "separate"] = "retry"
    replay_seconds: float = Field(0, ge=0, le=3600)


class Signed(Section):
    unknown_keys: Literal["refuse", "forward"] = "refuse"
    environment: Literal["", "live", "sandbox"] = ""

    @model_validator(mode="after")
    def _check_forwarding(self) -> Self:
        if self.unknown_keys == "forward" and not self.environment:
            raise ValueError('unknown_keys = "forward" needs environment, "live" or "sandbox"')
        return self


MIN_RETENTION_DAYS = 30
"""Younger records may still be needed to determine the outcome of a write, or to replay an answer."""


def _check_days(days: int) -> int:
    if 0 < days < MIN_RETENTION_DAYS:
        raise ValueError(f"must be {MIN_RETENTION_DAYS} or more, or 0 to keep records forever")
    return days


Days = Annotated[int, Field(ge=0), AfterValidator(_check_days)]


class Retention(Section):
    """How long records are kept; 0 means forever."""

    journal_days: Days = 400
    texts_days: Days = 400
    usage_days: Days = 400
    audit_days: Days = 1095


class Traces(Section):
    endpoint: Literal[""] | Origin = ""
    ratio: float = Field(1.0, ge=0, le=1)


class Comparing(Section):
    """For API keys in mode ``compare``: which service answers, and how many reads are compared."""

    answers: Literal["legacy", "current"] = "legacy"
    sample: float = Field(1.0, gt=0, le=1)
    queue: int = Field(100, ge=1)


class Recording(Section):
    """The recording of masked legacy requests and responses; off if there is no directory."""

    directory: str = ""
    keys: Annotated[tuple[str, ...], BeforeValidator(_parse_list)] = ()
    operations: Annotated[tuple[str, ...], BeforeValidator(_parse_list)] = ()
    sample: float = Field(1.0, gt=0, le=1)
    file_bytes: int = Field(16 * 1024 * 1024, ge=64 * 1024)
    files: int = Field(8, ge=1)
    queue: int = Field(500, ge=1)


def build_url(host: str, port: int, scheme: str = "http") -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def has_password(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:  # an invalid URL is reported by the code that uses it
        return False
    return bool(parts.password or dict(parse_qsl(parts.query)).get("password"))


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The file that settings were read from. It does not affect their equality."""

    path: Path | None = field(default=None, compare=False)
    text: str = field(default="", compare=False)

    def locate_problem(self, key: str, problem: str) -> str:
        """Return one line: where the key was set, and the problem."""
        variables_by_key = {
            ".".join(keys): name for name in os.environ if (keys := parse_variable_name(name))
        }
        variable = next(
            (
                name
                for variable_key, name in variables_by_key.items()
                if _is_same_or_nested(variable_key, key)
            ),
            None,
        )
        if variable:
            return f"environment variable {variable}: {problem}"
        return self.locate_in_file(key, problem)

    def locate_in_file(self, key: str, problem: str) -> str:
        line = _find_line(self.text, key.split("."))
        return (
            f"{self.path}:{line}: {key}: {problem}" if self.path and line else f"{key}: {problem}"
        )

    def find_passwords(self) -> Iterator[str]:
        """Yield a problem for each URL with a password in the file, even if a variable overrides it."""
        document = tomllib.loads(self.text)
        for section in ("state", "limits"):
            url = document.get(section, {}).get("url")
            if isinstance(url, str) and has_password(url):
                variable = f"{ENVIRONMENT_PREFIX}{section}__url".upper()
                problem = (
                    "contains a password, which does not belong in this file; put the URL into a "
                    f"separate file named by url_file, or set {variable}"
                )
                yield self.locate_in_file(f"{section}.url", problem)


class Settings(BaseSettings):
    """The whole configuration. ``make docs`` generates ``deploy/configuration.md`` from it."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
    )

    server: Server = Server()
    environments: Environments = Environments()
    state: State = State()
    limits: Limits = Limits()
    load: Load = Load()
    upstream: Upstream = Upstream()
    legacy: Legacy = Legacy()
    lists: Lists = Lists()
    writes: Writes = Writes()
    signed: Signed = Signed()
    comparing: Comparing = Comparing()
    recording: Recording = Recording()
    deprecation: Deprecation = Deprecation()
    retention: Retention = Retention()
    traces: Traces = Traces()
    vocabulary: Words = Words()
    _config_file: ConfigFile = PrivateAttr(ConfigFile())

    def with_config_file(self, config_file: ConfigFile) -> Self:
        self._config_file = config_file
        return self

    @property
    def has_file(self) -> bool:
        """Return whether a configuration file was read."""
        return self._config_file.path is not None

    def find_passwords(self) -> list[str]:
        """Return a line for each password in the configuration file, with its location."""
        return list(self._config_file.find_passwords())

    def locate_problem(self, problem: str) -> str:
        """Add the location to a problem that starts with a key; return others unchanged."""
        key, _, message = problem.partition(": ")
        if key.partition(".")[0] not in Settings.model_fields:
            return problem
        return self._config_file.locate_problem(key, message)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        *_others: PydanticBaseSettingsSource,  # the library's sources for variables and .env files
        **_named: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return EnvironmentSource(settings_cls), init_settings


class EnvironmentSource(PydanticBaseSettingsSource):
    """Reads ``PAYOUT_GATEWAY_SERVER__PORT`` as ``server.port``.

    Every variable with our prefix and a double underscore names a key; an unknown key is an error.
    Variables without it are ignored: Kubernetes sets some (``PAYOUT_GATEWAY_PORT``) for a Service of
    this name.
    """

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        raise NotImplementedError  # __call__ reads all variables

    def __call__(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, value in os.environ.items():
            if keys := parse_variable_name(name):
                section = values
                for key in keys[:-1]:
                    section = section.setdefault(key, {})
                if value:
                    section[keys[-1]] = value
        return values


def parse_variable_name(variable: str) -> list[str] | None:
    """Return the key that an environment variable names, or None if it is not a setting."""
    name = variable.upper()
    if not name.startswith(ENVIRONMENT_PREFIX):
        return None
    key_text = name.removeprefix(ENVIRONMENT_PREFIX).lower()
    # ``SERVER_PORT`` is a typo of ``SERVER__PORT``, which must not be ignored silently.
    if "__" not in key_text and key_text.partition("_")[0] not in Settings.model_fields:
        return None
    return key_text.split("__")


def has_setting_variable() -> bool:
    """Return whether the environment sets any key."""
    return any(value and parse_variable_name(name) for name, value in os.environ.items())


def load_settings(path: Path | None) -> Settings:
    """Read a configuration file and the environment; raises ConfigurationError."""
    text = _read_text(path) if path else ""
    config_file = ConfigFile(path, text)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError([f"{path}: not TOML: {error}"]) from None
    if secret_problems := list(_find_secrets(document, config_file)):
        raise ConfigurationError(secret_problems)
    try:
        return Settings(**document).with_config_file(config_file)
    except ValidationError as error:
        raise ConfigurationError(list(_describe_validation_error(error, config_file))) from None


SECRET_KEYS = (("server", "admin_token"), ("upstream", "proxy_credentials"))
"""Keys that only a variable or a separate file may set, not the configuration file."""


def _find_secrets(document: dict[str, Any], config_file: ConfigFile) -> Iterator[str]:
    for section, key in SECRET_KEYS:
        section_values = document.get(section)
        if isinstance(section_values, dict) and key in section_values:
            variable = f"{ENVIRONMENT_PREFIX}{section}__{key}".upper()
            yield config_file.locate_in_file(
                f"{section}.{key}",
                "is a secret and not allowed in this file; put it into a separate file named by "
                f"{key}_file, or set {variable}",
            )


def _describe_validation_error(error: ValidationError, config_file: ConfigFile) -> Iterator[str]:
    for problem in error.errors(include_input=False, include_url=False, include_context=False):
        keys = [str(part) for part in problem["loc"]]
        message = {
            "extra_forbidden": _describe_unknown_key(keys),
            "missing": "missing",
        }.get(problem["type"], problem["msg"].removeprefix("Value error, "))
        yield config_file.locate_problem(".".join(keys), message)


def _describe_unknown_key(keys: list[str]) -> str:
    """Describe an unknown key, with a similar one or the only ones that exist."""
    known_keys = list(_list_section_keys(keys[:-1]))
    if suggestions := get_close_matches(keys[-1], known_keys, 1):
        return f"unknown key; did you mean {suggestions[0]}?"
    return (
        f"unknown key; there is {' and '.join(known_keys)}"
        if 0 < len(known_keys) < 3
        else "unknown key"
    )


def _list_section_keys(section: list[str]) -> Mapping[str, FieldInfo]:
    model: Any = Settings
    for name in section:
        annotation = model.model_fields[name].annotation
        model = next(
            (
                candidate
                for candidate in (annotation, *get_args(annotation))
                if hasattr(candidate, "model_fields")
            ),
            None,
        )
        if model is None:
            return {}
    fields: Mapping[str, FieldInfo] = model.model_fields
    return fields


def _is_same_or_nested(left: str, right: str) -> bool:
    """Return whether the keys are equal, or one is nested in the other."""
    longer, shorter = (left, right) if len(left) > len(right) else (right, left)
    return longer == shorter or longer.startswith(f"{shorter}.")


def _find_line(text: str, keys: list[str]) -> int | None:
    """Return the line of a key, or of its section if the file does not contain the key."""
    section, section_line = "", None
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line):
            section = re.sub(r"[\"' ]", "", header[1])
            line_key = section
        elif assignment := re.match(r"\s*([\w.\"'-]+)\s*=", line):
            line_key = re.sub(r"[\"']", "", f"{section}.{assignment[1]}").lstrip(".")
        else:
            continue
        if line_key == ".".join(keys):
            return number
        if ".".join(keys).startswith(f"{line_key}."):
            section_line = number
    return section_line
