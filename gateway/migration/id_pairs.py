"""Pairs the ids of the legacy service with those of the current one, for comparisons.

While the legacy service makes the writes of a key, the current service has the same objects, perhaps
by other ids, which no import can know yet. An object is found as `cutover import` finds it. Nothing
is stored, and no request but a compared one uses the pairs.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from gateway.http.responses import PassedResponse
from gateway.migration.inbound_request import InboundRequest, parse_fields
from gateway.migration.routing import ServiceRouter
from gateway.storage import Store, Tenant
from gateway.storage.id_rows import load_current_ids_by_legacy_id
from mappings import OPERATIONS, cutover
from mappings.effects import Answer, Flow

MAX_PAIRS = 20_000
"""Pairs in memory; the oldest are forgotten, and found again if they are needed."""

PAGE_SIZE, MAX_PAGES = 100, 100

RunFlow = Callable[[Flow], Awaitable[Answer]]
"""Executes a flow that only reads, with the credentials of the compared request."""

_OPERATIONS_BY_NAME = {operation.name: operation for operation in OPERATIONS}


class IdPairs:
    """Current ids by tenant and legacy id, in this process."""

    def __init__(self, store: Store, service_router: ServiceRouter) -> None:
        self._store = store
        self._service_router = service_router
        self._pairs: dict[tuple[Tenant, str], str] = {}

    def select_known_pairs(self, inbound: InboundRequest) -> dict[str, str]:
        """Returns the known pairs of the ids in the request's path."""
        return self._select(inbound.caller.key.tenant, inbound.forwarded_request.ids.values())

    async def find_pairs(
        self, inbound: InboundRequest, control: PassedResponse, run_flow: RunFlow
    ) -> dict[str, str]:
        """Finds the objects in the request's path at the current service; returns current ids.

        ``control`` is the legacy service's answer, which names the batch of a payment. Raises
        Failure, also if the legacy service does not answer.
        """
        tenant, ids = inbound.caller.key.tenant, list(inbound.forwarded_request.ids.values())
        if ids and ids[0].startswith("P-"):
            payment = (await parse_fields(control.body)).get("payment") or {}
            ids = [str((payment.get("batch") or {}).get("id", "")), *ids]
        for id_ in ids:
            if (tenant, id_) in self._pairs:
                continue
            if id_.startswith("R-"):
                await self._find_recipient(inbound, id_, run_flow)
            elif id_.startswith("B-"):
                await self._find_batch(inbound, id_, run_flow)
        return self._select(tenant, ids)

    def _select(self, tenant: Tenant, ids: Iterable[str]) -> dict[str, str]:
        return {id_: self._pairs[tenant, id_] for id_ in ids if (tenant, id_) in self._pairs}

    def _save(self, tenant: Tenant, pairs: Mapping[str, str]) -> None:
        self._pairs |= {(tenant, legacy_id): pairs[legacy_id] for legacy_id in pairs}
        for key in list(self._pairs)[: max(len(self._pairs) - MAX_PAIRS, 0)]:
            del self._pairs[key]

    async def _find_recipient(self, inbound: InboundRequest, id_: str, run_flow: RunFlow) -> None:
        body = await self._read(inbound, "read_recipient", f"/recipients/{id_}")
        if recipient := body.get("recipient"):
            match = (await run_flow(cutover.match_legacy_recipient(recipient))).body
            if match["current"]:
                self._save(inbound.caller.key.tenant, {id_: match["current"]})

    async def _find_batch(self, inbound: InboundRequest, id_: str, run_flow: RunFlow) -> None:
        tenant = inbound.caller.key.tenant
        batch = (await self._read(inbound, "read_batch", f"/batches/{id_}")).get("batch")
        if not batch:
            return
        payments = await self._read_payments(inbound, id_)
        ids = {str((payment.get("recipient") or {}).get("id")) for payment in payments}
        known_ids = await load_current_ids_by_legacy_id(self._store, tenant, ids)
        known_ids |= self._select(tenant, ids)
        # A batch with payments is found by its recipients, which takes fewer calls than the list.
        listed = None
        if not payments:
            listed = (await run_flow(cutover.load_listed_batches())).body["batches"]
        flow = cutover.match_legacy_batch(batch, payments, known_ids, listed)
        match = (await run_flow(flow)).body
        if match["current"]:
            self._save(tenant, {id_: match["current"], **match["payments"]})

    async def _read_payments(self, inbound: InboundRequest, batch_id: str) -> list[Any]:
        payments: list[Any] = []
        for page in range(1, MAX_PAGES + 1):
            path = f"/batches/{batch_id}/payments?page={page}&pageSize={PAGE_SIZE}"
            body = await self._read(inbound, "list_batch_payments", path)
            rows = body.get("payments") or []
            payments += rows
            if not rows or len(payments) >= int((body.get("meta") or {}).get("records") or 0):
                break
        return payments

    async def _read(self, inbound: InboundRequest, operation: str, path: str) -> dict[str, Any]:
        """Reads an object of the legacy service; empty if the service does not have it."""
        read = replace(inbound, operation=_OPERATIONS_BY_NAME[operation], target=f"/v1{path}")
        response = await self._service_router.sender.forward(read)
        return await parse_fields(response.body) if response.status == 200 else {}
