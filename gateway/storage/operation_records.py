"""Operations, their writes, and the checkpoints at which they are saved.

An *operation* is a request that writes, from its first change until its client has the response.
``writes.states`` has its states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec

from gateway.payloads.stored_json import StoredText
from gateway.storage.tenants import Tenant
from gateway.writes.states import ABSENT, CONFIRMED, OPEN, RUNNING, SENT
from mappings.effects import CompareAndSet
from mappings.forwarded_writes import FORWARDED_PREFIX

OPERATOR_OUTCOMES = (CONFIRMED, ABSENT)

OperatorOutcomes = tuple[tuple[int, str], ...]
"""Numbers of writes, each with the outcome that an operator recorded."""


class OwnershipLostError(Exception):
    """Another instance holds the fence: the operation continues there."""


class WritesFrozenError(Exception):
    """An operator has frozen the writes of this merchant, environment, or of all."""


class RestoreUncheckedError(Exception):
    """The database was restored from a backup; nothing is started until it is reconciled."""


class AlreadyClaimedError(Exception):
    """Another write created, or may be creating, the object that was found for this one."""


class DuplicateOperationError(Exception):
    """The key has used this Idempotency-Key before, or an identical request is open."""


class OperationRecord(msgspec.Struct, frozen=True):
    """A row of the journal; ``request`` and ``response`` are decrypted."""

    id: str
    tenant: Tenant
    key_id: str
    key_name: str
    operation: str
    request_id: str
    fingerprint: str
    started_at: datetime
    idempotency: str | None = None
    state: str = RUNNING
    reason: str | None = None
    instance: str = ""
    fence: int = 0
    is_client_disconnected: bool = False
    request: StoredText | None = None
    response: StoredText | None = None
    ended_at: datetime | None = None
    object_ids: tuple[str, ...] = ()
    fingerprints: tuple[str, ...] = ()
    """Of a new record: the fingerprints that its first attempt may have. That without imported ids
    is one, because the first attempt may be older than the import."""
    repeats_since: datetime | None = None
    """Of a new record: it repeats an identical operation that ended later, even if delivered."""

    def __repr__(self) -> str:
        return f"OperationRecord({self.id}, {self.operation}, {self.state})"

    def has_same_request(self, other: OperationRecord) -> bool:
        """Whether ``other``, which is older, may be the first attempt of this request."""
        return other.fingerprint in self.fingerprints and other.key_id == self.key_id

    @property
    def is_forwarded(self) -> bool:
        """Whether it went to the legacy service, which the gateway cannot read."""
        return self.operation.startswith(FORWARDED_PREFIX)

    @property
    def is_open(self) -> bool:
        return self.state in OPEN


class Write(msgspec.Struct, frozen=True):
    """One call that may change something; ``number`` is that of its step in the flow."""

    number: int
    method: str
    path: str
    call_digest: str
    recorded_at: datetime
    state: str = SENT
    status: int | None = None
    object_id: str | None = None
    operator_outcome: str | None = None
    resolved_at: datetime | None = None
    changed_at: datetime | None = None
    """When the recipient was changed, by the clock of the service."""

    @property
    def is_claim(self) -> bool:
        """Whether reads found its object, which another write may have created."""
        return self.state == CONFIRMED and self.object_id is not None


class UnsavedDeliveries(Protocol):
    """The operations whose clients have the responses, until that is saved."""

    def take_unsaved(self) -> Sequence[str]:
        """Takes the ids to save, each for one transaction at a time; ``end_saving`` must follow."""

    def end_saving(self, ids: Sequence[str], *, is_saved: bool) -> None:
        """Ends what ``take_unsaved`` began, also if the transaction failed."""


class Checkpoint(msgspec.Struct, frozen=True):
    """The changes of an operation that one transaction saves."""

    is_first: bool = False
    refuses_if_frozen: bool = False
    refuses_if_restored: bool = False
    step_results: tuple[int, StoredText] | None = None
    """The number of the last step, and the results of the steps since the last checkpoint; those
    of the first checkpoint are in the request."""
    unrelated_ids: frozenset[str] | None = None
    """Open operations that are known not to be an earlier attempt of a new one; None skips the
    check."""
    resolved_writes: Sequence[Write] = ()
    new_write: Write | None = None
    object_changes: Sequence[CompareAndSet] = ()
    column_values: Mapping[str, Any] = {}
    """Columns of the operation: state, reason, response, is_client_disconnected, idempotency."""
    drops_payload: bool = False
    """Whether the stored request and step results are no longer needed."""
    deletes_routing_marks: bool = False
    """Whether the marks that only this operation set are deleted: its batches stay unrouted."""
    has_step_rows: bool = True
    """Whether there may be rows of step results."""
    has_chunks: bool = True
    """Whether any of these may be stored in chunks."""
    new_aliases: Mapping[str, str] = {}
    """New legacy ids of objects: legacy id to current id."""
    deliveries: UnsavedDeliveries | None = None
    """The deliveries of responses to earlier requests, which the transaction saves too."""
    recipient_lock: str | None = None
    """The recipient whose lock the operation takes, unless an unfinished one holds it."""
    former_lock_holder: str | None = None
    """Its holder that is known to be finished, or deleted."""
    audit_action: str = ""
    """The action for the audit log, if an operator makes the change."""
