"""Reads of a recipient, and of its payments with the gateway's stored data."""

import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from mappings import money
from mappings.batch_reads import is_missing_batch_failure, load_batches
from mappings.batch_views import build_batch, is_draft
from mappings.effects import (
    JSON,
    Call,
    CompareAndSet,
    ListQuery,
    LoadFacts,
    Parallel,
    Request,
    Step,
    SubFlow,
)
from mappings.errors import NOT_FOUND, RECIPIENT_NOT_SHOWN_YET
from mappings.failures import Halted, Invalid, Problem, Refused
from mappings.lazy_sequences import filter_rows
from mappings.list_filters import Filters, filter_payments
from mappings.matching import Entry, Payment, extract_recipient_id
from mappings.objects import (
    UPSTREAM_STATUS,
    Facts,
    is_deleted_for_clients,
    is_legacy_status_still_valid,
)
from mappings.paging import FIRST_PAGE, is_past_the_end

RecipientWithFacts = tuple[Mapping[str, JSON], Facts]


def load_recipient(recipient_id: str) -> Generator[Step, Any, RecipientWithFacts]:
    """Reads a recipient with GET /recipients/:id, and its stored facts.

    Raises Invalid ("not found") if it is archived or was deleted through the gateway.
    """
    facts: Facts = yield LoadFacts("recipient", recipient_id)
    # This needs no call, and holds even if the service could not delete the recipient.
    if facts.get("deleted"):
        raise Invalid(NOT_FOUND)
    recipient = (yield Call("GET", f"/recipients/{recipient_id}"))["recipient"]
    return (yield from _complete_with_valid_facts(recipient_id, recipient, facts))


_CREATION_TIME = timedelta(seconds=2)
"""How long the changes take that follow a creation in the same request."""


def is_shown_late(recipient: Mapping[str, JSON]) -> Generator[Step, Any, bool]:
    """Whether the service may show a recipient as it was before a change of the last minute.

    If so, a value that is shown may not be the present one: it is no reason to send nothing. A change
    of an account gives it another id (current interface, section 4.2).
    """
    changes = yield LoadFacts("changed", ids=(recipient["id"],))
    shown_ids = {account.get("recipientAccountId") for account in recipient.get("accounts") or ()}
    is_old_account_shown = any(path.rpartition("/")[2] in shown_ids for path in changes)
    if is_old_account_shown or _list_missing_account_times(recipient, changes):
        return True
    if (change := changes.get(f"/recipients/{recipient['id']}")) is None:
        return False
    try:
        recorded_at, changed_at = map(datetime.fromisoformat, (change[1], change[-1]))
        # In whole seconds, the service may show its creation, and what followed, with the same time.
        if not changed_at.microsecond:
            created_at = datetime.fromisoformat(str(recipient.get("createdAt")))
            changed_at = recorded_at if changed_at - created_at < _CREATION_TIME else changed_at
        # The service shows milliseconds.
        changed_at = changed_at.replace(microsecond=changed_at.microsecond // 1000 * 1000)
        return datetime.fromisoformat(str(recipient.get("updatedAt"))) < changed_at
    except (ValueError, TypeError):
        return True


def _list_missing_account_times(
    recipient: Mapping[str, JSON], changes: Mapping[str, Any]
) -> list[str]:
    """Lists the times at which accounts were added or changed that the service does not show yet.

    Of an account before the newest shown one, not: if that became the primary one instead, it may
    have got another id.
    """
    accounts = recipient.get("accounts") or ()
    shown_ids = {account.get("recipientAccountId") for account in accounts}
    newest = max((time for id_, time, *_ in changes.values() if id_ in shown_ids), default="")
    known_ids = shown_ids.union(path.rpartition("/")[2] for path in changes)
    return [
        time for id_, time, *_ in changes.values() if id_ and id_ not in known_ids and time > newest
    ]


def raise_if_account_missing(recipient: Mapping[str, JSON], *, is_any_added: bool) -> SubFlow:
    """Raises Halted if the service does not show an account yet that was just added or changed.

    A request may mean it, and would add another (``is_any_added``), change an earlier one, or, if it
    is refused, make that the primary account again.
    """
    changes = yield LoadFacts("changed", ids=(recipient["id"],))
    times = _list_missing_account_times(recipient, changes)
    # A change that a client has signed may have given the account another id.
    signed_change = changes.get(f"/recipients/{recipient['id']}")
    if times and (is_any_added or signed_change is None or signed_change[1] < max(times)):
        raise Halted(RECIPIENT_NOT_SHOWN_YET, retry_after=5)


def raise_if_invalid(request: Request, problems: Iterable[Problem], *, is_shown_late: bool) -> None:
    """Raises Invalid for a problem of a change; Halted if the recipient is shown late.

    Compared with the recipient as it is, the request may have no problem, unless its body has one.
    """
    problems = [*problems]
    if is_shown_late and problems and not request.problems:
        raise Halted(RECIPIENT_NOT_SHOWN_YET, retry_after=5)
    if problems or request.problems:
        request.raise_if_invalid(problems)


def load_recipient_and_list_page(
    recipient_id: str, path: str, query: Mapping[str, str]
) -> Generator[Step, Any, tuple[RecipientWithFacts, Any]]:
    """Reads a recipient and, concurrently, a page of a list.

    If the service refuses the page size, requests its default size, and if it refuses the page, the
    first one: legacy lists have no 406, and a page past the end is empty (contract, section 3).
    """
    facts: Facts = yield LoadFacts("recipient", recipient_id)
    if facts.get("deleted"):
        raise Invalid(NOT_FOUND)
    recipient_call = Call("GET", f"/recipients/{recipient_id}")
    number, refusal = int(query.get("page", FIRST_PAGE)), None
    while True:
        result, page = yield Parallel([recipient_call, Call("GET", path, query=query)])
        # The recipient's result comes first: if it does not exist, the list does not matter.
        if isinstance(result, Exception):
            raise result
        if not isinstance(page, Exception):
            break
        if not isinstance(page, Refused) or page.status not in (400, 406):
            raise page
        is_page_named = page.has_field_problem("invalid_field", "page")
        names = ("page", "pageSize") if is_page_named else ("pageSize", "page")
        refused_name = next((name for name in names if name in query), None)
        if refused_name is None:
            raise page
        refusal = page
        query = {name: value for name, value in query.items() if name != refused_name}
    if is_past_the_end(page, number):
        # Instead of a refusal, some services return their last page.
        page = {"meta": {**page["meta"], "page": number}}
    elif refusal and number != int(query.get("page", FIRST_PAGE)):
        raise refusal
    recipient = result["recipient"]
    return (yield from _complete_with_valid_facts(recipient_id, recipient, facts)), page


def _complete_with_valid_facts(
    recipient_id: str, recipient: Mapping[str, JSON], facts: Facts
) -> Generator[Step, Any, RecipientWithFacts]:
    """Returns a recipient with its facts, and deletes a stored status that is out of date.

    If the service does not show the change to it yet, the recipient has that status.
    """
    if is_deleted_for_clients(recipient, facts):
        raise Invalid(NOT_FOUND)
    word = facts.get("status")
    if not word or is_legacy_status_still_valid(word, recipient.get("status")):
        return recipient, facts
    if (yield from is_shown_late(recipient)):
        return {**recipient, "status": UPSTREAM_STATUS.get(word, word)}, facts
    # The status has been changed elsewhere, and the service's value wins (contract, section 3).
    yield CompareAndSet("recipient", recipient_id, {"status": None})
    other_facts = {name: fact for name, fact in facts.items() if name != "status"}
    return recipient, {**other_facts, "status_shown_before": word}


ALL_ROWS = 10**9
"""A page size larger than any list."""


def restore_original_payment_ids(payments: Sequence[Payment]) -> SubFlow:
    """Restores the ids and creation times that the payments and their batches had as drafts."""
    batches = (payment.get("batch") or {} for payment in payments)
    ids = [record["id"] for record in chain(payments, batches) if record.get("id")]
    redirects = yield LoadFacts("alias", ids=tuple(dict.fromkeys(map(str, ids))))

    def restore(record: Mapping[str, JSON]) -> dict[str, JSON]:
        id_ = record.get("id")
        redirect = redirects.get(str(id_), {})
        original = {name: redirect[name] for name in ("id", "createdAt") if redirect.get(name)}
        return {**record, "id": id_, **original}

    return [
        {**payment, "batch": restore(payment["batch"])} if payment.get("batch") else payment
        for payment in map(restore, payments)
    ]


def load_draft_payments(id_: str) -> SubFlow:
    """Loads the payments of a recipient in drafts, which only the gateway has."""
    payments: list[Payment] = []
    for batch_id, facts in (yield LoadFacts("batch")).items():
        if not is_draft(facts) or facts.get("phase") == "deleted":
            continue
        # Filtered before the batch is built: it may have a hundred thousand payments of others.
        entries = (yield LoadFacts("payments", batch_id)).get("entries", [])
        own_entries = filter_rows(entries, lambda entry: extract_recipient_id(entry) == id_)
        payments += build_batch(batch_id, facts, own_entries, {}, None).payments
    return payments


def filter_recipient_payments(
    filters: Filters, payments: Sequence[Payment], id_: str, recipient_answer: JSON
) -> SubFlow:
    """Filters payments; a search needs the memos of all of them."""
    memos = {}
    if filters.search:
        memos = yield from load_memos_by_payment_id(payments, id_, is_required=True)
    rows = [
        {**payment, **memos.get(payment["id"], {}), "recipient": recipient_answer}
        for payment in payments
    ]
    return [*(yield from filter_payments(filters, rows))]


def load_memos_by_payment_id(
    payments: Sequence[Payment], id_: str, *, is_required: bool = False
) -> SubFlow:
    """Loads the memos that only the gateway has, by payment id.

    With ``is_required``, raises if a batch cannot be read, unless it no longer exists.
    """
    payments_by_batch: dict[str, list[Payment]] = {}
    for payment in payments:
        if payment.get("batch") and not payment.get("memo"):
            payments_by_batch.setdefault(str(payment["batch"].get("id")), []).append(payment)
    facts = yield LoadFacts("batch", ids=tuple(payments_by_batch))
    memos: dict[JSON, JSON] = {}
    unmatched_batches: list[str] = []
    # A batch with has_memos false needs no look-up; older records lack the flag.
    for batch_id, own_payments in payments_by_batch.items():
        if not facts.get(batch_id, {}).get("has_memos", batch_id in facts):
            continue
        entries = (yield LoadFacts("payments", batch_id)).get("entries", [])
        own_entries = filter_rows(entries, lambda item: extract_recipient_id(item) == id_)
        if not any(item.get("memo") for item in own_entries):
            continue
        matched_entries = _match_payments_to_requested_entries(own_payments, own_entries)
        if matched_entries is None:
            unmatched_batches.append(batch_id)
        else:
            pairs = zip(own_payments, matched_entries, strict=True)
            memos |= {payment["id"]: entry.get("memo") for payment, entry in pairs}
    ids = {payment["id"] for each in payments_by_batch.values() for payment in each}
    for batch in (yield from load_batches(unmatched_batches)):
        if not isinstance(batch, Exception):
            own_payments = [payment for payment in batch.payments if payment["id"] in ids]
            memos |= {payment["id"]: payment.get("memo") for payment in own_payments}
        elif is_required and not is_missing_batch_failure(batch):
            raise batch
    return {id_: {"memo": memo} for id_, memo in memos.items() if memo}


def _match_payments_to_requested_entries(
    payments: Sequence[Payment], entries: Sequence[Entry]
) -> Sequence[Entry] | None:
    """Matches the payments of a recipient in a batch to the entries that were requested.

    Matches by id, or by amount if there is one payment and one entry. Returns None if only the
    summary of the batch can tell.
    """
    by_id = {item["id"]: item for item in entries if item.get("id")}
    if all(item["id"] in by_id for item in payments):
        return [by_id[item["id"]] for item in payments]
    # Equal amounts to one recipient cannot be told apart here.
    if by_id or len(payments) > 1 or len(entries) > 1:
        return None
    (payment,), (entry,) = payments, entries
    amount = money.parse_amount(payment.get("sourceAmount"))
    is_equal_amount = amount is not None and amount == money.parse_amount(entry.get("sourceAmount"))
    return entries if is_equal_amount else None


def build_visible_payments_query(path: str, redirects: Mapping[str, Facts]) -> ListQuery:
    """Builds the query for all payments except those of superseded batches, in service order."""

    def is_in_superseded_batch(payment: Payment) -> bool:
        batch = payment.get("batch") or {}
        return bool(redirects.get(str(batch.get("id")), {}).get("abandoned"))

    return ListQuery(
        path, 1, ALL_ROWS, is_hidden=is_in_superseded_batch, is_match=lambda _row: True
    )


# Logs

# Header names are checked too, because keys that have been revoked since can appear in old entries.
_KEY_HEADERS = ("key", "authorization", "token", "secret", "cookie", "signature")

_CREDENTIALS = re.compile(r"(?i)^\s*(bearer|basic|digest|\w*sign)\s+\S")


def mask_api_keys_in_log_entry(
    entry: Mapping[str, JSON], api_keys: tuple[str, ...]
) -> dict[str, JSON]:
    """Returns a log entry with the header values masked that contain an API key."""
    headers = entry.get("headers")
    if not isinstance(headers, dict):
        return dict(entry)
    masked_headers = {
        name: "********" if _is_credential_header(name, value, api_keys) else value
        for name, value in headers.items()
    }
    return {**entry, "headers": masked_headers}


def _is_credential_header(name: str, value: JSON, api_keys: tuple[str, ...]) -> bool:
    text = str(value)
    if any(key in text for key in api_keys if key) or _CREDENTIALS.match(text):
        return True
    return "*" not in text and any(word in name.lower() for word in _KEY_HEADERS)
