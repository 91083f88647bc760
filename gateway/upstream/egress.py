"""Egress options: the proxy and TLS context for each environment."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from typing import Any

from gateway.config.settings import Settings
from gateway.http.tls import create_client_ssl_context


class EgressConfig:
    """The egress options; ``origins`` are addresses by environment.

    The constructor raises Misconfigured.
    """

    def __init__(self, settings: Settings, origins: Mapping[str, str] | None = None) -> None:
        upstream, environments = settings.upstream, settings.environments.configured()
        origins = origins or {name: one.base_url for name, one in environments.items()}
        self._proxy = upstream.proxy
        self._credentials = upstream.proxy_credentials.get_secret_value()
        self._believed: dict[str, ssl.SSLContext] = {
            name: create_client_ssl_context(own, f"environments.{name}.ca_file")
            if (own := environments[name].ca_file)
            else create_client_ssl_context(upstream.ca_file)
            for name, origin in origins.items()
            if origin.startswith("https://")
        }

    def of(self, environment: str) -> dict[str, Any]:
        """Builds aiohttp's request options for an environment."""
        # Plain HTTP, to a service on the same host or network; it never goes through the proxy.
        if environment not in self._believed:
            return {}
        options: dict[str, Any] = {"ssl": self._believed[environment]}
        if self._proxy:
            options |= {"proxy": self._proxy, "proxy_headers": self._proxy_headers()}
        return options

    def _proxy_headers(self) -> dict[str, str]:
        if not self._credentials:
            return {}
        told = base64.b64encode(self._credentials.encode()).decode()
        return {"Proxy-Authorization": f"Basic {told}"}
