"""Helpers of the outcome rules: which object in a response a write in doubt may have made."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from msgspec import structs

from mappings import money, paging
from mappings.dates import EARLIEST_INSTANT, parse_instant_or_earliest
from mappings.effects import (
    JSON,
    Absent,
    Call,
    Confirmed,
    Inconclusive,
    InDoubtWrite,
    OutcomeReads,
    Step,
)
from mappings.failures import Refused, Unreachable
from mappings.field_types import extract_visible_end
from mappings.matching import Payment, extract_recipient_id
from mappings.payloads import extract_payments

MAX_LIST_PAGES = 20
"""Maximum number of pages read to find one object; a longer list is inconclusive."""

CREATION_TOLERANCE = timedelta(minutes=10)
"""How far the time at which an object was created may be from that of its write. Both clocks may be
wrong; objects that other writes created are known and excluded."""

EARLY_CREATION_TOLERANCE = timedelta(minutes=1)
"""How far a creation may seem to precede its write if both clocks agree: dates may lack seconds."""

JSONObject = Mapping[str, JSON]


def fetch_if_exists(path: str, *, needs_proof: bool = False) -> Generator[Step, Any, JSON]:
    """Calls GET; None if the service does not have the object.

    With ``needs_proof``, raises Unreachable for a 404 without the service's error: it may come from a
    page that stands in its place.
    """
    try:
        return (yield Call("GET", path))
    except Refused as refusal:
        if refusal.status != 404:
            raise
        if needs_proof and not refusal.problems:
            raise Unreachable("status 404 without an error of the service") from None
        return None


def fetch_whole_list(
    path: str, rows_key: str, query: Mapping[str, str], probe_ids: paging.ProbeIds = None
) -> Generator[Step, Any, list[dict[str, JSON]] | None]:
    """Fetches every row of a list; None if it is too long.

    Raises Unreachable without a list, or if it ends before the service's count of its rows.
    """
    rows = paging.ListedRows(rows_key)
    body, query = yield from paging.fetch_first_page(path, query, probe_ids=probe_ids)
    for number in range(1, MAX_LIST_PAGES + 1):
        if number > 1:
            params = {**query, "page": str(number)}
            body = yield Call("GET", path, query=params, probe_ids=probe_ids)
        # A missing list does not prove that the object is absent.
        if rows_key not in body:
            raise Unreachable(f"the response has no {rows_key}")
        if number >= rows.add_page(body, number):
            return [*rows.by_id.values()]
    return None


def defer_confirmation(call: Call) -> Call:
    """Returns a call that takes back what was just done, with a rule that is not confirmed at once.

    A read from before that, perhaps of another replica, shows the same as one after the call.
    """

    def read_outcome(write: InDoubtWrite) -> OutcomeReads:
        outcome = Inconclusive("the service may show the object as it was before an earlier change")
        result = (yield from call.reconcile(write)) if call.reconcile else outcome
        return outcome if write.is_recent and isinstance(result, Confirmed) else result

    return structs.replace(call, reconcile=read_outcome)


def confirm_operator_named_object(
    object_id: str, kind: str, match: dict[str, JSON] | None
) -> Confirmed | Inconclusive:
    """Confirms the account or payment that an operator named, if it is a possible match."""
    if match is None:
        return Inconclusive(f"{object_id}, named by the operator, is no new {kind} that matches")
    return Confirmed({kind: match}, object_id=object_id)


def build_older_object_reason(object_id: str) -> str:
    return f"{object_id}, named by the operator, is older than the write"


OLDER_VIEW_REASON = "the service may show the batch as it was before the request"
NO_PAYMENT_IDS_REASON = "the service does not show the ids of the batch's payments"


def has_payment_ids(summary: JSON) -> bool:
    """Whether every payment has an id: without ids a new payment looks like an earlier one."""
    return all(payment.get("id") for payment in extract_payments(summary))


def has_recipient(payment: JSONObject) -> bool:
    return bool(extract_recipient_id(payment) or payment.get("recipientId"))


def select_created_object(
    candidates: Sequence[dict[str, JSON]],
    write: InDoubtWrite,
    id_key: str = "id",
    *,
    is_dated: bool = True,
    is_full_match: Callable[[dict[str, JSON]], bool] = lambda _candidate: True,
) -> dict[str, JSON] | Absent | Inconclusive:
    """Selects the object that a write created among the candidates.

    ``is_full_match`` compares all sent values. It is used if there are several candidates or
    several identical writes in doubt.
    """
    matches = [each for each in candidates if each.get(id_key) not in write.claimed_ids]
    if is_dated:
        matches = [each for each in matches if is_created_after_write(each, write)]
    if not matches:
        return Absent()
    candidate_ids = tuple(str(each.get(id_key)) for each in matches)
    if write.identical_count > 1 or len(matches) > 1:
        matches = [each for each in matches if is_full_match(each)]
    # More matches than writes: some come from other writes, and it is unknown which.
    if not 0 < len(matches) <= write.identical_count:
        reason = "several objects match, and none can be attributed to this write"
        return Inconclusive(reason, candidate_ids=candidate_ids)
    # Identical writes each claim one of the identical objects, so it does not matter which.
    return min(matches, key=lambda candidate: str(candidate.get("createdAt")))


def is_created_after_write(row: JSONObject, write: InDoubtWrite) -> bool:
    """Whether an object was created since the write was sent; True if it has no readable date."""
    created_at = parse_creation_time(row.get("createdAt"))
    # Without a date nothing contradicts it, so the other fields have to decide.
    return created_at is None or created_at >= write.not_before


def parse_creation_time(text: JSON) -> datetime | None:
    """Parses a time; None without a zone too, as nothing can be compared with it."""
    try:
        created_at = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return created_at if created_at.tzinfo else None


def is_view_older(shown: JSONObject, seen: JSONObject, *, needs_newer: bool = False) -> bool:
    """Whether the service shows an object as it was before it was seen, or not a newer one."""
    shown_at, seen_at = (parse_instant_or_earliest(each.get("updatedAt")) for each in (shown, seen))
    return EARLIEST_INSTANT < shown_at < seen_at or (needs_newer and shown_at <= seen_at)


def is_shown_value_compatible(expected: JSON, actual: JSON) -> bool:
    """Whether a shown value may be the sent one; a masked value shows only its last characters."""
    if isinstance(expected, Mapping):
        actual_fields = actual if isinstance(actual, Mapping) else {}
        return all(
            is_shown_value_compatible(value, actual_fields.get(name))
            for name, value in expected.items()
        )
    if isinstance(expected, list):
        actual_items = actual if isinstance(actual, list) else []
        return all(
            any(is_shown_value_compatible(item, actual_item) for actual_item in actual_items)
            for item in expected
        )
    if not isinstance(expected, str) or not isinstance(actual, str):
        return expected == actual or (not expected and not actual)
    if _normalize_text(expected) == _normalize_text(actual):
        return True
    # Equality of the visible end does not prove equality, but a difference disproves it.
    visible_end = extract_visible_end(actual)
    return visible_end is not None and expected.replace(" ", "").endswith(visible_end)


def _normalize_text(text: JSON) -> str:
    return str(text).strip().casefold()


# Payments

PaymentTest = Callable[[JSONObject, JSONObject, JSON], bool]
"""Compares a sent payment with one that the service shows, in a batch of the given currency."""


def has_same_memo(payment: JSONObject, row: JSONObject) -> bool:
    return not row.get("memo") or is_shown_value_compatible(payment.get("memo"), row["memo"])


def is_same_payment(payment: JSONObject, row: JSONObject, batch_currency: JSON) -> bool:
    """Whether two payments have the same recipient, amount and currency."""
    return _compare_payments(payment, row, batch_currency) is True


def is_exact_payment(payment: JSONObject, row: JSONObject, batch_currency: JSON) -> bool:
    return is_same_payment(payment, row, batch_currency) and has_same_memo(payment, row)


def is_possible_payment(payment: JSONObject, row: JSONObject, batch_currency: JSON) -> bool:
    """Whether two payments may be the same: the recipient is, and no amount contradicts it."""
    return _compare_payments(payment, row, batch_currency) is not False


def _compare_payments(payment: JSONObject, row: JSONObject, batch_currency: JSON) -> bool | None:
    """Compares two payments; None if the service shows no amount in the requested currency."""
    if extract_payee_id(row) != extract_recipient_id(payment):
        return False
    sent_amount, sides = _extract_amount_and_possible_sides(payment, batch_currency)
    shown_amounts = _list_comparable_amounts(row, sides)
    return sent_amount in shown_amounts if shown_amounts else None


def extract_payee_id(payment: JSONObject) -> JSON:
    """Returns the id of a payment's recipient, in the form of a request or of a response."""
    return extract_recipient_id(payment) or payment.get("recipientId")


Sides = tuple[tuple[str, JSON], ...]
"""The sides of which an amount may be, each with its currency."""


def _extract_amount_and_possible_sides(
    payment: JSONObject, batch_currency: JSON
) -> tuple[Decimal | None, Sides]:
    """Returns the amount of a payment in either interface's form, and the sides it may have."""
    if amount := payment.get("sourceAmount"):
        return money.parse_amount(amount), (("source", batch_currency),)
    if amount := payment.get("targetAmount"):
        currency = payment.get("targetCurrency")
        # In the batch's own currency it is the amount to pay; the recipient may get another
        # currency.
        names = ("target", "source") if currency == batch_currency else ("target",)
        return money.parse_amount(amount), tuple((name, currency) for name in names)
    currency = payment.get("currency")
    name = "source" if currency == batch_currency else "target"
    return money.parse_amount(payment.get("amount")), ((name, currency),)


def _list_comparable_amounts(row: JSONObject, sides: Sides) -> list[Decimal]:
    """Lists the amounts that a shown payment has on a side, in its currency or in one not shown."""
    return [
        amount
        for side, currency in sides
        for name, currency_name in ((f"{side}Amount", f"{side}Currency"), ("amount", "currency"))
        if (amount := money.parse_amount(row.get(name))) is not None
        and row.get(currency_name) in (None, currency)
    ]


_ANY_MEMO, _MASKED_MEMO = object(), object()


class ShownPayments:
    """The payments that a service shows, among which those are found that clients have sent.

    A sent payment is compared only with those of its recipient that show its amount, or none that
    can be compared, and by memo only with those that may have it: the time is linear in the number
    of payments, also if all have one recipient and one amount.
    """

    def __init__(self, rows: Iterable[Payment], batch_currency: JSON) -> None:
        self._currency = batch_currency
        self._rows = [*rows]
        self._rows_by_recipient: dict[str, list[Payment]] = {}
        for row in self._rows:
            recipient_id = str(extract_payee_id(row))
            self._rows_by_recipient.setdefault(recipient_id, []).append(row)
        self._indexes: dict[tuple[str, Sides], dict[tuple[JSON, object], list[Payment]]] = {}
        """The rows of a recipient by amount and memo, as they are compared for the sides."""
        self._taken: set[int] = set()

    @property
    def remaining(self) -> list[Payment]:
        return [row for row in self._rows if id(row) not in self._taken]

    def take(self, payment: JSONObject, is_match: PaymentTest) -> Payment | None:
        """Takes a payment that matches a sent one; None if none was left."""
        recipient_id = str(extract_recipient_id(payment))
        amount, sides = _extract_amount_and_possible_sides(payment, self._currency)
        if (index := self._indexes.get((recipient_id, sides))) is None:
            rows = self._rows_by_recipient.get(recipient_id, [])
            index = self._indexes[recipient_id, sides] = _index_by_amount_and_memo(rows, sides)
        keys = [(amount, _ANY_MEMO), (None, _ANY_MEMO)]
        if is_match is is_exact_payment:
            memos = (_normalize_text(payment.get("memo") or ""), "", _MASKED_MEMO)
            keys = [(amount, memo) for memo in memos]
        for key in keys:
            bucket = index.get(key, [])
            while bucket and id(bucket[-1]) in self._taken:
                bucket.pop()
            for row in reversed(bucket):
                if id(row) not in self._taken and is_match(payment, row, self._currency):
                    self._taken.add(id(row))
                    return row
        return None

    def take_added(self, body: JSONObject) -> Payment | None:
        """Takes a payment that a signed request added, which may omit the batch's currency."""
        return self.take({"currency": self._currency, **body}, is_same_payment)


def _index_by_amount_and_memo(
    rows: Iterable[Payment], sides: Sides
) -> dict[tuple[JSON, object], list[Payment]]:
    index: dict[tuple[JSON, object], list[Payment]] = {}
    for row in rows:
        memo = _normalize_text(row.get("memo") or "")
        memo_keys = [_ANY_MEMO, memo, *([_MASKED_MEMO] if "*" in memo else [])]
        amounts: set[Decimal | None] = {*_list_comparable_amounts(row, sides)}
        for amount in amounts or {None}:
            for memo_key in memo_keys:
                index.setdefault((amount, memo_key), []).append(row)
    return index
