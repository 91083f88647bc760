"""Deliveries of the responses to writes, on which it depends whether a repeated request is a retry.

Two facts come from TCP: that a client has acknowledged its response, and that it is known to be gone.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from gateway.storage.operation_records import OperationRecord
from gateway.storage.operations import OperationRepository
from gateway.storage.ttl_cache import TtlCache

if TYPE_CHECKING:
    from gateway.writes.operation_execution import OperationExecution

ACKNOWLEDGEMENT_SECONDS = 0.25
"""Seconds to wait for a TCP acknowledgement, which Linux delays by 40 to 200 ms."""
MAX_RECEIVERS, RESET_SECONDS = 20_000, 90.0
"""How many responses are remembered that were received, and for how long: as long as a reset makes
the next identical request a retry."""


class Deliveries:
    """The responses that this process delivers, and the deliveries and resets to save.

    ``unsaved_executions`` is that of the journal.
    """

    def __init__(
        self,
        operations: OperationRepository,
        unsaved_executions: Mapping[str, OperationExecution],
        monotonic: Callable[[], float],
    ) -> None:
        self.pending: dict[str, OperationExecution] = {}
        """The executions whose responses are being sent to their clients, by operation id."""
        self.delivered_ids: dict[str, None] = {}
        """Operations whose clients have the response, until that is saved."""
        self._saving_ids: set[str] = set()
        """Those of them that a transaction is saving."""
        self.reset_ids: dict[str, None] = {}
        """Operations whose connections were reset after their delivery, until that is saved."""
        self.event = asyncio.Event()
        """Set when there are deliveries or resets to save."""
        self._disconnected_ids: dict[str, None] = {}
        """Operations whose clients have disconnected, until that is saved for other instances."""
        self._checks: dict[str, tuple[Callable[[], bool], float]] = {}
        """A check of whether the response was acknowledged, and when it was written, by operation
        id."""
        self._receivers: TtlCache[str, frozenset[float]] = TtlCache(
            MAX_RECEIVERS, RESET_SECONDS, monotonic
        )
        """The requests that have received the response to an operation, first attempt or retries, by
        operation id: when each arrived, as all of them may have the client's own request id."""
        self.operations = operations
        self._unsaved_executions = unsaved_executions
        self._monotonic = monotonic
        self._lock = asyncio.Lock()

    def watch(self, record: OperationRecord, is_acknowledged: Callable[[], bool]) -> None:
        """Registers a sent response, and a check of its acknowledgement by the client's TCP."""
        self._checks[record.id] = is_acknowledged, self._monotonic()

    def end(self, record: OperationRecord) -> None:
        """Ends a delivery; an identical request is a retry unless the delivery was recorded."""
        self.pending.pop(record.id, None)
        self._checks.pop(record.id, None)

    def is_delivered(self, record: OperationRecord) -> bool:
        """Whether the client has the response, also if the delivery is not recorded yet."""
        if record.id in self.delivered_ids:
            return True
        is_acknowledged, _ = self._checks.get(record.id, (None, 0.0))
        return is_acknowledged is not None and is_acknowledged()

    def is_acknowledgement_pending(self, record: OperationRecord) -> bool:
        """Whether the response was written so recently that its acknowledgement may be delayed."""
        _, written_at = self._checks.get(record.id, (None, -math.inf))
        return self._monotonic() - written_at < ACKNOWLEDGEMENT_SECONDS

    def record_delivery(self, record: OperationRecord, arrived_at: float | None = None) -> None:
        """Records that the client has the response; it is saved soon after.

        ``arrived_at`` is when the request arrived, if its connection may still be reset.
        """
        if arrived_at is not None:
            receivers = self._receivers.get(record.id) or frozenset()
            self._receivers.put(record.id, receivers | {arrived_at})
        if unsaved := self._unsaved_executions.get(record.id):
            unsaved.is_delivered = True
        self.delivered_ids[record.id] = None
        self.event.set()

    def record_reset(self, record: OperationRecord, arrived_at: float) -> None:
        """Records that the connection was reset: the client may not have read the response.

        It has the response if it came to another request for it, whose connection was not reset.
        """
        receivers = (self._receivers.get(record.id) or frozenset()) - {arrived_at}
        self._receivers.put(record.id, receivers)
        if receivers:
            return
        self.delivered_ids.pop(record.id, None)
        self.reset_ids[record.id] = None
        self.event.set()

    async def record_disconnect(self, execution: OperationExecution) -> None:
        """Records that the client disconnected before it had the response: the next is a retry."""
        execution.is_client_disconnected = True
        if execution.is_saved:
            self._disconnected_ids[execution.operation_record.id] = None
            await self.save_disconnects()

    async def save_deliveries_and_resets(self) -> None:
        """Saves recorded deliveries and resets.

        After a delivery the next identical request is new; after a reset it is a retry.
        """
        self.event.clear()
        # One at a time: a delivery that is saved late must not undo the reset that followed it.
        async with self._lock:
            ids, is_saved = self.take_unsaved(), False
            try:
                await self.operations.mark_answered(ids)
                is_saved = True
            finally:
                self.end_saving(ids, is_saved=is_saved)
            for id_ in list(self.reset_ids):
                await self.operations.reopen(id_)
                self.reset_ids.pop(id_, None)

    def take_unsaved(self) -> Sequence[str]:
        """Takes the deliveries to save, each for one transaction at a time."""
        ids = sorted(self.delivered_ids.keys() - self._saving_ids)
        self._saving_ids.update(ids)
        return ids

    def end_saving(self, ids: Sequence[str], *, is_saved: bool) -> None:
        """Ends what ``take_unsaved`` began; after a failure they are saved again."""
        self._saving_ids.difference_update(ids)
        if not is_saved:
            self.event.set()
            return
        for id_ in ids:
            self.delivered_ids.pop(id_, None)

    async def save_reports_so_far(self) -> None:
        """Saves the deliveries and resets that had reached this machine before the call."""
        # The event loop reports the end of a connection one iteration after it has read the reset.
        for _ in range(2):
            await asyncio.sleep(0)
        # Each sent response looks for its acknowledgement at intervals only, so it may have come.
        for id_, (is_acknowledged, _) in self._checks.items():
            if is_acknowledged():
                self.delivered_ids[id_] = None
        if self.reset_ids or self.delivered_ids:
            await self.save_deliveries_and_resets()

    async def save_disconnects(self) -> None:
        for id_ in list(self._disconnected_ids):
            await self.operations.mark_client_disconnected(id_)
            self._disconnected_ids.pop(id_, None)
