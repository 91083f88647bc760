"""Checks a valid configuration for settings that cannot work together or on this machine."""

import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from gateway.admission.limits import find_rate_limit_setting_problems
from gateway.config.settings import DEFAULT_CONFIG_FILE, ConfigurationError, Settings
from gateway.config.value_types import is_loopback_host
from gateway.http.tls import load_certificate
from gateway.observability import traces
from gateway.storage import StoreUnavailable
from gateway.storage.engine import parse_state_url
from gateway.storage.key_file import build_missing_key_file_error, read_key_file
from gateway.upstream.transport import build_egress_by_environment

WILDCARD_HOSTS = ("", "0.0.0.0", "::")  # noqa: S104 - compared with, not listened at


def check_settings_are_runnable(settings: Settings) -> None:
    """Raises ConfigurationError with every problem that would keep the gateway from running."""
    # All at once, so that an operator fixes them in one round.
    if problems := list(_iter_configuration_problems(settings)):
        raise ConfigurationError(
            [settings.format_problem_with_location(problem) for problem in problems]
        )


def list_placeholder_url_warnings(settings: Settings) -> list[str]:
    """Returns warnings about placeholder addresses, each with file and line."""
    return [
        settings.format_problem_with_location(
            f"{name}: {url} is a placeholder; replace it with your service's address, or remove "
            "the environment"
        )
        for name, url in _iter_service_urls(settings)
        if is_placeholder_url(url)
    ]


def _iter_service_urls(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yields the full name and the value of each setting with the address of a service."""
    for name, environment in settings.environments.map_configured_environments_by_name().items():
        for key in ("base_url", "legacy_base_url"):
            if url := getattr(environment, key):
                yield f"environments.{name}.{key}", url


def list_key_file_warnings(settings: Settings) -> list[str]:
    """Returns a warning if the key file is unusable.

    This is no error, because the machine that runs `check` may lack the file.
    """
    file = settings.state.encryption_key_file
    try:
        # Next to a new SQLite state, the first start creates the key file.
        if read_key_file(file) is None and not settings.state.is_sqlite:
            raise build_missing_key_file_error(file)
    except StoreUnavailable as problem:
        return [settings.format_problem_with_location(f"state.encryption_key_file: {problem}")]
    return []


def is_placeholder_url(url: str) -> bool:
    """Whether a URL has the domain ``.example``, which RFC 2606 reserves for documentation."""
    return (urlsplit(url).hostname or "").endswith(".example")


def _iter_configuration_problems(settings: Settings) -> Iterator[str]:
    server = settings.server
    environments = settings.environments.map_configured_environments_by_name()
    if not environments:
        file_hint = f", and there is no {DEFAULT_CONFIG_FILE} in {Path.cwd()}"
        if settings.config_file.path:
            file_hint = ""
        yield (
            f"environments: none is configured{file_hint}; set base_url under [environments.live] or "
            "[environments.sandbox]"
        )
    try:
        parse_state_url(settings.state.url)
    except StoreUnavailable as unavailable:
        yield f"state.url: {unavailable}"
    if server.workers > 1 and settings.state.is_sqlite:
        yield (
            "server.workers: several processes cannot share a SQLite state; set state.url to "
            "a postgresql:// address, or workers to 1"
        )
    yield from find_rate_limit_setting_problems(settings)
    yield from _iter_tls_and_proxy_problems(settings)
    if not server.admin_token.get_secret_value() and not is_loopback_host(server.admin_host):
        yield (
            f"server.admin_host: {server.admin_host or 'every address'} can be reached from other "
            "machines, and the admin port has no authentication; set server.admin_token_file to a "
            "file with a token, or server.admin_host to 127.0.0.1"
        )
    # Otherwise a single large request could never be admitted.
    if settings.load.held_bytes < 4 * settings.limits.body_bytes:
        yield (
            "load.held_bytes: is less than four times limits.body_bytes. One merchant may use "
            "half of it, and a compressed body counts twice; set it higher, or "
            "limits.body_bytes lower"
        )
    if (name := settings.signed.environment) and name not in environments:
        yield f"signed.environment: is {name}, but [environments.{name}] is not configured"
    if server.port and (server.host, server.port) == (server.admin_host, server.admin_port):
        yield "server.admin_port: is the same as server.port, which clients use; choose another"
    if settings.traces.endpoint and not traces.is_extra_installed():
        yield (
            "traces.endpoint: OpenTelemetry is not installed; install payout-gateway[traces], or "
            "leave traces.endpoint empty"
        )
    yield from _iter_self_call_problems(settings)


def _iter_self_call_problems(settings: Settings) -> Iterator[str]:
    """Reports a service address that is the gateway's own: it would call itself without end."""
    server = settings.server
    listening_addresses = ((server.host, server.port), (server.admin_host, server.admin_port))
    for name, url in _iter_service_urls(settings):
        parts = urlsplit(url)
        service_port = parts.port or (443 if parts.scheme == "https" else 80)
        if any(
            port == service_port and _is_listening_host(host, parts.hostname or "")
            for host, port in listening_addresses
        ):
            yield (
                f"{name}: {url} is the address of this gateway; set it to the service's address, "
                "or choose another port"
            )


def _is_listening_host(listening_host: str, requested_host: str) -> bool:
    """Whether a host name is a listening address, as far as known without DNS."""
    # Without DNS: a look-up could hang, and may answer differently when the gateway calls.
    if listening_host in WILDCARD_HOSTS:
        own_names = (*WILDCARD_HOSTS, socket.gethostname().lower())
        return requested_host in own_names or is_loopback_host(requested_host)
    if requested_host in ("localhost", *WILDCARD_HOSTS):
        return is_loopback_host(listening_host)
    return requested_host == listening_host.lower() or (
        listening_host == "localhost" and is_loopback_host(requested_host)
    )


def _iter_tls_and_proxy_problems(settings: Settings) -> Iterator[str]:
    environments = settings.environments.map_configured_environments_by_name()
    addresses = settings.environments.map_base_urls_by_environment()
    for load_settings in (
        partial(load_certificate, settings.server),
        partial(build_egress_by_environment, settings, addresses),
    ):
        try:
            load_settings()
        except ConfigurationError as error:
            yield from error.problems
    # An HTTPS request is tunnelled through the proxy; plain HTTP is readable to it.
    for name, environment in environments.items():
        if settings.upstream.proxy and not environment.base_url.startswith("https://"):
            yield (
                f"environments.{name}.base_url: is not https, so upstream.proxy could read all "
                "traffic; use https, or no proxy"
            )
