"""What the translation presumes of a service, and how the calls of a run test it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib.resources import files
from typing import Any, NamedTuple

from gateway.operator.rehearsal.run import (
    ENVIRONMENT,
    Exchange,
    RehearsalRun,
    find_value,
    list_errors,
)
from gateway.operator.rehearsal.scenario import AMOUNT, FILTERS, ORDERS
from gateway.upstream.clock import NOTEWORTHY_SKEW_SECONDS
from mappings import current
from mappings.current import ENDPOINTS
from mappings.funds import extract_raw_balances
from mappings.payloads import extract_batch, extract_payment, extract_payments


class Assumption(NamedTuple):
    """The cells of a row of ``assumptions.md``.

    ``effect`` is what the gateway does if the service differs, ``is_noticed`` is "yes" or empty,
    ``operations`` are those that name the row in the coverage table. ``setting`` is offered if the
    service differs: a line of TOML. ``expected`` is a call and the begin of its result; ``CHECKS``
    has the rows that need more.
    """

    name: str
    statement: str
    effect: str
    is_noticed: str
    operations: str
    setting: str
    expected: str


_TEXT = files("gateway.operator.rehearsal").joinpath("assumptions.md").read_text("utf-8")
_HEADER, _RULE, *_ROWS = (line for line in _TEXT.splitlines() if line.startswith("|"))

ASSUMPTIONS = tuple(Assumption(*(cell.strip() for cell in line[1:-1].split("|"))) for line in _ROWS)
"""In the order of the report."""

IS_OPTIONAL = {f"{endpoint.method} {endpoint.path}": endpoint.is_optional for endpoint in ENDPOINTS}
MISSING_PATH_STATUSES = {404, 405, 501}
SUMMARY_FIELDS = {"id", "recipient", "status", "sourceAmount", "sourceCurrency"}
PAYMENT_FIELDS = set(current.Payment.__annotations__) - {"amount", "currency", "method"}


Check = Callable[[RehearsalRun], bool | str | None]
"""Returns True or what was seen instead; None, or a LookupError, if no call shows it."""


def record_assumptions(run: RehearsalRun) -> None:
    """Records each assumption that can be tested by now; one that has failed stays failed."""
    for row in ASSUMPTIONS:
        if run.results.get(row.name, (None,))[0] is False:
            continue
        try:
            seen = _check_calls(run, row.expected) if row.expected else CHECKS[row.name](run)
        # Its call has not been made, or the answer has another shape.
        except (LookupError, TypeError, AttributeError):
            continue
        if seen is not None:
            run.results[row.name] = (seen is True, "as presumed" if seen is True else str(seen))


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


def _check_request_age(run: RehearsalRun) -> bool | str:
    old = run.probes["old timestamp"]
    # The client corrects a refused timestamp, and tries again.
    return old.reply.attempts > 1 or not old.is_accepted or "accepted"


def _check_clock(run: RehearsalRun) -> bool | str:
    offset = abs(run.client.clock.offset(ENVIRONMENT))
    return offset < NOTEWORTHY_SKEW_SECONDS or f"{offset:.0f} s apart"


def _check_validation_errors(run: RehearsalRun) -> bool | str:
    errors = list_errors(run.probes["invalid"].body)
    codes = {error.get("code") if error.get("field") else "no field" for error in errors}
    is_documented = bool(codes) and codes <= {"empty_field", "invalid_field"}
    return is_documented or str(run.probes["invalid"])


def _check_change(run: RehearsalRun, place: str, *events: str, moves: bool) -> bool | str | None:
    """Checks whether a value of a recipient changes with each of the updates."""
    for event in events:
        bodies = [run.probes[f"{when} {event}"].body for when in ("before", "after")]
        before, after = (find_value(body["recipient"], place) for body in bodies)
        if before is None:
            return None
        if (before != after) is not moves:
            return f"it {'stays' if moves else 'moves'} with an {event}"
    return True


def _check_primary_account(run: RehearsalRun) -> bool | str:
    one, both = (
        [account.get("primary") for account in run.probes[probe].body["recipient"]["accounts"]]
        for probe in ("before account update", "two accounts")
    )
    return (any(one) and both.count(True) == 1) or f"{both.count(True)} primary of {len(both)}"


def _check_first(calls: list[Exchange], reason: str = "") -> bool | str | None:
    """Checks whether the first call is accepted; a refusal counts if it names the reason."""
    first = calls[0]
    return first.is_accepted or (str(first) if reason in str(first) else None)


def _check_iban(run: RehearsalRun) -> bool | str | None:
    calls = run.list_calls("POST", "/recipients/{id}/accounts")
    return _check_first([c for c in calls if "iban" in c.sent and "accountNum" not in c.sent])


def _check_memo(run: RehearsalRun) -> bool | str | None:
    calls = run.list_calls("POST", "/batches")
    return _check_first([call for call in calls if "memo" in str(call.sent)], "memo")


def _check_id_length(run: RehearsalRun, name: str, lengths: Iterable[int]) -> bool | str:
    length = len(run.values[name].partition("-")[2])
    return length in lengths or f"{length} characters"


def _check_write_answers(run: RehearsalRun) -> bool | str:
    paths = ("/batches", "/batches/{id}/generate-quote", "/batches/{id}/payments")
    calls = [call for path in paths for call in run.list_calls("POST", path) if call.is_accepted]
    objects = [call.body.get("payment") or extract_batch(call.body) for call in calls]
    return all("status" in shown for shown in [objects[0], *objects]) or "an id only"


def _check_target_amounts(run: RehearsalRun) -> bool | str | None:
    payments = extract_payments(run.probes["summary"].body)
    shown = [f"{entry.get('targetAmount')} {entry.get('targetCurrency')}" for entry in payments]
    # An amount that was taken in the currency of the batch is shown in that currency.
    return f"{AMOUNT} EUR" in shown or (f"{', '.join(shown)} for {AMOUNT} EUR" if shown else None)


def _check_fields(expected: set[str], objects: Iterable[Mapping[str, Any]]) -> bool | str:
    missing = sorted(expected.difference(*(shown.keys() for shown in objects)))
    return not missing or f"missing: {', '.join(missing)}"


def _check_start(run: RehearsalRun) -> bool | str | None:
    status = extract_batch(run.probes["started"].body)["status"]
    return None if status == "processing" else status == "processed" or f"`{status}`"


def _is_listed(run: RehearsalRun, probe: str, name: str) -> bool:
    rows = run.probes[probe].body["recipients"]
    return run.values[f"{name}_current"] in [row["id"] for row in rows]


def _find_ids(run: RehearsalRun, probe: str) -> list[str]:
    """Finds the ids in a list; raises LookupError if rows may be missing for another reason."""
    if run.results["listed at once"][0] is False:
        raise LookupError
    return [row["id"] for row in run.probes[probe].body["recipients"]]


def _check_filters(run: RehearsalRun) -> bool | str:
    wrong = [
        query.partition("=")[0]
        for query, names in FILTERS.items()
        if _find_ids(run, query) != [run.values[f"{name}_current"] for name in names]
    ]
    return not wrong or f"wrong rows with {', '.join(wrong)}"


def _check_order(run: RehearsalRun) -> bool | str:
    for query, names in ORDERS.items():
        ids = [run.values[f"{name}_current"] for name in names]
        # Without the rows that an ignored filter would show.
        if [id_ for id_ in _find_ids(run, query) if id_ in ids] != ids:
            return "another order"
    return True


def _check_page_size(run: RehearsalRun) -> bool | str:
    sizes = [len(_find_ids(run, probe)) for probe in ("one row", "all rows")]
    total = run.probes["all rows"].body.get("meta", {}).get("records", sizes[1])
    is_kept = sizes == [1, min(1000, total)]
    return is_kept or f"{sizes[0]} rows for 1, {sizes[1]} of {total} for 1000"


UPDATES = ("update", "account update")
CHECKS: Mapping[str, Check] = {
    **{path: partial(_check_path, path=path) for path in IS_OPTIONAL},
    "documented paths": _check_documented_paths,
    "signature scope": lambda run: (
        (form := run.client.signed_target.find_form(ENVIRONMENT)) == "path" or form
    ),
    "request age": _check_request_age,
    "date header": lambda run: bool(run.probes["balance"].reply.headers.get("Date")) or "missing",
    "clock": _check_clock,
    "validation errors": _check_validation_errors,
    "archived in lists": lambda run: not _is_listed(run, "archived in list", "company") or "listed",
    "creation date": lambda run: _check_change(run, "createdAt", *UPDATES, moves=False),
    "update date": lambda run: _check_change(run, "updatedAt", *UPDATES, moves=True),
    "account id": lambda run: _check_change(
        run, "accounts.0.recipientAccountId", "account update", moves=True
    ),
    "primary account": _check_primary_account,
    "IBAN alone": _check_iban,
    "list filters": _check_filters,
    "list order": _check_order,
    "list totals": lambda run: "records" in run.probes["one row"].body.get("meta", {}) or "missing",
    "page size": _check_page_size,
    "listed at once": lambda run: _is_listed(run, "new in list", "person") or "not listed at first",
    "recipient ids": partial(_check_id_length, name="person_current", lengths=range(17)),
    "batch ids": partial(_check_id_length, name="read_current", lengths=[22]),
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
