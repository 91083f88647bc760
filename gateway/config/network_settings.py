"""Sections about the network: the ports, the service, load limits of connections, and traces."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from gateway.config.section import KeyFile, Section, insert_value_from_file
from gateway.config.value_types import Network, Origin, build_url_scheme_validator, parse_list


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

    @model_validator(mode="before")
    @classmethod
    def _insert_admin_token_from_file(cls, section: Any) -> Any:
        return insert_value_from_file(section, "admin_token")

    @model_validator(mode="after")
    def _check_tls_files_and_admin_token(self) -> Self:
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_certificate_file and tls_key_file need each other")
        token = self.admin_token.get_secret_value()
        # An empty token file is an error: without a token, the port would need no authentication.
        if (token or self.admin_token_file) and not re.fullmatch(r"[!-~]{16,}", token):
            raise ValueError(
                "the admin token must be at least 16 visible characters, without spaces"
            )
        return self

    @property
    def scheme(self) -> str:
        return "https" if self.tls_certificate_file else "http"


def _is_clear_text(address: str) -> bool:
    """Whether requests to the address cross a network unencrypted."""
    parts = urlsplit(address)
    # A host name that resolves to loopback is not looked up: checking needs no network.
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
    def _check_https_unless_http_allowed(cls, address: str, info: ValidationInfo) -> str:
        if _is_clear_text(address) and not info.data.get("allow_http"):
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
    proxy: Literal[""] | Annotated[Origin, AfterValidator(build_url_scheme_validator("http"))] = ""
    proxy_credentials: SecretStr = SecretStr("")
    proxy_credentials_file: KeyFile | None = None
    breaker_failures: int = Field(10, ge=0)
    breaker_seconds: float = Field(5, gt=0)
    signed_target: Literal["auto", "path", "path-and-query"] = "auto"
    inferred_operations: Literal["auto", "use", "avoid"] = "auto"
    # "Abandoned" is an older word for "superseded"; existing configurations use it.
    abandoned_check_seconds: float = Field(3600, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _insert_proxy_credentials_from_file(cls, section: Any) -> Any:
        return insert_value_from_file(section, "proxy_credentials")

    @model_validator(mode="after")
    def _check_proxy_credentials(self) -> Self:
        credentials = self.proxy_credentials.get_secret_value()
        if credentials and not self.proxy:
            raise ValueError("proxy_credentials need proxy")
        if credentials and ":" not in credentials:
            raise ValueError("proxy_credentials must be name:password")
        return self


LogLevel = Literal["debug", "info", "warning", "error"]


class Logs(Section):
    level: LogLevel = "info"
    format: Literal["auto", "json", "text"] = "auto"


class Traces(Section):
    endpoint: Literal[""] | Origin = ""
    ratio: float = Field(1.0, ge=0, le=1)


def build_url(host: str, port: int, scheme: str = "http") -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
