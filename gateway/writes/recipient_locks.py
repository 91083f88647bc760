"""Serializes the writes on one recipient's payout methods, across processes.

See the contract of the translation, section 7, Blocking.
"""

import asyncio
from contextlib import suppress

from gateway.storage.operation_records import Checkpoint
from gateway.storage.state_tables import RECIPIENT_LOCK_KIND
from gateway.writes.executor import MIN_RETRY_AFTER_SECONDS
from gateway.writes.journal import Journal
from gateway.writes.operation_execution import OperationExecution
from gateway.writes.reconciler import WriteReconciler
from gateway.writes.states import IN_DOUBT, RUNNING, UNDONE
from mappings.failures import Failure, Halted, Problem

RECIPIENT_BUSY = Problem(
    "internal_server_error",
    "Another change of this recipient's payout methods is under way; nothing was done. "
    "Try again later.",
)

SERIALIZED_OPERATIONS = frozenset(
    {"create_payout_method", "update_payout_method", "update_recipient"}
)
"""Operations that may read and then write one recipient's accounts."""

_POLL_SECONDS = 0.2
"""Seconds between two attempts to take a lock."""


class RecipientLocks:
    """The locks of all recipients; one object for each process."""

    def __init__(self, journal: Journal, reconciler: WriteReconciler) -> None:
        self._journal = journal
        self._reconciler = reconciler

    async def acquire_recipient_lock(self, execution: OperationExecution, deadline: float) -> None:
        """Waits until no process executes another write on the recipient's payout methods.

        Raises Halted after ``deadline``, by the monotonic clock.
        """
        recipient = execution.request.ids.get("id")
        if (
            # It held the lock when it was interrupted, and holds it until it is closed.
            execution.is_resumed
            or execution.has_recipient_lock
            or execution.operation.name not in SERIALIZED_OPERATIONS
            or recipient is None
        ):
            return
        try:
            # First in this process, in memory: of many waiting requests only one polls the
            # database.
            while earlier := self._find_earlier_execution(execution):
                await self._wait_for_release_or_poll(deadline, earlier.ended)
                # It may have ended in doubt, and still be executed.
                while earlier.ended.is_set() and await self._is_unfinished(
                    earlier.operation_record.id
                ):
                    await self._wait_for_release_or_poll(deadline)
            while (
                self._reconciler.has_other_instances
                and not await self._try_acquire_recipient_lock(execution, recipient)
            ):
                await self._wait_for_release_or_poll(deadline)
        except Failure:
            await execution.close(UNDONE)
            raise

    def is_needed(self, execution: OperationExecution) -> bool:
        """Whether an operation needs the lock of its recipient, for which it has to be saved."""
        return (
            self._reconciler.has_other_instances
            and execution.operation.name in SERIALIZED_OPERATIONS
        )

    def find_lock_to_take(self, execution: OperationExecution) -> str | None:
        """Returns the recipient whose lock an operation takes when it is saved.

        None if it needs no lock, or has to wait for it.
        """
        if not self.is_needed(execution) or self._find_earlier_execution(execution):
            return None
        return execution.request.ids.get("id")

    def _find_earlier_execution(self, execution: OperationExecution) -> OperationExecution | None:
        """Returns an earlier execution in this process that writes to the same recipient."""
        tenant = execution.operation_record.tenant
        # Any id of the recipient: a legacy id and its alias are both among the object ids.
        ids = frozenset(execution.operation_record.object_ids)
        # In order of insertion: the executions before this one started earlier.
        for earlier in self._journal.executions.values():
            if earlier is execution:
                return None
            if (
                not ids.isdisjoint(earlier.operation_record.object_ids)
                and earlier.operation.name in SERIALIZED_OPERATIONS
                and earlier.operation_record.tenant == tenant
            ):
                return earlier
        return None

    async def _wait_for_release_or_poll(
        self, deadline: float, ended: asyncio.Event | None = None
    ) -> None:
        if self._journal.monotonic() > deadline:
            raise Halted(RECIPIENT_BUSY, retry_after=MIN_RETRY_AFTER_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(_POLL_SECONDS):
                await (ended.wait() if ended else asyncio.sleep(_POLL_SECONDS / 4))

    async def _try_acquire_recipient_lock(
        self, execution: OperationExecution, recipient: str
    ) -> bool:
        """Tries to take the lock, which is free once the operation that holds it is closed."""
        record, object_state = execution.operation_record, self._journal.object_state
        holder = (await object_state.load(record.tenant, RECIPIENT_LOCK_KIND, recipient)).get(
            "holder"
        )
        # A closed or deleted holder has left its lock behind, which is free.
        if holder is not None and await self._is_unfinished(str(holder)):
            return False
        # Of several that saw the same holder, one can replace it.
        checkpoint = Checkpoint(recipient_lock=recipient, former_lock_holder=holder)
        return await self._journal.operations.save_checkpoint(record, checkpoint)

    async def _is_unfinished(self, operation_id: str) -> bool:
        """Whether an operation runs; reconciles it if it is in doubt, or raises Halted."""
        row = await self._journal.operations.find_operation(operation_id)
        if row is None or row.state not in (RUNNING, IN_DOUBT):
            return False
        if not self._reconciler.is_operation_executing(row):
            await self._reconciler.reconcile_blocking_write(row)
        return True
