"""The gateway of a rehearsal: a whole gateway in this process, on loopback, with its own state.

It has the operator's settings, except for those that concern clients, and the credentials of one
key. Its client of the service records each call.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import aiohttp

from gateway.auth.key_import import import_only_key
from gateway.auth.signing import Credentials
from gateway.config.settings import (
    Deprecation,
    Environments,
    Limits,
    Recording,
    Server,
    Settings,
    State,
    Traces,
)
from gateway.operator.rehearsal.sandbox import Exchange, RecordingClient, Sandbox
from gateway.server.app import run_gateway
from gateway.storage import Tenant
from gateway.upstream.client import open_upstream_client


@asynccontextmanager
async def open_rehearsal_sandbox(
    settings: Settings, tenant: Tenant, credentials: Credentials
) -> AsyncIterator[Sandbox]:
    """Runs the gateway for one tenant; raises ConfigurationError and StoreUnavailable."""
    exchanges: list[Exchange] = []
    create_client = partial(RecordingClient, exchanges=exchanges)
    api_key = secrets.token_hex(16)
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="payout-gateway-"))
        own_settings = _build_own_settings(settings, folder)
        await import_only_key(own_settings.state, tenant, credentials, api_key, "rehearsal")
        gateway = await stack.enter_async_context(
            run_gateway(own_settings, create_client=partial(create_client, is_probe=False))
        )
        probe_client = await stack.enter_async_context(
            open_upstream_client(settings, create_client=partial(create_client, is_probe=True))
        )
        session = await stack.enter_async_context(
            aiohttp.ClientSession(gateway.url, headers={"X-API-Key": api_key})
        )
        yield Sandbox(
            settings,
            credentials,
            exchanges=exchanges,
            probe_client=probe_client,
            session=session,
        )


def _build_own_settings(settings: Settings, folder: str) -> Settings:
    key_file = Path(folder, "rehearsal.key")
    return settings.model_copy(
        update={
            "server": Server(port=0, admin_port=0),
            # Without live: nothing here can reach it.
            "environments": Environments(sandbox=settings.environments.sandbox),
            "state": State(url=f"sqlite:///{folder}/rehearsal.db", encryption_key_file=key_file),
            "limits": Limits(),
            "recording": Recording(),
            "deprecation": Deprecation(),
            "traces": Traces(),
        }
    )
