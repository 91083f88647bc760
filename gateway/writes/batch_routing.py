"""Determines which service owns a batch: the one that changed it first.

A batch stays there, also if its API key is switched to the other service later.

A batch that went through the legacy service has a mark in the object state (kind ``begun``, by the
legacy id). The mark names the operation that was the first: if that operation was not executed, the
transaction that closes it deletes the mark, unless another write used the batch meanwhile. A batch that was created, edited or
started through the current service has facts (kind ``batch``). A batch that was only imported also
has facts, but neither service owns it yet.

If two first requests for one batch go to different services at the same time, one of them wins: the
mark is set only if the batch is unchanged, and the first change is made only if there is no mark,
each check in the commit that it guards. The other request is routed again.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from gateway.storage import ObjectStateStore, Tenant
from gateway.storage.alias_ids import AliasIds
from mappings.batch_locks import build_unchanged_batch_condition
from mappings.effects import Call, CompareAndSet, Operation, Request
from mappings.forwarded_writes import LEGACY_MARK, NO_MARK, ROUTING_KIND

Backend = Literal["legacy", "current"]


class BatchRoutedElsewhereError(Exception):
    """The other service has just become the batch's owner; nothing was executed."""


class BatchRouting:
    def __init__(self, object_state: ObjectStateStore, alias_ids: AliasIds) -> None:
        self._object_state = object_state
        self._alias_ids = alias_ids

    async def build_legacy_routing_marks(
        self, tenant: Tenant, batch_ids: Iterable[str], operation_id: str
    ) -> list[CompareAndSet]:
        """Builds the changes that mark batches as the legacy service's, if they are unchanged here.

        Save them with the first write of the operation that goes to the legacy service. Raises
        BatchRoutedElsewhereError.
        """
        marks = []
        for batch_id in batch_ids:
            mark = await self._object_state.load(tenant, ROUTING_KIND, batch_id)
            if not mark:
                marks.append(await self._build_legacy_routing_mark(tenant, batch_id, operation_id))
            # Two operations use the mark now, so that neither of them reverts it.
            elif only_operation_id := mark.get("by"):
                marks.append(
                    CompareAndSet(
                        ROUTING_KIND, batch_id, {"by": None}, expected={"by": only_operation_id}
                    )
                )
        return marks

    async def _build_legacy_routing_mark(
        self, tenant: Tenant, batch_id: str, operation_id: str
    ) -> CompareAndSet:
        mark = {**LEGACY_MARK, "by": operation_id}
        current_id = await self._resolve_current_id(tenant, batch_id)
        facts = await self._object_state.load(tenant, "batch", current_id)
        match await self.find_backend(tenant, batch_id):
            case "legacy":  # marked under its other id
                return CompareAndSet(ROUTING_KIND, batch_id, mark, expected=NO_MARK)
            case "current":
                raise BatchRoutedElsewhereError
        # Changes no facts; its condition lets the transaction fail if another request has just
        # changed the batch at the current service.
        untouched = CompareAndSet(
            "batch", current_id, {}, expected=build_unchanged_batch_condition(facts)
        )
        return CompareAndSet(ROUTING_KIND, batch_id, mark, expected=NO_MARK, linked=(untouched,))

    async def build_not_routed_to_legacy_checks(
        self, tenant: Tenant, batch_ids: Iterable[str]
    ) -> Sequence[CompareAndSet]:
        """Builds checks that batches have no mark under any of their ids; they change nothing.

        Save them with the first change that is made through the current service. Raises
        BatchRoutedElsewhereError if a batch has a mark by now: the request may have waited for
        another since it was routed, and would end without a change, so that nothing checked it.
        """
        ids: dict[str, None] = {}
        for batch_id in batch_ids:
            current_id = await self._resolve_current_id(tenant, batch_id)
            legacy_id = await self._find_legacy_id(tenant, current_id) or current_id
            # The mark may be under any of them, as clients may have used each before an import.
            ids |= dict.fromkeys((batch_id, current_id, legacy_id))
        for legacy_id in ids:
            if await self._object_state.load(tenant, ROUTING_KIND, legacy_id):
                raise BatchRoutedElsewhereError
        return [CompareAndSet(ROUTING_KIND, legacy_id, {}, expected=NO_MARK) for legacy_id in ids]

    async def find_backend(self, tenant: Tenant, batch_id: str) -> Backend | None:
        """Finds the owner of a batch by any legacy id; None if neither service has changed it."""
        if await self._object_state.load(tenant, ROUTING_KIND, batch_id):
            return "legacy"
        current_id = await self._resolve_current_id(tenant, batch_id)
        # The mark may be under an id that was imported since. It is read before the facts, which a
        # change that was in flight here meanwhile may have created.
        legacy_id = await self._find_legacy_id(tenant, current_id)
        if (
            legacy_id
            and legacy_id != batch_id
            and await self._object_state.load(tenant, ROUTING_KIND, legacy_id)
        ):
            return "legacy"
        facts = await self._object_state.load(tenant, "batch", current_id)
        if not facts:
            # The facts of a replaced batch are stored under the id of the first one.
            alias = await self._object_state.load(tenant, "alias", current_id)
            facts = await self._object_state.load(
                tenant, "batch", str(alias.get("id") or current_id)
            )
            # Only the current service's batches are superseded.
            if alias.get("abandoned"):
                return "current"
        return "current" if facts and not is_unchanged_import(facts) else None

    async def is_recorded(self, tenant: Tenant, batch_id: str) -> bool:
        """Whether a batch was created through the gateway, or imported."""
        current_id = await self._resolve_current_id(tenant, batch_id)
        first_id = await self._object_state.find_first_id(tenant, current_id)
        return bool(await self._object_state.load(tenant, "batch", first_id))

    async def _resolve_current_id(self, tenant: Tenant, batch_id: str) -> str:
        return (await self._alias_ids.map_legacy_to_current_ids(tenant, [batch_id])).get(
            batch_id, batch_id
        )

    async def _find_legacy_id(self, tenant: Tenant, current_id: str) -> str | None:
        """Returns the legacy id of a batch, if it differs from its current id."""
        return (await self._alias_ids.map_current_to_existing_legacy_ids(tenant, {current_id})).get(
            current_id
        )


def is_unchanged_import(facts: Mapping[str, Any]) -> bool:
    """Whether a batch is unchanged since its import: every change increments its version."""
    imported = facts.get("imported")
    return imported is not None and (imported, "sent") == (facts.get("version"), facts.get("phase"))


_BATCH_PATH = re.compile(r"/batches/(B-[A-Za-z0-9]+)(?:/|$)")


def build_batch_not_superseded_checks(call: Call) -> list[CompareAndSet]:
    """Builds a check that the batch in a write's path is not superseded (contract, section 7)."""
    match = _BATCH_PATH.match(call.path)
    return [CompareAndSet("alias", match[1], {}, expected={"abandoned": None})] if match else []


def is_refused_after_restore(operation: Operation, request: Request) -> bool:
    """Whether a request starts a batch, or adds payments to one.

    A restored state does not know the last ones, and would take a retry for a new request.
    """
    if (operation.method, operation.path) == ("PATCH", "/batches/{id}"):
        return isinstance(request.body, Mapping) and bool(request.body.get("payments"))
    return operation.path.endswith(("/start-processing", "/payments"))
