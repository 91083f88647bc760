"""Outcome rules: how to find out, by reading, whether a write without a response was executed.

Each function builds the rule of one call: a generator that reads from the service and returns
``Confirmed``, ``Absent`` or ``Inconclusive``. An object matches if it has all sent values that the
service is known to show unchanged (``select_…_match_fields``). If there are several matches or
several identical writes in doubt, the remaining values must agree too. More matches than such
writes prove nothing: ``Inconclusive``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

from mappings import money, paging
from mappings.batch_views import EDITABLE_STATUSES, derive_batch_status
from mappings.current import SUMMARY_PATH
from mappings.effects import (
    JSON,
    Absent,
    Call,
    Confirmed,
    Inconclusive,
    InDoubtWrite,
    MayExist,
    NoSuchOperation,
    OutcomeRule,
    Parallel,
    Refused,
    Step,
    Unreachable,
    WriteOutcome,
)
from mappings.lazy_sequences import map_rows
from mappings.matching import extract_recipient_id
from mappings.payloads import extract_batch, extract_payments, find_payments

JSONObject = Mapping[str, JSON]
OutcomeReads = Generator[Step, Any, WriteOutcome]

MAX_LIST_PAGES = 20
"""How many pages of a list are read to find one object; a longer list is inconclusive."""

OTHER_CURRENCY_REASON = "the service shows no amount in the currency that was asked for"


# Recipients


def build_created_recipient_rule(body: JSONObject) -> OutcomeRule:
    """GET /recipients?email=, then the recipient itself."""

    def read_outcome(write: InDoubtWrite) -> OutcomeReads:
        if write.operator_object_id is not None:
            return (yield from _check_named_recipient(write.operator_object_id, body))
        rows = yield from _fetch_list(
            "/recipients", "recipients", {"email": str(body.get("email"))}
        )
        if rows is None:
            return Inconclusive("too many recipients have its address")
        match_fields = select_recipient_match_fields(body)
        candidates = [
            row
            for row in rows
            if all(_is_compatible(match_fields[name], row.get(name)) for name in match_fields)
        ]
        match = _select_created_object(
            candidates, write, is_full_match=lambda row: _has_values(body, row)
        )
        if isinstance(match, dict):
            return (yield from _fetch_recipient(match["id"]))
        return match

    return read_outcome


_NAME_FIELDS = {"business": ("name",), "individual": ("firstName", "lastName")}


def select_recipient_match_fields(body: JSONObject) -> dict[str, JSON]:
    names = ("email", "type", "referenceId", *_NAME_FIELDS[str(body.get("type"))])
    return {name: body.get(name) for name in names}


def _has_values(values: JSONObject, row: JSONObject) -> bool:
    return all(_is_compatible(value, row.get(name)) for name, value in values.items())


def _fetch_recipient(recipient_id: str) -> Generator[Step, Any, Confirmed]:
    answer = yield Call("GET", f"/recipients/{recipient_id}")
    return Confirmed({"recipient": answer["recipient"]}, object_id=recipient_id)


def _check_named_recipient(recipient_id: str, body: JSONObject) -> OutcomeReads:
    """Check the recipient that an operator named as the one created."""
    # A mistyped id would pay another person, so the address has to agree.
    try:
        outcome = yield from _fetch_recipient(recipient_id)
    except Refused as refusal:
        if refusal.status != 404:
            raise
        return Inconclusive(f"the service has no recipient {recipient_id}, named by the operator")
    if _is_compatible(body.get("email"), outcome.body["recipient"].get("email")):
        return outcome
    return Inconclusive(f"{recipient_id}, named by the operator, has another address")


def build_changed_recipient_rule(recipient_id: str, fields: JSONObject) -> OutcomeRule:
    """GET /recipients/:id"""

    def read_outcome(write: InDoubtWrite) -> OutcomeReads:
        recipient = (yield Call("GET", f"/recipients/{recipient_id}"))["recipient"]
        is_executed = _has_values(fields, recipient) or write.is_confirmed_by_operator
        return Confirmed({"recipient": recipient}) if is_executed else Absent()

    return read_outcome


def build_deleted_recipients_rule(*ids: str) -> OutcomeRule:
    """GET /recipients/:id, each"""

    def read_outcome(_write: InDoubtWrite) -> OutcomeReads:
        answers = yield Parallel([Call("GET", f"/recipients/{id_}") for id_ in ids])
        deletions = [_is_gone(answer) for answer in answers]
        if None in deletions:  # one of the reads failed
            return Inconclusive("the service could not be read")
        if all(deletions):
            return Confirmed()
        return Inconclusive("some of them are gone") if any(deletions) else Absent()

    return read_outcome


def _is_gone(answer: Any) -> bool | None:
    if isinstance(answer, Refused):
        return True if answer.status == 404 else None
    if isinstance(answer, Exception):
        return None
    return bool(answer["recipient"].get("status") == "archived")


# Accounts


def build_added_account_rule(
    recipient_id: str, fields: JSONObject, ids_before: Iterable[str]
) -> OutcomeRule:
    """GET /recipients/:id"""
    known_ids = frozenset(ids_before)

    def read_outcome(write: InDoubtWrite) -> OutcomeReads:
        accounts = yield from _fetch_accounts(recipient_id)
        if write.operator_object_id is not None:
            named_account = next(
                (
                    account
                    for account in accounts
                    if account.get(_ACCOUNT_ID) == write.operator_object_id
                ),
                None,
            )
            is_match = (
                named_account is not None
                and write.operator_object_id not in known_ids
                and _is_matching_account(fields, named_account)
            )
            return _confirm_named_object(
                write.operator_object_id, "account", named_account if is_match else None
            )
        matching_accounts = [
            account for account in accounts if _is_matching_account(fields, account)
        ]
        new_accounts = [
            account
            for account in matching_accounts
            if account.get("recipientAccountId") not in known_ids
        ]
        # Accounts have no date: a new one is one that was not there before.
        match = _select_created_object(new_accounts, write, id_key=_ACCOUNT_ID, is_dated=False)
        if isinstance(match, dict):
            return Confirmed({"account": match}, object_id=match[_ACCOUNT_ID])
        return match

    return read_outcome


_ACCOUNT_ID = "recipientAccountId"


def build_changed_account_rule(
    recipient_id: str, old_account: JSONObject, fields: JSONObject
) -> OutcomeRule:
    """GET /recipients/:id; the change gives the account another id (current interface, 4.2)."""
    account_id = old_account["recipientAccountId"]

    def read_outcome(_write: InDoubtWrite) -> OutcomeReads:
        accounts = yield from _fetch_accounts(recipient_id)
        for account in accounts:
            if account.get("recipientAccountId") == account_id:
                return (
                    Confirmed({"account": account})
                    if _is_matching_account(fields, account)
                    else Absent()
                )
        # The account has another id after the change, so it is found by its fields.
        expected_fields = {"type": old_account.get("type"), **fields}
        matching_accounts = [
            account for account in accounts if _is_matching_account(expected_fields, account)
        ]
        if len(matching_accounts) == 1:
            return Confirmed({"account": matching_accounts[0]})
        return Inconclusive("the account does not exist any more")

    return read_outcome


def build_deleted_account_rule(recipient_id: str, account_id: str) -> OutcomeRule:
    """GET /recipients/:id"""

    def read_outcome(_write: InDoubtWrite) -> OutcomeReads:
        accounts = yield from _fetch_accounts(recipient_id)
        is_present = any(account.get("recipientAccountId") == account_id for account in accounts)
        return Absent() if is_present else Confirmed({"object": "deleted"})

    return read_outcome


def _fetch_accounts(recipient_id: str) -> Generator[Step, Any, list[dict[str, JSON]]]:
    try:
        recipient = (yield Call("GET", f"/recipients/{recipient_id}"))["recipient"]
    except Refused as refusal:
        if refusal.status != 404:
            raise
        return []
    return list(recipient.get("accounts") or [])


def _is_matching_account(fields: JSONObject, account: JSONObject) -> bool:
    shown_names = {**fields, "bankRegionCode": fields.get("bankRegion")}
    shown_names.pop("bankRegion", None)
    return all(
        _is_compatible(value, account.get(name)) for name, value in shown_names.items() if value
    )


# Batches


def build_created_batch_rule(body: JSONObject) -> OutcomeRule:
    """GET /batches if the service has it, then GET /batch/:id/summary of possible matches."""

    def read_outcome(write: InDoubtWrite) -> OutcomeReads:
        if write.operator_object_id is not None:
            return (yield from _check_named_batch(write.operator_object_id, body))
        try:
            rows = yield from _fetch_list("/batches", "batches", {}, witness=())
        except NoSuchOperation:
            # A batch nobody can list pays nobody before its start, so the client may create
            # another.
            return MayExist()
        if rows is None:
            return Inconclusive("the service lists too many batches")
        candidates = [
            row for row in rows if _is_possible_batch(body, row) and _is_new_object(row, write)
        ]
        result = yield from _select_batches_paying_same(body, candidates, write)
        if isinstance(result, Inconclusive):
            return result
        matching_rows, exact_ids = result
        match = _select_created_object(
            matching_rows, write, is_full_match=lambda row: row["id"] in exact_ids
        )
        if isinstance(match, dict):
            return Confirmed({"batch": {"id": match["id"]}}, object_id=match["id"])
        return match

    return read_outcome


def _select_batches_paying_same(
    body: JSONObject, rows: Sequence[dict[str, JSON]], write: InDoubtWrite
) -> Generator[Step, Any, Inconclusive | tuple[list[dict[str, JSON]], set[JSON]]]:
    """Return the batches with the sent payments, and the ids of those that have the memos too."""
    matching_rows: list[dict[str, JSON]] = []
    exact_ids: set[JSON] = set()
    for row in rows:
        # A batch that another write created cannot be this one's.
        summary = None if row["id"] in write.claimed_ids else (yield from _fetch_summary(row["id"]))
        if summary is None or not _is_new_object(extract_batch(summary), write):
            continue
        if not _has_all_payees(summary):
            return Inconclusive(f"the service does not show the payments of {row['id']}")
        if _has_same_payments(body, summary, _is_same_payment):
            matching_rows.append(row)
            exact_ids |= (
                {row["id"]} if _has_same_payments(body, summary, _is_exact_payment) else set()
            )
        elif _has_same_payments(body, summary, _is_possible_payment):
            return Inconclusive(f"{OTHER_CURRENCY_REASON}, in {row['id']}")
    return matching_rows, exact_ids


def _check_named_batch(batch_id: str, body: JSONObject) -> OutcomeReads:
    """Check the batch that an operator named, which must not visibly pay something else."""
    try:
        summary = yield Call("GET", SUMMARY_PATH.format(id=batch_id))
    except Refused as refusal:
        if refusal.status != 404:
            raise
        return Inconclusive(f"the service has no batch {batch_id}, named by the operator")
    payments = extract_payments(summary)
    has_payees = all(map(_has_payee, payments))
    if len(payments) != len(body["payments"]) or (
        has_payees and not _has_same_payments(body, summary, _is_possible_payment)
    ):
        return Inconclusive(f"{batch_id}, named by the operator, pays something else")
    return Confirmed({"batch": {"id": batch_id}}, object_id=batch_id)


def select_batch_match_fields(body: JSONObject) -> dict[str, JSON]:
    return {**body, "payments": map_rows(select_payment_match_fields, body["payments"])}


def select_payment_match_fields(body: JSONObject) -> dict[str, JSON]:
    """Return a payment without its memo, because the document does not say that it is stored."""
    return {name: value for name, value in body.items() if name != "memo"}


def _fetch_summary(batch_id: str) -> Generator[Step, Any, JSON]:
    """Fetch a batch's summary; None if the batch is deleted."""
    try:
        return (yield Call("GET", SUMMARY_PATH.format(id=batch_id)))
    except Refused as refusal:
        if refusal.status != 404:
            raise
        return None


def _is_possible_batch(body: JSONObject, row: JSONObject) -> bool:
    """Whether a listed batch may be the one sent. Fields the list does not show count as equal."""
    total = row.get("totalPayments")
    return (
        row.get("currency") in (None, body.get("currency"))
        and (
            "description" not in row or _is_compatible(body.get("description"), row["description"])
        )
        and total in (None, len(body["payments"]))
    )


PaymentTest = Callable[[JSONObject, JSONObject, JSON], bool]
"""Compares a sent payment with one that the service shows, in a batch of the given currency."""


def _has_same_payments(body: JSONObject, summary: JSON, is_match: PaymentTest) -> bool:
    unmatched: dict[JSON, list[JSONObject]] = {}
    shown_payments = extract_payments(summary)
    for row in shown_payments:
        unmatched.setdefault(str(_extract_payee_id(row)), []).append(row)
    for payment in body["payments"]:
        currency, rows = body.get("currency"), unmatched.get(str(extract_recipient_id(payment)), [])
        matches = (
            position for position, row in enumerate(rows) if is_match(payment, row, currency)
        )
        match = next(matches, None)
        if match is None:
            return False
        del rows[match]  # each shown payment counts once: a batch may have equal ones
    return len(shown_payments) == len(body["payments"])


def _has_same_memo(payment: JSONObject, row: JSONObject) -> bool:
    return not row.get("memo") or _is_compatible(payment.get("memo"), row["memo"])


def _is_same_payment(payment: JSONObject, row: JSONObject, batch_currency: JSON) -> bool:
    """Whether two payments have the same recipient, amount and currency."""
    return _compare_payments(payment, row, batch_currency) is True


def is_paid_by(shown: JSONObject, sent: JSONObject, batch_currency: JSON) -> bool:
    """Whether a payment is the one of an add to its batch, which may leave the currency to that."""
    return _is_same_payment({"currency": batch_currency, **sent}, shown, batch_currency)


def _is_exact_payment(payment: JSONObject, row: JSONObject, batch_currency: JSON) -> bool:
    return _is_same_payment(payment, row, batch_currency) and _has_same_memo(payment, row)


def _is_possible_payment(payment: JSONObject, row: JSONObject, batch_currency: JSON) -> bool:
    """Whether two payments may be the same: the recipient is, and no amount contradicts it."""
    return _compare_payments(payment, row, batch_currency) is not False


def _compare_payments(payment: JSONObject, row: JSONObject, batch_currency: JSON) -> bool | None:
    """Compare two payments; None if the service shows no amount in the requested currency."""
    if _extract_payee_id(row) != extract_recipient_id(payment):
        return False
    comparisons = [
        money.parse_amount(row[name]) == money.parse_amount(amount)
        for side, amount, currency in _list_sides(payment, batch_currency)
        for name, currency_name in ((f"{side}Amount", f"{side}Currency"), ("amount", "currency"))
        if row.get(name) is not None and row.get(currency_name) in (None, currency)
    ]
    return any(comparisons) if comparisons else None


def _extract_payee_id(payment: JSONObject) -> JSON:
    return extract_recipient_id(payment) or payment.get("recipientId")


def _list_sides(payment: JSONObject, batch_currency: JSON) -> list[tuple[str, JSON, JSON]]:
    """List the possible side, amount and currency of a payment in either interface's form."""
    if payment.get("sourceAmount"):
        return [("source", payment["sourceAmount"], batch_currency)]
    if amount := payment.get("targetAmount"):
        currency = payment.get("targetCurrency")
        # In the batch's own currency the amount is what is paid; another currency may be received.
        sides = ["target", "source"] if currency == batch_currency else ["target"]
        return [(side, amount, currency) for side in sides]
    currency = payment.get("currency")
    sides = ["source"] if currency == batch_currency else ["target"]
    return [(side, payment.get("amount"), currency) for side in sides]


def build_added_payment_rule(
    upstream_id: str,
    body: JSONObject,
    currency: JSON,
    ids_before: Iterable[str],
    other_adds: Callable[[], Generator[Step, Any, list[JSONObject]]],
) -> OutcomeRule:
    """GET /batch/:id/summary; ``other_adds`` are the bodies of others that may have made what is found."""
    known_ids = frozenset(ids_before)

    def is_possible(payment: JSONObject) -> bool:
        return not _has_payee(payment) or _is_possible_payment(body, payment, currency)

    def read_outcome(write: InDoubtWrite) -> OutcomeReads:
        summary = yield Call("GET", SUMMARY_PATH.format(id=upstream_id))
        if write.operator_object_id is not None:
            payments = extract_payments(summary)
            named_payment = next(
                (row for row in payments if row.get("id") == write.operator_object_id), None
            )
            is_match = (
                named_payment is not None
                and write.operator_object_id not in known_ids
                and is_possible(named_payment)
            )
            return _confirm_named_object(
                write.operator_object_id, "payment", named_payment if is_match else None
            )
        if not _has_payment_ids(summary):
            return Inconclusive(_NO_PAYMENT_IDS_REASON)
        # After the summary: what it shows was made by adds that were known before.
        unclaimed_payments = yield from other_adds()
        new_payments = [row for row in extract_payments(summary) if row.get("id") not in known_ids]
        if find_payments(summary) is None or not all(map(_has_payee, new_payments)):
            return Inconclusive("the service does not show the recipients of the batch's payments")
        unclaimed = [row for row in new_payments if row.get("id") not in write.claimed_ids]
        whose = {
            row["id"]: _is_of_another(body, row, unclaimed_payments, currency) for row in unclaimed
        }
        matching_payments = [
            row
            for row in unclaimed
            if _is_same_payment(body, row, currency) and not whose[row["id"]]
        ]
        if any(whose[row["id"]] is None for row in matching_payments):
            return Inconclusive("it may be what another add has made")
        match = _select_created_object(
            matching_payments,
            write,
            is_dated=False,
            is_full_match=lambda row: _has_same_memo(body, row),
        )
        if isinstance(match, dict):
            return Confirmed({"payment": match}, object_id=match.get("id"))
        # A new payment to the recipient in another currency may be this one, so nothing is proved.
        unclear = (row for row in unclaimed if not whose[row["id"]])
        if isinstance(match, Absent) and any(
            _is_possible_payment(body, row, currency) for row in unclear
        ):
            return Inconclusive(OTHER_CURRENCY_REASON)
        return match

    return read_outcome


def _is_of_another(
    body: JSONObject, shown: JSONObject, others: Iterable[JSONObject], currency: JSON
) -> bool | None:
    """Whether a payment that may be ``body``'s was made by another add; None if nothing tells.

    Of several that it may be, the memo tells, if the service shows one.
    """
    memo, answers = shown.get("memo"), set[bool | None]()
    for other in others:
        if _is_possible_payment(other, shown, currency):
            is_its, is_mine = (_is_compatible(one.get("memo"), memo) for one in (other, body))
            answers.add(is_its if memo and is_its != is_mine else None)
    if True in answers:
        return True
    return None if None in answers else False


def build_edited_batch_rule(
    upstream_id: str,
    payments: Sequence[JSONObject],
    currency: JSON,
    *,
    additions: Sequence[JSONObject] = (),
    build_changes: Callable[[], Mapping[str, JSONObject]] = dict,
    list_removed_ids: Callable[[], Iterable[str]] = tuple,
    batch_fields: JSONObject = MappingProxyType({}),
) -> OutcomeRule:
    """GET /batch/:id/summary, compared with ``payments``, the batch's payments before the edit.

    ``build_changes`` and ``list_removed_ids`` use ids of the service and are called only if the
    rule runs; ``batch_fields`` are the changed fields of the batch itself. All changes together
    confirm the edit; if only some can be seen, the rule is inconclusive.
    """

    def read_outcome(_write: InDoubtWrite) -> OutcomeReads:
        summary = yield Call("GET", SUMMARY_PATH.format(id=upstream_id))
        if find_payments(summary) is None:
            return Inconclusive("the service does not show the batch's payments")
        if not _has_payment_ids(summary):
            return Inconclusive(_NO_PAYMENT_IDS_REASON)
        old_by_id = {str(row["upstream"]): row for row in payments if row.get("upstream")}
        shown_by_id = {str(row.get("id")): row for row in extract_payments(summary)}
        evidence = [id_ not in shown_by_id for id_ in list_removed_ids()]
        # A payment that had the new amount before the edit proves nothing.
        evidence += [
            id_ in shown_by_id and _has_new_amount(body, shown_by_id[id_], currency)
            for id_, body in build_changes().items()
            if id_ in old_by_id and not _has_new_amount(body, old_by_id[id_], currency)
        ]
        new_rows = [row for id_, row in shown_by_id.items() if id_ not in old_by_id]
        if additions and not all(map(_has_payee, new_rows)):
            return Inconclusive("the service does not show the recipients of the batch's payments")
        evidence += [
            any(_is_same_payment(body, row, currency) for row in new_rows) for body in additions
        ]
        batch = extract_batch(summary)
        evidence += [
            _is_compatible(value, batch[name])
            for name, value in batch_fields.items()
            if name in batch
        ]
        if evidence and all(evidence):
            return Confirmed({"object": "updated"})
        if any(evidence):
            return Inconclusive("only some of the changes can be seen")
        is_absent = not any(
            _is_possible_payment(body, row, currency) for body in additions for row in new_rows
        )
        return Absent() if is_absent else Inconclusive(OTHER_CURRENCY_REASON)

    return read_outcome


def _has_new_amount(body: JSONObject, payment: JSONObject, currency: JSON) -> bool:
    """Whether a payment has the amount of a change; True if the change sets none."""
    if not (body.get("sourceAmount") or body.get("targetAmount")):
        return True
    return _is_same_payment({**body, "recipient": payment.get("recipient")}, payment, currency)


def build_deleted_batch_rule(upstream_id: str) -> OutcomeRule:
    """GET /batch/:id/summary"""

    def read_outcome(_write: InDoubtWrite) -> OutcomeReads:
        try:
            summary = yield Call("GET", SUMMARY_PATH.format(id=upstream_id))
        except Refused as refusal:
            if refusal.status != 404:
                raise
            return Confirmed({"object": "deleted"})
        is_deleted = extract_batch(summary).get("status") in ("deleted", "archived")
        return Confirmed({"object": "deleted"}) if is_deleted else Absent()

    return read_outcome


def build_quote_rule(upstream_id: str, previous_expiry: JSON) -> OutcomeRule:
    """GET /batch/:id/summary; ``previous_expiry`` is the ``quoteExpiredAt`` before the call.

    A quote that cannot be seen is absent: it may be repeated until processing starts.
    """

    def read_outcome(_write: InDoubtWrite) -> OutcomeReads:
        batch = extract_batch((yield Call("GET", SUMMARY_PATH.format(id=upstream_id))))
        expiry = batch.get("quoteExpiredAt")
        return Confirmed({"batch": batch}) if expiry and expiry != previous_expiry else Absent()

    return read_outcome


def build_start_rule(upstream_id: str) -> OutcomeRule:
    """GET /batch/:id/summary; any status but open and pending confirms the start."""

    def read_outcome(_write: InDoubtWrite) -> OutcomeReads:
        batch = extract_batch((yield Call("GET", SUMMARY_PATH.format(id=upstream_id))))
        status = derive_batch_status(batch)
        if status and status not in EDITABLE_STATUSES:
            return Confirmed({"batch": batch})
        return Absent() if status else Inconclusive("the service shows no status of the batch")

    return read_outcome


# Shared by the rules


def _fetch_list(
    path: str, rows_key: str, query: Mapping[str, str], witness: tuple[str, ...] | None = None
) -> Generator[Step, Any, list[dict[str, JSON]] | None]:
    """Fetch every row of a list; None if it is too long. Raises Unreachable if it is no list."""
    found_rows: list[dict[str, JSON]] = []
    for number in range(1, MAX_LIST_PAGES + 1):
        params = {**query, "page": str(number), "pageSize": "100"}
        body = yield Call("GET", path, query=params, probe_ids=witness)
        # Without the list nothing is known to be absent.
        if rows_key not in body:
            raise Unreachable(f"its answer has no {rows_key}")
        page_rows = [row for row in body[rows_key] or [] if isinstance(row, dict)]
        found_rows += page_rows
        pages = paging.parse_count((body.get("meta") or {}).get("pages"), 1)
        if number >= pages or not page_rows:
            return found_rows
    return None


def _confirm_named_object(
    object_id: str, kind: str, match: dict[str, JSON] | None
) -> Confirmed | Inconclusive:
    """Confirm the account or payment that an operator named, if it is a possible match."""
    if match is None:
        return Inconclusive(f"no new {kind} like it has the id {object_id}, named by the operator")
    return Confirmed({kind: match}, object_id=object_id)


def _has_all_payees(summary: JSON) -> bool:
    payments = find_payments(summary)
    return payments is not None and all(map(_has_payee, payments))


_NO_PAYMENT_IDS_REASON = "the service does not show the ids of the batch's payments"


def _has_payment_ids(summary: JSON) -> bool:
    """Whether every payment has an id: without ids a new payment looks like an earlier one."""
    return all(payment.get("id") for payment in extract_payments(summary))


def _has_payee(payment: JSONObject) -> bool:
    return bool(payment.get("recipient") or payment.get("recipientId"))


def _select_created_object(
    candidates: Sequence[dict[str, JSON]],
    write: InDoubtWrite,
    id_key: str = "id",
    *,
    is_dated: bool = True,
    is_full_match: Callable[[dict[str, JSON]], bool] = lambda _candidate: True,
) -> dict[str, JSON] | Absent | Inconclusive:
    """Select the object that a write created among the candidates.

    ``is_full_match`` compares all sent values. It is used if there are several candidates or
    several identical writes in doubt.
    """
    matches = [
        candidate for candidate in candidates if candidate.get(id_key) not in write.claimed_ids
    ]
    if is_dated:
        matches = [candidate for candidate in matches if _is_new_object(candidate, write)]
    if not matches:
        return Absent()
    if write.identical_count > 1 or len(matches) > 1:
        matches = [candidate for candidate in matches if is_full_match(candidate)]
    if not 0 < len(matches) <= write.identical_count:
        return Inconclusive("others are like it")
    # Identical writes each claim one of the identical objects, so it does not matter which.
    return min(matches, key=lambda candidate: str(candidate.get("createdAt")))


def _is_new_object(row: JSONObject, write: InDoubtWrite) -> bool:
    """Whether an object was created since the write was sent; True if it has no readable date."""
    try:
        created_at = datetime.fromisoformat(str(row.get("createdAt")))
    except ValueError:
        return True
    return created_at >= write.not_before if created_at.tzinfo else True


def _is_compatible(expected: JSON, actual: JSON) -> bool:
    """Whether a shown value may be the sent one; a masked value shows only its last characters."""
    if isinstance(expected, Mapping):
        actual_fields = actual if isinstance(actual, Mapping) else {}
        return all(
            _is_compatible(value, actual_fields.get(name)) for name, value in expected.items()
        )
    if isinstance(expected, list):
        actual_items = actual if isinstance(actual, list) else []
        return all(
            any(_is_compatible(item, actual_item) for actual_item in actual_items)
            for item in expected
        )
    if isinstance(expected, str) and isinstance(actual, str):
        return _is_same_text(expected, actual)
    return expected == actual or (not expected and not actual)


def _is_same_text(sent_text: str, shown_text: str) -> bool:
    if "*" in shown_text:
        visible_end = shown_text.rpartition("*")[2]
        return sent_text.replace(" ", "").endswith(visible_end)
    return sent_text.strip().casefold() == shown_text.strip().casefold()
