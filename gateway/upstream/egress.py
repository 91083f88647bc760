"""Egress options: the proxy and TLS context for each environment."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple

from yarl import URL

from gateway.config.settings import Settings
from gateway.http.tls import create_client_ssl_context


class Egress(NamedTuple):
    """The way to an origin; ``proxy_authorization`` is the value of Proxy-Authorization."""

    ssl_context: ssl.SSLContext | None = None
    proxy: URL | None = None
    proxy_authorization: str = ""


class EgressConfig:
    """The egress options; ``origins`` are addresses by environment.

    The constructor raises ConfigurationError.
    """

    def __init__(self, settings: Settings, origins: Mapping[str, str] | None = None) -> None:
        upstream, environments = (
            settings.upstream,
            settings.environments.map_configured_environments_by_name(),
        )
        origins = origins or {
            name: environment.base_url for name, environment in environments.items()
        }
        self._proxy = upstream.proxy
        self._credentials = upstream.proxy_credentials.get_secret_value()
        self._ssl_contexts: dict[str, ssl.SSLContext] = {
            name: create_client_ssl_context(ca_file, f"environments.{name}.ca_file")
            if (ca_file := environments[name].ca_file)
            else create_client_ssl_context(upstream.ca_file)
            for name, origin in origins.items()
            if origin.startswith("https://")
        }

    def select_egress(self, environment: str) -> Egress:
        # Base addresses with http:// are on the same host or network: the proxy is not used for
        # them.
        if environment not in self._ssl_contexts:
            return Egress()
        context = self._ssl_contexts[environment]
        if not self._proxy:
            return Egress(context)
        authorization = self._build_proxy_headers().get("Proxy-Authorization", "")
        return Egress(context, URL(self._proxy), authorization)

    def build_request_options(self, environment: str) -> dict[str, Any]:
        """Builds aiohttp's request options for an environment."""
        # Base addresses with http:// are on the same host or network: the proxy is not used for
        # them.
        if environment not in self._ssl_contexts:
            return {}
        options: dict[str, Any] = {"ssl": self._ssl_contexts[environment]}
        if self._proxy:
            options |= {"proxy": self._proxy, "proxy_headers": self._build_proxy_headers()}
        return options

    def _build_proxy_headers(self) -> dict[str, str]:
        if not self._credentials:
            return {}
        encoded_credentials = base64.b64encode(self._credentials.encode()).decode()
        return {"Proxy-Authorization": f"Basic {encoded_credentials}"}
