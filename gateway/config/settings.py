"""The configuration: gateway.toml, overridden by environment variables.

Each key can also be set with an environment variable (``PAYOUT_GATEWAY_SERVER__PORT``). Unknown
keys are errors. Error messages name the key and its line in the file.
"""

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError

from gateway.config.config_file import ConfigFile
from gateway.config.environment_variables import (
    build_variable_name,
    find_variable_for_key,
    override_by_variables,
    parse_variable_name,
)
from gateway.config.section import (
    ConfigurationError,
    list_problems,
    map_section_fields,
    read_text,
)
from gateway.config.sections import (
    Comparing,
    Deprecation,
    Environments,
    Legacy,
    Limits,
    Lists,
    Load,
    Logs,
    Retention,
    Server,
    Signed,
    State,
    Traces,
    Upstream,
    Words,
    Writes,
)

DEFAULT_CONFIG_FILE = Path("gateway.toml")

CHECK_TIMEOUT_SECONDS = 5.0
"""Seconds that `doctor` and `keys verify` wait for an answer; a healthy service takes less than one."""


class Settings(BaseModel):
    """The whole configuration; ``deploy/gateway.example.toml`` describes every key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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
    deprecation: Deprecation = Deprecation()
    retention: Retention = Retention()
    logs: Logs = Logs()
    traces: Traces = Traces()
    vocabulary: Words = Words()
    _config_file: ConfigFile = PrivateAttr(ConfigFile())

    def attach_config_file(self, config_file: ConfigFile) -> Self:
        self._config_file = config_file
        return self

    def limit_calls_of_checks(self) -> Self:
        """For commands that check services: short calls, and none after one that hung."""
        seconds = min(self.upstream.timeout_seconds, CHECK_TIMEOUT_SECONDS)
        limits = {"timeout_seconds": seconds, "breaker_failures": 1}
        return self.model_copy(update={"upstream": self.upstream.model_copy(update=limits)})

    @property
    def config_file(self) -> ConfigFile:
        return self._config_file

    def format_problem_with_location(self, problem: str) -> str:
        """Adds the location to a problem that starts with a key; returns others unchanged."""
        key, _, message = problem.partition(": ")
        if key.partition(".")[0] not in Settings.model_fields:
            return problem
        return self._config_file.format_problem_with_location(key, message)


def has_setting_variable() -> bool:
    return any(
        value and parse_variable_name(name, Settings.model_fields)
        for name, value in os.environ.items()
    )


def load_settings(path: Path | None) -> Settings:
    """Reads a configuration file and the environment; raises ConfigurationError."""
    text = read_text(path) if path else ""
    config_file = ConfigFile(path, text)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError([f"{path}: not TOML: {error}"]) from None
    # Checked before the validation, because its messages would hide these.
    if secret_problems := list(config_file.find_secret_problems()):
        raise ConfigurationError(secret_problems)
    override_by_variables(document, Settings.model_fields)
    try:
        return Settings(**document).attach_config_file(config_file)
    except ValidationError as error:
        raise ConfigurationError(list(_describe_validation_error(error, config_file))) from None


def _describe_validation_error(error: ValidationError, config_file: ConfigFile) -> Iterator[str]:
    for loc, message in list_problems(error, Settings, "key"):
        problem, known_keys = message, list(map_section_fields(Settings, loc[:-1]))
        # There are so few that naming them helps.
        if message == "unknown key" and 0 < len(known_keys) < 3:
            problem = f"{message}; valid keys: {', '.join(known_keys)}"
        # One underscore instead of two, or instead of a section.
        section, _, key = str(loc[0]).partition("_")
        if len(loc) == 1 and key in map_section_fields(Settings, (section,)):
            is_variable = find_variable_for_key(str(loc[0])) is not None
            name = build_variable_name(section, key) if is_variable else f"{section}.{key}"
            problem = f"unknown key; did you mean {name}?"
        yield config_file.format_problem_with_location(".".join(map(str, loc)), problem)
