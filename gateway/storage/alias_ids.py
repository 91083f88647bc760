"""Stand-ins made, kept and resolved: what legacy clients call objects, and what the service does.

What a legacy id stands for never changes, so it is kept in memory once it was looked up; what an
object is called may be imported later. A stand-in is recorded before it is handed out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Literal

from cachetools import LRUCache

from gateway.payloads.worker_thread import run_in_thread_if
from gateway.storage import Store
from gateway.storage.id_rows import Collision, current_ids, keep, legacy_ids
from gateway.storage.ledger import Ledger
from gateway.storage.tenants import Tenant
from gateway.storage.ttl_cache import TtlCache
from mappings.ids import derive_alias_id, has_alias_ids, needs_alias_id

FEW = 100
"""Stand-ins that are made while others wait."""

_KEPT = 200_000
_SECONDS = 60


class Ids:
    def __init__(self, store: Store, mode: Literal["all", "batches", "none"]) -> None:
        self._store = store
        self._ledger = Ledger(store)
        self._mode = mode
        self._key = store.encryption.lasting("stand-in ids")
        self._legacy: TtlCache[tuple[Tenant, str], str] = TtlCache(_KEPT, _SECONDS)
        self._current: LRUCache[tuple[Tenant, str], str] = LRUCache(_KEPT)

    def has_stand_ins(self, kind: str) -> bool:
        return has_alias_ids(kind, self._mode)

    async def current(
        self, owner: Tenant, those: Iterable[str], *, keeps: bool = True
    ) -> dict[str, str]:
        """What each id that a client sent stands for; one that stands for nothing is left out.

        ``keeps`` them in memory: not the very many of one request, which take more of it than the
        request does.
        """
        wanted = set(those)
        known: dict[str, str] = {}
        missing: set[str] = set()
        for id_ in wanted:
            if name := self._current.get((owner, id_)):
                known[id_] = name
            # What clients were just told is an object's own name stands for that object.
            elif self._legacy.get((owner, id_)) != id_:
                missing.add(id_)
        if missing:
            found = await current_ids(self._store, owner, missing)
            for legacy_id, current_id in found.items() if keeps else ():
                self._current[owner, legacy_id] = current_id
            known |= found
        return known

    def imported(self, owner: Tenant, names: Mapping[str, str]) -> dict[str, str]:
        """Of some that ``current`` gave those that are no stand-ins: current id to legacy id.

        They were imported at some time; what a stand-in stands for is known before any client has it.
        """
        return {
            current: name
            for name, current in sorted(names.items())
            if derive_alias_id(self._key, owner.merchant, current) != name
        }

    async def legacy(
        self,
        owner: Tenant,
        those: AbstractSet[tuple[str, str]],
        later: dict[str, str] | None = None,
        *,
        keeps: bool = True,
    ) -> dict[str, str]:
        """What clients call each of these (kind, id), where that differs.

        It is recorded by then, but for the new names that are put into ``later``: those are to be
        recorded before any client is told. ``keeps`` them in memory: not the very many of one answer,
        which nobody asks for again so soon.
        """
        wanted = {id_: kind for kind, id_ in those}
        known: dict[str, str] = {}
        missing: set[str] = set()
        for id_ in wanted:
            if name := self._legacy.get((owner, id_)):
                known[id_] = name
            else:
                missing.add(id_)
        if missing:
            found = await legacy_ids(self._store, owner, missing)
            unnamed = {id_: wanted[id_] for id_ in missing - found.keys()}
            new = await run_in_thread_if(len(unnamed) > FEW, self._made, owner, unnamed)
            if later is None:
                await keep(self._store, owner, new)
            else:
                later |= new
            known |= found | {id_: name for name, id_ in new.items()}
            settled = missing if later is None else missing - set(new.values())
            for id_ in settled if keeps else ():
                self._legacy.put((owner, id_), known.get(id_, id_))
        return {id_: name for id_, name in known.items() if name != id_}

    async def of_recipients(self, owner: Tenant, those: Iterable[str]) -> dict[str, str]:
        """What clients call recipients, or would: these are only put in order, so nothing is recorded."""
        return await self.legacy(owner, {("recipient", id_) for id_ in those}, {}, keeps=False)

    def _made(self, owner: Tenant, those: Mapping[str, str]) -> dict[str, str]:
        """The stand-ins of those that need one: legacy id to current id; ``those`` are kinds, by id."""
        new: dict[str, str] = {}
        for id_, kind in those.items():
            if needs_alias_id(kind, id_, self._mode):
                name = derive_alias_id(self._key, owner.merchant, id_)
                if new.setdefault(name, id_) != id_:
                    raise Collision(name)
        return new

    async def legacy_of(
        self,
        owner: Tenant,
        found: AbstractSet[tuple[str, str]],
        mentioned: AbstractSet[str],
        later: dict[str, str] | None = None,
        *,
        keeps: bool = True,
    ) -> dict[str, str]:
        """The names of some ids, with their kinds; of those that are only mentioned, if they have one."""
        names = await self.legacy(owner, found, later, keeps=keeps) if found else {}
        if unnamed := mentioned - names.keys():
            names |= await self.known(owner, unnamed)
        return names

    async def known(self, owner: Tenant, those: AbstractSet[str]) -> dict[str, str]:
        """The names of those that have one already: for free text no stand-in is made.

        What the service made anew, of a draft, has that of what clients know.
        """
        if not those:
            return {}
        names = await legacy_ids(self._store, owner, those)
        if unnamed := those - names.keys():
            aliases = await self._ledger.recall_all(owner, "alias", tuple(unnamed))
            first = {id_: str(facts["id"]) for id_, facts in aliases.items() if facts.get("id")}
            own = await legacy_ids(self._store, owner, first.values()) if first else {}
            names |= {id_: own.get(one, one) for id_, one in first.items()}
        return names
