"""Derives, stores and resolves alias ids: maps the ids that legacy clients use to those of the
service.

The object behind a legacy id never changes, so that direction is cached without expiry. The legacy
id of an object may be imported later, so that direction expires. An alias id is saved before any
client sees it.
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
"""Alias ids that are derived on the event loop; more are derived in a worker thread."""

_KEPT = 200_000
_SECONDS = 60


class Ids:
    """The alias ids of all tenants, with a cache."""

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
        """Resolves legacy ids to current ids; unknown ids are missing from the result.

        ``is_cached`` is false for a very large request, whose ids would take more memory than the
        request itself.
        """
        wanted = set(those)
        known: dict[str, str] = {}
        missing: set[str] = set()
        for id_ in wanted:
            if name := self._current.get((owner, id_)):
                known[id_] = name
            # An id that is cached as its own legacy id stands for itself.
            elif self._legacy.get((owner, id_)) != id_:
                missing.add(id_)
        if missing:
            found = await current_ids(self._store, owner, missing)
            for legacy_id, current_id in found.items() if keeps else ():
                self._current[owner, legacy_id] = current_id
            known |= found
        return known

    def imported(self, owner: Tenant, names: Mapping[str, str]) -> dict[str, str]:
        """Selects the imported ids from a result of ``resolve_current_ids``: current id to legacy id.

        An id that is not the derived alias can only come from an import.
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
        """Resolves (kind, current id) to legacy ids, for those that differ.

        New alias ids are saved, or added to ``unsaved_aliases``, which the caller must save before
        the response is sent. ``is_cached`` is false for the ids of a very large answer, which are
        rarely needed again soon.
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
        """Resolves the legacy ids of recipients for sorting only, so new aliases are not saved."""
        return await self.legacy(owner, {("recipient", id_) for id_ in those}, {}, keeps=False)

    def _made(self, owner: Tenant, those: Mapping[str, str]) -> dict[str, str]:
        """Derives the aliases of ids that need one: legacy id to current id."""
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
        """Resolves objects to legacy ids, and ids in free text only if they have one already."""
        names = await self.legacy(owner, found, later, keeps=keeps) if found else {}
        if unnamed := mentioned - names.keys():
            names |= await self.known(owner, unnamed)
        return names

    async def known(self, owner: Tenant, those: AbstractSet[str]) -> dict[str, str]:
        """Resolves current ids that already have a legacy id; free text gets no new aliases.

        A batch or payment that replaced another at the service has the legacy id of the first one.
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
