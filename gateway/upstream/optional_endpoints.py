"""Optional endpoints: paths that the current document does not list but the service may have.

An outage, an error page of a proxy or a wrong id must not make the gateway take the longer
documented way, or shorten a list. So a path counts as missing only if it is refused twice, and a
documented read succeeds right before and right after the second refusal; for an edit, a read that
shows the object (contract, section 5). Any other refusal of a write that is not the service's own
leaves the write in doubt (section 7).
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import structlog
from msgspec import structs

from gateway.payloads import json_codec
from gateway.payloads.worker_thread import run_in_thread_if
from gateway.storage.capability_cache import CapabilityCache
from mappings.current import SUMMARY_PATH, find_documented_endpoint
from mappings.effects import JSON, Call
from mappings.failures import Failure, NoSuchOperation, Refused, Unknown, Unreachable
from mappings.payloads import extract_batch, extract_payments

MISSING_SECONDS = 600
MAX_MISSING_SECONDS = 86_400
"""How long a missing path is not tried again: at first, and at most; doubled when confirmed."""

MISSING_STATUSES = frozenset({404, 405, 501})

SendCall = Callable[[Call], Awaitable[JSON]]

log = structlog.get_logger()


@dataclass(slots=True)
class OptionalEndpoints:
    """Sends calls to optional endpoints, and remembers which ones are missing.

    All processes on one database share ``capabilities``, with a delay of at most a second.
    """

    _mode: Literal["auto", "use", "avoid"]
    _capabilities: CapabilityCache
    _clock: Callable[[], float] = time.time

    async def send_call_unless_missing(self, call: Call, environment: str, send: SendCall) -> JSON:
        """Sends a call; raises NoSuchOperation if the service does not have the operation.

        A list that the service has answered before is not replaced by the recorded one, which
        would lack objects created elsewhere: raises Unreachable until the service answers again
        or an operator runs `doctor`.
        """
        if missing_name := self.find_missing_operation_name(call, environment):
            raise NoSuchOperation(missing_name)
        try:
            return await self.send_call_ignoring_findings(call, environment, send)
        except NoSuchOperation as missing:
            finding = self._capabilities.get(environment, _build_capability_name_of_endpoint(call))
            # A list that existed before: a shortened one could make a client pay twice.
            if call.is_read and finding and finding["present"]:
                raise Unreachable(_LIST_REFUSED.format(path=call.path)) from missing
            await self._record_endpoint_finding(environment, call, present=False)
            raise

    async def send_call_ignoring_findings(
        self, call: Call, environment: str, send: SendCall
    ) -> JSON:
        """Sends a call whatever is remembered.

        Raises NoSuchOperation if the operation is missing, without remembering that.
        """
        try:
            body = await send(call)
        except Refused as refused:
            if not self._can_mean_missing_endpoint(refused):
                raise
            body = await self._resend_to_confirm_missing(call, refused, send)
        await self._record_endpoint_finding(environment, call, present=True)
        return body

    async def probe_endpoint(self, call: Call, environment: str, send: SendCall) -> bool:
        """Tries a call now, and remembers for all processes whether the operation exists.

        For operators: also a list that existed before may count as missing then. Raises the
        failure if it is inconclusive.
        """
        try:
            await self.send_call_ignoring_findings(call, environment, send)
        except NoSuchOperation:
            await self._record_endpoint_finding(environment, call, present=False)
            return False
        return True

    def is_refusal_confirmed_with_reads(self, status: int) -> bool:
        """Whether a response with this status is followed by reads, to tell if the path is missing."""
        return self._mode == "auto" and status in MISSING_STATUSES

    def find_missing_operation_name(self, call: Call, environment: str) -> str | None:
        """Returns the operation's name if the service is known not to have it."""
        name = _build_capability_name_of_endpoint(call)
        finding = self._capabilities.get(environment, name)
        is_missing = self._mode == "auto" and self._clock() < compute_missing_until(finding)
        return name if self._mode == "avoid" or is_missing else None

    def _can_mean_missing_endpoint(self, refusal: Refused) -> bool:
        # In mode ``use`` the operator has said that the service has the path.
        if self._mode == "use" or refusal.status not in MISSING_STATUSES:
            return False
        # A problem with a field is about an object in the body, so the path exists.
        return not any(problem.field for problem in refusal.problems)

    async def _resend_to_confirm_missing(self, call: Call, first: Refused, send: SendCall) -> JSON:
        """Sends the call again; raises NoSuchOperation if it is refused like the first time.

        Raises Unknown if a write may have been executed: a refusal that is not the service's own
        proves nothing unless the path is missing.
        """
        refusals = [first]
        try:
            return await self._send_call_again(call, refusals, send)
        except NoSuchOperation:
            raise
        except Failure as failure:
            if call.is_read or all(map(_is_proof_of_no_execution, refusals)):
                raise
            raise Unknown(f"status {first.status}") from failure

    async def _send_call_again(self, call: Call, refusals: list[Refused], send: SendCall) -> JSON:
        (first,) = refusals
        await _require_object_exists(call, first, send)
        try:
            if call.is_idempotent:
                return await send(call)
            await send(structs.replace(call, body={}))
        except Refused as refused:
            if not self._can_mean_missing_endpoint(refused):
                raise
            second = refused
        else:
            raise first  # the path exists, and the first call was refused for another reason
        refusals.append(second)
        await _require_object_exists(call, second, send)
        raise NoSuchOperation(_build_capability_name_of_endpoint(call)) from second

    async def _record_endpoint_finding(
        self, environment: str, call: Call, *, present: bool
    ) -> None:
        name = _build_capability_name_of_endpoint(call)
        previous: Any = self._capabilities.get(environment, name)
        now = int(self._clock())
        finding: dict[str, Any] = {"present": present, "at": now}
        if present:
            # Already known: no need to write it again.
            if previous and previous["present"]:
                return
            log.info(
                "inferred_operation_found",
                environment=environment,
                endpoint=name.removeprefix("inferred "),
            )
        else:
            if now < compute_missing_until(previous):
                return  # a concurrent request has found the same
            # Longer each time: every try costs two refused calls and two reads.
            finding["seconds"] = _compute_missing_ttl_seconds(previous)
            log.warning(
                "inferred_operation_missing",
                environment=environment,
                endpoint=name.removeprefix("inferred "),
                retry_after_seconds=finding["seconds"],
                reason="the service refused it twice as an unknown path; documented calls are used instead",
            )
        await self._capabilities.put(environment, name, finding)


def compute_missing_until(finding: Mapping[str, Any] | None) -> float:
    """Returns until when (Unix time) a path counts as missing; 0 if it does not."""
    if not finding or finding["present"]:
        return 0
    return float(finding["at"] + finding.get("seconds", MISSING_SECONDS))


def describe_endpoint_finding(finding: Mapping[str, Any]) -> str:
    """Describes for operators whether a path exists, or when it is tried again."""
    if finding["present"]:
        return "there"
    retry_time = datetime.fromtimestamp(compute_missing_until(finding), UTC)
    return f"not there; tried again when needed after {retry_time:%Y-%m-%d %H:%M} UTC"


_LIST_REFUSED = (
    "GET {path} is refused as if the path did not exist, but it existed before: the list is not built "
    "from the gateway's own records, which may lack batches created elsewhere. Check what is in front "
    "of the service; if the service no longer has the path, run `payout-gateway doctor`"
)


def _compute_missing_ttl_seconds(finding: Mapping[str, Any] | None) -> int:
    if not finding or finding["present"]:
        return MISSING_SECONDS
    return min(2 * int(finding.get("seconds", MISSING_SECONDS)), MAX_MISSING_SECONDS)


def _build_capability_name_of_endpoint(call: Call) -> str:
    endpoint = find_documented_endpoint(call.method, call.path)
    return f"inferred {endpoint.method} {endpoint.path}"


async def _require_object_exists(call: Call, refusal: Refused, send: SendCall) -> None:
    """Checks with a documented read that the object of a call exists; for a list, any read.

    Raises the refusal if the service confirms that the object does not exist. Raises Unreachable
    if the read is inconclusive: after a 404, a client would take the object for deleted.
    """
    batch, *payments = call.probe_ids or ("",)
    probe_call = Call("GET", SUMMARY_PATH.format(id=batch)) if batch else _GENERIC_READ
    try:
        body = await send(probe_call)
    except Failure as failure:
        if isinstance(failure, Refused):
            if batch and failure.is_not_found:
                raise refusal from None
            # Says something about the credentials or the limit, not about the object.
            if failure.status in (401, 403, 429):
                raise
        raise Unreachable("cannot tell whether the path or the request was refused") from None
    # A cache or a proxy may answer with another object; a summary without an id counts as right.
    if batch and extract_batch(body).get("id", batch) != batch:
        raise Unreachable("the service's summary does not show the batch")
    # The payment may just have been removed: then the refusal is right and the path exists.
    is_long = json_codec.has_rows(body)
    if payments and not await run_in_thread_if(is_long, _has_all_payments, body, payments):
        raise refusal


def _is_proof_of_no_execution(refusal: Refused) -> bool:
    """Whether a refusal proves that nothing was executed: a 4xx with the service's own errors."""
    return 400 <= refusal.status < 500 and bool(refusal.problems)


_GENERIC_READ = Call("GET", "/recipients", query={"page": "1", "pageSize": "1"})
"""A read that every service answers (current interface, section 4.1)."""


def _has_all_payments(summary: JSON, payments: Sequence[str]) -> bool:
    return {*payments} <= {payment.get("id") for payment in extract_payments(summary)}
