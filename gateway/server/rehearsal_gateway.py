"""The gateway of a rehearsal: a whole gateway in this process, on loopback, with its own state.

It has the operator's settings, except for those that concern clients, and the credentials of one
key. Its client of the service records each call.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from gateway.auth.key_import import import_only_key
from gateway.auth.signing import Credentials
from gateway.config.settings import Environments, Server, Settings, State
from gateway.operator.rehearsal.run import RecordingClient, RehearsalRun
from gateway.server.app import run_gateway
from gateway.storage import Tenant


@asynccontextmanager
async def open_rehearsal(
    settings: Settings, tenant: Tenant, credentials: Credentials, *, may_start: bool
) -> AsyncIterator[RehearsalRun]:
    """Runs the gateway for one tenant; raises ConfigurationError and StoreUnavailable."""
    clients: list[RecordingClient] = []

    def create_client(*parts: Any) -> RecordingClient:
        clients.append(RecordingClient(*parts))
        return clients[-1]

    api_key = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="payout-gateway-") as folder:
        own_settings = _build_own_settings(settings, folder)
        await import_only_key(own_settings.state, tenant, credentials, api_key, "rehearsal")
        async with (
            run_gateway(own_settings, create_client=create_client) as gateway,
            aiohttp.ClientSession(gateway.url, headers={"X-API-Key": api_key}) as session,
        ):
            yield RehearsalRun(settings, credentials, session, clients[0], may_start)


def _build_own_settings(settings: Settings, folder: str) -> Settings:
    key_file = Path(folder, "rehearsal.key")
    changes: dict[str, Any] = {
        name: Settings.model_fields[name].default
        for name in ("limits", "recording", "deprecation", "traces")
    }
    changes["server"] = Server(port=0, admin_port=0)
    changes["state"] = State(url=f"sqlite:///{folder}/rehearsal.db", encryption_key_file=key_file)
    # Without live: nothing here can reach it.
    changes["environments"] = Environments(sandbox=settings.environments.sandbox)
    return settings.model_copy(update=changes)
