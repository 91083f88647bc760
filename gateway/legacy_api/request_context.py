"""State of a legacy request while it is handled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.admission.limits import Admission
from gateway.admission.load import AdmissionSlot
from gateway.http.client_address import Address
from gateway.http.request import HttpRequest
from gateway.migration.inbound_request import InboundRequest
from gateway.storage.operation_records import OperationRecord
from gateway.writes.caller import Caller
from mappings.effects import Operation
from mappings.failures import Invalid, Problem


class LegacyClient(msgspec.Struct, frozen=True):
    """The client of a connection, from the header fields that its requests repeat.

    ``request_id`` is empty if the client sets none. ``api_key`` and its digest are empty unless
    there is exactly one.
    """

    address: Address | None
    address_text: str | None
    request_id: str = ""
    api_key: str = ""
    key_digest: str = ""
    key_count: int = 0

    def __repr__(self) -> str:
        return "LegacyClient(…)"  # it has the API key


class RequestContext(msgspec.Struct, eq=False):
    """A request with the results of its checks and calls, for the response and the log.

    ``start_time`` is in seconds of the monotonic clock.
    """

    request_id: str
    start_time: float
    client: LegacyClient
    operation: Operation | None = None
    caller: Caller | None = None
    admission: Admission | None = None
    notices: tuple[str, ...] = ()
    client_ids: dict[str, str] = {}
    """Ids as the client sent them, by current id: the response repeats the client's spelling."""
    has_only_current_ids: bool = True
    """Whether the client sent all ids as the service spells them, or none."""
    current_ids: Mapping[str, str] = {}
    """Current ids by sent id, of a long request. Only error messages need them."""
    full_body_digest: str = ""
    """Digest of the body, if it has fields or values that were left out when it was decoded."""
    log_fields: dict[str, Any] = {}
    slot: AdmissionSlot | None = None
    pending_delivery: OperationRecord | None = None
    """The write that ends when the client has acknowledged the response."""
    shadow_request: InboundRequest | None = None
    """The request to repeat at the other service after the response is sent."""
    is_response_written: bool = False
    """Whether the whole response was handed to the connection."""
    is_delivered: bool = False
    """Whether the client had acknowledged the response when the connection ended."""
    is_reset: bool = False
    """Whether the connection was reset: the client may not have read what it acknowledged."""


_MAX_KEY_LENGTH = 255
INVALID_KEY = Problem(
    "invalid_field",
    f"An Idempotency-Key is 1 to {_MAX_KEY_LENGTH} visible characters, and given once.",
    "Idempotency-Key",
)


def read_idempotency_key(request: HttpRequest) -> str | None:
    """Reads the key of a write; raises Invalid if it is not a valid one."""
    header_values = request.fields.headers.getall("Idempotency-Key", [])
    # A GET may write (the summary does), but to its client it is a read, which needs no key.
    if not header_values or request.method == "GET":
        return None
    key = header_values[0].strip()
    if (
        # Two values may come from a proxy that merged requests; neither is safe to choose.
        len(header_values) > 1
        or not 0 < len(key) <= _MAX_KEY_LENGTH
        or not (key.isascii() and key.isprintable())
    ):
        raise Invalid(INVALID_KEY)
    return key
