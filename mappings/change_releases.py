"""Ends the changes of batches of an operation that is given up, or that has sent nothing."""

from collections.abc import Mapping, Sequence

from msgspec import structs

from mappings.batch_bodies import build_entry_from_body
from mappings.batch_locks import (
    ADDS,
    SIGNED_CHANGES_KIND,
    build_finished_change_facts,
    build_unchanged_batch_condition,
    identify_lock,
)
from mappings.batch_views import build_batch_record
from mappings.effects import JSON, CompareAndSet, Request
from mappings.ids import derive_deterministic_id
from mappings.lazy_sequences import chain_rows, filter_rows
from mappings.matching import Entry, list_entry_ids
from mappings.objects import Facts


def build_change_release(
    request: Request,
    batch_id: str,
    facts: Mapping[str, JSON],
    signed_changes: Mapping[str, JSON],
    entries: Sequence[Entry] = (),
    *,
    executed_at: str | None = None,
    created_id: str | None = None,
) -> CompareAndSet | None:
    """Builds the record that ends a request's change of a batch; None if it has none.

    ``executed_at`` is the time when the change's last write was executed, None if it was not;
    ``created_id`` is the id of the batch or payment that the write created, if any.
    """
    if request.seed in signed_changes:
        return CompareAndSet(SIGNED_CHANGES_KIND, batch_id, {request.seed: None})
    adds = dict(facts.get(ADDS) or {})
    add = adds.pop(request.seed, None)
    new_facts: dict[str, JSON] = {}
    also: tuple[CompareAndSet, ...] = ()
    # The lock of a signed start has no seed.
    if facts.get("since") in (identify_lock(request), request.now.isoformat()):
        new_facts, also = _build_lock_release(batch_id, facts, executed_at, created_id)
    elif add is None:
        return None
    new_facts[ADDS] = adds or None
    record = CompareAndSet("batch", batch_id, new_facts, linked=also)
    if add is not None and executed_at:
        finished_facts = build_finished_change_facts(facts, "sent")
        new_facts |= {"version": finished_facts["version"], "changed_at": executed_at}
        # As the flow would have stored it: by its own id if the service's is not known.
        own_id = derive_deterministic_id("P", request.seed, batch_id)
        ids = {"id": created_id, "upstream": created_id} if created_id else {"added_as": own_id}
        entry = build_entry_from_body(lambda _body: add["recipient"], request.body) | ids
        record = build_added_payment_record(batch_id, new_facts, entries, entry)
    return structs.replace(record, expected=build_unchanged_batch_condition(facts))


def build_added_payment_record(
    batch_id: str, facts: Facts, entries: Sequence[Entry], added: Entry
) -> CompareAndSet:
    """Builds the record of a batch with the entry of a payment that was added to it."""
    # Another add may have loaded the batch since and stored the payment already.
    id_ = added.get("id")
    others = filter_rows(entries, lambda entry: not id_ or id_ not in list_entry_ids(entry))
    # Without its id at the service, the payment is found by the one it was added as.
    created_ids = [] if id_ else [added["added_as"]]
    record = build_batch_record(batch_id, facts, chain_rows(others, [added]), created_ids)
    redirects = [CompareAndSet("alias", id_, {"batch": batch_id}) for id_ in created_ids]
    return structs.replace(record, linked=(*record.linked, *redirects))


def _build_lock_release(
    batch_id: str, facts: Mapping[str, JSON], executed_at: str | None, created_id: str | None
) -> tuple[dict[str, JSON], tuple[CompareAndSet, ...]]:
    """Returns the facts of a batch whose lock is released, and the changes of redirects to it."""
    phase = facts.get("phase")
    new_phase = "sent" if facts.get("upstream") else "draft"
    if not executed_at:
        # As before: nothing that others have loaded has changed, so they need no conflict, and an
        # imported batch stays unchanged.
        return {"phase": new_phase, "since": None}, ()
    released_facts: dict[str, JSON] = {}
    also: tuple[CompareAndSet, ...] = ()
    # Each phase has one write, and its outcome determines the state of the batch.
    if phase == "deleting":
        new_phase = "deleted"
    elif phase == "starting":
        released_facts = {"started": executed_at}
    elif phase == "making" and created_id:
        new_phase = "sent"
        released_facts = {"upstream": created_id, "is_new": True}
        also = (build_batch_id_redirect(batch_id, facts, created_id),)
        if superseded_id := facts.get("upstream"):
            superseded_ids = [*facts.get("abandoned", []), superseded_id]
            # The new batch at the service has its own currency and description.
            released_facts |= {"abandoned": superseded_ids, "currency": None, "description": None}
            also = (*also, CompareAndSet("alias", superseded_id, {"abandoned": True}))
    return build_finished_change_facts(facts, new_phase) | released_facts, also


def build_batch_id_redirect(
    batch_id: str, facts: Mapping[str, JSON], upstream_id: str
) -> CompareAndSet:
    """Builds the redirect from a batch's new id at the service to its first id."""
    redirect = {"id": batch_id, "createdAt": facts.get("createdAt")}
    return CompareAndSet("alias", upstream_id, redirect)
