"""Reconciles writes whose response was lost, and finishes operations that were interrupted.

A sweep runs in the background. It takes over operations that are in doubt or whose process is dead,
replays each up to the write in question, and determines the outcome of that write from reads of the
service. A request that needs the outcome at once (a retry, the next write on the same object)
reconciles the operation through this class as well.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from functools import partial
from operator import attrgetter
from typing import Self

import structlog

from gateway.auth.key_rows import load_credentials
from gateway.auth.keys import ApiKey
from gateway.observability import logs
from gateway.payloads.worker_thread import run_in_thread_if
from gateway.storage import ObjectStateStore, Store, StoreUnavailable, Tenant
from gateway.storage.expired_responses import clear_expired_responses
from gateway.storage.operation_records import OperationRecord, OperatorOutcomes, OwnershipLostError
from gateway.storage.periodic_tasks import PeriodicTask
from gateway.writes import stored_responses
from gateway.writes.delivery import RESET_SECONDS
from gateway.writes.executor import MIN_RETRY_AFTER_SECONDS, FlowExecutor
from gateway.writes.instance_leases import InstanceLeases
from gateway.writes.journal import Journal
from gateway.writes.operation_execution import OperationExecution
from gateway.writes.outcome_policy import OutcomePolicy
from gateway.writes.states import ANSWERED, DONE, IN_DOUBT, RUNNING, UNDONE
from gateway.writes.step_records import FLOW_CHANGED_REASON
from gateway.writes.write_request import Caller
from mappings import FORWARDED, OPERATIONS, SIGNED, UNLISTED
from mappings.batch_locks import ADDS, SIGNED_CHANGES_KIND
from mappings.change_releases import build_change_release
from mappings.effects import CompareAndSet, Operation, Request
from mappings.errors import OTHER_IN_DOUBT
from mappings.failures import Failure, Halted, Unknown
from mappings.forwarded_writes import FORWARDED_PREFIX

SWEEP_SECONDS = 1.0
MAX_PAUSE_SECONDS = 60.0
"""The first and the longest pause between two attempts to reconcile an operation."""
_MAX_PARALLEL = 2
"""Operations of one environment that are reconciled at a time."""
_RETENTION = timedelta(hours=24)
"""Time for which a client may retry (contract, section 7)."""
_UNREAD_RETENTION = timedelta(seconds=RESET_SECONDS)
"""Time after which a response without an Idempotency-Key is deleted: by then a connection reset no
longer makes the next identical request a retry."""
_EXPIRY_INTERVAL_SECONDS = 60.0
_DELIVERY_DELAY_SECONDS, _SHARED_DELIVERY_DELAY_SECONDS = 0.1, 0.01
"""Seconds in which deliveries are collected, with one process and with several: a commit for each
would delay the client's next request, and the next checkpoint of any operation saves them anyway if
there is one process. If the process is killed meanwhile, the next identical request is a retry,
although the client has the response; so the time is short."""

_OPERATIONS_BY_NAME = {
    operation.name: operation for operation in (*OPERATIONS, *UNLISTED, *SIGNED, *FORWARDED)
}

log = structlog.get_logger()


async def _pause_without_slot(semaphore: asyncio.Semaphore, seconds: float) -> None:
    """Pauses an attempt, and lets others read meanwhile."""
    semaphore.release()
    try:
        await asyncio.sleep(seconds)
    finally:
        await semaphore.acquire()


_Attempt = tuple[str, OperatorOutcomes]
"""An operation, and the outcomes that operators have recorded: a new one is tried at once."""


def _compute_pause_seconds(record: OperationRecord) -> float:
    """Doubles with each attempt so far, which are as many as the operation was taken over."""
    doublings = min(record.fence + 1, 10)  # more would exceed the longest pause by far
    return min(SWEEP_SECONDS * 2.0**doublings, MAX_PAUSE_SECONDS)


async def build_change_releases(
    object_state: ObjectStateStore,
    record: OperationRecord,
    request: Request,
    *,
    executed_at: str | None = None,
    created_id: str | None = None,
) -> list[CompareAndSet]:
    """Builds the records that end an operation's changes of its batches.

    The arguments are those of ``build_change_release``.
    """
    # By batch, which a request may name by several of its ids.
    releases: dict[str, CompareAndSet] = {}
    for id_ in record.object_ids:
        batch_id = await object_state.find_first_id(record.tenant, id_)
        facts = await object_state.load(record.tenant, "batch", batch_id)
        signed_changes = await object_state.load(record.tenant, SIGNED_CHANGES_KIND, batch_id)
        # Only an executed add is recorded among them.
        has_add = executed_at and facts.get(ADDS)
        payments = await object_state.load(record.tenant, "payments", batch_id) if has_add else {}
        if release := build_change_release(
            request,
            batch_id,
            facts,
            signed_changes,
            payments.get("entries", ()),
            executed_at=executed_at,
            created_id=created_id,
        ):
            releases[batch_id] = release
    return [*releases.values()]


class WriteReconciler:
    """Reconciles operations in doubt; sweeps in the background inside its ``async with`` block."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        executor: FlowExecutor,
        policy: OutcomePolicy,
        leases: InstanceLeases,
    ) -> None:
        self._store = store
        self.has_other_instances = not store.is_of_one_process
        """Whether other processes may use the same database."""
        self._journal = journal
        self._executor = executor
        executor.expedite_operations = self._expedite
        self._policy = policy
        self._leases = leases
        self._due_at: dict[_Attempt, float] = {}
        """When the next attempt is due, by the monotonic clock."""
        # Apart from each other: a service that hangs may delay the sweep.
        self._periodic_tasks = (
            # More often than a renewal is due, so that resets are saved early.
            PeriodicTask(
                "lease_renewal",
                leases.renewal_seconds / 4,
                partial(leases.save_reports_and_renew, journal.deliveries.save_reports_so_far),
                runs_at_stop=False,
            ),
            PeriodicTask("in_doubt_check", SWEEP_SECONDS, self._sweep, runs_at_stop=False),
        )
        self._delivery_task: asyncio.Task[None] | None = None
        self._attempts: dict[str, asyncio.Task[None]] = {}
        # One limit for each environment: a sandbox that hangs must not delay live.
        self._semaphores = defaultdict[str, asyncio.Semaphore](
            lambda: asyncio.Semaphore(_MAX_PARALLEL)
        )
        self._expired_at = 0.0

    async def __aenter__(self) -> Self:
        await self._leases.register()
        for task in self._periodic_tasks:
            await task.__aenter__()
        self._delivery_task = asyncio.create_task(self._save_deliveries_as_recorded())
        return self

    async def __aexit__(self, *_: object) -> None:
        for periodic_task in self._periodic_tasks:
            await periodic_task.__aexit__()
        # What the last sweep has started, too. A delivery that is being saved is saved again below.
        tasks = [*self._attempts.values(), *filter(None, [self._delivery_task])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await self._journal.deliveries.save_deliveries_and_resets()
            await self._leases.unregister()
        except StoreUnavailable as unavailable:
            log.error("database_unavailable", reason=str(unavailable))

    def build_in_doubt_error(self, record: OperationRecord) -> Halted:
        """Builds the refusal of a request while another on the same object is in doubt."""
        retry_after = max(self._policy.seconds_until_conclusive(record), MIN_RETRY_AFTER_SECONDS)
        return Halted(OTHER_IN_DOUBT, retry_after=retry_after)

    async def take_over(
        self, record: OperationRecord, operation: Operation
    ) -> OperationExecution | None:
        """Takes over an operation; None if another process or request has it."""
        execution = await self._journal.take_over(record, operation)
        if execution is not None:
            self._policy.record_takeover(execution, record)
        return execution

    async def reconcile(
        self, record: OperationRecord, pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> bool:
        """Takes over an operation and finishes it; False if that is not possible yet."""
        if record.is_forwarded and not await self._has_news_of_forwarded(record):
            return False
        operation = _OPERATIONS_BY_NAME.get(record.operation)
        execution = await self.take_over(record, operation) if operation else None
        if execution is None:
            return False
        # Nothing that needs a waiting client, such as a start, may be sent.
        execution.is_client_waiting = False
        execution.pause = pause
        try:
            return await self._replay_flow_to_end(execution)
        except OwnershipLostError:
            return False
        finally:
            self._journal.release(execution)

    async def reconcile_blocking_write(self, record: OperationRecord) -> None:
        """Reconciles an operation that no process executes; raises Halted if it stays in doubt."""
        if await self.reconcile(record):
            return
        # It may have ended, or have been taken over, since the record was read.
        row = await self._journal.operations.find_operation(record.id)
        if row and row.state in (RUNNING, IN_DOUBT) and not self.is_operation_executing(row):
            raise self.build_in_doubt_error(record)

    async def save_unsaved_forwarded_outcomes(self, tenant: Tenant) -> None:
        """Ends forwarded writes whose outcomes only this process knows, because of a failed commit."""
        for id_, unsaved in list(self._journal.unsaved_executions.items()):
            if (
                not unsaved.operation_record.is_forwarded
                or unsaved.operation_record.tenant != tenant
            ):
                continue
            row = await self._journal.operations.find_operation(id_)
            if row is not None and row.state in (RUNNING, IN_DOUBT):
                await self.reconcile(row)
            if execution := self._journal.executions.get(id_):  # the sweep ends it
                await execution.ended.wait()

    async def may_have_forwarded_unrecorded_batch(self, tenant: Tenant) -> bool:
        """Whether a process forwards a ``POST /batches``, or one has no recorded response."""
        return await self._journal.operations.is_any_unfinished(
            tenant, f"{FORWARDED_PREFIX}create_batch"
        )

    async def _has_news_of_forwarded(self, record: OperationRecord) -> bool:
        """Whether a forwarded write may end now: reads of the gateway would find out nothing."""
        if record.state == RUNNING or record.id in self._journal.unsaved_executions:
            return True
        return bool(await self._journal.operations.load_operator_outcomes([record.id]))

    async def _replay_flow_to_end(self, execution: OperationExecution) -> bool:
        record = execution.operation_record
        if not execution.writes and await self.close_unsent_operation(execution):
            return True
        try:
            flow = execution.operation.flow(execution.request)
            caller = await self._build_caller(record, execution)
            answer = await self._executor.execute(flow, caller, (), execution)
        except Unknown as unknown:
            if str(unknown) == FLOW_CHANGED_REASON and not execution.writes:
                # Its response is lost: a retry would add the payments of a draft again.
                await execution.close(DONE)
                self._log_resolved(record, "succeeded")
                return True
            await execution.leave_in_doubt(str(unknown))
            return False
        except Failure as failure:
            if execution.is_failed_read(failure):
                self._policy.record_failed_read(record.tenant)
                await execution.leave_in_doubt("the service cannot be read")
                return False
            # A stored response is a refusal that answered its client before the undo was confirmed.
            await execution.close(ANSWERED if record.response else UNDONE, record.response)
            self._log_resolved(record, "not_executed", **{"error.type": failure.error_type})
        # What a flow raises if it cannot read an answer. After a failed commit nothing more is saved.
        except (AttributeError, LookupError, TypeError, ValueError):
            # If it stayed running, operators would not see it, because it would seem to progress.
            await execution.leave_in_doubt("an answer of the service has an unexpected form")
            raise
        else:
            if execution.operation.method == "GET":
                await execution.close()
            else:
                # Stored, because a retry may reach another version, which cannot replay this flow.
                # The response to a forwarded write is known only if it could not be saved then.
                stored = execution.response or await run_in_thread_if(
                    caller.is_long, stored_responses.encode_answer, answer
                )
                # A retry with the Idempotency-Key of a delivered response gets it again.
                await (
                    execution.close(answer=stored)
                    if execution.is_delivered
                    else execution.finish(stored)
                )
            self._log_resolved(record, "succeeded")
        return True

    async def close_unsent_operation(self, execution: OperationExecution) -> bool:
        """Closes an operation that has neither sent a write nor changed a batch; releases its locks.

        The rest is left to the client, which may have seen that nothing was done. Returns False if
        the operation is complete except for its response: it has changed what only the gateway has,
        as a draft.
        """
        record, object_state = execution.operation_record, self._journal.object_state
        saved = await self._journal.operations.find_operation(record.id)
        releases = (
            await build_change_releases(object_state, saved, execution.request) if saved else []
        )
        has_changed = any(outcome is None for _, outcome in execution.recorded_steps)
        if has_changed and not releases:
            return False
        await execution.close(UNDONE, object_changes=releases)
        self._log_resolved(record, "not_executed")
        return True

    async def _build_caller(self, record: OperationRecord, execution: OperationExecution) -> Caller:
        credentials = await load_credentials(self._store, record.tenant)
        merchant, environment = record.tenant
        # Built from the record, because the key may have been revoked since.
        key = ApiKey(
            record.key_id, record.key_name, "", merchant, environment, credentials, None, ()
        )
        return Caller(key, record.request_id, execution=execution)

    def _log_resolved(self, record: OperationRecord, outcome: str, **fields: str) -> None:
        log.warning(
            "in_doubt_write_resolved",
            outcome=outcome,
            operation=record.operation,
            merchant=record.tenant.merchant,
            environment=record.tenant.environment,
            request_id=record.request_id,
            write_id=record.id,
            **fields,
        )

    async def wait_for_saved_connection_resets(
        self, record: OperationRecord, deadline: float
    ) -> None:
        """Waits until other processes have saved the deliveries and resets that reached them by now.

        They are the processes that deliver, or delivered, the response to an identical request: a
        client that gave up without reading it may retry here before the other process has noticed.
        Call it before the related operations are read. ``deadline`` is by the monotonic clock;
        raises Unknown when it has passed.
        """
        since = self._journal.compute_time_before(_UNREAD_RETENTION)
        instances = await self._journal.operations.list_delivering_instances(record, since)
        if not instances:
            return
        try:
            async with asyncio.timeout(deadline - self._journal.monotonic()):
                await self._leases.wait_for_saved_resets(instances)
        except TimeoutError:
            raise Unknown(
                "it is not known whether the client received the first response",
                retry_after=MIN_RETRY_AFTER_SECONDS,
            ) from None

    # The sweep

    async def _sweep(self) -> None:
        await self._journal.deliveries.save_disconnects()
        await self.start_due_reconciliations()
        await self._close_and_clear_expired_operations()

    async def start_due_reconciliations(self) -> None:
        """Lists every unfinished operation once, and starts to reconcile those that are due."""
        unsaved_ids = set(self._journal.unsaved_executions)
        rows = await self._journal.operations.list_unfinished_without_requests()
        await self.load_leases_of_operations(rows)
        orphans = [record for record in rows if not self.is_operation_executing(record)]
        # Those that were tried least come first: others may be ones that can never be read.
        orphans.sort(key=attrgetter("fence"))
        # Executions that started after the rows were read are open too, but not among them.
        self._forget_closed_operations(
            {record.id for record in rows} | (self._journal.unsaved_executions.keys() - unsaved_ids)
        )
        now = self._policy.monotonic()
        outcomes = (
            await self._journal.operations.load_operator_outcomes([record.id for record in orphans])
            if orphans
            else {}
        )
        for record in orphans:
            attempt = record.id, outcomes.get(record.id, ())
            if attempt not in self._due_at:
                # A read right after it was sent has not shown it: the next one is due when it proves.
                is_read_too_early = not attempt[1] and self._policy.is_waiting_for_proof(record)
                wait = self._policy.seconds_until_conclusive(record) if is_read_too_early else 0
                self._due_at[attempt] = now + wait
            is_due = self._due_at[attempt] <= now and self._policy.is_readable(record.tenant)
            if is_due and record.id not in self._attempts:
                self._attempts[record.id] = asyncio.create_task(
                    self._try_reconcile(record, attempt)
                )

    def _expedite(self, operation_ids: Iterable[str]) -> None:
        self._due_at |= {(id_, ()): 0.0 for id_ in operation_ids}

    async def _try_reconcile(self, record: OperationRecord, attempt: _Attempt) -> None:
        try:
            semaphore = self._semaphores[record.tenant.environment]
            async with semaphore:
                # One that was read meanwhile may have failed; this one stays due.
                if not self._policy.is_readable(record.tenant) or await self.reconcile(
                    record, partial(_pause_without_slot, semaphore)
                ):
                    return
        except StoreUnavailable as unavailable:
            log.error("in_doubt_write_not_resolved", write_id=record.id, reason=str(unavailable))
        except Exception as error:  # noqa: BLE001 - others must go on
            log.error(
                "in_doubt_write_not_resolved",
                write_id=record.id,
                **logs.describe_exception(error),
            )
        finally:
            del self._attempts[record.id]
        inconclusive_seconds = self._policy.seconds_until_conclusive(record)
        # Jitter, so that operations or processes that wait for each other do not stay in step.
        pause_seconds = _compute_pause_seconds(record) * random.uniform(0.8, 1.0)  # noqa: S311
        # At the moment from which a missing object proves something: an earlier reading would only
        # load the service, and a client that waits makes its own.
        if inconclusive_seconds and self._policy.is_waiting_for_proof(record):
            pause_seconds = inconclusive_seconds
        elif inconclusive_seconds:
            pause_seconds = min(pause_seconds, inconclusive_seconds)
        self._due_at[attempt] = self._policy.monotonic() + pause_seconds

    async def load_leases_of_operations(self, records: Iterable[OperationRecord]) -> None:
        """Loads the leases of the operations' instances; call it before ``is_operation_executing``."""
        active_states = (RUNNING, DONE)
        await self._leases.refresh_if_any_unknown(
            record.instance for record in records if record.state in active_states
        )

    def is_operation_executing(self, record: OperationRecord) -> bool:
        """Whether a live process is executing the operation."""
        if record.id in self._journal.executions:
            return True
        is_own = self.is_own(record)
        return (
            record.state == RUNNING
            and not is_own
            and self._leases.is_instance_alive(record.instance)
        )

    def is_own(self, record: OperationRecord) -> bool:
        return record.instance == self._journal.instance

    def is_owned_by_other(self, record: OperationRecord) -> bool:
        """Whether another live process has the operation, or had it last."""
        return not self.is_own(record) and self._leases.is_instance_alive(record.instance)

    def _forget_closed_operations(self, open_ids: set[str]) -> None:
        self._due_at = {key: due_at for key, due_at in self._due_at.items() if key[0] in open_ids}
        self._policy.forget_closed_operations(open_ids)
        self._journal.forget_closed_operations(open_ids)

    async def _close_and_clear_expired_operations(self) -> None:
        compute_time_before = self._journal.compute_time_before
        retention_start = compute_time_before(_RETENTION)
        # Both, as a retry that came in time may be decided only when its body has arrived.
        unread_retention = _UNREAD_RETENTION + timedelta(seconds=self._journal.replay_seconds)
        # With each sweep, so that never many have expired.
        await clear_expired_responses(
            self._store, retention_start, compute_time_before(unread_retention)
        )
        if self._journal.monotonic() - self._expired_at > _EXPIRY_INTERVAL_SECONDS:
            await self._journal.operations.close_expired_operations(retention_start)
            self._expired_at = self._journal.monotonic()

    async def _save_deliveries_as_recorded(self) -> None:
        """Marks operations as answered as soon as their clients have received the response."""
        deliveries, is_healthy = self._journal.deliveries, True
        delay = (
            _SHARED_DELIVERY_DELAY_SECONDS if self.has_other_instances else _DELIVERY_DELAY_SECONDS
        )
        while True:
            await deliveries.event.wait()
            await asyncio.sleep(delay if is_healthy else SWEEP_SECONDS)
            try:
                await deliveries.save_deliveries_and_resets()
                is_healthy = True
            except StoreUnavailable as unavailable:
                if is_healthy:  # logged once, until the database is available
                    log.error("database_unavailable", reason=str(unavailable))
                is_healthy = False
            except Exception as error:  # noqa: BLE001 - the loop must not end
                log.error("delivery_not_recorded", **logs.describe_exception(error))
                is_healthy = False
            if not is_healthy:
                deliveries.event.set()  # retry, even if no other response is delivered
