"""Maps the ids that legacy clients use to the ids of the service, and back.

An id that legacy clients cannot store gets an alias id, which is derived from it. The object behind
a legacy id never changes, so that direction is cached without expiry. The legacy id of an object
may be imported later, so that direction expires. An alias id is saved before any client sees it.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Literal

from gateway.payloads.worker_thread import run_in_thread_if
from gateway.storage import Store
from gateway.storage.id_rows import (
    IdCollisionError,
    load_current_ids_by_legacy_id,
    load_legacy_ids,
    save_legacy_ids,
)
from gateway.storage.object_state import ObjectStateStore
from gateway.storage.tenants import Tenant
from gateway.storage.ttl_cache import TtlCache
from mappings.ids import derive_alias_id, is_kind_with_alias_ids, needs_alias_id

MAX_INLINE_ALIASES = 100
"""Alias ids that are derived on the event loop; more are derived in a worker thread."""

_CACHE_SIZE = 200_000
_CACHE_SECONDS = 60


class AliasIds:
    """The alias ids of all tenants, with a cache."""

    def __init__(self, store: Store, mode: Literal["all", "batches", "none"]) -> None:
        self._store = store
        self._object_state = ObjectStateStore(store)
        self._mode = mode
        # Another purpose would derive other aliases, so it keeps its first name.
        self._key = store.encryption.derive_key_from_oldest("stand-in ids")
        self._legacy_ids: TtlCache[tuple[Tenant, str], str] = TtlCache(_CACHE_SIZE, _CACHE_SECONDS)
        # Not an LRU cache, whose lookups are not built in: this one is in every request.
        self._current_ids: OrderedDict[tuple[Tenant, str], str] = OrderedDict()

    def has_aliases_for_kind(self, kind: str) -> bool:
        return is_kind_with_alias_ids(kind, self._mode)

    def find_cached_current_ids(
        self, tenant: Tenant, legacy_ids: Iterable[str]
    ) -> dict[str, str] | None:
        """Resolves legacy ids as ``map_legacy_to_current_ids``, but only from the cache.

        None if any of them is not cached.
        """
        known: dict[str, str] = {}
        for id_ in legacy_ids:
            name = tenant, id_
            if cached_id := self._current_ids.get(name):
                known[id_] = cached_id
            # An id that is cached as its own legacy id stands for itself.
            elif self._legacy_ids.get(name) != id_:
                return None
        return known

    async def map_legacy_to_current_ids(
        self, tenant: Tenant, legacy_ids: Iterable[str], *, is_cached: bool = True
    ) -> dict[str, str]:
        """Resolves legacy ids to current ids; unknown ids are missing from the result.

        ``is_cached`` is false for a very large request, whose ids would take more memory than the
        request itself.
        """
        known: dict[str, str] = {}
        missing: set[str] = set()
        for id_ in legacy_ids:
            if (current_ids := self.find_cached_current_ids(tenant, (id_,))) is None:
                missing.add(id_)
            else:
                known |= current_ids
        if missing:
            found = await load_current_ids_by_legacy_id(self._store, tenant, missing)
            for legacy_id, current_id in found.items() if is_cached else ():
                self._current_ids[tenant, legacy_id] = current_id
                if len(self._current_ids) > _CACHE_SIZE:
                    self._current_ids.popitem(last=False)
            known |= found
        return known

    def map_current_to_imported_legacy_ids(
        self, tenant: Tenant, current_ids: Mapping[str, str]
    ) -> dict[str, str]:
        """Selects the imported ids: returns legacy ids by current id.

        ``current_ids`` is a result of ``map_legacy_to_current_ids``. An id that is not the derived
        alias can only come from an import.
        """
        return {
            current_id: legacy_id
            for legacy_id, current_id in sorted(current_ids.items())
            if derive_alias_id(self._key, tenant.merchant, current_id) != legacy_id
        }

    def find_cached_legacy_ids(
        self, tenant: Tenant, objects: AbstractSet[tuple[str, str]]
    ) -> dict[str, str] | None:
        """Resolves (kind, current id) as ``find_or_create_legacy_ids``, but only from the cache.

        None if any of them is not cached.
        """
        legacy_ids: dict[str, str] = {}
        for _kind, id_ in objects:
            if (legacy_id := self._legacy_ids.get((tenant, id_))) is None:
                return None
            if legacy_id != id_:
                legacy_ids[id_] = legacy_id
        return legacy_ids

    async def find_or_create_legacy_ids(
        self,
        tenant: Tenant,
        objects: AbstractSet[tuple[str, str]],
        unsaved_aliases: dict[str, str] | None = None,
        *,
        is_cached: bool = True,
    ) -> dict[str, str]:
        """Resolves (kind, current id) to legacy ids, for those that differ.

        New alias ids are saved, or added to ``unsaved_aliases``, which the caller must save before
        the response is sent. ``is_cached`` is false for the ids of a very large answer, which are
        rarely needed again soon.
        """
        kinds_by_id = {id_: kind for kind, id_ in objects}
        known: dict[str, str] = {}
        missing: set[str] = set()
        for id_ in kinds_by_id:
            if legacy_id := self._legacy_ids.get((tenant, id_)):
                known[id_] = legacy_id
            else:
                missing.add(id_)
        if missing:
            found = await load_legacy_ids(self._store, tenant, missing)
            unnamed = {id_: kinds_by_id[id_] for id_ in missing - found.keys()}
            new_aliases = await run_in_thread_if(
                len(unnamed) > MAX_INLINE_ALIASES,
                self._map_new_aliases_to_current_ids,
                tenant,
                unnamed,
            )
            if unsaved_aliases is None:
                await save_legacy_ids(self._store, tenant, new_aliases)
            else:
                unsaved_aliases |= new_aliases
            known |= found | {id_: legacy_id for legacy_id, id_ in new_aliases.items()}
            # An alias that the caller has still to save is not cached: its transaction may fail.
            cacheable_ids = (
                missing if unsaved_aliases is None else missing - set(new_aliases.values())
            )
            for id_ in cacheable_ids if is_cached else ():
                self._legacy_ids.put((tenant, id_), known.get(id_, id_))
        return {id_: legacy_id for id_, legacy_id in known.items() if legacy_id != id_}

    def _map_new_aliases_to_current_ids(
        self, tenant: Tenant, kinds_by_id: Mapping[str, str]
    ) -> dict[str, str]:
        """Derives the aliases of ids that need one: legacy id to current id."""
        new: dict[str, str] = {}
        for id_, kind in kinds_by_id.items():
            if needs_alias_id(kind, id_, self._mode):
                name = derive_alias_id(self._key, tenant.merchant, id_)
                # Two objects with one alias: a client would see one in place of the other.
                if new.setdefault(name, id_) != id_:
                    raise IdCollisionError(name)
        return new

    async def map_current_to_existing_legacy_ids(
        self, tenant: Tenant, current_ids: AbstractSet[str]
    ) -> dict[str, str]:
        """Resolves current ids that already have a legacy id; free text gets no new aliases.

        A batch or payment that replaced another at the service has the legacy id of the first one.
        """
        names = await load_legacy_ids(self._store, tenant, current_ids)
        if unnamed := current_ids - names.keys():
            aliases = await self._object_state.load_facts_by_id(tenant, "alias", tuple(unnamed))
            first_ids = {id_: str(facts["id"]) for id_, facts in aliases.items() if facts.get("id")}
            legacy_ids = await load_legacy_ids(self._store, tenant, first_ids.values())
            names |= {id_: legacy_ids.get(first, first) for id_, first in first_ids.items()}
        return names
