"""Helpers of the outcome rules: which object in a response a write in doubt may have made."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from mappings import paging
from mappings.effects import JSON, Absent, Call, Confirmed, Inconclusive, InDoubtWrite, Step
from mappings.failures import Refused, Unreachable
from mappings.matching import extract_recipient_id
from mappings.payloads import extract_payments

MAX_LIST_PAGES = 20
"""Maximum number of pages read to find one object; a longer list is inconclusive."""

CREATION_TOLERANCE = timedelta(minutes=10)
"""How far the time at which an object was created may be from that of its write. Both clocks may be
wrong; objects that other writes created are known and excluded."""

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
    path: str, rows_key: str, query: Mapping[str, str], witness: tuple[str, ...] | None = None
) -> Generator[Step, Any, list[dict[str, JSON]] | None]:
    """Fetches every row of a list; None if it is too long.

    Raises Unreachable without a list, or if it ends before the service's count of its rows.
    """
    rows = paging.ListedRows(rows_key)
    body, query = yield from paging.fetch_first_page(path, query, probe_ids=witness)
    for number in range(1, MAX_LIST_PAGES + 1):
        if number > 1:
            params = {**query, "page": str(number)}
            body = yield Call("GET", path, query=params, probe_ids=witness)
        # A missing list does not prove that the object is absent.
        if rows_key not in body:
            raise Unreachable(f"the response has no {rows_key}")
        if number >= rows.add_page(body, number):
            return [*rows.by_id.values()]
    return None


def confirm_operator_named_object(
    object_id: str, kind: str, match: dict[str, JSON] | None
) -> Confirmed | Inconclusive:
    """Confirms the account or payment that an operator named, if it is a possible match."""
    if match is None:
        return Inconclusive(f"{object_id}, named by the operator, is no new {kind} that matches")
    return Confirmed({kind: match}, object_id=object_id)


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
    if write.identical_count > 1 or len(matches) > 1:
        matches = [each for each in matches if is_full_match(each)]
    # More matches than writes: some come from other writes, and it is unknown which.
    if not 0 < len(matches) <= write.identical_count:
        return Inconclusive("several objects match, and none can be attributed to this write")
    # Identical writes each claim one of the identical objects, so it does not matter which.
    return min(matches, key=lambda candidate: str(candidate.get("createdAt")))


def is_created_after_write(row: JSONObject, write: InDoubtWrite) -> bool:
    """Whether an object was created since the write was sent; True if it has no readable date."""
    try:
        created_at = datetime.fromisoformat(str(row.get("createdAt")))
    except ValueError:
        # Without a date nothing contradicts it, so the other fields have to decide.
        return True
    return created_at >= write.not_before if created_at.tzinfo else True


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
    if "*" in actual:
        # Equality of the visible end does not prove equality, but a difference disproves it.
        return expected.replace(" ", "").endswith(actual.rpartition("*")[2])
    return expected.strip().casefold() == actual.strip().casefold()
