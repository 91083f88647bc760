"""Checks before a batch is started (contract, section 5, Start)."""

from collections import Counter

from mappings import money
from mappings.batch_reads import (
    SUMMARIES_PER_CHUNK,
    WRONG_STATUS,
    build_read_lag_failure,
    has_last_changes,
    is_recent,
    is_recently_changed,
    list_requested_entries,
    require_no_lost_creation,
)
from mappings.batch_views import EDITABLE_STATUSES, SIGNED_ADDS, Batch, derive_batch_status
from mappings.current import SUMMARY_PATH
from mappings.effects import JSON, Call, LoadFacts, Parallel, Request, SubFlow
from mappings.failures import Invalid, Refused
from mappings.lazy_sequences import iterate_chunks
from mappings.matching import Entry, Payment, extract_recipient_id
from mappings.objects import Facts
from mappings.outcome_matching import ShownPayments
from mappings.payloads import extract_batch


def check_start_and_list_notices(request: Request, batch: Batch) -> SubFlow:
    """Returns notices for the operator's log. Raises Invalid if the batch cannot be started.

    Compares the payments about to be made with those requested (``verify_before_start``).
    """
    # Of this version, and after the submission of a draft, which may have been in doubt for long.
    yield from require_not_started_elsewhere(batch.facts)
    # A batch that is known to have no payments pays nothing, so it cannot be started.
    has_no_payments = batch.has_known_payments and not batch.payment_count
    if has_no_payments and batch.entries and is_recently_changed(batch, request.now):
        raise build_read_lag_failure()
    # The service may show it a while as it was before its start.
    is_just_started = is_recent(batch.facts.get("started"), request.now)
    if not batch.is_editable or has_no_payments or is_just_started:
        raise Invalid(WRONG_STATUS)
    yield from require_no_lost_creation(batch)
    # The gateway does not know what was requested of a batch that was created elsewhere.
    if request.options.verify_before_start == "off" or not batch.is_created_by_gateway:
        return ()
    # Payments are compared by content: the service may have given them other ids.
    if (yield from has_upstream_batch_requested_payments(batch)):
        return ()
    if request.options.verify_before_start == "refuse":
        is_up_to_date = has_last_changes(batch, (), request.now)
        raise Invalid(WRONG_STATUS) if is_up_to_date else build_read_lag_failure()
    return ("started a batch whose payments differ from those requested through the gateway",)


def require_not_started_elsewhere(facts: Facts) -> SubFlow:
    """Raises Invalid if a superseded batch of this one is started, which only others can do.

    GET /batch/:id/summary  of each superseded batch, in parallel

    Its payments are those of this batch before an edit, so a start would pay most of them twice.
    Raises the failure of a summary that cannot be read.
    """
    superseded_ids = facts.get("abandoned")
    if not superseded_ids:
        return
    redirects = yield LoadFacts("alias", ids=tuple(superseded_ids))
    if any(redirect.get("started") for redirect in redirects.values()):
        raise Invalid(WRONG_STATUS)
    for ids in iterate_chunks(superseded_ids, SUMMARIES_PER_CHUNK):
        summaries = yield Parallel([Call("GET", SUMMARY_PATH.format(id=id_)) for id_ in ids])
        for summary in summaries:
            if isinstance(summary, Refused) and summary.is_not_found:
                continue  # nobody can start a batch that is deleted
            if isinstance(summary, Exception):
                raise summary
            status = derive_batch_status(extract_batch(summary).get)
            if status is not None and status not in EDITABLE_STATUSES:
                raise Invalid(WRONG_STATUS)


def has_upstream_batch_requested_payments(batch: Batch) -> SubFlow:
    """Whether the service's batch makes the requested payments: recipient, amount and currency.

    The batch may also contain payments that clients have added by signed requests.
    """
    # Payments are counted, because a client may request equal ones, and the service may reorder
    # them.
    requested_counts = Counter(
        _build_requested_payment_key(entry, batch.facts.get("currency"))
        for entry in list_requested_entries(batch)
    )
    unrequested: list[Payment] = []
    for payment in batch.payments:
        side = payment.get("asked_side") or "source"
        amount = money.parse_amount(payment.get(f"{side}Amount"))
        actual_counts = extract_recipient_id(payment), amount, payment.get(f"{side}Currency")
        if requested_counts[actual_counts]:
            requested_counts[actual_counts] -= 1
        else:
            unrequested.append(payment)
    if requested_counts.total():
        return False
    if not unrequested:
        return True
    # Each add explains one payment, so that a payment made twice is noticed.
    shown_payments = ShownPayments(unrequested, batch.currency)
    for added in (yield LoadFacts(SIGNED_ADDS, batch.id)).values():
        shown_payments.take_added(added)
    return not shown_payments.remaining


def _build_requested_payment_key(entry: Entry, currency: JSON) -> tuple[JSON, ...]:
    payee = extract_recipient_id(entry)
    if entry.get("sourceAmount"):
        return payee, money.parse_amount(entry["sourceAmount"]), currency
    return payee, money.parse_amount(entry.get("targetAmount")), entry.get("targetCurrency")
