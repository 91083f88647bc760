"""The sections of the configuration; ``deploy/gateway.example.toml`` describes every key."""

import calendar
import re
from datetime import date
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BeforeValidator,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from gateway.config.section import KeyFile, Section
from gateway.config.value_types import (
    Day,
    Days,
    HeaderName,
    HttpOriginOrEmpty,
    Label,
    Network,
    NeutralWord,
    Origin,
    OriginOrEmpty,
    PageAddressOrEmpty,
    Token,
    WalletWord,
    build_unused_field_name_validator,
    build_url_scheme_validator,
    is_loopback_host,
    parse_list,
)
from mappings import current, legacy
from mappings.effects import LegacyOptions, Vocabulary


class Server(Section):
    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65535)
    admin_host: str = "127.0.0.1"
    admin_port: int = Field(8081, ge=0, le=65535)
    workers: int = Field(1, ge=1)
    trusted_proxies: Annotated[tuple[Network, ...], BeforeValidator(parse_list)] = ()
    tls_certificate_file: Path | None = None
    tls_key_file: Path | None = None
    admin_token: SecretStr = SecretStr("")
    admin_token_file: KeyFile | None = None

    @model_validator(mode="after")
    def _check_tls_files_and_admin_token(self) -> Self:
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_certificate_file and tls_key_file need each other")
        token = self.admin_token.get_secret_value()
        # An empty token file is an error: without a token, the port would need no authentication.
        if (token or self.admin_token_file) and not re.fullmatch(r"[!-~]{16,}", token):
            raise ValueError(
                "the admin token (admin_token_file, or the variable of admin_token) must be at least "
                "16 visible characters, without spaces"
            )
        return self

    @property
    def scheme(self) -> str:
        return "https" if self.tls_certificate_file else "http"


class Environment(Section):
    # Declared before the URLs, because their validators read it.
    allow_http: bool = False
    base_url: Origin
    ca_file: Path | None = None
    legacy_base_url: OriginOrEmpty = ""

    @field_validator("base_url", "legacy_base_url")
    @classmethod
    def _check_https_unless_http_allowed(cls, address: str, info: ValidationInfo) -> str:
        parts = urlsplit(address)
        # A host name that resolves to loopback is not looked up: checking needs no network.
        is_remote = parts.scheme == "http" and not is_loopback_host(parts.hostname or "")
        if is_remote and not info.data.get("allow_http"):
            raise ValueError(
                "API keys and personal data would cross a network in clear text; use https://, "
                "or set allow_http = true on a private network"
            )
        return address


class Environments(Section):
    live: Environment | None = None
    sandbox: Environment | None = None

    def map_configured_environments_by_name(self) -> dict[str, Environment]:
        environments = {"live": self.live, "sandbox": self.sandbox}
        return {name: environment for name, environment in environments.items() if environment}

    def map_base_urls_by_environment(self) -> dict[str, str]:
        environments = self.map_configured_environments_by_name()
        return {name: environment.base_url for name, environment in environments.items()}

    def map_legacy_base_urls_by_environment(self) -> dict[str, str]:
        """Returns the addresses of the legacy service, where there are any."""
        environments = self.map_configured_environments_by_name().items()
        return {
            name: known.legacy_base_url for name, known in environments if known.legacy_base_url
        }


class Load(Section):
    """Load limits of each process; timeouts and bytes are the maximum that a client may use."""

    in_flight: int = Field(128, ge=1)
    in_flight_per_merchant: int = Field(32, ge=1)
    queue: int = Field(512, ge=0)
    queue_per_merchant: int = Field(128, ge=0)
    queue_seconds: float = Field(5, gt=0, le=60)
    connections: int = Field(2000, ge=16)
    idle_seconds: float = Field(75, gt=0)
    body_bytes_per_second: int = Field(16 * 1024, ge=0)
    held_bytes: int = Field(256 * 1024 * 1024, ge=1024 * 1024)

    @model_validator(mode="after")
    def _check_merchant_limits_within_totals(self) -> Self:
        if self.in_flight_per_merchant > self.in_flight:
            raise ValueError("in_flight_per_merchant exceeds in_flight, the total")
        if self.queue_per_merchant > self.queue:
            raise ValueError("queue_per_merchant exceeds queue, the total")
        return self


class Upstream(Section):
    timeout_seconds: float = Field(25, gt=0)
    connections: int = Field(100, ge=1)
    ca_file: Path | None = None
    proxy: HttpOriginOrEmpty = ""
    proxy_credentials: SecretStr = SecretStr("")
    proxy_credentials_file: KeyFile | None = None
    breaker_failures: int = Field(10, ge=0)
    breaker_seconds: float = Field(5, gt=0)
    signed_target: Literal["auto", "path", "path-and-query"] = "auto"
    inferred_operations: Literal["auto", "use", "avoid"] = "auto"
    # "Abandoned" is an older word for "superseded"; existing configurations use it.
    abandoned_check_seconds: float = Field(3600, ge=0)

    @model_validator(mode="after")
    def _check_proxy_credentials(self) -> Self:
        credentials = self.proxy_credentials.get_secret_value()
        if credentials and not self.proxy:
            raise ValueError("proxy_credentials need proxy")
        if credentials and ":" not in credentials:
            raise ValueError("proxy_credentials must be name:password")
        return self


class Logs(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "text"] = "auto"


class Traces(Section):
    endpoint: OriginOrEmpty = ""
    ratio: float = Field(1.0, ge=0, le=1)


def build_url(host: str, port: int, scheme: str = "http") -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class State(Section):
    url: Annotated[str, build_url_scheme_validator("sqlite", "postgresql")] = "sqlite:///gateway.db"
    url_file: KeyFile | None = None
    encryption_key_file: Path = Path("gateway.key")
    mark_file: Path | None = None

    @property
    def is_sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    @property
    def restore_mark_path(self) -> Path:
        """The file with the last sequence number of the database; see storage/restore_detection.py."""
        # Not beside the database, so that a restore of the database does not restore the mark too.
        return self.mark_file or Path(f"{self.encryption_key_file}.mark")


class Limits(Section):
    url: Annotated[str, build_url_scheme_validator("memory", "redis", "rediss")] = "memory://"
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


class LegacyWords(Section):
    wallet: WalletWord = "wallet"
    # The default is validated too, because a configured wallet word may be equal to it.
    service: NeutralWord = Field("service", validate_default=True)
    service_total: Annotated[
        NeutralWord, build_unused_field_name_validator(legacy.Summary, "ServiceTotal")
    ] = "ServiceTotal"
    avatar_url: Annotated[
        NeutralWord, build_unused_field_name_validator(legacy.Recipient, "avatarUrl")
    ] = "avatarUrl"
    wallet_method_display: Label = ""
    bank_method_display: Label = "Bank Transfer"
    wallet_display_name: Label = ""
    bank_display_name: Label = "Bank Transfer"
    wallet_account_type: Label = ""
    service_account_type: Label = ""

    @field_validator("service")
    @classmethod
    def _check_service_and_wallet_words_differ(cls, word: str, info: ValidationInfo) -> str:
        if word == info.data.get("wallet"):
            raise ValueError("is the wallet's word; the two balances would have the same name")
        return word


class CurrentWords(Section):
    scheme: Token = "svcsign"
    timestamp_header: HeaderName = "X-SVC-Timestamp"
    wallet: WalletWord = "wallet"
    avatar_url: Annotated[
        NeutralWord, build_unused_field_name_validator(current.Recipient, "avatarUrl")
    ] = "avatarUrl"
    balance_path: str = "/v1/balance"
    summary_path: str = "/v1/batch/{id}/summary"
    batch_currency: Annotated[
        NeutralWord, build_unused_field_name_validator(current.BatchCreate, "currency")
    ] = "currency"

    @field_validator("balance_path", "summary_path")
    @classmethod
    def _check_path(cls, path: str, info: ValidationInfo) -> str:
        default = cls.model_fields[str(info.field_name)].default
        # The signed path starts with /v1.
        if not path.startswith("/v1/") or ("{id}" in default and "{id}" not in path):
            raise ValueError(f"must be a path such as {default}")
        return path


class Words(Section):
    legacy: LegacyWords = LegacyWords()
    current: CurrentWords = CurrentWords()

    def build_vocabulary(self) -> Vocabulary:
        # These two are used in signatures, not in bodies and paths.
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
        return LegacyOptions(**self.model_dump(include={*LegacyOptions.__struct_fields__}))


class Lists(Section):
    """The recipient caches of each process, for list queries that only the legacy interface has."""

    # "Index" is an older word for the cache; existing configurations use it.
    index: bool = True
    index_seconds: float = Field(3600, ge=60)
    index_recipients: int = Field(250_000, ge=1)


class Writes(Section):
    """Settings that decide which requests count as retries of a write."""

    identical_in_flight: Literal["retry", "separate"] = "retry"
    replay_seconds: float = Field(0, ge=0, le=3600)


class Signed(Section):
    unknown_keys: Literal["refuse", "forward"] = "refuse"
    environment: Literal["", "live", "sandbox"] = ""

    @model_validator(mode="after")
    def _check_forwarding_has_environment(self) -> Self:
        if self.unknown_keys == "forward" and not self.environment:
            raise ValueError('unknown_keys = "forward" needs environment, "live" or "sandbox"')
        return self


MONTHS_TO_SUNSET = 3
"""Months from the announcement to the removal (current interface, section 9)."""


class Deprecation(Section):
    announced: Day = None
    sunset: Day = None
    after_sunset: Literal["serve", "refuse"] = "serve"
    page: PageAddressOrEmpty = ""

    @model_validator(mode="after")
    def _check_dates(self) -> Self:
        if self.sunset and not self.announced:
            raise ValueError("sunset requires announced, the day of the announcement to clients")
        if self.after_sunset == "refuse" and not self.announced:
            raise ValueError(
                'after_sunset = "refuse" requires announced: nothing is refused without'
            )
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

    def is_refused_on(self, day: date) -> bool:
        """Whether every legacy request is refused on this day (UTC)."""
        sunset = self.sunset_date
        return self.after_sunset == "refuse" and sunset is not None and sunset <= day


class Comparing(Section):
    """Settings of mode ``compare``: the service that answers, and the share of reads compared."""

    answers: Literal["legacy", "current"] = "legacy"
    sample: float = Field(1.0, gt=0, le=1)

    @property
    def forwarding_modes(self) -> tuple[str, ...]:
        """The modes in which the legacy service answers clients."""
        return ("forward", "compare") if self.answers == "legacy" else ("forward",)
