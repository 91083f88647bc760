"""Recipients (legacy interface, section 4.1): eight operations."""

import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain

from msgspec import structs

from mappings import (
    banking,
    legacy,
    payout_changes,
    payouts,
    recipient_bodies,
    recipient_outcomes,
    recipient_queries,
    recipient_reads,
)
from mappings.effects import (
    JSON,
    Answer,
    Call,
    CompareAndSet,
    Flow,
    LegacyOptions,
    LoadFacts,
    Operation,
    Parallel,
    Request,
    SubFlow,
)
from mappings.errors import NOT_FOUND
from mappings.failures import Failure, Invalid, Refused, build_empty_field_problem
from mappings.field_types import is_masked_value
from mappings.lazy_sequences import iterate_chunks
from mappings.list_filters import Filters
from mappings.objects import (
    RECIPIENT,
    build_legacy_payment,
    build_legacy_recipient,
    drop_nulls,
    is_deleted_for_clients,
)
from mappings.outcome_matching import defer_confirmation
from mappings.paging import complete_page_meta, has_counts, parse_page_params, select_page_params
from mappings.payout_changes import PayoutChanges
from mappings.payouts import Recipient

# Create


def create_recipient(request: Request) -> Flow:
    """Answers POST /recipients.

    POST   /recipients               the fields that the current interface takes in a create
    PATCH  /recipients/:id           language and currency, if given
    POST   /recipients/:id/accounts  for each account of a payout, the primary one first
    PATCH  /recipients/:id/accounts/:account  for a wallet with another currency
    GET    /recipients/:id           with a payout, because the accounts decide status and route
    DELETE /recipients/:id           if a later call is refused, to undo the create; repeated after the
                                     answer until the service confirms it

    A recipient that is not deleted yet is stored as deleted, and so never shown to clients.
    """
    body = request.body
    payout = payouts.parse_payout(body.get("payout"), "payout.", request.problems, {})
    changes = PayoutChanges(payout, body, {}, is_replacement=True)
    # Everything is validated before the first call, so that a refused request changes nothing.
    government_ids = [
        *recipient_bodies.extract_ssn_as_government_ids(body),
        *changes.government_ids,
    ]
    request.raise_if_invalid(
        [
            *recipient_bodies.validate_recipient(body, {}),
            *changes.validate(request.options),
            *banking.validate_government_ids(government_ids, {}, request.options),
        ]
    )
    body_to_send = recipient_bodies.build_recipient_creation_body(body, government_ids)
    field_map = {
        **RECIPIENT.map_field_names_to_client(),
        **banking.map_government_id_field_names_to_client(government_ids),
    }
    call = Call(
        "POST",
        "/recipients",
        body_to_send,
        field_map=field_map,
        reconcile=recipient_outcomes.build_recipient_creation_outcome_rule(body_to_send),
        match_fields=recipient_outcomes.select_recipient_match_fields(body_to_send),
    )
    new_recipient = (yield call)["recipient"]
    try:
        recipient = yield from _send_remaining_recipient_values(
            new_recipient, body, changes, request.options
        )
    except Refused as refusal:
        # A 404 is about the new recipient, which the client did not name, so it is hidden.
        refusal_to_show = Refused(500) if refusal.status == 404 else refusal
        # Without the undo, the client's retry would create a second recipient. Recorded before the
        # call, because clients must not see the recipient until it is deleted.
        id_ = new_recipient["id"]
        yield CompareAndSet("recipient", id_, {"deleted": True, "still_there": True})
        with suppress(Refused):  # 404: it does not exist any more
            deletion = defer_confirmation(_build_recipient_deletion(id_))
            yield structs.replace(deletion, undo_of=refusal_to_show)
        yield CompareAndSet("recipient", id_, {"still_there": None})
        raise refusal_to_show from None
    answer = build_legacy_recipient(recipient, changes.holds, request.options)
    return Answer({"recipient": answer}, changes.notices)


def _send_remaining_recipient_values(
    new_recipient: Recipient,
    body: Mapping[str, JSON],
    changes: PayoutChanges,
    options: LegacyOptions,
) -> SubFlow:
    """Sends values that the create call has no fields for; returns the recipient with accounts."""
    path, recipient = f"/recipients/{new_recipient['id']}", new_recipient
    currency_field = recipient_bodies.choose_currency_field(body)
    fields = {"language": body.get("language"), "primaryCurrency": body.get(currency_field)}
    if patch_body := drop_nulls(fields):
        field_map = RECIPIENT.map_field_names_to_client() | {"primaryCurrency": currency_field}
        call = recipient_outcomes.build_recipient_update_call(
            new_recipient["id"], patch_body, field_map
        )
        # A response without the recipient confirms the change, too.
        recipient = {**new_recipient, **((yield call).get("recipient") or patch_body)}
    account_holder = recipient_bodies.merge_new_type_and_name(body, recipient)
    changed = yield from payout_changes.apply_payout_changes(
        PayoutChanges(changes.payout, account_holder, {}, is_replacement=True),
        options,
        is_undone_by_caller=True,
    )
    if changes.payout.accounts:
        # All writes succeeded, so failing now would make the client create a second recipient.
        with suppress(Failure):
            shown = (yield Call("GET", path))["recipient"]
            shown_ids = payouts.collect_account_ids(shown.get("accounts") or ())
            # The service may show it a little later with its accounts.
            if {*payouts.collect_account_ids(changed["accounts"])}.issubset(shown_ids):
                return shown
    return {**recipient, "accounts": changed["accounts"]}


def _build_recipient_deletion(recipient_id: str) -> Call:
    reconcile = recipient_outcomes.build_recipients_deletion_outcome_rule(recipient_id)
    return Call("DELETE", f"/recipients/{recipient_id}", reconcile=reconcile)


# Read


def read_recipient(request: Request) -> Flow:
    """Answers GET /recipients/:id.

    GET /recipients/:id
    """
    recipient, facts = yield from recipient_reads.load_recipient(request.ids["id"])
    return Answer({"recipient": build_legacy_recipient(recipient, facts, request.options)})


def list_recipients(request: Request) -> Flow:
    """Answers GET /recipients.

    GET /recipients  once if the service can answer the query or one page holds all; else to refresh
                     the cached list: the total, the recipients changed since, and the archived ones
                     if the total has shrunk; without a cache, every page
    """
    # Facts of all recipients, because filters by status depend on the stored words.
    facts_by_id = yield LoadFacts("recipient")
    result = yield recipient_queries.build_list_query(request.query, facts_by_id)
    answers = [
        build_legacy_recipient(row, facts_by_id.get(row["id"], {}), request.options)
        for row in result.rows
    ]
    return Answer({"recipients": answers, "meta": result.meta})


def read_recipient_logs(request: Request) -> Flow:
    """Answers GET /recipients/:id/logs.

    GET /recipients/:id
    GET /recipients/:id/logs
    """
    id_ = request.ids["id"]
    _recipient, page = yield from recipient_reads.load_recipient_and_list_page(
        id_, f"/recipients/{id_}/logs", select_page_params(request.query)
    )
    entries = page.get("activities") or []
    meta = complete_page_meta(page, parse_page_params(request.query), len(entries))
    activities = [
        recipient_reads.mask_api_keys_in_log_entry(entry, request.api_keys) for entry in entries
    ]
    return Answer({"activities": activities, "meta": meta})


def read_recipient_payments(request: Request) -> Flow:
    """Answers GET /recipients/:id/payments.

    GET /recipients/:id
    GET /recipients/:id/payments  paged by the service; every page if there are payments to hide or
                                  to add, or a filter, or if the service does not count its pages
    GET /batch/:id/summary        for each batch with stored memos that pays the recipient several
                                  times, to match the memos
    """
    id_, filters = request.ids["id"], Filters.from_query(request.query)
    path, superseded = f"/recipients/{id_}/payments", (yield LoadFacts("abandoned"))
    needs_all = bool(superseded or filters)
    if filters:
        recipient, facts = yield from recipient_reads.load_recipient(id_)
    else:
        (recipient, facts), page = yield from recipient_reads.load_recipient_and_list_page(
            id_, path, select_page_params(request.query)
        )
        # Clients read as many pages as ``meta`` names.
        has_rows = page.get("payments") or "page" in request.query
        needs_all |= bool(has_rows) and not has_counts(page)
    recipient_answer = build_legacy_recipient(recipient, facts, request.options)
    if needs_all:
        visible = (yield recipient_reads.build_visible_payments_query(path, superseded)).rows
        all_payments = [
            *(yield from recipient_reads.restore_original_payment_ids(visible)),
            *(yield from recipient_reads.load_draft_payments(id_)),
        ]
        if filters:
            all_payments = yield from recipient_reads.filter_recipient_payments(
                filters, all_payments, id_, recipient_answer
            )
        # After the payments of drafts are merged in, the service's order is no longer by creation
        # time.
        if superseded:
            all_payments.sort(key=recipient_queries.parse_created_at, reverse=True)
        payments, meta = parse_page_params(request.query).select_rows(all_payments)
    else:
        payments = yield from recipient_reads.restore_original_payment_ids(
            page.get("payments") or []
        )
        meta = complete_page_meta(page, parse_page_params(request.query), len(payments))
    memos = yield from recipient_reads.load_memos_by_payment_id(payments, id_)
    rows = [
        build_legacy_payment({**payment, **memos.get(payment["id"], {})}, recipient_answer)
        for payment in payments
    ]
    return Answer({"payments": rows, "meta": meta})


# Update


def update_recipient(request: Request) -> Flow:
    """Answers PATCH /recipients/:id.

    GET    /recipients/:id                    to find the changed fields
    PATCH  /recipients/:id                    the fields sent, without those that only answers have
    PATCH  /recipients/:id/accounts/:account  with a payout: the changed fields of the wallet
    POST   /recipients/:id/accounts           with a payout: if none exists, or its country changes
    PATCH  /recipients/:id/accounts/:account  with a payout: the changed fields of the bank account
    DELETE /recipients/:id/accounts/:account  for an account that a new one replaces

    If the payout is refused, the recipient's fields are set back to what the service showed. Masked
    ones and ones that were empty stay changed; sending them again is harmless.
    """
    recipient, facts = yield from recipient_reads.load_recipient(request.ids["id"])
    is_late = yield from recipient_reads.is_shown_late(recipient)
    body = recipient_bodies.drop_unchanged_recipient_fields(
        request.body, recipient, is_shown_late=is_late
    )
    options = request.options
    payout = payouts.parse_payout(body.get("payout"), "payout.", request.problems, recipient)
    changes = PayoutChanges(
        payout,
        recipient_bodies.merge_new_type_and_name(body, recipient),
        facts,
        is_shown_late=is_late,
    )
    if is_late and (changes.methods_to_create or changes.methods_to_update):
        yield from recipient_reads.raise_if_account_missing(
            recipient, is_any_added=bool(changes.methods_to_create)
        )
    government_ids = [
        *recipient_bodies.extract_ssn_as_government_ids(body),
        *changes.government_ids,
    ]
    problems = chain(
        recipient_bodies.validate_recipient(body, recipient),
        recipient_bodies.validate_requested_status(body, recipient, facts),
        changes.validate(options),
        banking.validate_government_ids(government_ids, recipient, options, is_shown_late=is_late),
    )
    recipient_reads.raise_if_invalid(request, problems, is_shown_late=is_late)
    fields = recipient_bodies.build_recipient_update_fields(
        body, recipient, facts, government_ids, is_shown_late=is_late
    )
    id_, updated = recipient["id"], {}
    if fields:
        updated = yield from _update_fields(recipient, fields, body, government_ids)
    if status_fact := recipient_bodies.derive_status_fact_change(body, fields, facts, updated):
        yield CompareAndSet("recipient", id_, status_fact)
    try:
        yield from payout_changes.apply_payout_changes(changes, options)
    except Refused as refusal:
        yield from _set_fields_back(recipient, fields, refusal)
        if status_fact:
            yield CompareAndSet("recipient", id_, {"status": facts.get("status")})
        raise
    return Answer({"object": "updated"}, changes.notices)


def _update_fields(
    recipient: Recipient,
    fields: Mapping[str, JSON],
    body: Mapping[str, JSON],
    government_ids: list[banking.ClientGovernmentId],
) -> SubFlow:
    """Changes fields; returns the recipient that the service answers, empty without one."""
    field_map = (
        RECIPIENT.map_field_names_to_client()
        | {"primaryCurrency": recipient_bodies.choose_currency_field(body)}
        | banking.map_government_id_field_names_to_client(government_ids)
    )
    response = yield recipient_outcomes.build_recipient_update_call(
        recipient["id"], fields, field_map, recipient
    )
    updated = response.get("recipient")
    return updated if isinstance(updated, dict) else {}


def _set_fields_back(
    recipient: Recipient, changed_fields: Mapping[str, JSON], refusal: Refused
) -> SubFlow:
    """Undoes a change of fields, as far as the service takes them back; repeated until it does.

    Empty and masked values, as those of government ids, cannot be sent, and only the service makes a
    recipient incomplete.
    """
    old_fields = {name: recipient.get(name) for name in changed_fields if name != "governmentIds"}
    if old_fields.get("status") not in ("active", "suspended"):
        old_fields.pop("status", None)
    fields = {
        name: drop_nulls(value) if isinstance(value, dict) else value
        for name, value in old_fields.items()
        if value and not is_masked_value(value)
    }
    if fields:
        changed_recipient = {**recipient, **changed_fields}
        call = recipient_outcomes.build_recipient_update_call(
            recipient["id"], fields, {}, changed_recipient
        )
        yield structs.replace(defer_confirmation(call), undo_of=refusal)


# Delete


def delete_recipient(request: Request) -> Flow:
    """Answers DELETE /recipients/:id.

    GET    /recipients/:id  an archived recipient does not exist for legacy clients
    DELETE /recipients/:id  archives it; the gateway stores that it is deleted
    """
    id_ = request.ids["id"]
    yield from recipient_reads.load_recipient(id_)
    # Recorded after the call: if the deletion is refused, the recipient still exists for clients.
    yield _build_recipient_deletion(id_)
    yield CompareAndSet("recipient", id_, {"deleted": True})
    return Answer({"object": "deleted"})


def delete_recipients(request: Request) -> Flow:
    """Answers DELETE /recipients.

    GET    /recipients/:id  for each: if one is unknown, none is deleted
    DELETE /recipients      all in one call
    """
    ids = list(dict.fromkeys(request.body["ids"]))
    if not ids:
        request.raise_if_invalid([build_empty_field_problem("ids")])
    if not all(map(RECIPIENT_ID_PATTERN.fullmatch, ids)):
        raise Invalid(NOT_FOUND)
    facts_by_id = yield LoadFacts("recipient", ids=tuple(ids))
    # In chunks, to stop early in a long list.
    for chunk in iterate_chunks(ids, RECIPIENTS_PER_CHUNK):
        results = yield Parallel([Call("GET", f"/recipients/{id_}") for id_ in chunk])
        for id_, result in zip(chunk, results, strict=True):
            if isinstance(result, Exception):
                raise result
            if is_deleted_for_clients(result["recipient"], facts_by_id.get(id_, {})):
                raise Invalid(NOT_FOUND)
    reconcile = recipient_outcomes.build_recipients_deletion_outcome_rule(*ids)
    yield Call("DELETE", "/recipients", {"ids": ids}, field_map={"ids": "ids"}, reconcile=reconcile)
    first, *others = (CompareAndSet("recipient", id_, {"deleted": True}) for id_ in ids)
    yield structs.replace(first, linked=tuple(others))
    return Answer({"object": "deleted"})


RECIPIENTS_PER_CHUNK = 64
RECIPIENT_ID_PATTERN = re.compile("R-[A-Za-z0-9]{1,64}")
_RECIPIENT_PATH, _RECIPIENTS_PATH = "/recipients/{id}", "/recipients"

OPERATIONS = (
    Operation(
        "POST",
        _RECIPIENTS_PATH,
        create_recipient,
        "emulated",
        "several calls, undone if one is refused; language, currency and payout follow the create",
        body_shape=legacy.RecipientBody,
        answer_shape=legacy.RecipientAnswer,
    ),
    Operation(
        "GET",
        _RECIPIENTS_PATH,
        list_recipients,
        "emulated",
        "the gateway applies the filters and sort orders that the service lacks",
        answer_shape=legacy.RecipientsAnswer,
        query_shape=legacy.RecipientsQuery,
    ),
    Operation(
        "DELETE",
        _RECIPIENTS_PATH,
        delete_recipients,
        "emulated",
        "the service archives them; legacy clients no longer see them",
        body_shape=legacy.RecipientIdsBody,
        answer_shape=legacy.ObjectAnswer,
    ),
    Operation(
        "GET",
        _RECIPIENT_PATH,
        read_recipient,
        "lossy",
        "the automatic status `inactive` after 12 months has no counterpart",
        answer_shape=legacy.RecipientAnswer,
    ),
    Operation(
        "PATCH",
        _RECIPIENT_PATH,
        update_recipient,
        "emulated",
        "the gateway stores `disabled` and `inactive`; a payout becomes accounts",
        body_shape=legacy.RecipientBody,
        answer_shape=legacy.ObjectAnswer,
    ),
    Operation(
        "DELETE",
        _RECIPIENT_PATH,
        delete_recipient,
        "emulated",
        "the service archives it; legacy clients no longer see it",
        answer_shape=legacy.ObjectAnswer,
    ),
    Operation(
        "GET",
        f"{_RECIPIENT_PATH}/logs",
        read_recipient_logs,
        "exact",
        "entries pass unchanged, except that keys are masked",
        answer_shape=legacy.ActivitiesAnswer,
        query_shape=legacy.PageQuery,
    ),
    Operation(
        "GET",
        f"{_RECIPIENT_PATH}/payments",
        read_recipient_payments,
        "exact",
        "paged by the service; the gateway adds the payments of drafts and applies filters",
        answer_shape=legacy.PaymentsAnswer,
        query_shape=legacy.FilteredQuery,
        assumption="payments have the fields of the legacy document (current interface, section 2.2)",
    ),
)
