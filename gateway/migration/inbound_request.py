"""A legacy request as it was received, for the legacy service and for shadow traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from multidict import CIMultiDict

from gateway.payloads import json_codec
from gateway.payloads.worker_thread import run_in_thread_if
from gateway.upstream.client import MAX_ANSWER_BYTES
from gateway.writes.caller import Caller
from mappings.effects import JSON, Operation, Request

MAX_VALUE_BYTES = 2 * MAX_ANSWER_BYTES
"""Memory for the values of a body that is parsed only for its ids (``estimate_memory_bytes``)."""


@dataclass(frozen=True, slots=True)
class InboundRequest:
    """A legacy request as it was received; ``target`` starts with /v1, ``ids`` are from its path.

    ``flow_request`` is its translation, by which retries are recognized. ``log_fields`` are added
    to the access log. ``batches`` are the batch ids that it names, in the client's spelling.
    """

    operation: Operation
    caller: Caller
    ids: Mapping[str, str]
    flow_request: Request
    target: str
    headers: CIMultiDict[str]
    body: bytes = field(repr=False)
    idempotency_key: str | None
    log_fields: dict[str, Any]
    batches: Sequence[str]

    @property
    def is_write(self) -> bool:
        return self.operation.method != "GET"


async def list_batch_ids_in_request(
    operation: Operation, path_ids: Mapping[str, str], flow_request: Request, body: bytes
) -> Sequence[str]:
    """Lists the batches that a request names, in the client's spelling."""
    if not operation.path.startswith("/batches"):
        return []
    # The first id in a path below /batches is the batch; a second one is a payment.
    if path_ids:
        return [*path_ids.values()][:1]
    if operation.name != "delete_batches":
        return []
    # Parsed from the raw body: the flow request has current ids, but batches are recorded by the
    # client's ids.
    body_fields = await run_in_thread_if(len(body) > json_codec.LARGE_BYTES, parse_fields, body)
    batch_ids = (body_fields or flow_request.body or {}).get("ids")
    return (
        [batch_id for batch_id in batch_ids if isinstance(batch_id, str)]
        if isinstance(batch_ids, list)
        else []
    )


def parse_fields(data: bytes) -> dict[str, JSON]:
    """Parses a body's fields; empty if it is not a JSON object or would take too much memory."""
    try:
        body = json_codec.loads(data, json_codec.LONG_LISTS, MAX_VALUE_BYTES)
    except json_codec.JsonError:
        return {}
    return body if isinstance(body, dict) else {}
