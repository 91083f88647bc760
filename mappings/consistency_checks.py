"""Compares the gateway's records with the service, for `payout-gateway reconcile`.

The flows only read from the service. Their answers contain ``differences``, each with a ``kind``
and a description (``says``) without personal data. Two differences are also recorded, because the
service is authoritative for them: that a batch was started outside the gateway, and, after a
restore, that the service has a batch.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal

from mappings import money
from mappings.batch_locks import (
    build_external_batch_facts,
    build_unchanged_batch_condition,
    is_batch_unlocked,
)
from mappings.batch_outcomes import fetch_summary_if_exists
from mappings.batch_reads import is_created_between, list_requested_entries, load_batch
from mappings.batch_views import EDITABLE_STATUSES, Batch, derive_batch_status
from mappings.effects import JSON, Answer, Call, CompareAndSet, Flow, LoadFacts, SubFlow
from mappings.failures import Conflict, Invalid, NoSuchOperation, Refused
from mappings.ids import needs_alias_id
from mappings.paging import compute_last_page_to_read, fetch_first_page, load_all_rows
from mappings.payloads import extract_batch
from mappings.recipient_outcomes import fetch_recipient_if_exists
from mappings.start_checks import has_upstream_batch_requested_payments

Difference = Mapping[str, JSON]


def _build_differences_answer(*differences: Difference, **more: JSON) -> Answer:
    return Answer({"differences": list(differences), **more})


def _build_difference(kind: str, description: str, **more: JSON) -> Difference:
    return {"kind": kind, "says": description, **more}


# Batches that the gateway has records of


def find_batch_differences(batch_id: str, now: str, *, is_busy: bool) -> Flow:
    """Compares a batch with GET /batch/:id/summary, unless it is deleted or a draft.

    ``is_busy`` means that a request that writes to the batch is running, so it may be changing now.
    Raises Conflict if the batch was changed concurrently.
    """
    facts = yield LoadFacts("batch", batch_id)
    phase = facts.get("phase")
    stuck = _build_difference(
        "stuck", f"a change of it ({phase}) was started, but no running request continues it"
    )
    # A lock without a running request is one that no process will release.
    stuck_differences = [] if is_batch_unlocked(facts) or is_busy else [stuck]
    if phase == "deleted" or facts.get("upstream") is None:
        return _build_differences_answer(*stuck_differences)
    try:
        batch = yield from load_batch(batch_id)
    except Invalid:  # deleted since
        return _build_differences_answer()
    except Refused as refused:
        if not refused.is_not_found:
            raise
        return _build_differences_answer(
            *stuck_differences, _build_difference("missing", "the service does not have it")
        )
    differences = [
        *stuck_differences,
        *(yield from _find_status_difference_and_record_start(batch, now)),
    ]
    if is_batch_unlocked(facts) and not is_busy:
        differences += yield from _compare_payments(batch)
    return _build_differences_answer(*differences)


def _find_status_difference_and_record_start(batch: Batch, now: str) -> SubFlow:
    status = derive_batch_status(batch.service_fields.get)
    started_at = batch.facts.get("started")
    # While a change is under way, both sides may briefly differ.
    if status is None or not is_batch_unlocked(batch.facts):
        return []
    if started_at and status in EDITABLE_STATUSES:
        start = f"it was started through the gateway at {started_at}"
        return [_build_difference("not_started", f"{start}, but its status there is {status}")]
    if started_at or status in EDITABLE_STATUSES:
        return []
    when = batch.service_fields.get("sentAt") or now
    says = f"it was started outside the gateway ({when}): its status there is {status}"
    # A start through the gateway may be running now, and must not be reported as one from outside.
    expected = {name: batch.facts.get(name) for name in ("phase", "version", "started")}
    yield CompareAndSet("batch", batch.id, {"started": when}, expected=expected)
    return [_build_difference("started_elsewhere", f"{says}; this is now recorded", recorded=True)]


def _compare_payments(batch: Batch) -> SubFlow:
    """Compares the payments as `verify_before_start` does."""
    if not batch.is_created_by_gateway or (yield from has_upstream_batch_requested_payments(batch)):
        return []
    currency = batch.facts.get("currency")
    service_totals = _describe_totals(batch.payments, currency)
    requested_totals = _describe_totals(list_requested_entries(batch), currency)
    difference = f", but {requested_totals} was requested through the gateway"
    if service_totals == requested_totals:
        difference = " as requested, but to other recipients or in other amounts"
    return [_build_difference("payments", f"it pays {service_totals}{difference}")]


def _describe_totals(payments: Sequence[Mapping[str, JSON]], currency: JSON) -> str:
    sums: dict[str, Decimal] = {}
    for payment in payments:
        side = "source" if payment.get("sourceAmount") else "target"
        currency_code = str(currency if side == "source" else payment.get("targetCurrency"))
        amount = money.parse_amount(payment.get(f"{side}Amount")) or Decimal(0)
        sums[currency_code] = money.sum_decimals([sums.get(currency_code, Decimal(0)), amount])
    totals = " and ".join(
        f"{money.format_amount(amount)} {currency_code}"
        for currency_code, amount in sorted(sums.items())
    )
    count = len(payments)
    return f"{count} payment{'' if count == 1 else 's'}" + (f" of {totals}" if totals else "")


# Superseded batches


def find_superseded_batch_differences(upstream: str, now: str) -> Flow:
    """Reports a superseded batch that was started, which must never happen.

    It reads GET /batch/:id/summary.
    """
    summary = yield from fetch_summary_if_exists(upstream)
    if summary is None:
        return _build_differences_answer()
    batch = extract_batch(summary)
    status = derive_batch_status(batch.get)
    if status is None or status in EDITABLE_STATUSES:
        return _build_differences_answer()
    redirect = yield LoadFacts("alias", upstream)
    started_at = redirect.get("started") or batch.get("sentAt") or now
    # Recorded once, so that a later run reports the same time and does not alert again.
    if not redirect.get("started"):
        yield CompareAndSet("alias", upstream, {"started": started_at})
    description = (
        f"it is superseded, but was started outside the gateway ({started_at}): its status there is "
        f"{status}. Its payments were changed or deleted, or another batch pays them"
    )
    difference = _build_difference(
        "abandoned_started", description, alert=True, recorded=not redirect.get("started")
    )
    return _build_differences_answer(difference)


# Batches that the gateway has no records of


def find_batches_without_records(now: str) -> Flow:
    """Reports batches without records, by GET /batches; if that is missing, ``listed`` is None.

    ``unknown`` has the status, the description and the facts to record of each, by its id.
    """
    facts_by_id, redirects = (yield LoadFacts("batch")), (yield LoadFacts("alias"))
    upstream_ids = (facts.get("upstream") for facts in facts_by_id.values())
    known_ids = {*facts_by_id, *redirects, *upstream_ids}
    try:
        rows = yield from load_all_rows("/batches", "batches", probe_ids=())
    except NoSuchOperation:
        return _build_differences_answer(listed=None)
    unknown: dict[str, JSON] = {
        id_: [derive_batch_status(row.get), row.get("description"), _build_facts(id_, row, now)]
        for id_, row in rows.items()
        if id_ not in known_ids
    }
    return _build_differences_answer(listed=len(rows), unknown=unknown)


def _build_facts(id_: str, row: Mapping[str, JSON], now: str) -> dict[str, JSON]:
    """Builds facts as of an import, after which neither service owns the batch yet."""
    is_started = derive_batch_status(row.get) not in (None, *EDITABLE_STATUSES)
    return {
        **build_external_batch_facts(id_),
        "phase": "sent",
        "imported": 0,
        "has_memos": False,
        "createdAt": row.get("createdAt"),
        "started": (row.get("sentAt") or now) if is_started else None,
    }


def record_batch(id_: str, facts: Mapping[str, JSON]) -> Flow:
    """Records a batch, unless a request has recorded it meanwhile, or may be creating it."""
    creations = yield LoadFacts("being created", ids=(id_,))
    if any(is_created_between(facts["createdAt"], times) for times in creations.values()):
        return Answer({"recorded": False})
    alias = CompareAndSet("alias", id_, {}, expected={"abandoned": None, "id": None})
    is_unrecorded = build_unchanged_batch_condition({})
    with suppress(Conflict):
        yield CompareAndSet("batch", id_, facts, expected=is_unrecorded, linked=(alias,))
    return Answer({"recorded": True})


# Recipients


def find_recipients_without_alias_id() -> Flow:
    """Lists recipients with GET /recipients, newest first; ``unnamed`` have no alias id yet.

    Stops after a page without any: older recipients got their alias ids when they were last listed.
    """
    unnamed: list[JSON] = []
    newest = {"orderBy": "createdAt", "sortBy": "desc"}
    body, query = yield from fetch_first_page("/recipients", newest)
    number, pages = 1, 1
    while number <= pages:
        if number > 1:
            body = yield Call("GET", "/recipients", query={**query, "page": str(number)})
        ids = [row["id"] for row in body.get("recipients") or [] if row.get("id")]
        names = yield LoadFacts("legacy id", ids=tuple(ids))
        new = [id_ for id_ in ids if id_ not in names and needs_alias_id("recipient", id_, "all")]
        unnamed += new
        pages = compute_last_page_to_read(body, number, is_new=bool(new))
        number += 1
    return _build_differences_answer(unnamed=unnamed)


def find_deleted_recipient_differences(recipient_id: str) -> Flow:
    """Reports a recipient that clients deleted but that can be paid; calls GET /recipients/:id."""
    facts = yield LoadFacts("recipient", recipient_id)
    recipient = yield from fetch_recipient_if_exists(recipient_id)
    if not recipient or recipient.get("status") == "archived" or not facts.get("deleted"):
        return _build_differences_answer()
    if facts.get("still_there"):
        description = "its creation was refused, and it is not deleted yet"
        return _build_differences_answer(_build_difference("left_over", description))
    description = f"clients deleted it, but its status at the service is {recipient.get('status')}"
    return _build_differences_answer(_build_difference("active_again", description))
