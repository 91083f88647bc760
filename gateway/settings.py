"""The configuration: gateway.toml, overridden by environment variables.

Every key is also an environment variable (``PAYOUT_GATEWAY_SERVER__PORT``). Unknown keys are
errors. What a mistake says names the key and, where it stands in the file, the line.
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from mappings.grammar import Manners, Vocabulary

ENVIRONMENT_PREFIX = "PAYOUT_GATEWAY_"


class Misconfigured(Exception):
    """A configuration that cannot be run; each problem is one line for the operator."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def _origin(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an address such as https://service.example")
    if parts.query or parts.fragment or parts.username:
        raise ValueError("must be an address without query, fragment or credentials")
    if parts.path.rstrip("/").endswith("/v1"):
        raise ValueError("must be the address without /v1; the gateway adds it")
    return text.rstrip("/")


def _network(text: str) -> str:
    ipaddress.ip_network(text, strict=False)
    return text


Origin = Annotated[str, AfterValidator(_origin)]
Network = Annotated[str, AfterValidator(_network)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Server(Section):
    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65535)
    admin_host: str = "127.0.0.1"
    admin_port: int = Field(8081, ge=0, le=65535)
    workers: int = Field(1, ge=1)
    trusted_proxies: tuple[Network, ...] = ()


class Environment(Section):
    base_url: Origin
    legacy_base_url: Literal[""] | Origin = ""


class Environments(Section):
    live: Environment | None = None
    sandbox: Environment | None = None

    def configured(self) -> dict[str, Environment]:
        both = {"live": self.live, "sandbox": self.sandbox}
        return {name: environment for name, environment in both.items() if environment}


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise Misconfigured([f"{path}: {error.strerror or error}"]) from None
    except UnicodeDecodeError:
        raise Misconfigured([f"{path}: not UTF-8 text"]) from None


class Addressed(Section):
    """A section whose address may carry a password, and so may be read from a file."""

    @model_validator(mode="before")
    @classmethod
    def _from_file(cls, written: Any) -> Any:
        if isinstance(written, dict) and (named := written.get("url_file")):
            return {**written, "url": _read(Path(named)).strip()}
        return written


class State(Addressed):
    url: str = Field("sqlite:///gateway.db", pattern=r"^(sqlite|postgresql)://")
    url_file: Path | None = None
    encryption_key_file: Path = Path("gateway.key")


class Limits(Addressed):
    url: str = Field("memory://", pattern=r"^(memory|redis|rediss)://")
    url_file: Path | None = None
    requests_per_hour: int = Field(10_000, ge=1)
    body_bytes: int = Field(64 * 1024 * 1024, ge=1024)


class Upstream(Section):
    timeout_seconds: float = Field(25, gt=0)
    connections: int = Field(100, ge=1)
    signed_target: Literal["auto", "path", "path-and-query"] = "auto"
    inferred_operations: Literal["auto", "use", "avoid"] = "auto"


class LegacyWords(Section):
    wallet: str = "wallet"
    service: str = "service"
    service_total: str = "ServiceTotal"
    avatar_url: str = "avatarUrl"


class CurrentWords(Section):
    scheme: str = "svcsign"
    timestamp_header: str = "X-SVC-Timestamp"
    wallet: str = "wallet"
    avatar_url: str = "avatarUrl"
    balance_path: str = Field("/v1/balance", pattern=r"^/v1/")
    summary_path: str = Field("/v1/batch/{id}/summary", pattern=r"^/v1/.*\{id\}")
    batch_currency: str = "currency"


class Words(Section):
    legacy: LegacyWords = LegacyWords()
    current: CurrentWords = CurrentWords()

    def for_mappings(self) -> Vocabulary:
        return Vocabulary(
            legacy_wallet=self.legacy.wallet,
            legacy_service=self.legacy.service,
            legacy_service_total=self.legacy.service_total,
            legacy_avatar_url=self.legacy.avatar_url,
            current_wallet=self.current.wallet,
            current_avatar_url=self.current.avatar_url,
            current_balance_path=self.current.balance_path,
            current_summary_path=self.current.summary_path,
            current_batch_currency=self.current.batch_currency,
        )


class Legacy(Section):
    stand_ins: Literal["all", "batches", "none"] = "all"
    verify_before_start: Literal["warn", "refuse", "off"] = "warn"
    government_ids: Literal["keep", "replace"] = "keep"
    holdup: Literal["remember", "refuse"] = "remember"
    primary_currency: Literal["both", "flat", "nested"] = "both"
    account_number_from_iban: Literal["auto", "always", "never"] = "auto"

    def for_mappings(self) -> Manners:
        return Manners(
            government_ids=self.government_ids,
            holdup=self.holdup,
            primary_currency=self.primary_currency,
            account_number_from_iban=self.account_number_from_iban,
        )


class Settings(BaseSettings):
    """All of it; the names are those of the README's configuration table."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        env_prefix=ENVIRONMENT_PREFIX,
        env_nested_delimiter="__",
    )

    server: Server = Server()
    environments: Environments = Environments()
    state: State = State()
    limits: Limits = Limits()
    upstream: Upstream = Upstream()
    legacy: Legacy = Legacy()
    vocabulary: Words = Words()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - made below, to skip empty ones
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - no .env files: one place less to look
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - see Addressed
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (
            EnvSettingsSource(settings_cls, env_ignore_empty=True),
            init_settings,
        )


def load(path: Path | None) -> Settings:
    """Reads a configuration file and the environment; raises Misconfigured."""
    text = _read(path) if path else ""
    try:
        written = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Misconfigured([f"{path}: not TOML: {error}"]) from None
    try:
        settings = Settings(**written)
    except ValidationError as error:
        raise Misconfigured(_problems(error, path, text)) from None
    except ValueError as error:  # an environment variable that is not what its key takes
        raise Misconfigured([f"environment variable: {error}"]) from None
    return settings


def _problems(error: ValidationError, path: Path | None, text: str) -> list[str]:
    lines = []
    for problem in error.errors(include_input=False, include_url=False, include_context=False):
        keys = [str(part) for part in problem["loc"]]
        what = {
            "extra_forbidden": "unknown key",
            "missing": "missing",
        }.get(problem["type"], problem["msg"].removeprefix("Value error, "))
        place = f"{path}:{line}: " if path and (line := _line_of(text, keys)) else ""
        lines.append(f"{place}{'.'.join(keys)}: {what}")
    return lines


def _line_of(text: str, keys: list[str]) -> int | None:
    """The line on which a key stands; its section's line where the key itself is not there."""
    section, found = "", None
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line):
            section = header[1].replace('"', "").replace(" ", "")
            here = section
        elif assignment := re.match(r"\s*([\w.\"-]+)\s*=", line):
            here = f"{section}.{assignment[1]}".lstrip(".").replace('"', "")
        else:
            continue
        if here == ".".join(keys):
            return number
        if ".".join(keys).startswith(f"{here}."):
            found = number
    return found
