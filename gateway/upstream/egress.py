"""Egress options: the proxy and TLS context for each environment."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from typing import NamedTuple

from yarl import URL

from gateway.config.settings import Settings
from gateway.http.tls import create_client_ssl_context


class Egress(NamedTuple):
    """The way to an origin; ``proxy_authorization`` is the value of Proxy-Authorization."""

    ssl_context: ssl.SSLContext | None = None
    proxy: URL | None = None
    proxy_authorization: str = ""


def build_egress_by_environment(
    settings: Settings, addresses: Mapping[str, str]
) -> dict[str, Egress]:
    """Builds the options for addresses by environment; raises ConfigurationError."""
    upstream = settings.upstream
    environments = settings.environments.map_configured_environments_by_name()
    proxy = URL(upstream.proxy) if upstream.proxy else None
    authorization = ""
    if credentials := upstream.proxy_credentials.get_secret_value():
        authorization = f"Basic {base64.b64encode(credentials.encode()).decode()}"
    egress_by_environment = {}
    for name, address in addresses.items():
        if not address.startswith("https://"):
            # It is on the same host or network: the proxy is not used for it.
            egress_by_environment[name] = Egress()
            continue
        ca_file = environments[name].ca_file
        context = (
            create_client_ssl_context(ca_file, f"environments.{name}.ca_file")
            if ca_file
            else create_client_ssl_context(upstream.ca_file)
        )
        egress_by_environment[name] = Egress(context, proxy, authorization)
    return egress_by_environment
