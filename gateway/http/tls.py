"""TLS: the listener's certificate, and verification of the service's certificate."""

import asyncio
import ssl
import types
from collections.abc import Awaitable, Coroutine, Generator
from pathlib import Path
from typing import Any, TypeVar, cast

import structlog

from gateway.config.settings import ConfigurationError, Server

CHECK_INTERVAL_SECONDS = 5
"""Seconds between two checks for changed certificate files."""

ALPN_PROTOCOLS = ["http/1.1"]

log = structlog.get_logger()

Result = TypeVar("Result")


class Certificate:
    """The listener's certificate; a new connection uses the last one that could be loaded."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Loads the files for the first time; raises ConfigurationError."""
        self._files = (certificate, key)
        # Taken before the files are loaded, so that the next check sees a change during the load.
        self._loaded_stamps = self._read_file_stamps()
        self.context = _create_server_ssl_context(certificate, key)

    def reload(self) -> None:
        """Loads the files again; if that fails, the current certificate stays in use."""
        self._loaded_stamps = self._read_file_stamps()
        try:
            self.context = _create_server_ssl_context(*self._files)
        except ConfigurationError as error:
            log.error(
                "certificate_reload_failed",
                reason=str(error),
                hint="the previous certificate stays in use",
            )
        else:
            log.info("certificate_reloaded", **{"file.path": str(self._files[0])})

    async def reload_whenever_files_change(self) -> None:
        """Reloads the certificate whenever its files change; runs until it is cancelled."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_SECONDS)
            if self._read_file_stamps() != self._loaded_stamps:
                self.reload()

    def _read_file_stamps(self) -> list[tuple[int, int] | None]:
        return [_read_file_stamp(path) for path in self._files]


def _read_file_stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    # The inode is compared too: certificate tools replace files, perhaps with the same modification
    # time.
    return status.st_mtime_ns, status.st_ino


def load_certificate(server: Server) -> Certificate | None:
    """Loads the configured certificate; None for plain HTTP. Raises ConfigurationError."""
    if server.tls_certificate_file is None or server.tls_key_file is None:
        return None
    return Certificate(server.tls_certificate_file, server.tls_key_file)


def _create_server_ssl_context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(ALPN_PROTOCOLS)
    try:
        # An empty password makes an encrypted key fail; otherwise OpenSSL would prompt for it and
        # block.
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        # OpenSSL gives no reason for a file without PEM.
        problem = f"server.tls_certificate_file, tls_key_file: not a certificate and its key ({error.reason or 'no PEM'})"
        advice = "both must be PEM files, and the key unencrypted and that of the certificate"
        raise ConfigurationError([f"{problem}; {advice}"]) from None
    except OSError as error:
        problem = f"server.tls_certificate_file, tls_key_file: {error.strerror or error}"
        advice = "check that both files exist and can be read"
        raise ConfigurationError([f"{problem}; {advice}"]) from None
    return context


def create_client_ssl_context(
    ca_file: Path | None, setting: str = "upstream.ca_file"
) -> ssl.SSLContext:
    """Creates the TLS context for calls to the service, whose certificate is always verified.

    ``ca_file`` is a PEM file of certificate authorities that replace the system's, and ``setting``
    the name of its setting. Raises ConfigurationError.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "reason", None) or error.strerror or "no certificates"
        problem = f"{setting}: {ca_file} cannot be used ({reason}); it must be a PEM file"
        raise ConfigurationError([problem]) from None
    context.set_alpn_protocols(ALPN_PROTOCOLS)
    return context


def start_eagerly(coroutine: Coroutine[Any, Any, Result]) -> Awaitable[Result]:
    """Runs a coroutine up to its first suspension; the rest runs when the result is awaited."""
    try:
        future = coroutine.send(None)
    except StopIteration as done:
        return _await_rest_of_coroutine(None, done.value)
    return _await_rest_of_coroutine(coroutine, future)


@types.coroutine
def _await_rest_of_coroutine(
    coroutine: Coroutine[Any, Any, Result] | None, future: Any
) -> Generator[Any, Any, Result]:
    if coroutine is None:
        return cast("Result", future)
    try:
        yield future
    except BaseException:
        coroutine.close()
        raise
    return (yield from coroutine.__await__())
