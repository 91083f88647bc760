"""Recipients (legacy interface, section 4.1): eight operations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from mappings import (
    found,
    government_ids,
    legacy,
    money,
    payout_changes,
    payouts,
    recipient_bodies,
    recipient_queries,
    settling,
)
from mappings.banking import empty
from mappings.batch_reads import is_missing, load_batches
from mappings.batch_views import build_batch, is_draft
from mappings.errors import NOT_FOUND
from mappings.grammar import (
    JSON,
    Answer,
    Call,
    Failure,
    Find,
    Flow,
    Invalid,
    LegacyOptions,
    Operation,
    Parallel,
    Problem,
    Recall,
    Record,
    Refused,
    Request,
    Unreachable,
)
from mappings.list_filters import Filters, filter_payments
from mappings.matching import Entry, Payment, recipient_id
from mappings.objects import (
    RECIPIENT,
    Facts,
    apply_aliases,
    build_payment_answer,
    build_recipient_answer,
    is_abandoned,
    is_gone,
    recall_aliases,
)
from mappings.paging import build_meta, complete_meta, parse_page_params, select_page_params
from mappings.payouts import Payout, Recipient, Sub
from mappings.rows import filter_rows

# Create


def create_recipient(request: Request) -> Flow:
    """POST /recipients

    POST   /recipients               the fields that the current interface takes in a create
    PATCH  /recipients/:id           language and currency, if given
    POST   /recipients/:id/accounts  for each account of a payout, the primary one first
    PATCH  /recipients/:id/accounts/:account  for a wallet with another currency
    GET    /recipients/:id           with a payout, because the accounts decide status and route
    DELETE /recipients/:id           if a later call is refused, to undo the create

    A recipient that cannot be deleted is stored as deleted, and so never shown to clients.
    """
    body = request.body
    payout = payouts.parse_payout(body.get("payout"), "payout.", request.problems)
    # Everything is validated before the first call, so that a refused request changes nothing.
    ids = [*recipient_bodies.extract_ssn(body), *payouts.extract_government_ids(payout)]
    request.refuse(
        [
            *recipient_bodies.validate_create(body),
            *_payout_problems(payout, body),
            *payouts.validate_holds(payout, {}, request.manners),
            *government_ids.validate_government_ids(ids, {}, request.manners),
        ]
    )
    holds = payouts.collect_new_holds(payout, {})
    sent = recipient_bodies.build_create_body(body, ids)
    names = {**RECIPIENT.sent_as(), **government_ids.map_government_id_fields(ids)}
    call = Call(
        "POST",
        "/recipients",
        sent,
        sent_as=names,
        settle=settling.settle_created_recipient(sent),
        known_by=settling.select_recipient_match_fields(sent),
    )
    created = (yield call)["recipient"]
    try:
        recipient = yield from _complete(created, body, payout, request.manners)
    except (Refused, Unreachable) as failure:
        # Without the undo, the client's retry would create a second recipient.
        yield from _undo(created["id"])
        if isinstance(failure, Refused) and failure.status == 404:
            # A 404 is about the new recipient, which the client did not name: hide it.
            raise Refused(500) from None
        raise
    if holds:
        yield Record("recipient", created["id"], holds)
    shown = build_recipient_answer(recipient, holds, request.manners)
    return Answer({"recipient": shown}, payouts.build_hold_notices(holds))


def _payout_problems(payout: Payout, body: Mapping[str, JSON]) -> Iterator[Problem]:
    if payout.methods or payout.method:
        yield from payouts.validate_new_payout(payout, body)


def _complete(
    created: Recipient, body: Mapping[str, JSON], payout: Payout, manners: LegacyOptions
) -> Sub:
    """Sends what the create call has no fields for. Returns the recipient with its accounts."""
    path, recipient = f"/recipients/{created['id']}", created
    if later := recipient_bodies.select_later_fields(body):
        names = RECIPIENT.sent_as() | {
            "primaryCurrency": recipient_bodies.choose_currency_field(body)
        }
        settle = settling.settle_changed_recipient(created["id"], later)
        call = Call("PATCH", path, later, sent_as=names, settle=settle)
        recipient = {**created, **(yield call)["recipient"]}
    if not payout.methods:
        return recipient
    recipient = yield from payouts.add_planned_accounts(
        recipient, _plan(payout, body), manners, whole=True
    )
    try:
        return (yield Call("GET", path))["recipient"]
    except Failure:
        # All writes succeeded, so failing now would make the client create a second recipient.
        return recipient


def _plan(payout: Payout, body: Mapping[str, JSON]) -> payouts.Plan:
    return payouts.plan_accounts(
        payout, body, payout.methods, payouts.resolve_primary_method(payout)
    )


def _undo(recipient_id: str) -> Sub:
    # Recorded before the call: if the deletion fails, clients must not see the recipient either.
    yield Record("recipient", recipient_id, {"deleted": True, "still_there": True})
    try:
        yield replace(_deletion(recipient_id), is_cleanup=True)
    except Failure:
        return
    yield Record("recipient", recipient_id, {"still_there": None})


def _deletion(recipient_id: str) -> Call:
    settle = settling.settle_deleted_recipients(recipient_id)
    return Call("DELETE", f"/recipients/{recipient_id}", settle=settle)


# Read


def read_recipient(request: Request) -> Flow:
    """GET /recipients/:id

    GET /recipients/:id
    """
    recipient, facts = yield from found.load_recipient(request.ids["id"])
    return Answer({"recipient": build_recipient_answer(recipient, facts, request.manners)})


def list_recipients(request: Request) -> Flow:
    """GET /recipients

    GET /recipients  once if the service can answer the query or one page holds all; else to refresh
                     the cached list: the total, the recipients changed since, and the archived ones
                     if the total has shrunk; without a cache, every page
    """
    remembered = yield Recall("recipient")
    result = yield recipient_queries.build_find(request.query, remembered)
    shown = [
        build_recipient_answer(row, remembered.get(row["id"], {}), request.manners)
        for row in result.rows
    ]
    number = parse_page_params(request.query).number
    return Answer({"recipients": shown, "meta": build_meta(number, result.pages, result.records)})


def read_recipient_logs(request: Request) -> Flow:
    """GET /recipients/:id/logs

    GET /recipients/:id
    GET /recipients/:id/logs
    """
    id_ = request.ids["id"]
    call = Call("GET", f"/recipients/{id_}/logs", query=select_page_params(request.query))
    _recipient, given = yield from _with_page(id_, call)
    entries_given = given.get("activities") or []
    counts = complete_meta(given.get("meta"), parse_page_params(request.query), len(entries_given))
    return Answer(
        {"activities": [_without_keys(one, request.keys) for one in entries_given], "meta": counts}
    )


def _with_page(id_: str, call: Call) -> Sub:
    """Reads the recipient and a page of a list.

    If the service refuses the page size, requests its default size: legacy lists have no 406.
    """
    try:
        return (yield from found.load_recipient_with_call(id_, call))
    except Refused as refused:
        if refused.status not in (400, 406) or "pageSize" not in call.query:
            raise
    query = {name: value for name, value in call.query.items() if name != "pageSize"}
    return (yield from found.load_recipient_with_call(id_, replace(call, query=query)))


# Header names are checked too, because keys that have been revoked since can appear in old entries.
_KEY_HEADERS = ("key", "authorization", "token", "secret", "cookie", "signature")
_CREDENTIALS = re.compile(r"(?i)^\s*(bearer|basic|digest|\w*sign)\s+\S")


def _without_keys(entry: Mapping[str, JSON], keys: tuple[str, ...]) -> dict[str, JSON]:
    """Returns a log entry with the header values masked that contain an API key."""
    headers = entry.get("headers")
    if not isinstance(headers, dict):
        return dict(entry)
    masked = {
        name: "********" if _carries_a_key(name, value, keys) else value
        for name, value in headers.items()
    }
    return {**entry, "headers": masked}


def _carries_a_key(name: str, value: JSON, keys: tuple[str, ...]) -> bool:
    text = str(value)
    if any(key in text for key in keys if key) or _CREDENTIALS.match(text):
        return True
    return "*" not in text and any(word in name.lower() for word in _KEY_HEADERS)


def read_recipient_payments(request: Request) -> Flow:
    """GET /recipients/:id/payments

    GET /recipients/:id
    GET /recipients/:id/payments  paged by the service; every page if there are payments to hide or
                                  to add, or a filter
    GET /batch/:id/summary        for each batch with stored memos that pays the recipient several
                                  times, to match the memos
    """
    id_, filters = request.ids["id"], Filters.of(request.query)
    path, abandoned = f"/recipients/{id_}/payments", (yield Recall("abandoned"))
    if filters:
        recipient, facts = yield from found.load_recipient(id_)
    else:
        call = Call("GET", path, query=select_page_params(request.query))
        (recipient, facts), given = yield from _with_page(id_, call)
    shown = build_recipient_answer(recipient, facts, request.manners)
    if abandoned or filters:
        left = (yield _payments_left(path, abandoned)).rows
        all_ = [*(yield from _as_clients_know(left)), *(yield from _drafted(id_))]
        if filters:
            all_ = yield from _found_by(filters, all_, id_, shown)
        # Merged with payments of drafts, the order of the service is no longer by creation time.
        if abandoned:
            all_.sort(key=recipient_queries.parse_created_at, reverse=True)
        known, counts = parse_page_params(request.query).of(all_)
    else:
        known = yield from _as_clients_know(given.get("payments") or [])
        counts = given.get("meta")
    memos = yield from _memos(known, id_)
    rows = [build_payment_answer({**one, **memos.get(one["id"], {})}, shown) for one in known]
    return Answer(
        {
            "payments": rows,
            "meta": complete_meta(counts, parse_page_params(request.query), len(rows)),
        }
    )


def _as_clients_know(payments: Sequence[Payment]) -> Sub:
    aliases = yield recall_aliases(payments)
    return [apply_aliases(one, aliases) for one in payments]


def _drafted(id_: str) -> Sub:
    """Loads the payments of a recipient in drafts, which only the gateway has."""
    found: list[Payment] = []
    for batch_id, facts in (yield Recall("batch")).items():
        if not is_draft(facts) or facts.get("phase") == "deleted":
            continue
        entries = (yield Recall("payments", batch_id)).get("entries", [])
        its = filter_rows(entries, lambda one: recipient_id(one) == id_)
        found += build_batch(batch_id, facts, its, {}, None).payments
    return found


def _found_by(filters: Filters, payments: Sequence[Payment], id_: str, shown: JSON) -> Sub:
    """Filters payments; a search needs the memos of all of them."""
    memos = (yield from _memos(payments, id_, are_needed=True)) if filters.search else {}
    rows = [{**one, **memos.get(one["id"], {}), "recipient": shown} for one in payments]
    return [*(yield from filter_payments(filters, rows))]


def _memos(payments: Sequence[Payment], id_: str, *, are_needed: bool = False) -> Sub:
    """Loads the memos that only the gateway has, by payment id.

    With ``is_required``, raises if a batch cannot be read, unless it no longer exists.
    """
    untold: dict[str, list[Payment]] = {}
    for one in payments:
        if one.get("batch") and not one.get("memo"):
            untold.setdefault(str(one["batch"].get("id")), []).append(one)
    facts = yield Recall("batch", ids=tuple(untold))
    memos: dict[JSON, JSON] = {}
    unread: list[str] = []
    # A batch with has_memos false needs no look-up; older records lack the flag.
    for batch_id in (one for one in untold if facts.get(one, {}).get("has_memos", one in facts)):
        entries = (yield Recall("payments", batch_id)).get("entries", [])
        its = filter_rows(entries, lambda one: recipient_id(one) == id_)
        if not any(one.get("memo") for one in its):
            continue
        if (of_those := _entries_of(untold[batch_id], its)) is None:
            unread.append(batch_id)
        else:
            both = zip(untold[batch_id], of_those, strict=True)
            memos |= {one["id"]: entry.get("memo") for one, entry in both}
    ids = {one["id"] for those in untold.values() for one in those}
    for batch in (yield from load_batches(unread)):
        if not isinstance(batch, Exception):
            memos |= {one["id"]: one.get("memo") for one in batch.payments if one["id"] in ids}
        elif are_needed and not is_missing(batch):
            raise batch
    return {id_: {"memo": memo} for id_, memo in memos.items() if memo}


def _entries_of(payments: Sequence[Payment], entries: Sequence[Entry]) -> Sequence[Entry] | None:
    """Matches the payments of a recipient in a batch to the entries that were requested.

    Matches by id, or by amount if there is one payment and one entry. Returns None if only the
    summary of the batch can tell.
    """
    by_id = {one["id"]: one for one in entries if one.get("id")}
    if all(one["id"] in by_id for one in payments):
        return [by_id[one["id"]] for one in payments]
    if by_id or len(payments) > 1 or len(entries) > 1:
        return None
    (payment,), (entry,) = payments, entries
    paid = money.parse_amount(payment.get("sourceAmount"))
    is_its = paid is not None and paid == money.parse_amount(entry.get("sourceAmount"))
    return entries if is_its else None


def _payments_left(path: str, aliases: Mapping[str, Facts]) -> Find:
    """Builds the query for all payments except those of superseded batches, in service order."""
    return Find(
        path,
        "payments",
        1,
        ALL,
        hidden=lambda row: is_abandoned(row, aliases),
        where=lambda _row: True,
        order=None,
        descending=False,
        ask=None,
        narrow={},
        sorting={},
    )


# Update


def update_recipient(request: Request) -> Flow:
    """PATCH /recipients/:id

    GET    /recipients/:id                    to find the changed fields
    PATCH  /recipients/:id                    the fields sent, without those that only answers have
    PATCH  /recipients/:id/accounts/:account  with a payout: the changed fields of the account
    POST   /recipients/:id/accounts           with a payout: if none exists, or its country changes
    DELETE /recipients/:id/accounts/:account  for an account that a new one replaces

    If the payout is refused, the changes of the recipient stay; sending them again is harmless.
    """
    recipient, facts = yield from found.load_recipient(request.ids["id"])
    body, manners = (
        recipient_bodies.drop_unchanged_recipient_fields(request.body, recipient),
        request.manners,
    )
    payout = payouts.drop_shown_masks(
        payouts.parse_payout(body.get("payout"), "payout.", request.problems), recipient
    )
    changes = payout_changes.detect_payout_changes(
        payout, recipient_bodies.apply_identity(body, recipient)
    )
    ids = [*recipient_bodies.extract_ssn(body), *changes.government_ids]
    request.refuse(
        [
            *recipient_bodies.validate_update(body, recipient, facts),
            *changes.problems(),
            *payouts.validate_holds(payout, facts, manners),
            *government_ids.validate_government_ids(ids, recipient, manners),
        ]
    )
    holds = payouts.collect_new_holds(payout, facts)
    fields = recipient_bodies.build_update_fields(body, recipient, facts, ids)
    id_ = recipient["id"]
    answered: Mapping[str, JSON] = {}
    if fields:
        names = (
            RECIPIENT.sent_as()
            | {"primaryCurrency": recipient_bodies.choose_currency_field(body)}
            | government_ids.map_government_id_fields(ids)
        )
        path, settle = f"/recipients/{id_}", settling.settle_changed_recipient(id_, fields)
        made = yield Call("PATCH", path, fields, sent_as=names, settle=settle)
        answered = shown if isinstance(shown := made.get("recipient"), dict) else {}
    if word := recipient_bodies.derive_status_fact(body, fields, facts, answered):
        yield Record("recipient", id_, word)
    yield from payout_changes.apply_payout_changes(changes, manners)
    if holds:
        yield Record("recipient", id_, holds)
    return Answer({"object": "updated"}, payouts.build_hold_notices(holds))


# Delete


def delete_recipient(request: Request) -> Flow:
    """DELETE /recipients/:id

    GET    /recipients/:id  an archived recipient does not exist for legacy clients
    DELETE /recipients/:id  archives it; the gateway stores that it is deleted
    """
    id_ = request.ids["id"]
    yield from found.load_recipient(id_)
    yield _deletion(id_)
    yield Record("recipient", id_, {"deleted": True})
    return Answer({"object": "deleted"})


def delete_recipients(request: Request) -> Flow:
    """DELETE /recipients

    GET    /recipients/:id  for each: if one is unknown, none is deleted
    DELETE /recipients      all in one call
    """
    ids = list(dict.fromkeys(request.body["ids"]))
    if not ids:
        request.refuse([empty("ids")])
    yield from _all_found(ids)
    settle = settling.settle_deleted_recipients(*ids)
    yield Call("DELETE", "/recipients", {"ids": ids}, sent_as={"ids": "ids"}, settle=settle)
    first, *others = (Record("recipient", id_, {"deleted": True}) for id_ in ids)
    yield replace(first, also=tuple(others))
    return Answer({"object": "deleted"})


def _all_found(ids: list[str]) -> Sub:
    """Raises if a recipient does not exist; reads in chunks, to stop early in a long list."""
    if not all(map(RECIPIENT_ID.fullmatch, ids)):
        raise Invalid(NOT_FOUND)
    remembered = yield Recall("recipient", ids=tuple(ids))
    for start in range(0, len(ids), AT_ONCE):
        some = ids[start : start + AT_ONCE]
        given = yield Parallel([Call("GET", f"/recipients/{id_}") for id_ in some])
        for id_, one in zip(some, given, strict=True):
            if isinstance(one, Exception):
                raise one
            if is_gone(one["recipient"], remembered.get(id_, {})):
                raise Invalid(NOT_FOUND)


AT_ONCE = 64
ALL = 10**9
"""A page size larger than any list."""
RECIPIENT_ID = re.compile("R-[A-Za-z0-9]{1,64}")
_ONE, _ALL = "/recipients/{id}", "/recipients"

OPERATIONS = (
    Operation(
        "POST",
        _ALL,
        create_recipient,
        "4.1",
        "emulated",
        "several calls, undone if one is refused; language, currency and payout follow the create",
        takes=legacy.RecipientBody,
        gives=legacy.RecipientAnswer,
    ),
    Operation(
        "GET",
        _ALL,
        list_recipients,
        "4.1",
        "emulated",
        "the gateway applies the filters and sort orders that the service lacks",
        gives=legacy.RecipientsAnswer,
        query=legacy.RecipientsQuery,
    ),
    Operation(
        "DELETE",
        _ALL,
        delete_recipients,
        "4.1",
        "emulated",
        "the service archives them; legacy clients no longer see them",
        takes=legacy.RecipientIdsBody,
        gives=legacy.DoneAnswer,
    ),
    Operation(
        "GET",
        _ONE,
        read_recipient,
        "4.1",
        "lossy",
        "the automatic status `inactive` after 12 months has no counterpart",
        gives=legacy.RecipientAnswer,
    ),
    Operation(
        "PATCH",
        _ONE,
        update_recipient,
        "4.1",
        "emulated",
        "the gateway stores `disabled` and `inactive`; a payout becomes accounts",
        takes=legacy.RecipientBody,
        gives=legacy.DoneAnswer,
    ),
    Operation(
        "DELETE",
        _ONE,
        delete_recipient,
        "4.1",
        "emulated",
        "the service archives it; legacy clients no longer see it",
        gives=legacy.DoneAnswer,
    ),
    Operation(
        "GET",
        f"{_ONE}/logs",
        read_recipient_logs,
        "4.1",
        "exact",
        "entries pass unchanged, except that keys are masked",
        gives=legacy.ActivitiesAnswer,
        query=legacy.PageQuery,
    ),
    Operation(
        "GET",
        f"{_ONE}/payments",
        read_recipient_payments,
        "4.1",
        "exact",
        "paged by the service; the gateway adds the payments of drafts and applies filters",
        gives=legacy.PaymentsAnswer,
        query=legacy.FilteredQuery,
        rests_on="payments have the fields of the legacy document (current interface, section 2.2)",
    ),
)
