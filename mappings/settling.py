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
from mappings.batch_views import EDITABLE, derive_batch_status
from mappings.current import SUMMARY
from mappings.grammar import (
    JSON,
    Absent,
    Call,
    Confirmed,
    Inconclusive,
    InDoubtWrite,
    MayExist,
    NoSuchOperation,
    Parallel,
    Refused,
    Settle,
    Step,
    Unreachable,
    Verdict,
)
from mappings.matching import recipient_id
from mappings.payment_lists import extract_batch, extract_payments, extract_payments_if_told
from mappings.rows import map_rows

Given = Mapping[str, JSON]
Reading = Generator[Step, Any, Verdict]

MOST_PAGES = 20
"""How many pages of a list are read to find one object; a longer list is inconclusive."""

OTHER_CURRENCY = "the service shows no amount in the currency that was asked for"


# Recipients


def settle_created_recipient(sent: Given) -> Settle:
    """GET /recipients?email=, then the recipient itself."""

    def reading(sending: InDoubtWrite) -> Reading:
        if sending.told is not None:
            return (yield from _told_recipient(sending.told, sent))
        rows = yield from _pages("/recipients", "recipients", {"email": str(sent.get("email"))})
        if rows is None:
            return Inconclusive("too many recipients have its address")
        known = select_recipient_match_fields(sent)
        like = [row for row in rows if all(_agrees(known[n], row.get(n)) for n in known)]
        found = _new(like, sending, whole=lambda row: _shows(sent, row))
        if isinstance(found, dict):
            return (yield from _whole_recipient(found["id"]))
        return found

    return reading


_NAMES = {"business": ("name",), "individual": ("firstName", "lastName")}


def select_recipient_match_fields(sent: Given) -> dict[str, JSON]:
    names = ("email", "type", "referenceId", *_NAMES[str(sent.get("type"))])
    return {name: sent.get(name) for name in names}


def _shows(sent: Given, row: Given) -> bool:
    return all(_agrees(value, row.get(name)) for name, value in sent.items())


def _whole_recipient(recipient_id: str) -> Generator[Step, Any, Confirmed]:
    given = yield Call("GET", f"/recipients/{recipient_id}")
    return Confirmed({"recipient": given["recipient"]}, made=recipient_id)


def _told_recipient(recipient_id: str, sent: Given) -> Reading:
    """Check the recipient that an operator named as the one created."""
    # A mistyped id would pay another person, so the address has to agree.
    try:
        verdict = yield from _whole_recipient(recipient_id)
    except Refused as refused:
        if refused.status != 404:
            raise
        return Inconclusive(f"the service has no recipient {recipient_id}, named by the operator")
    if _agrees(sent.get("email"), verdict.body["recipient"].get("email")):
        return verdict
    return Inconclusive(f"{recipient_id}, named by the operator, has another address")


def settle_changed_recipient(recipient_id: str, fields: Given) -> Settle:
    """GET /recipients/:id"""

    def reading(sending: InDoubtWrite) -> Reading:
        given = (yield Call("GET", f"/recipients/{recipient_id}"))["recipient"]
        shown = _shows(fields, given) or sending.happened
        return Confirmed({"recipient": given}) if shown else Absent()

    return reading


def settle_deleted_recipients(*ids: str) -> Settle:
    """GET /recipients/:id, each"""

    def reading(_sending: InDoubtWrite) -> Reading:
        answers = yield Parallel([Call("GET", f"/recipients/{id_}") for id_ in ids])
        gone = [_is_gone(answer) for answer in answers]
        if None in gone:  # one of the reads failed
            return Inconclusive("the service could not be read")
        if all(gone):
            return Confirmed()
        return Inconclusive("some of them are gone") if any(gone) else Absent()

    return reading


def _is_gone(answer: Any) -> bool | None:
    if isinstance(answer, Refused):
        return True if answer.status == 404 else None
    if isinstance(answer, Exception):
        return None
    return bool(answer["recipient"].get("status") == "archived")


# Accounts


def settle_added_account(recipient_id: str, account: Given, before: Iterable[str]) -> Settle:
    """GET /recipients/:id"""
    known = frozenset(before)

    def reading(sending: InDoubtWrite) -> Reading:
        there = yield from _accounts(recipient_id)
        if sending.told is not None:
            found = next((one for one in there if one.get(_ACCOUNT) == sending.told), None)
            is_it = found is not None and sending.told not in known and _is_like(account, found)
            return _as_told(sending.told, "account", found if is_it else None)
        like = [one for one in there if _is_like(account, one)]
        new = [one for one in like if one.get("recipientAccountId") not in known]
        # Accounts have no date: a new one is one that was not there before.
        new_one = _new(new, sending, key=_ACCOUNT, dated=False)
        if isinstance(new_one, dict):
            return Confirmed({"account": new_one}, made=new_one[_ACCOUNT])
        return new_one

    return reading


_ACCOUNT = "recipientAccountId"


def settle_changed_account(recipient_id: str, held: Given, fields: Given) -> Settle:
    """GET /recipients/:id; the change gives the account another id (current interface, 4.2)."""
    account_id = held["recipientAccountId"]

    def reading(_sending: InDoubtWrite) -> Reading:
        there = yield from _accounts(recipient_id)
        for one in there:
            if one.get("recipientAccountId") == account_id:
                return Confirmed({"account": one}) if _is_like(fields, one) else Absent()
        # The account has another id after the change, so it is found by its fields.
        whole = {"type": held.get("type"), **fields}
        like = [one for one in there if _is_like(whole, one)]
        if len(like) == 1:
            return Confirmed({"account": like[0]})
        return Inconclusive("the account does not exist any more")

    return reading


def settle_deleted_account(recipient_id: str, account_id: str) -> Settle:
    """GET /recipients/:id"""

    def reading(_sending: InDoubtWrite) -> Reading:
        there = yield from _accounts(recipient_id)
        held = any(one.get("recipientAccountId") == account_id for one in there)
        return Absent() if held else Confirmed({"object": "deleted"})

    return reading


def _accounts(recipient_id: str) -> Generator[Step, Any, list[dict[str, JSON]]]:
    try:
        given = (yield Call("GET", f"/recipients/{recipient_id}"))["recipient"]
    except Refused as refused:
        if refused.status != 404:
            raise
        return []
    return list(given.get("accounts") or [])


def _is_like(sent: Given, account: Given) -> bool:
    names = {**sent, "bankRegionCode": sent.get("bankRegion")}
    names.pop("bankRegion", None)
    return all(_agrees(value, account.get(name)) for name, value in names.items() if value)


# Batches


def settle_created_batch(body: Given) -> Settle:
    """GET /batches if the service has it, then GET /batch/:id/summary of possible matches."""

    def reading(sending: InDoubtWrite) -> Reading:
        if sending.told is not None:
            return (yield from _told_batch(sending.told, body))
        try:
            rows = yield from _pages("/batches", "batches", {}, witness=())
        except NoSuchOperation:
            # A batch nobody can list pays nobody before its start, so the client may create
            # another.
            return MayExist()
        if rows is None:
            return Inconclusive("the service lists too many batches")
        like = [row for row in rows if _may_be(body, row) and _is_new(row, sending)]
        those = yield from _paying_the_same(body, like, sending)
        if isinstance(those, Inconclusive):
            return those
        same, exact = those
        found = _new(same, sending, whole=lambda row: row["id"] in exact)
        if isinstance(found, dict):
            return Confirmed({"batch": {"id": found["id"]}}, made=found["id"])
        return found

    return reading


def _paying_the_same(
    body: Given, rows: Sequence[dict[str, JSON]], sending: InDoubtWrite
) -> Generator[Step, Any, Inconclusive | tuple[list[dict[str, JSON]], set[JSON]]]:
    """Return the batches with the sent payments, and the ids of those that have the memos too."""
    same: list[dict[str, JSON]] = []
    exact: set[JSON] = set()
    for row in rows:
        # A batch that another write created cannot be this one's.
        summary = None if row["id"] in sending.claimed else (yield from _summary(row["id"]))
        if summary is None or not _is_new(extract_batch(summary), sending):
            continue
        if not _tells_payments(summary):
            return Inconclusive(f"the service does not show the payments of {row['id']}")
        if _pays_the_same(body, summary, _pays):
            same.append(row)
            exact |= {row["id"]} if _pays_the_same(body, summary, _pays_with_memo) else set()
        elif _pays_the_same(body, summary, _may_pay):
            return Inconclusive(f"{OTHER_CURRENCY}, in {row['id']}")
    return same, exact


def _told_batch(batch_id: str, body: Given) -> Reading:
    """Check the batch that an operator named, which must not visibly pay something else."""
    try:
        summary = yield Call("GET", SUMMARY.format(id=batch_id))
    except Refused as refused:
        if refused.status != 404:
            raise
        return Inconclusive(f"the service has no batch {batch_id}, named by the operator")
    there = extract_payments(summary)
    tells = all(map(_tells_whom, there))
    if len(there) != len(body["payments"]) or (
        tells and not _pays_the_same(body, summary, _may_pay)
    ):
        return Inconclusive(f"{batch_id}, named by the operator, pays something else")
    return Confirmed({"batch": {"id": batch_id}}, made=batch_id)


def select_batch_match_fields(body: Given) -> dict[str, JSON]:
    return {**body, "payments": map_rows(select_payment_match_fields, body["payments"])}


def select_payment_match_fields(body: Given) -> dict[str, JSON]:
    """Return a payment without its memo, because the document does not say that it is stored."""
    return {name: value for name, value in body.items() if name != "memo"}


def _summary(batch_id: str) -> Generator[Step, Any, JSON]:
    """Fetch a batch's summary; None if the batch is deleted."""
    try:
        return (yield Call("GET", SUMMARY.format(id=batch_id)))
    except Refused as refused:
        if refused.status != 404:
            raise
        return None


def _may_be(body: Given, row: Given) -> bool:
    """Whether a listed batch may be the one sent. Fields the list does not show count as equal."""
    total = row.get("totalPayments")
    return (
        row.get("currency") in (None, body.get("currency"))
        and ("description" not in row or _agrees(body.get("description"), row["description"]))
        and total in (None, len(body["payments"]))
    )


Test = Callable[[Given, Given, JSON], bool]
"""Compares a sent payment with one that the service shows, in a batch of the given currency."""


def _pays_the_same(body: Given, summary: JSON, is_it: Test) -> bool:
    left: dict[JSON, list[Given]] = {}
    there = extract_payments(summary)
    for one in there:
        left.setdefault(str(_paid(one)), []).append(one)
    for payment in body["payments"]:
        of, its = body.get("currency"), left.get(str(recipient_id(payment)), [])
        those = (place for place, one in enumerate(its) if is_it(payment, one, of))
        match = next(those, None)
        if match is None:
            return False
        del its[match]  # each shown payment counts once: a batch may have equal ones
    return len(there) == len(body["payments"])


def _has_memo_of(sent: Given, shown: Given) -> bool:
    return not shown.get("memo") or _agrees(sent.get("memo"), shown["memo"])


def _pays(sent: Given, shown: Given, batch_currency: JSON) -> bool:
    """Whether two payments have the same recipient, amount and currency."""
    return _compared(sent, shown, batch_currency) is True


def is_paid_by(shown: Given, sent: Given, batch_currency: JSON) -> bool:
    """Whether a payment is the one of an add to its batch, which may leave the currency to that."""
    return _pays({"currency": batch_currency, **sent}, shown, batch_currency)


def _pays_with_memo(sent: Given, shown: Given, batch_currency: JSON) -> bool:
    return _pays(sent, shown, batch_currency) and _has_memo_of(sent, shown)


def _may_pay(sent: Given, shown: Given, batch_currency: JSON) -> bool:
    """Whether two payments may be the same: the recipient is, and no amount contradicts it."""
    return _compared(sent, shown, batch_currency) is not False


def _compared(sent: Given, shown: Given, batch_currency: JSON) -> bool | None:
    """Compare two payments; None if the service shows no amount in the requested currency."""
    if _paid(shown) != recipient_id(sent):
        return False
    compared = [
        money.parse_amount(shown[name]) == money.parse_amount(amount)
        for side, amount, currency in _sides(sent, batch_currency)
        for name, of in ((f"{side}Amount", f"{side}Currency"), ("amount", "currency"))
        if shown.get(name) is not None and shown.get(of) in (None, currency)
    ]
    return any(compared) if compared else None


def _paid(shown: Given) -> JSON:
    return recipient_id(shown) or shown.get("recipientId")


def _sides(sent: Given, batch_currency: JSON) -> list[tuple[str, JSON, JSON]]:
    """List the possible side, amount and currency of a payment in either interface's form."""
    if sent.get("sourceAmount"):
        return [("source", sent["sourceAmount"], batch_currency)]
    if amount := sent.get("targetAmount"):
        currency = sent.get("targetCurrency")
        # In the batch's own currency the amount is what is paid; another currency may be received.
        sides = ["target", "source"] if currency == batch_currency else ["target"]
        return [(side, amount, currency) for side in sides]
    currency = sent.get("currency")
    sides = ["source"] if currency == batch_currency else ["target"]
    return [(side, sent.get("amount"), currency) for side in sides]


def settle_added_payment(
    upstream: str,
    body: Given,
    currency: JSON,
    before: Iterable[str],
    other_adds: Callable[[], Generator[Step, Any, list[Given]]],
) -> Settle:
    """GET /batch/:id/summary; ``other_adds`` are the bodies of others that may have made what is found."""
    known = frozenset(before)

    def may_be(shown: Given) -> bool:
        return not _tells_whom(shown) or _may_pay(body, shown, currency)

    def reading(sending: InDoubtWrite) -> Reading:
        summary = yield Call("GET", SUMMARY.format(id=upstream))
        if sending.told is not None:
            there = extract_payments(summary)
            found = next((one for one in there if one.get("id") == sending.told), None)
            is_it = found is not None and sending.told not in known and may_be(found)
            return _as_told(sending.told, "payment", found if is_it else None)
        if not _tells_which(summary):
            return Inconclusive(_WHICH)
        # After the summary: what it shows was made by adds that were known before.
        others = yield from other_adds()
        new = [one for one in extract_payments(summary) if one.get("id") not in known]
        if extract_payments_if_told(summary) is None or not all(map(_tells_whom, new)):
            return Inconclusive("the service does not show the recipients of the batch's payments")
        unclaimed = [one for one in new if one.get("id") not in sending.claimed]
        whose = {one["id"]: _is_of_another(body, one, others, currency) for one in unclaimed}
        like = [one for one in unclaimed if _pays(body, one, currency) and not whose[one["id"]]]
        if any(whose[one["id"]] is None for one in like):
            return Inconclusive("it may be what another add has made")
        new_one = _new(like, sending, dated=False, whole=lambda one: _has_memo_of(body, one))
        if isinstance(new_one, dict):
            return Confirmed({"payment": new_one}, made=new_one.get("id"))
        # A new payment to the recipient in another currency may be this one, so nothing is proved.
        unclear = (one for one in unclaimed if not whose[one["id"]])
        if isinstance(new_one, Absent) and any(_may_pay(body, one, currency) for one in unclear):
            return Inconclusive(OTHER_CURRENCY)
        return new_one

    return reading


def _is_of_another(
    body: Given, shown: Given, others: Iterable[Given], currency: JSON
) -> bool | None:
    """Whether a payment that may be ``body``'s was made by another add; None if nothing tells.

    Of several that it may be, the memo tells, if the service shows one.
    """
    memo, answers = shown.get("memo"), set[bool | None]()
    for other in others:
        if _may_pay(other, shown, currency):
            is_its, is_mine = (_agrees(one.get("memo"), memo) for one in (other, body))
            answers.add(is_its if memo and is_its != is_mine else None)
    if True in answers:
        return True
    return None if None in answers else False


def settle_edited_batch(
    upstream: str,
    before: Sequence[Given],
    currency: JSON,
    *,
    added: Sequence[Given] = (),
    changed: Callable[[], Mapping[str, Given]] = dict,
    removed: Callable[[], Iterable[str]] = tuple,
    fields: Given = MappingProxyType({}),
) -> Settle:
    """GET /batch/:id/summary, compared with ``payments``, the batch's payments before the edit.

    ``build_changes`` and ``list_removed_ids`` use ids of the service and are called only if the
    rule runs; ``batch_fields`` are the changed fields of the batch itself. All changes together
    confirm the edit; if only some can be seen, the rule is inconclusive.
    """

    def reading(_sending: InDoubtWrite) -> Reading:
        summary = yield Call("GET", SUMMARY.format(id=upstream))
        if extract_payments_if_told(summary) is None:
            return Inconclusive("the service does not show the batch's payments")
        if not _tells_which(summary):
            return Inconclusive(_WHICH)
        were = {str(one["upstream"]): one for one in before if one.get("upstream")}
        there = {str(one.get("id")): one for one in extract_payments(summary)}
        signs = [id_ not in there for id_ in removed()]
        # A payment that had the new amount before the edit proves nothing.
        signs += [
            id_ in there and _pays_as(body, there[id_], currency)
            for id_, body in changed().items()
            if id_ in were and not _pays_as(body, were[id_], currency)
        ]
        others = [one for id_, one in there.items() if id_ not in were]
        if added and not all(map(_tells_whom, others)):
            return Inconclusive("the service does not show the recipients of the batch's payments")
        signs += [any(_pays(body, one, currency) for one in others) for body in added]
        shown = extract_batch(summary)
        signs += [_agrees(value, shown[name]) for name, value in fields.items() if name in shown]
        if signs and all(signs):
            return Confirmed({"object": "updated"})
        if any(signs):
            return Inconclusive("only some of the changes can be seen")
        is_told = not any(_may_pay(body, one, currency) for body in added for one in others)
        return Absent() if is_told else Inconclusive(OTHER_CURRENCY)

    return reading


def _pays_as(body: Given, shown: Given, currency: JSON) -> bool:
    """Whether a payment has the amount of a change; True if the change sets none."""
    if not (body.get("sourceAmount") or body.get("targetAmount")):
        return True
    return _pays({**body, "recipient": shown.get("recipient")}, shown, currency)


def settle_deleted_batch(upstream: str) -> Settle:
    """GET /batch/:id/summary"""

    def reading(_sending: InDoubtWrite) -> Reading:
        try:
            summary = yield Call("GET", SUMMARY.format(id=upstream))
        except Refused as refused:
            if refused.status != 404:
                raise
            return Confirmed({"object": "deleted"})
        gone = extract_batch(summary).get("status") in ("deleted", "archived")
        return Confirmed({"object": "deleted"}) if gone else Absent()

    return reading


def settle_quote(upstream: str, expires: JSON) -> Settle:
    """GET /batch/:id/summary; ``previous_expiry`` is the ``quoteExpiredAt`` before the call.

    A quote that cannot be seen is absent: it may be repeated until processing starts.
    """

    def reading(_sending: InDoubtWrite) -> Reading:
        batch = extract_batch((yield Call("GET", SUMMARY.format(id=upstream))))
        seen = batch.get("quoteExpiredAt")
        return Confirmed({"batch": batch}) if seen and seen != expires else Absent()

    return reading


def settle_start(upstream: str) -> Settle:
    """GET /batch/:id/summary; any status but open and pending confirms the start."""

    def reading(_sending: InDoubtWrite) -> Reading:
        batch = extract_batch((yield Call("GET", SUMMARY.format(id=upstream))))
        status = derive_batch_status(batch)
        if status and status not in EDITABLE:
            return Confirmed({"batch": batch})
        return Absent() if status else Inconclusive("the service shows no status of the batch")

    return reading


# Shared by the rules


def _pages(
    path: str, rows: str, query: Mapping[str, str], witness: tuple[str, ...] | None = None
) -> Generator[Step, Any, list[dict[str, JSON]] | None]:
    """Fetch every row of a list; None if it is too long. Raises Unreachable if it is no list."""
    found: list[dict[str, JSON]] = []
    for number in range(1, MOST_PAGES + 1):
        asked = {**query, "page": str(number), "pageSize": "100"}
        body = yield Call("GET", path, query=asked, witness=witness)
        # Without the list nothing is known to be absent.
        if rows not in body:
            raise Unreachable(f"its answer has no {rows}")
        given = [row for row in body[rows] or [] if isinstance(row, dict)]
        found += given
        pages = paging.parse_count((body.get("meta") or {}).get("pages"), 1)
        if number >= pages or not given:
            return found
    return None


def _as_told(told: str, name: str, found: dict[str, JSON] | None) -> Confirmed | Inconclusive:
    """Confirm the account or payment that an operator named, if it is a possible match."""
    if found is None:
        return Inconclusive(f"no new {name} like it has the id {told}, named by the operator")
    return Confirmed({name: found}, made=told)


def _tells_payments(summary: JSON) -> bool:
    there = extract_payments_if_told(summary)
    return there is not None and all(map(_tells_whom, there))


_WHICH = "the service does not show the ids of the batch's payments"


def _tells_which(summary: JSON) -> bool:
    """Whether every payment has an id: without ids a new payment looks like an earlier one."""
    return all(one.get("id") for one in extract_payments(summary))


def _tells_whom(payment: Given) -> bool:
    return bool(payment.get("recipient") or payment.get("recipientId"))


def _new(
    like: Sequence[dict[str, JSON]],
    sending: InDoubtWrite,
    key: str = "id",
    *,
    dated: bool = True,
    whole: Callable[[dict[str, JSON]], bool] = lambda _one: True,
) -> dict[str, JSON] | Absent | Inconclusive:
    """Select the object that a write created among the candidates.

    ``is_full_match`` compares all sent values. It is used if there are several candidates or
    several identical writes in doubt.
    """
    found = [one for one in like if one.get(key) not in sending.claimed]
    if dated:
        found = [one for one in found if _is_new(one, sending)]
    if not found:
        return Absent()
    if sending.alike > 1 or len(found) > 1:
        found = [one for one in found if whole(one)]
    if not 0 < len(found) <= sending.alike:
        return Inconclusive("others are like it")
    # Identical writes each claim one of the identical objects, so it does not matter which.
    return min(found, key=lambda one: str(one.get("createdAt")))


def _is_new(row: Given, sending: InDoubtWrite) -> bool:
    """Whether an object was created since the write was sent; True if it has no readable date."""
    try:
        made = datetime.fromisoformat(str(row.get("createdAt")))
    except ValueError:
        return True
    return made >= sending.since if made.tzinfo else True


def _agrees(sent: JSON, shown: JSON) -> bool:
    """Whether a shown value may be the sent one; a masked value shows only its last characters."""
    if isinstance(sent, Mapping):
        held = shown if isinstance(shown, Mapping) else {}
        return all(_agrees(value, held.get(name)) for name, value in sent.items())
    if isinstance(sent, list):
        held_ones = shown if isinstance(shown, list) else []
        return all(any(_agrees(one, held) for held in held_ones) for one in sent)
    if isinstance(sent, str) and isinstance(shown, str):
        return _same_text(sent, shown)
    return sent == shown or (not sent and not shown)


def _same_text(sent: str, shown: str) -> bool:
    if "*" in shown:
        visible = shown.rpartition("*")[2]
        return sent.replace(" ", "").endswith(visible)
    return sent.strip().casefold() == shown.strip().casefold()
