"""The configuration: gateway.toml, overridden by environment variables.

Every key is also an environment variable (``PAYOUT_GATEWAY_SERVER__PORT``). Unknown keys are
errors. What a mistake says names the key and, where it stands in the file, the line.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
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


def _one_of(*schemes: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if text.partition("://")[0] not in schemes or "://" not in text:
            raise ValueError(f"must begin with {' or '.join(f'{one}://' for one in schemes)}")
        return text

    return check


def _token(text: str) -> str:
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", text):
        raise ValueError("must be a word that an HTTP header can have")
    return text


def _word(text: str) -> str:
    if not re.fullmatch(r"[!-~]+", text):
        raise ValueError("must be a word")
    return text


def _network(text: str) -> str:
    ipaddress.ip_network(text, strict=False)
    return text


def _listed(given: Any) -> Any:
    """A list in a variable: with commas, or as JSON."""
    if not isinstance(given, str):
        return given
    if given.lstrip().startswith("["):
        return json.loads(given)
    return [part.strip() for part in given.split(",") if part.strip()]


Origin = Annotated[str, AfterValidator(_origin)]
Network = Annotated[str, AfterValidator(_network)]
Token = Annotated[str, AfterValidator(_token)]
NeutralWord = Annotated[str, AfterValidator(_word)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Server(Section):
    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65535)
    admin_host: str = "127.0.0.1"
    admin_port: int = Field(8081, ge=0, le=65535)
    workers: int = Field(1, ge=1)
    trusted_proxies: Annotated[tuple[Network, ...], BeforeValidator(_listed)] = ()


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
    url: Annotated[str, AfterValidator(_one_of("sqlite", "postgresql"))] = "sqlite:///gateway.db"
    url_file: Path | None = None
    encryption_key_file: Path = Path("gateway.key")


class Limits(Addressed):
    url: Annotated[str, AfterValidator(_one_of("memory", "redis", "rediss"))] = "memory://"
    url_file: Path | None = None
    requests_per_hour: int = Field(10_000, ge=1)
    body_bytes: int = Field(64 * 1024 * 1024, ge=1024)


class Upstream(Section):
    timeout_seconds: float = Field(25, gt=0)
    connections: int = Field(100, ge=1)
    signed_target: Literal["auto", "path", "path-and-query"] = "auto"
    inferred_operations: Literal["auto", "use", "avoid"] = "auto"


class LegacyWords(Section):
    wallet: NeutralWord = "wallet"
    service: NeutralWord = "service"
    service_total: NeutralWord = "ServiceTotal"
    avatar_url: NeutralWord = "avatarUrl"


class CurrentWords(Section):
    scheme: Token = "svcsign"
    timestamp_header: Token = "X-SVC-Timestamp"
    wallet: NeutralWord = "wallet"
    avatar_url: NeutralWord = "avatarUrl"
    balance_path: str = Field("/v1/balance", pattern=r"^/v1/")
    summary_path: str = Field("/v1/batch/{id}/summary", pattern=r"^/v1/.*\{id\}")
    batch_currency: NeutralWord = "currency"


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
    send_memo: bool = True

    def for_mappings(self) -> Manners:
        return Manners(
            government_ids=self.government_ids,
            holdup=self.holdup,
            primary_currency=self.primary_currency,
            account_number_from_iban=self.account_number_from_iban,
            verify_before_start=self.verify_before_start,
            send_memo=self.send_memo,
        )


class Settings(BaseSettings):
    """All of it; the names are those of the README's configuration table."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
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
        *_others: PydanticBaseSettingsSource,  # the library's own reading of variables and .env files
        **_named: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return Variables(settings_cls), init_settings


class Variables(PydanticBaseSettingsSource):
    """``PAYOUT_GATEWAY_SERVER__PORT`` as ``server.port``.

    Every variable of ours with a double underscore names a key, and one that does not exist is a
    mistake; an orchestrator sets others (``PAYOUT_GATEWAY_PORT``) for a service of this name.
    """

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        raise NotImplementedError  # all of them are read at once

    def __call__(self) -> dict[str, Any]:
        read: dict[str, Any] = {}
        for name, value in os.environ.items():
            if keys := keys_of(name):
                holder = read
                for key in keys[:-1]:
                    holder = holder.setdefault(key, {})
                if value:
                    holder[keys[-1]] = value
        return read


def keys_of(variable: str) -> list[str] | None:
    """The key that a variable names; None where it is not one of ours."""
    name = variable.upper()
    if not name.startswith(ENVIRONMENT_PREFIX):
        return None
    rest = name.removeprefix(ENVIRONMENT_PREFIX).lower()
    # ``SERVER_PORT`` means ``SERVER__PORT``, and would be passed over silently.
    if "__" not in rest and rest.partition("_")[0] not in Settings.model_fields:
        return None
    return rest.split("__")


def load(path: Path | None) -> Settings:
    """Reads a configuration file and the environment; raises Misconfigured."""
    text = _read(path) if path else ""
    try:
        written = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Misconfigured([f"{path}: not TOML: {error}"]) from None
    try:
        return Settings(**written)
    except ValidationError as error:
        raise Misconfigured(_problems(error, path, text)) from None


def _problems(error: ValidationError, path: Path | None, text: str) -> list[str]:
    variables = {".".join(keys): name for name in os.environ if (keys := keys_of(name))}
    lines = []
    for problem in error.errors(include_input=False, include_url=False, include_context=False):
        keys = [str(part) for part in problem["loc"]]
        what = {
            "extra_forbidden": "unknown key",
            "missing": "missing",
        }.get(problem["type"], problem["msg"].removeprefix("Value error, "))
        key, line = ".".join(keys), _line_of(text, keys)
        set_by = next((name for named, name in variables.items() if _within(named, key)), None)
        if set_by:
            lines.append(f"environment variable {set_by}: {what}")
        else:
            lines.append(f"{path}:{line}: {key}: {what}" if path and line else f"{key}: {what}")
    return lines


def _within(one: str, other: str) -> bool:
    """Whether one key is the other, or is in it, or the other way round."""
    longer, shorter = (one, other) if len(one) > len(other) else (other, one)
    return longer == shorter or longer.startswith(f"{shorter}.")


def _line_of(text: str, keys: list[str]) -> int | None:
    """The line on which a key stands; its section's line where the key itself is not there."""
    section, found = "", None
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line):
            section = re.sub(r"[\"' ]", "", header[1])
            here = section
        elif assignment := re.match(r"\s*([\w.\"'-]+)\s*=", line):
            here = re.sub(r"[\"']", "", f"{section}.{assignment[1]}").lstrip(".")
        else:
            continue
        if here == ".".join(keys):
            return number
        if ".".join(keys).startswith(f"{here}."):
            found = number
    return found
