"""The executor of a command that runs beside the gateways, over the same database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.reads.recent_reads import RecentReads
from gateway.upstream.optional_endpoints import OptionalEndpoints
from gateway.writes.executor import FlowExecutor
from gateway.writes.journal import Journal
from gateway.writes.outcome_policy import OutcomePolicy

if TYPE_CHECKING:
    from gateway.config.settings import Settings
    from gateway.storage import ObjectStateStore, Store
    from gateway.upstream.client import UpstreamClient
    from gateway.upstream.signed_target import CapabilityStore


def create_flow_executor(
    settings: Settings,
    store: Store,
    ledger: ObjectStateStore,
    upstream: UpstreamClient,
    capabilities: CapabilityStore,
) -> FlowExecutor:
    """Creates an executor that shares nothing but the database with a gateway that is running."""
    return FlowExecutor(
        upstream,
        ledger,
        settings.vocabulary.build_vocabulary(),
        OptionalEndpoints(settings.upstream.inferred_operations, capabilities),
        # Remembers nothing: changes of the running gateways would not invalidate it.
        recent_reads=RecentReads(),
        policy=OutcomePolicy(Journal(store, ledger, upstream.clock), upstream.clock),
    )
