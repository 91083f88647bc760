"""Checks before a batch is started (contract, section 5, Start)."""

from __future__ import annotations

from mappings import batch_bodies, money
from mappings.batch_reads import WRONG_STATUS
from mappings.batch_views import Batch
from mappings.effects import JSON, Request
from mappings.failures import Invalid
from mappings.payouts import SubFlow


def check_start_and_list_notices(request: Request, batch: Batch) -> SubFlow:
    """Returns notices for the operator's log. Raises Invalid if the batch cannot be started."""
    # A batch that is known to have no payments pays nothing, so it cannot be started.
    if not batch.is_editable or (batch.has_known_payments and not batch.merged_payments):
        raise Invalid(WRONG_STATUS)
    return (yield from _check_payments_as_requested(batch, request))


def has_start_changed_batch_amount(amount: JSON, batch: Batch) -> bool:
    """Whether the start changed the batch's amount: the service may apply new exchange rates."""
    new, old = money.parse_amount(amount), money.parse_amount(batch.service_fields.get("amount"))
    return None not in (new, old) and new != old


def _check_payments_as_requested(batch: Batch, request: Request) -> SubFlow:
    """Compares the payments about to be made with those requested (``verify_before_start``)."""
    # The gateway does not know what was requested of a batch that was created elsewhere.
    is_made_here = batch.facts.get("createdAt") and not batch.facts.get("elsewhere")
    if request.options.verify_before_start == "off" or not is_made_here:
        return ()
    # Payments are compared by content: the service may have given them other ids.
    if (yield from batch_bodies.has_upstream_batch_requested_payments(batch)):
        return ()
    if request.options.verify_before_start == "refuse":
        raise Invalid(WRONG_STATUS)
    return ("started a batch whose payments differ from those requested through the gateway",)
