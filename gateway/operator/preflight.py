"""Checks a valid configuration for settings that cannot work together or on this machine."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from gateway.admission.limits import find_limit_problems as limit_problems
from gateway.config.settings import CONFIG, Misconfigured, Server, Settings
from gateway.http.tls import load_certificate
from gateway.storage import StoreUnavailable
from gateway.storage.engine import parsed
from gateway.storage.keyfile import missing, read_key_file
from gateway.upstream.egress import EgressConfig
from mappings import OPERATIONS, UNLISTED

EVERYWHERE = ("", "0.0.0.0", "::")  # noqa: S104 - compared with, not listened at


def check_runnable(settings: Settings) -> None:
    """Raises Misconfigured with every problem that would keep the gateway from running."""
    # All at once, so that an operator fixes them in one round.
    if problems := list(_problems(settings)):
        raise Misconfigured([settings.placed(one) for one in problems])


def list_placeholder_urls(settings: Settings) -> list[str]:
    """Warnings about placeholder addresses from the example file, each with file and line."""
    return [
        settings.placed(
            f"environments.{name}.{key}: {url} is a placeholder; replace it with your service's "
            "address, "
            "or remove the environment"
        )
        for name, one in settings.environments.configured().items()
        for key, url in (("base_url", one.base_url), ("legacy_base_url", one.legacy_base_url))
        if is_placeholder(url)
    ]


def key_file_warnings(settings: Settings) -> list[str]:
    """A warning if the key file is unusable. Not an error: the machine that runs `check` may lack
    it.
    """
    file = settings.state.encryption_key_file
    wrong: StoreUnavailable | None = None
    try:
        # Next to a new SQLite state, the first start creates the key file.
        if read_key_file(file) is None and not settings.state.is_sqlite:
            wrong = missing(file)
    except StoreUnavailable as unavailable:
        wrong = unavailable
    return [settings.placed(f"state.encryption_key_file: {wrong}")] if wrong else []


def is_placeholder(url: str) -> bool:
    """Whether a URL has the domain ``.example``, which RFC 2606 reserves for documentation."""
    return (urlsplit(url).hostname or "").endswith(".example")


def _problems(settings: Settings) -> Iterator[str]:
    server = settings.server
    if not settings.environments.configured():
        where = "" if settings.has_file else f", and there is no {CONFIG} in {Path.cwd()}"
        yield (
            f"environments: none is configured{where}; set base_url under [environments.live] or "
            "[environments.sandbox]"
        )
    try:
        parsed(settings.state.url)
    except StoreUnavailable as unavailable:
        yield f"state.url: {unavailable}"
    if server.workers > 1 and settings.state.is_sqlite:
        yield (
            "server.workers: several processes cannot share a SQLite state; set state.url to "
            "a postgresql:// address, or workers to 1"
        )
    yield from limit_problems(settings)
    yield from _tls_problems(settings)
    yield from _admin_problems(server)
    # Else a single large request could never be admitted.
    if settings.load.held_bytes < 4 * settings.limits.body_bytes:
        yield (
            "load.held_bytes: is less than four times limits.body_bytes. One merchant may use "
            "half of it, and a compressed body counts twice; set it higher, or "
            "limits.body_bytes lower"
        )
    yield from _recording_problems(settings)
    if (named := settings.signed.environment) and named not in settings.environments.configured():
        yield f"signed.environment: is {named}, but [environments.{named}] is not configured"
    if server.port and (server.host, server.port) == (server.admin_host, server.admin_port):
        yield "server.admin_port: is the same as server.port, which clients use; choose another"
    yield from _own_addresses(settings)


def _admin_problems(server: Server) -> Iterator[str]:
    """Reports an admin port that other machines can reach without a token."""
    if not server.admin_token.get_secret_value() and not is_loopback(server.admin_host):
        yield (
            f"server.admin_host: {server.admin_host or 'every address'} can be reached from other "
            "machines, and the admin port has no authentication; set server.admin_token_file to "
            "a file "
            "with a token, or server.admin_host to 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _own_addresses(settings: Settings) -> Iterator[str]:
    """Reports a service address that is the gateway's own: it would call itself without end."""
    server = settings.server
    doors = ((server.host, server.port), (server.admin_host, server.admin_port))
    for name, one in settings.environments.configured().items():
        for key, url in (("base_url", one.base_url), ("legacy_base_url", one.legacy_base_url)):
            if not url:
                continue
            parts = urlsplit(url)
            asked = parts.port or (443 if parts.scheme == "https" else 80)
            if any(port == asked and _is_at(host, parts.hostname or "") for host, port in doors):
                yield (
                    f"environments.{name}.{key}: {url} is the address of this gateway; set it to "
                    "the service's address, or choose another port"
                )


def _is_at(listening: str, asked: str) -> bool:
    """Whether a host name is a listening address, as far as can be told without DNS."""
    if listening in EVERYWHERE:
        return asked in (*EVERYWHERE, socket.gethostname().lower()) or is_loopback(asked)
    if asked in ("localhost", *EVERYWHERE):
        return is_loopback(listening)
    return asked == listening.lower() or (listening == "localhost" and is_loopback(asked))


def _recording_problems(settings: Settings) -> Iterator[str]:
    recording, known = settings.recording, {one.name for one in (*OPERATIONS, *UNLISTED)}
    for name in recording.operations:
        if name not in known:
            yield f"recording.operations: {name}: not an operation; `operations` lists them"
    if recording.directory and recording.files <= settings.server.workers:
        yield (
            "recording.files: must be more than server.workers, because each worker writes "
            "one file "
            "and would delete those of the others"
        )


def _tls_problems(settings: Settings) -> Iterator[str]:
    for reads in (partial(load_certificate, settings.server), partial(EgressConfig, settings)):
        try:
            reads()
        except Misconfigured as error:
            yield from error.problems
    # An HTTPS request is tunnelled through the proxy; plain HTTP is readable to it.
    for name, one in settings.environments.configured().items():
        if settings.upstream.proxy and not one.base_url.startswith("https://"):
            yield (
                f"environments.{name}.base_url: is not https, so upstream.proxy could read all "
                "traffic; "
                "use https, or no proxy"
            )
