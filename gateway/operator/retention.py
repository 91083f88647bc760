"""Deletes data that has expired (``[retention]``), and erases a recipient's data on request.

Data that prevents double payments is kept while it is needed. Erasure leaves data that payments need
and that is not personal: ids, the outcome of writes for the configured time, and whether a recipient
is deleted.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import structlog
from sqlalchemy import and_, delete, exists, func, select, text, tuple_

from gateway.config.settings import Retention
from gateway.operator import ActionRefused
from gateway.storage import ObjectStateStore, Store, Tenant
from gateway.storage.audit_log import RECIPIENT_ERASED, record_audit_event
from gateway.storage.change_poller import build_erasure_count_name, increment_change_count
from gateway.storage.database import Transaction
from gateway.storage.id_rows import load_current_ids_by_legacy_id, load_legacy_ids
from gateway.storage.operations import OperationRepository
from gateway.storage.periodic_tasks import PeriodicTask
from gateway.storage.request_counts import delete_old_request_counts, delete_old_usage
from gateway.storage.state_tables import batch_payments, signed_changes
from gateway.storage.tables import (
    UNSEEN_BATCH_CONDITION,
    audit_events,
    brownouts,
    operation_objects,
    operation_steps,
    operations,
    text_chunks,
    upstream_writes,
)
from gateway.writes.states import ANSWERED, SENT, UNDONE
from mappings.batch_locks import build_unchanged_batch_condition
from mappings.effects import CompareAndSet
from mappings.failures import Conflict
from mappings.lazy_sequences import map_rows
from mappings.signed_writes import CHANGE

SWEEP_INTERVAL_SECONDS = 3600.0

MAX_ROWS_PER_TRANSACTION = 200
"""Rows deleted in one transaction: on SQLite, every other write waits for it."""

UNFINISHED_TIMEOUT_SECONDS, PAUSE_SECONDS = 5.0, 0.25

MAX_OPERATIONS_EXAMINED = 1000
"""Oldest operations to examine in one pass. Those that never end stay among them."""

SETTLED_PHASES = ("sent", "deleted")
"""Phases of a batch in which nothing stored about its payments will be sent."""

IMPERSONAL_FACTS = ("deleted", "still_there", "status")
"""Facts of a recipient that are not personal: whether it may be paid or shown."""

SIGNED_CHANGES_DAYS = 1
"""Days after which a signed change has long ended."""

log = structlog.get_logger()


class ErasureCounts(NamedTuple):
    """Counts of erased data. ``answers``: stored answers that remain and expire within a day."""

    payments: int
    batches: int
    facts: int
    answers: int


class RetentionTask(PeriodicTask):
    """Deletes expired data every hour while it is open."""

    def __init__(self, store: Store, settings: Retention) -> None:
        super().__init__(
            "retention", SWEEP_INTERVAL_SECONDS, self._delete_all_expired, runs_at_stop=False
        )
        self._store = store
        self._settings = settings

    async def _delete_all_expired(self) -> None:
        # Each step checks whether the gateway is stopping, so that shutdown does not wait for a
        # sweep.
        deleted = await delete_expired_data(self._store, self._settings, lambda: self.is_stopping)
        await delete_old_request_counts(self._store)
        if any(deleted.values()):
            counts = {f"{name}_rows": count for name, count in deleted.items()}
            log.info("retention_deleted", **counts)


# Expiry


async def delete_expired_data(
    store: Store, settings: Retention, is_ending: Callable[[], bool] = lambda: False
) -> dict[str, int]:
    """Deletes expired data. Returns the number of rows by kind; raises StoreUnavailable."""
    deleted_counts: dict[str, int] = {}
    for name, days, delete_rows in (
        ("journal", settings.journal_days, _delete_old_operations),
        ("texts", settings.texts_days, _strip_personal_data_of_old_payments),
        ("usage", settings.usage_days, _delete_old_usage_and_brownouts),
        ("audit", settings.audit_days, _delete_old_audit_events),
        ("signed", SIGNED_CHANGES_DAYS, _delete_old_signed_changes),
    ):
        deleted_counts[name] = (
            await _delete_old_rows_in_steps(delete_rows, store, days, is_ending) if days else 0
        )
    return deleted_counts


async def _delete_old_rows_in_steps(
    delete_rows: Callable[[Store, datetime], Awaitable[int]],
    store: Store,
    days: int,
    is_ending: Callable[[], bool],
) -> int:
    """Deletes in steps of ``MAX_ROWS_PER_TRANSACTION`` rows. Returns the number of deleted rows."""
    before, deleted = store.compute_time_before(timedelta(days=days)), 0
    while not is_ending():
        step_count = await delete_rows(store, before)
        deleted += step_count
        if step_count < MAX_ROWS_PER_TRANSACTION:
            break
        await asyncio.sleep(0)  # let waiting writers proceed
    return deleted


async def _delete_old_operations(store: Store, before: datetime) -> int:
    """Deletes ended operations and their writes, except the newest.

    The high-water mark, which detects a restored state, depends on the newest.
    """
    has_open_write = exists().where(
        upstream_writes.c.operation_id == operations.c.id, upstream_writes.c.state == SENT
    )
    newest_number = select(func.max(operations.c.number)).scalar_subquery()
    # Without it, a batch that may exist could be started. A signed one may be started anyway.
    may_exist = select(upstream_writes.c.operation_id).where(
        text(f"upstream_writes.{UNSEEN_BATCH_CONDITION}"), operations.c.operation != CHANGE.name
    )
    # Numbers increase with the start time, so the oldest come first. Limited: there may be
    # millions.
    may_expire = operations.c.id.not_in(may_exist)
    by_number = select(operations.c.id).where(may_expire).order_by(operations.c.number)
    oldest = by_number.limit(MAX_OPERATIONS_EXAMINED).subquery()
    is_expired = and_(
        operations.c.id.in_(select(oldest.c.id)),
        operations.c.state.in_((ANSWERED, UNDONE)),
        operations.c.started_at < before,
        operations.c.number != newest_number,
        ~has_open_write,
    )
    expired = select(operations.c.id).where(is_expired).limit(MAX_ROWS_PER_TRANSACTION)

    async def delete_rows(tx: Transaction) -> int:
        ids = [row.id for row in await tx.fetch(expired)]
        # Before the operations themselves, to which they refer.
        for table in (operation_steps, operation_objects, upstream_writes):
            await tx.execute(delete(table).where(table.c.operation_id.in_(ids)))
        await tx.execute(delete(text_chunks).where(text_chunks.c.holder.in_(ids)))
        await tx.execute(delete(operations).where(operations.c.id.in_(ids)))
        return len(ids)

    return await store.write(delete_rows)


async def _strip_personal_data_of_old_payments(store: Store, before: datetime) -> int:
    """Deletes names, addresses and memos of payments in batches that were not changed since."""
    table = batch_payments.c
    old_payments = select(table.merchant, table.environment, table.id).where(
        table.updated_at < before
    )
    oldest_payments = old_payments.order_by(table.updated_at).limit(MAX_ROWS_PER_TRANSACTION)
    rows = await store.fetch(oldest_payments)
    ledger, stripped_count = ObjectStateStore(store), 0
    for row in rows:
        with suppress(Conflict):  # changed concurrently, so it is not old any more
            await _strip_payments(ledger, Tenant(row.merchant, row.environment), row.id)
            stripped_count += 1
    return stripped_count


def _is_batch_settled(batch_facts: Mapping[str, Any]) -> bool:
    return batch_facts.get("phase", "sent") in SETTLED_PHASES


async def _strip_payments(
    ledger: ObjectStateStore, owner: Tenant, batch: str, recipient_ids: frozenset[str] | None = None
) -> None:
    """Strips the payments of a batch, or those to a recipient; of a draft none.

    They are saved even if nothing is stripped: the new timestamp keeps them out of the next passes.
    Raises Conflict if the batch has changed since, or is a draft that contains the recipient.
    """
    batch_facts = await ledger.load(owner, "batch", batch)
    entries: Sequence[Mapping[str, Any]]
    entries = (await ledger.load(owner, "payments", batch)).get("entries", [])

    def strip(entry: Mapping[str, Any]) -> Mapping[str, Any]:
        is_other = recipient_ids is not None and entry["recipient"].get("id") not in recipient_ids
        return entry if is_other else strip_personal_data_from_payment(entry)

    facts: dict[str, Any] = {}
    if _is_batch_settled(batch_facts):
        facts = {"entries": map_rows(strip, entries)}
    elif recipient_ids:
        raise Conflict
    # The ids of a submitted draft's payments are saved without a new version.
    expected_facts = build_unchanged_batch_condition(batch_facts)
    expected_facts["is_new"] = batch_facts.get("is_new")
    change = CompareAndSet("payments", batch, facts)
    record = CompareAndSet("batch", batch, {}, expected_facts, linked=(change,))
    await ledger.compare_and_set_all(owner, [record])


def strip_personal_data_from_payment(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a payment without the memo and without all recipient fields but the id."""
    impersonal_fields = {name: value for name, value in entry.items() if name != "memo"}
    payee = {name: id_ for name, id_ in entry["recipient"].items() if name == "id"}
    return {**impersonal_fields, "recipient": payee}


async def _delete_old_signed_changes(store: Store, before: datetime) -> int:
    table = signed_changes.c
    key_columns = (table.merchant, table.environment, table.id)
    is_old = table.updated_at < before
    is_selected = tuple_(*key_columns).in_(
        select(*key_columns).where(is_old).limit(MAX_ROWS_PER_TRANSACTION)
    )
    old_changes = delete(signed_changes).where(is_old, is_selected)
    return await store.execute(old_changes)


async def _delete_old_usage_and_brownouts(store: Store, before: datetime) -> int:
    async def delete_rows(tx: Transaction) -> int:
        # Not in steps: these tables have a row for each key, operation and day.
        brownout_count = await tx.execute(delete(brownouts).where(brownouts.c.ends_at < before))
        return brownout_count + await delete_old_usage(tx, before)

    return await store.write(delete_rows)


async def _delete_old_audit_events(store: Store, before: datetime) -> int:
    old_events = delete(audit_events).where(audit_events.c.at < before)
    return await store.execute(old_events)


# Erasure on request


async def erase_recipient(store: Store, owner: Tenant, recipient: str) -> ErasureCounts:
    """Erases a recipient's personal data of one tenant. Raises ActionRefused or StoreUnavailable.

    Ids stay, and whether the recipient is deleted or may not be paid.
    """
    ledger = ObjectStateStore(store)
    recipient_ids = await _load_all_ids_of_recipient(store, owner, recipient)
    await _wait_for_unfinished_operations(store, owner)
    operations = OperationRepository(store, ledger)
    records = await operations.list_by_object(owner, recipient_ids)
    answers = sum(record.response is not None for record in records)
    payments_by_batch = await ledger.load_facts_by_id(owner, "payments")
    payments = [
        (batch, entry)
        for batch, facts in payments_by_batch.items()
        for entry in facts.get("entries", [])
        if entry["recipient"].get("id") in recipient_ids
    ]
    # The payments of a draft are still to be sent, and the service needs the memo and the name.
    draft_batches = [
        batch
        for batch in dict(payments)
        if not _is_batch_settled(await ledger.load(owner, "batch", batch))
    ]
    if draft_batches:
        raise ActionRefused(
            f"draft batches contain this recipient: {', '.join(sorted(draft_batches))}; "
            "remove the payments, or start or delete the batches first"
        )
    # An earlier erasure may have left nothing.
    payment_counts = Counter(
        batch for batch, entry in payments if strip_personal_data_from_payment(entry) != entry
    )
    # Each batch with a compare-and-set: a client may edit it right now.
    for batch in payment_counts:
        try:
            await _strip_payments(ledger, owner, batch, recipient_ids)
        except Conflict:
            raise ActionRefused(f"batch {batch} is being changed right now; try again") from None
    fact_counts = [
        await _delete_personal_recipient_facts(ledger, owner, name)
        for name in sorted(recipient_ids)
    ]

    async def record_erasure(tx: Transaction) -> None:
        # Also if nothing is stored: processes may have the recipient in their caches.
        await increment_change_count(tx, build_erasure_count_name(owner))
        if payment_counts or any(fact_counts):
            await record_audit_event(store, tx, RECIPIENT_ERASED, owner)

    # Last: if a step above fails, the audit log must not say that the data was erased.
    await store.write(record_erasure)
    return ErasureCounts(payment_counts.total(), len(payment_counts), sum(fact_counts), answers)


async def _load_all_ids_of_recipient(store: Store, owner: Tenant, recipient: str) -> frozenset[str]:
    """Returns all ids of a recipient: the given one, the service's and the legacy one."""
    current_ids = await load_current_ids_by_legacy_id(store, owner, [recipient])
    ids = {recipient, *current_ids.values()}
    return frozenset(ids.union((await load_legacy_ids(store, owner, ids)).values()))


async def _wait_for_unfinished_operations(store: Store, owner: Tenant) -> None:
    """Waits for the tenant's unfinished operations, because one could write erased data again, and
    its recipient may not be known yet. Raises ActionRefused if they do not end in time.
    """
    repository = OperationRepository(store, ObjectStateStore(store))
    unfinished = await repository.list_unfinished()
    unfinished_ids, waited_seconds = {each.id for each in unfinished if each.tenant == owner}, 0.0
    while unfinished_ids and waited_seconds < UNFINISHED_TIMEOUT_SECONDS:
        await asyncio.sleep(PAUSE_SECONDS)
        waited_seconds += PAUSE_SECONDS
        unfinished_ids &= {record.id for record in await repository.list_unfinished()}
    if unfinished_ids:
        raise ActionRefused(
            "writes of this merchant are in progress or in doubt and may concern this recipient; "
            "see `payout-gateway writes unsettled`, and try again when there are none"
        )


async def _delete_personal_recipient_facts(
    ledger: ObjectStateStore, owner: Tenant, name: str
) -> int:
    facts = await ledger.load(owner, "recipient", name)
    removed_facts = {fact: None for fact in facts if fact not in IMPERSONAL_FACTS}
    if removed_facts:
        await ledger.compare_and_set_all(owner, [CompareAndSet("recipient", name, removed_facts)])
    return len(removed_facts)
