"""The parts of a gateway that carry out writes, put together without a door."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gateway.config.settings import Settings
from gateway.reads.recent_reads import Kept
from gateway.storage import Ledger, Store, open_store
from gateway.storage.undertakings import OperationRepository
from gateway.upstream.capability_cache import load_capabilities
from gateway.upstream.client import open_upstream
from gateway.upstream.clock import ServiceClock
from gateway.upstream.optional_endpoints import OptionalEndpoints
from gateway.writes.instances import Heartbeats
from gateway.writes.journal import Journal
from gateway.writes.once import IdempotencyGuard
from gateway.writes.player import Player
from gateway.writes.settler import Settler
from gateway.writes.settling import Settling
from tests.states import lay_out

PATIENCE = 1


@dataclass
class Parts:
    store: Store
    ledger: Ledger
    journal: Journal
    settling: Settling
    once: IdempotencyGuard


@asynccontextmanager
async def open_parts(
    settings: Settings, rows: Callable[[Store, Ledger, Journal], OperationRepository] | None = None
) -> AsyncIterator[Parts]:
    """``rows`` makes what the journal is kept in, where that is not to be as it always is."""
    clock = ServiceClock()
    async with open_store(lay_out(settings.state)) as store:
        ledger = Ledger(store)
        learned = await load_capabilities(ledger, settings.environments.configured())
        journal = Journal(store, ledger, clock)
        journal.rows = rows(store, ledger, journal) if rows else journal.rows
        settler = Settler(journal, clock)
        words = settings.vocabulary.for_mappings()
        inferred = OptionalEndpoints("auto", learned)
        async with open_upstream(settings, clock=clock, capabilities=learned) as upstream:
            player = Player(upstream, ledger, words, inferred, kept=Kept(), settler=settler)
            instances = Heartbeats(store, journal.instance)
            settling = Settling(store, journal, player, settler, instances)
            once = IdempotencyGuard(journal, player, settling, PATIENCE)
            yield Parts(store, ledger, journal, settling, once)
