"""Tests each assumption by the calls that a run has made so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from gateway.operator.rehearsal.assumptions import ASSUMPTIONS
from gateway.operator.rehearsal.exchanges import Exchange, list_errors
from gateway.operator.rehearsal.run import ENVIRONMENT, RehearsalRun
from gateway.operator.rehearsal.scenario import AMOUNT, FILTERS, ORDERS
from mappings import current
from mappings.current import ENDPOINTS
from mappings.funds import extract_raw_balances
from mappings.payloads import extract_batch, extract_payment, extract_payments

IS_OPTIONAL = {f"{endpoint.method} {endpoint.path}": endpoint.is_optional for endpoint in ENDPOINTS}
MISSING_PATH_STATUSES = {404, 405, 501}
SUMMARY_FIELDS = {"id", "recipient", "status", "sourceAmount", "sourceCurrency"}
PAYMENT_FIELDS = set(current.Payment.__annotations__) - {"amount", "currency", "method"}


class NotTried(LookupError):
    """An assumption could not be tried. The message is one line."""


def record_assumptions(run: RehearsalRun) -> None:
    """Records each assumption that can be tested by now; one that has failed stays failed."""
    rows = run.results.assumptions
    for row in ASSUMPTIONS:
        if rows.get(row.name, (None,))[0] is False:
            continue
        try:
            seen = _check_calls(run, row.expected) if row.expected else CHECKS[row.name](run)
            rows[row.name] = (True, "as presumed") if seen is True else (False, str(seen))
        except NotTried as reason:
            rows[row.name] = (None, str(reason))
        # Its call has not been made, or the answer has another shape.
        except (LookupError, TypeError, AttributeError):
            continue


def _check_calls(run: RehearsalRun, expected: str) -> bool | str:
    """Checks the calls of a probe or an endpoint, and how their results begin."""
    name, _, result = expected.partition(": ")
    calls = run.list_calls(*name.split()) if "/" in name else [run.probes[name]]
    results = [str(call) for call in calls]
    return next((text for text in results if not text.startswith(result)), results[0] != "")


def _check_path(run: RehearsalRun, path: str) -> bool | str:
    statuses = [call.reply.status for call in run.list_calls(*path.split())]
    return not MISSING_PATH_STATUSES.issuperset(statuses) or f"status {statuses[-1]}"


def _check_documented_paths(run: RehearsalRun) -> bool | str:
    called = [path for path in IS_OPTIONAL if run.list_calls(*path.split())]
    missing = [p for p in called if not IS_OPTIONAL[p] and _check_path(run, p) is not True]
    return not missing or f"missing: {', '.join(missing)}"


def _check_signature_scope(run: RehearsalRun) -> bool | str:
    form = run.client.signed_target.find_form(ENVIRONMENT)
    if form is None:
        raise NotTried("not found out")
    return form == "path" or form


def _check_request_age(run: RehearsalRun) -> bool | str:
    old = run.probes["old timestamp"]
    # The client corrects a refused timestamp, and tries again.
    return old.reply.attempts > 1 or not old.is_accepted or "accepted"


def _check_clock(run: RehearsalRun) -> bool | str:
    offset = abs(run.client.clock.offset(ENVIRONMENT))
    return offset < 5 or f"{offset:.0f} s apart"


def _check_validation_errors(run: RehearsalRun) -> bool | str:
    errors = list_errors(run.probes["invalid"].body)
    codes = {error.get("code") if error.get("field") else "no field" for error in errors}
    is_documented = bool(codes) and codes <= {"empty_field", "invalid_field"}
    return is_documented or str(run.probes["invalid"])


def _check_date(run: RehearsalRun, name: str, *, moves: bool) -> bool | str:
    for event in ("update", "account update"):
        before, after = (_find_recipient(run, f"{when} {event}") for when in ("before", "after"))
        if (before[name] != after[name]) is not moves:
            return f"it {'stays' if moves else 'moves'} with an {event}"
    return True


def _find_recipient(run: RehearsalRun, probe: str) -> Mapping[str, Any]:
    recipient: Mapping[str, Any] = run.probes[probe].body["recipient"]
    return recipient


def _check_account_id(run: RehearsalRun) -> bool | str:
    update = run.list_calls("PATCH", "/recipients/{id}/accounts/{account}")[-1]
    new_id = update.body["account"]["recipientAccountId"]
    return new_id != update.path.rpartition("/")[2] or "the same id"


def _check_primary_account(run: RehearsalRun) -> bool | str:
    one, both = (
        [account.get("primary") for account in _find_recipient(run, probe)["accounts"]]
        for probe in ("before account update", "two accounts")
    )
    return (any(one) and both.count(True) == 1) or f"{both.count(True)} primary of {len(both)}"


def _find_first(calls: Iterable[Exchange]) -> Exchange:
    for call in calls:
        return call
    raise LookupError


def _check_iban(run: RehearsalRun) -> bool | str:
    calls = run.list_calls("POST", "/recipients/{id}/accounts")
    first = _find_first(call for call in calls if call.sent.get("iban"))
    if first.sent.get("accountNum"):
        raise NotTried("legacy.account_number_from_iban is set")
    return first.is_accepted or str(first)


def _check_id_length(id_: str, *lengths: int) -> bool | str:
    length = len(id_.partition("-")[2])
    return length in lengths or f"{length} characters"


def _check_memo(run: RehearsalRun) -> bool | str:
    calls = run.list_calls("POST", "/batches")
    first = _find_first(call for call in calls if "memo" in str(call.sent))
    if not first.is_accepted and "memo" not in str(first):
        raise NotTried(str(first))
    return first.is_accepted or str(first)


def _check_write_answers(run: RehearsalRun) -> bool | str:
    paths = ("/batches", "/batches/{id}/generate-quote", "/batches/{id}/payments")
    calls = [call for path in paths for call in run.list_calls("POST", path) if call.is_accepted]
    objects = [call.body.get("payment") or extract_batch(call.body) for call in calls]
    return all("status" in shown for shown in [objects[0], *objects]) or "an id only"


def _check_target_amounts(run: RehearsalRun) -> bool | str:
    payments = extract_payments(run.probes["summary"].body)
    if not payments:
        raise NotTried("the summary has no payments")
    shown = [f"{entry.get('targetAmount')} {entry.get('targetCurrency')}" for entry in payments]
    # An amount that was taken in the currency of the batch is shown in that currency.
    return f"{AMOUNT} EUR" in shown or f"{AMOUNT} EUR is not among {', '.join(shown)}"


def _check_fields(expected: set[str], objects: Iterable[Mapping[str, Any]]) -> bool | str:
    missing = sorted(expected.difference(*(shown.keys() for shown in objects)))
    return not missing or f"missing: {', '.join(missing)}"


def _check_start(run: RehearsalRun) -> bool | str:
    status = extract_batch(run.probes["started"].body)["status"]
    if status == "processing":
        raise NotTried("still `processing`")
    return status == "processed" or f"`{status}`"


def _find_ids(run: RehearsalRun, probe: str) -> list[str]:
    return [row["id"] for row in run.probes[probe].body["recipients"]]


def _find_complete_ids(run: RehearsalRun, probe: str) -> list[str]:
    """Finds ids in a list; raises NotTried if rows may be missing for another reason."""
    if run.results.assumptions["listed at once"][0] is False:
        raise NotTried("new recipients are not in lists")
    return _find_ids(run, probe)


def _check_filters(run: RehearsalRun) -> bool | str:
    wrong = [
        query.partition("=")[0]
        for query, names in FILTERS.items()
        if _find_complete_ids(run, query) != [run.values[f"{name}_current"] for name in names]
    ]
    return not wrong or f"wrong rows with {', '.join(wrong)}"


def _check_order(run: RehearsalRun) -> bool | str:
    for query, names in ORDERS.items():
        ids = [run.values[f"{name}_current"] for name in names]
        # Without the rows that an ignored filter would show.
        if [id_ for id_ in _find_complete_ids(run, query) if id_ in ids] != ids:
            return "another order"
    return True


def _check_page_size(run: RehearsalRun) -> bool | str:
    sizes = [len(_find_complete_ids(run, probe)) for probe in ("one row", "all rows")]
    total = run.probes["all rows"].body.get("meta", {}).get("records", sizes[1])
    return (
        sizes == [1, min(1000, total)] or f"{sizes[0]} rows for 1, {sizes[1]} of {total} for 1000"
    )


CHECKS: Mapping[str, Callable[[RehearsalRun], bool | str]] = {
    **{path: partial(_check_path, path=path) for path in IS_OPTIONAL},
    "documented paths": _check_documented_paths,
    "signature scope": _check_signature_scope,
    "request age": _check_request_age,
    "date header": lambda run: bool(run.probes["balance"].reply.headers.get("Date")) or "missing",
    "clock": _check_clock,
    "validation errors": _check_validation_errors,
    "archived in lists": lambda run: (
        run.values["company_current"] not in _find_ids(run, "archived in list") or "listed"
    ),
    "creation date": lambda run: _check_date(run, "createdAt", moves=False),
    "update date": lambda run: _check_date(run, "updatedAt", moves=True),
    "account id": _check_account_id,
    "primary account": _check_primary_account,
    "IBAN alone": _check_iban,
    "list filters": _check_filters,
    "list order": _check_order,
    "list totals": lambda run: "records" in run.probes["one row"].body.get("meta", {}) or "missing",
    "page size": _check_page_size,
    "listed at once": lambda run: (
        run.values["person_current"] in _find_ids(run, "new in list") or "not listed at first"
    ),
    "recipient ids": lambda run: _check_id_length(run.values["person_current"], *range(17)),
    "batch ids": lambda run: _check_id_length(run.values["read_current"], 22),
    "write answers": _check_write_answers,
    "summary": lambda run: _check_fields(
        SUMMARY_FIELDS, extract_payments(run.probes["summary"].body)
    ),
    "payment fields": lambda run: _check_fields(
        PAYMENT_FIELDS, [extract_payment(run.probes["payment"].body)]
    ),
    "memo": _check_memo,
    "target amounts": _check_target_amounts,
    "balances": lambda run: (
        isinstance(extract_raw_balances(run.probes["balance"].body), dict) or "a list"
    ),
    "processed batches": _check_start,
}
