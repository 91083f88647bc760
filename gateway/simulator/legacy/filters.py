"""Filters of the lists of batches and payments, which clients send although no document lists them.

They work like the filters of recipients (section 4.1): an unknown word matches nothing, and an
invalid date is ignored.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta

from gateway.simulator.legacy import batch_views, loose, payment_views
from gateway.simulator.legacy.asked import Asked
from gateway.simulator.legacy.recipient_list import DAY, moment
from gateway.simulator.payment_lists import Listed, matches
from gateway.simulator.state import Batch
from gateway.simulator.wire import JsonObject

NAMES = frozenset(
    {"status", "startDate", "endDate", "recipient", "country", "sourceCurrency", "targetCurrency"}
)


def batches(asked: Asked, found: Iterable[Batch]) -> list[Batch]:
    """Filter batches; `search` matches any part of the id.

    Recipient, country and target currency match if one payment of the batch matches them all.
    """
    names, query = asked.names, asked.query
    search = query.get("search", "").casefold()
    wanted = _payment_tests(asked)

    def fits(one: Batch) -> bool:
        if not NAMES & query.keys():
            return search in names.shown(one.id).casefold()
        shown = batch_views.batch(names, one)
        payments = (payment_views.in_batch(names, each) for each in one.payments.values())
        return (
            search in names.shown(one.id).casefold()
            and _is(query, "status", shown["status"])
            and _is_in_time(query, shown)
            and _is_currency(query, "sourceCurrency", shown["currency"])
            and (not wanted or any(all(test(each) for test in wanted) for each in payments))
        )

    return [one for one in found if fits(one)]


def payments(
    asked: Asked, found: Iterable[Listed], show: Callable[[Listed], JsonObject]
) -> list[Listed]:
    query = asked.query
    search = query.get("search", "")
    wanted = _payment_tests(asked)

    def fits(one: Listed) -> bool:
        if not matches(one, search, asked.names.shown(one.id)):
            return False
        if not NAMES & query.keys():
            return True
        shown = show(one)
        return (
            _is(query, "status", shown["status"])
            and _is_in_time(query, shown)
            and _is_currency(query, "sourceCurrency", shown.get("sourceCurrency"))
            and all(test(shown) for test in wanted)
        )

    return [one for one in found if fits(one)]


def _payment_tests(asked: Asked) -> list[Callable[[JsonObject], bool]]:
    query, tests = asked.query, list[Callable[[JsonObject], bool]]()
    if wanted := query.get("recipient"):
        id_ = asked.names.shown(asked.names.real(wanted))
        tests.append(
            lambda shown: (
                shown["recipient"]["id"] == id_
                or shown["recipient"]["email"].casefold() == wanted.casefold()
            )
        )
    if code := query.get("country"):
        tests.append(lambda shown: bool(_country(shown["recipient"]) == loose.country(code)))
    if query.get("targetCurrency"):
        tests.append(
            lambda shown: _is_currency(query, "targetCurrency", shown.get("targetCurrency"))
        )
    return tests


def _country(recipient: JsonObject) -> object:
    """Return the country of a full or a reduced recipient."""
    return recipient.get("country") or (recipient.get("address") or {}).get("country")


def _is(query: Mapping[str, str], name: str, shown: object) -> bool:
    return query.get(name) in (None, "", shown)


def _is_currency(query: Mapping[str, str], name: str, shown: object) -> bool:
    return query.get(name, "").upper() in ("", shown)


def _is_in_time(query: Mapping[str, str], shown: JsonObject) -> bool:
    created = moment(str(shown.get("createdAt"))) or datetime.min.replace(tzinfo=UTC)
    start, end = moment(query.get("startDate", "")), moment(query.get("endDate", ""))
    if end is not None and DAY.fullmatch(query["endDate"]):
        end += timedelta(days=1) - timedelta(microseconds=1)
    return (start is None or start <= created) and (end is None or created <= end)
