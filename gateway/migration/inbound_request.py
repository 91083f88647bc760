"""A legacy request as it was received, for the legacy service and for shadow traffic."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs
from multidict import CIMultiDict

from gateway.payloads import json_codec
from gateway.payloads.worker_thread import run_in_thread_if
from gateway.upstream.client import MAX_ANSWER_BYTES
from gateway.writes.write_request import Caller
from mappings.effects import JSON, Operation, Request
from mappings.forwarded_writes import list_batch_ids

MAX_VALUE_BYTES = 2 * MAX_ANSWER_BYTES
"""Memory for the values of a body that is parsed only for its ids (``estimate_memory_bytes``)."""


@dataclass(frozen=True, slots=True)
class InboundRequest:
    """A legacy request as it was received; ``target`` starts with /v1.

    ``flow_request`` is its translation, by which retries are recognized; ``forwarded_request`` has
    the client's own ids instead. ``log_fields`` are added to the access log.
    """

    operation: Operation
    caller: Caller
    flow_request: Request
    forwarded_request: Request
    target: str
    headers: CIMultiDict[str]
    body: bytes = field(repr=False)
    idempotency_key: str | None
    log_fields: dict[str, Any]

    @property
    def is_write(self) -> bool:
        return self.operation.method != "GET"

    @property
    def batches(self) -> Sequence[str]:
        """The ids of the batches that it names, in the client's spelling."""
        return list_batch_ids(self.operation, self.forwarded_request)


async def build_forwarded_request(
    operation: Operation, path_ids: Mapping[str, str], flow_request: Request, body: bytes
) -> Request:
    """Builds the request for the legacy service, in the client's ids, which marks are stored by."""
    forwarded_request = structs.replace(flow_request, ids=path_ids)
    if operation.name != "delete_batches":
        return forwarded_request
    # Parsed from the raw body, because that of the flow request has current ids.
    fields = await parse_fields(body)
    return structs.replace(forwarded_request, body=fields or flow_request.body)


async def parse_fields(body: bytes) -> dict[str, JSON]:
    """Parses a body's fields; empty if it is not a JSON object or would take too much memory."""
    is_long, options = len(body) > json_codec.LARGE_BYTES, (json_codec.LONG_LISTS, MAX_VALUE_BYTES)
    return await run_in_thread_if(is_long, json_codec.loads_object, body, *options) or {}
