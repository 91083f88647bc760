"""Import of the data that only the legacy service has, before the cutover.

Each flow takes an object of the legacy service, finds the same object at the current service with
reads, and answers the facts to store about it. Ids may differ: an object is found by its id, or
else by a combination of fields that only one object has. An ambiguous object is not mapped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from mappings import money
from mappings.batch_bodies import extract_listed_recipient
from mappings.batch_views import EDITABLE, STATUSES, build_batch, derive_batch_status
from mappings.current import SUMMARY
from mappings.grammar import (
    JSON,
    Answer,
    Call,
    Flow,
    NoSuchOperation,
    Refused,
)
from mappings.matching import Entry
from mappings.objects import (
    UNSET_HOLD,
    UPSTREAM_STATUS,
    derive_legacy_status,
    is_gone,
    is_status_word_valid,
)
from mappings.paging import count_pages_to_read
from mappings.payment_lists import extract_batch, extract_payments
from mappings.payouts import Sub

Shown = Mapping[str, JSON]

KEPT = ("status", "autoswitch", "holdup")
"""Facts of a recipient that the current service has no place for."""


def _mapped(current: str, facts: Shown, **more: JSON) -> Answer:
    return Answer({"current": current, "facts": facts, "why": None, **more})


def _unmapped(why: str) -> Answer:
    return Answer({"current": None, "facts": {}, "why": why})


# Recipients


def match_recipient(shown: Shown) -> Flow:
    """GET /recipients/:id, else GET /recipients?email="""
    found = yield from _recipient_of(shown)
    if found is None:
        return _unmapped(
            "the current service has no recipient with this id, and not exactly one that is like it"
        )
    word = shown.get("status")
    facts = dict.fromkeys(KEPT) | _holds(shown)
    if word in UPSTREAM_STATUS:
        if not is_status_word_valid(str(word), found.get("status")):
            return _unmapped(
                f"it is {word} at the legacy service, but {found.get('status')} at the current one"
            )
        facts["status"] = word
    elif derive_legacy_status(found, {}) != word:
        return _unmapped(
            f"it is {word} at the legacy service, but {found.get('status')} at the current one"
        )
    return _mapped(str(found["id"]), facts)


def _recipient_of(shown: Shown) -> Sub:
    try:
        found = (yield Call("GET", f"/recipients/{shown['id']}"))["recipient"]
    except Refused as refused:
        if refused.status != 404:
            raise
    else:
        return None if is_gone(found, {}) else found
    rows = (yield Call("GET", "/recipients", query={"email": str(shown.get("email"))})).get(
        "recipients"
    )
    named = ("email", "createdAt", "referenceId")
    alike = [
        row
        for row in rows or []
        if not is_gone(row, {}) and all(row.get(name) == shown.get(name) for name in named)
    ]
    # A wrong match would attach a client's id to another person, so one that is ambiguous is none.
    return alike[0] if len(alike) == 1 else None


def _holds(shown: Shown) -> dict[str, JSON]:
    payout = shown.get("payout") or {}
    holds = {}
    for name in ("autoswitch", "holdup"):
        given = payout.get(name)
        hold = {**UNSET_HOLD, **(given if isinstance(given, dict) else {})}
        holds[name] = None if hold == UNSET_HOLD else hold
    return holds


# Batches


def load_listed_batches() -> Flow:
    """GET /batches, if the service has it; else ``batches`` is None."""
    rows: dict[str, JSON] = {}
    number, pages, seen = 1, 1, 0
    while number <= pages:
        query = {"page": str(number), "pageSize": "100"}
        try:
            body = yield Call("GET", "/batches", query=query, witness=())
        except NoSuchOperation:
            return Answer({"batches": None})
        rows |= {str(row["id"]): row for row in body.get("batches") or [] if row.get("id")}
        pages = count_pages_to_read(body, number, is_new=len(rows) > seen)
        number, seen = number + 1, len(rows)
    return Answer({"batches": list(rows.values())})


def match_batch(
    shown: Shown,
    payments: Sequence[Shown],
    names: Mapping[str, str],
    listed: Sequence[Shown] | None,
) -> Flow:
    """GET /batch/:id/summary, by its own id, else for each candidate

    ``current_ids`` maps legacy ids to differing current ids. Candidates come from the ``listed``
    batches of the service, or from GET /recipients/:id/payments if it cannot list batches.
    """
    wanted = _pays(payments, names)
    own = names.get(shown["id"], shown["id"])
    if (found := (yield from _summary(own))) is not None:
        return _batch(shown, payments, names, own, found)
    if listed is None:
        likely = yield from _of_a_payee(shown, payments, names)
    else:
        likely = [
            str(row["id"]) for row in listed if row.get("createdAt") == shown.get("createdAt")
        ]
    same = []
    for id_ in likely:
        found = yield from _summary(id_)
        if found is not None and _is_like(shown, wanted, found):
            same.append((id_, found))
    # The client would start, edit or delete the wrong batch.
    if len(same) != 1:
        what = "several batches" if same else "no batch"
        return _unmapped(f"{what} of the current service can be this one; see `ids import`")
    return _batch(shown, payments, names, *same[0])


def _is_like(shown: Shown, wanted: Sequence[tuple[JSON, ...]], found: JSON) -> bool:
    told = extract_batch(found)
    described = told.get("description") in (None, shown.get("description"))
    return described and _pays(extract_payments(found), {}) == wanted


def _summary(id_: str) -> Sub:
    try:
        return (yield Call("GET", SUMMARY.format(id=id_)))
    except Refused as refused:
        if refused.status != 404:
            raise
        return None


def _of_a_payee(shown: Shown, payments: Sequence[Shown], names: Mapping[str, str]) -> Sub:
    """Lists the batches with the same creation time that pay the first recipient of the batch."""
    if not payments:
        return []
    payee = _payee(payments[0], names)
    found: dict[str, None] = {}
    seen = set[JSON]()
    number, pages = 1, 1
    while number <= pages:
        query = {"page": str(number), "pageSize": "100"}
        try:
            body = yield Call("GET", f"/recipients/{payee}/payments", query=query)
        except Refused as refused:
            if refused.status != 404:
                raise
            return []
        before = len(seen)
        for one in body.get("payments") or []:
            seen.add(one.get("id"))
            batch = one.get("batch") or {}
            if batch.get("id") and batch.get("createdAt") == shown.get("createdAt"):
                found[str(batch["id"])] = None
        pages = count_pages_to_read(body, number, is_new=len(seen) > before)
        number += 1
    return list(found)


def _payee(payment: Shown, names: Mapping[str, str]) -> str:
    id_ = str((payment.get("recipient") or {}).get("id"))
    return names.get(id_, id_)


def _pay(payment: Shown, names: Mapping[str, str]) -> tuple[JSON, ...]:
    """Builds a key of recipient, source amount and target currency.

    Without the target amount, which a quote changes.
    """
    source = money.parse_amount(payment.get("sourceAmount"))
    return _payee(payment, names), source, payment.get("targetCurrency")


def _pays(payments: Sequence[Shown], names: Mapping[str, str]) -> list[tuple[JSON, ...]]:
    return sorted((_pay(one, names) for one in payments), key=str)


def _batch(
    shown: Shown, payments: Sequence[Shown], names: Mapping[str, str], id_: str, found: JSON
) -> Answer:
    there = extract_payments(found)
    paired = _paired(payments, there, names)
    if paired is None:
        return _unmapped("it has other payments at the current service")
    status, told = shown.get("status"), derive_batch_status(extract_batch(found))
    if status in STATUSES and told is not None and (status in EDITABLE) != (told in EDITABLE):
        return _unmapped(f"it is {status} at the legacy service, but {told} at the current one")
    facts: dict[str, JSON] = {
        "phase": "sent",
        "upstream": id_,
        "currency": shown.get("currency"),
        "description": shown.get("description"),
        "createdAt": shown.get("createdAt"),
        "updatedAt": shown.get("updatedAt"),
        "started": shown.get("sentAt"),
        "completedAt": shown.get("completedAt"),
    }
    entries = [_entry(one, current, names) for one, current in paired]
    renamed = {str(one["id"]): current for one, current in paired if one["id"] != current}
    batch = build_batch(id_, facts, entries, extract_batch(found), there)
    return _mapped(id_, facts, entries=entries, payments=renamed, is_open=batch.is_editable)


def _paired(
    payments: Sequence[Shown], there: Sequence[Shown], names: Mapping[str, str]
) -> list[tuple[Shown, str]] | None:
    """Pairs each payment with its current id; identical payments are paired in listing order.

    Returns None if the two lists do not contain the same payments.
    """
    by_id = {str(one.get("id")): one for one in there}
    left: dict[tuple[JSON, ...], list[str]] = defaultdict(list)
    known = {names.get(str(one["id"]), str(one["id"])) for one in payments}
    for one in there:
        if str(one.get("id")) not in known:
            left[_pay(one, {})].append(str(one.get("id")))
    found = []
    for one in payments:
        own = names.get(str(one["id"]), str(one["id"]))
        alike = left[_pay(one, names)]
        if own not in by_id and not alike:
            return None
        found.append((one, own if own in by_id else alike.pop(0)))
    return found if len(found) == len(there) else None


def _entry(payment: Shown, current: str, names: Mapping[str, str]) -> Entry:
    """Reconstructs the entry that was requested for a payment, as far as that is possible."""
    recipient = {
        **extract_listed_recipient(payment.get("recipient") or {}),
        "id": _payee(payment, names),
    }
    # Answers take the status from the current service, so a stored copy would only become stale.
    recipient.pop("status", None)
    named = ("sourceAmount", "memo", "createdAt", "updatedAt")
    kept = {name: payment[name] for name in named if payment.get(name) not in (None, "")}
    return {"id": current, "recipient": recipient, **kept}
