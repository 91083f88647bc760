"""The parts of a gateway that carry out writes, put together without a door."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gateway.playing.instances import Instances
from gateway.playing.journal import Journal
from gateway.playing.once import Once
from gateway.playing.player import Player
from gateway.playing.recent_reads import Kept
from gateway.playing.settler import Settler
from gateway.playing.settling import Settling
from gateway.settings import Settings
from gateway.store import Ledger, Store, open_store
from gateway.store.undertakings import Undertakings
from gateway.upstream.client import open_upstream
from gateway.upstream.clock import Clock
from gateway.upstream.inferred import InferredOperations
from gateway.upstream.learned import recall_learned
from tests.states import lay_out

PATIENCE = 1


@dataclass
class Parts:
    store: Store
    ledger: Ledger
    journal: Journal
    settling: Settling
    once: Once


@asynccontextmanager
async def open_parts(
    settings: Settings, rows: Callable[[Store, Ledger, Journal], Undertakings] | None = None
) -> AsyncIterator[Parts]:
    """``rows`` makes what the journal is kept in, where that is not to be as it always is."""
    clock = Clock()
    async with open_store(lay_out(settings.state)) as store:
        ledger = Ledger(store)
        learned = await recall_learned(ledger, settings.environments.configured())
        journal = Journal(store, ledger, clock)
        journal.rows = rows(store, ledger, journal) if rows else journal.rows
        settler = Settler(journal, clock)
        words = settings.vocabulary.for_mappings()
        inferred = InferredOperations("auto", learned)
        async with open_upstream(settings, clock=clock, learned=learned) as upstream:
            player = Player(upstream, ledger, words, inferred, kept=Kept(), settler=settler)
            instances = Instances(store, journal.instance)
            settling = Settling(store, journal, player, settler, instances)
            once = Once(journal, player, settling, PATIENCE)
            yield Parts(store, ledger, journal, settling, once)
