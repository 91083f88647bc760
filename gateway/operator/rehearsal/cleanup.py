"""Removes what rehearsals have created at the service."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from gateway.operator.rehearsal.sandbox import Exchange, Sandbox, ServiceSilent
from mappings.payloads import extract_batch

REFERENCE_PREFIX = "payout-gateway-rehearsal-"
"""Begins the referenceId of each recipient, and the description of each batch, of a rehearsal."""

MAX_SEARCH_PAGES = 20
PATHS = {"batch": "/v1/batches", "recipient": "/v1/recipients"}
"""In the order of removal."""

SEARCHES = {
    "batch": ("description", {"pageSize": "100"}),
    "recipient": ("referenceId", {"pageSize": "100", "search": REFERENCE_PREFIX}),
}
"""The field with the reference, and the query that finds it."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """An object at the service, and why it could not be removed."""

    kind: str
    id: str
    reason: str = ""


def list_created_objects(exchanges: Iterable[Exchange]) -> list[Leftover]:
    """Lists what the calls have created and not deleted."""
    created: dict[str, Leftover] = {}
    for exchange in filter(lambda call: call.is_accepted, exchanges):
        if exchange.method == "DELETE":
            for id_ in exchange.sent.get("ids", [exchange.path.rpartition("/")[2]]):
                created.pop(id_, None)
        for kind, path in PATHS.items():
            if (exchange.method, exchange.path) == ("POST", path):
                id_ = _extract_object(kind, exchange).get("id")
                created[str(id_)] = Leftover(kind, str(id_))
    return list(created.values())


async def remove_objects(
    sandbox: Sandbox, objects: Iterable[Leftover], is_interrupted: Callable[[], bool]
) -> list[Leftover]:
    """Deletes objects, and those of any rehearsal that lists show; returns what is left."""
    found = {(item.kind, item.id) for item in objects}
    left = []
    for kind in PATHS:
        if not is_interrupted():
            found |= {(kind, id_) for id_ in await _find_listed_ids(sandbox, kind)}
        for id_ in sorted(id_ for other_kind, id_ in found if other_kind == kind):
            reason = "the clean-up was interrupted"
            if not is_interrupted():
                reason = await _remove_object(sandbox, kind, id_)
            left += [Leftover(kind, id_, reason)] if reason else []
    return left


async def _remove_object(sandbox: Sandbox, kind: str, id_: str) -> str:
    """Returns why an object is left; empty if it is gone."""
    shown_path = f"{PATHS[kind]}/{id_}"
    if kind == "batch":
        shown_path = sandbox.words.current.summary_path.format(id=id_)
    try:
        if (await sandbox.call_service("DELETE", f"{PATHS[kind]}/{id_}")).is_accepted:
            return ""
        shown = await sandbox.call_service("GET", shown_path)
    except ServiceSilent as silent:
        return str(silent)
    status = _extract_object(kind, shown).get("status")
    if shown.status == 404 or status == "archived":
        return ""
    if kind == "batch" and status not in ("open", "pending"):
        return "it was started, so it stays"
    is_harmless = "; it is open and pays nobody" if kind == "batch" else ""
    return f"the service does not delete it by this path{is_harmless}"


def _extract_object(kind: str, exchange: Exchange) -> Mapping[str, Any]:
    if kind == "batch":
        return extract_batch(exchange.body)
    return exchange.body.get("recipient") or {}


async def _find_listed_ids(sandbox: Sandbox, kind: str) -> list[str]:
    """Finds objects by their reference, also those whose creation was not answered."""
    reference, query = SEARCHES[kind]
    name, ids = PATHS[kind].rpartition("/")[2], list[str]()
    for page in range(1, MAX_SEARCH_PAGES + 1):
        target = f"{PATHS[kind]}?{urlencode({**query, 'page': page})}"
        try:
            answer = await sandbox.call_service("GET", target)
        except ServiceSilent:
            break
        rows = answer.body.get(name) if answer.is_accepted else None
        for row in rows or ():
            is_own = str(row.get(reference) or "").startswith(REFERENCE_PREFIX)
            is_final = row.get("status") in ("archived", "processing", "processed", "complete")
            ids += [str(row["id"])] if is_own and not is_final else []
        if not rows or page >= int((answer.body.get("meta") or {}).get("pages") or 0):
            break
    return ids
