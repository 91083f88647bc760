"""At which service a batch is, by whichever of its ids."""

from __future__ import annotations

from gateway.begun import Begun
from gateway.ids import Ids
from gateway.settings import State
from gateway.store import Ledger, Owner, open_store
from gateway.store.id_rows import keep

ACME = Owner("acme", "live")


async def test_what_was_begun_there_stays_there_by_either_id_whatever_was_under_way_here(
    state: State,
) -> None:
    async with open_store(state) as store:
        ledger = Ledger(store)
        begun = Begun(ledger, Ids(store, "all"))
        await keep(store, ACME, {"B-KNOWN": "B-REAL"}, imported=True)
        facts = {"phase": "sent", "version": 1, "imported": 1}
        await ledger.record(ACME, "batch", "B-REAL", facts)
        assert [await begun.side(ACME, one) for one in ("B-KNOWN", "B-REAL")] == [None, None]
        await begun.mark(ACME, ["B-KNOWN"])
        # An edit that met another mode came to its end after the start that was forwarded.
        await ledger.record(ACME, "batch", "B-REAL", {"phase": "draft", "version": 2})
        assert [await begun.side(ACME, one) for one in ("B-KNOWN", "B-REAL")] == ["legacy"] * 2
