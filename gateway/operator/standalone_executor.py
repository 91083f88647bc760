"""The executor of a command that runs beside the gateways, over the same database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.config.settings import Settings
from gateway.storage import ObjectStateStore, Store
from gateway.upstream.capability_cache import load_capabilities
from gateway.upstream.client import open_upstream_client
from gateway.upstream.optional_endpoints import OptionalEndpoints
from gateway.writes.executor import FlowExecutor
from gateway.writes.journal import Journal
from gateway.writes.outcome_policy import OutcomePolicy


@asynccontextmanager
async def open_flow_executor(settings: Settings, store: Store) -> AsyncIterator[FlowExecutor]:
    """Opens an executor that shares nothing but the database with a gateway that is running."""
    ledger = ObjectStateStore(store)
    environments = settings.environments.map_configured_environments_by_name()
    capabilities = await load_capabilities(ledger, environments)
    async with open_upstream_client(settings, capabilities=capabilities) as upstream:
        yield FlowExecutor(
            upstream,
            ledger,
            settings.vocabulary.build_vocabulary(),
            OptionalEndpoints(settings.upstream.inferred_operations, capabilities),
            policy=OutcomePolicy(Journal(store, ledger, upstream.clock), upstream.clock),
        )
