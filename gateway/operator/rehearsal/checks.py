"""What the translation presumes, and the tests of it that need more than a row of a scenario."""

from collections.abc import Callable, Container, Mapping
from functools import partial
from typing import NamedTuple

from gateway.operator.rehearsal.run import ENVIRONMENT, MISSING_PATH_STATUSES, RehearsalRun
from gateway.operator.rehearsal.scenario import load_table
from gateway.upstream.clock import NOTEWORTHY_SKEW_SECONDS
from mappings import legacy
from mappings.current import ENDPOINTS
from mappings.payloads import extract_batch, extract_payment, extract_raw_balances


class Assumption(NamedTuple):
    """A row of ``assumptions.md``. ``noticed`` is "yes", empty, or "if" and what is seen then."""

    name: str
    statement: str
    effect: str
    noticed: str
    operations: str = ""
    setting: str = ""


ASSUMPTIONS = [Assumption(*cells) for cells in load_table("assumptions.md")]

IS_OPTIONAL = {f"{endpoint.method} {endpoint.path}": endpoint.is_optional for endpoint in ENDPOINTS}
UNKNOWN_ID = "-0000000000000000"
NOT_NEEDED = {"sourceCurrencyName", "targetCurrencyName"}
PAYMENT_FIELDS = legacy.Payment.__annotations__.keys() - NOT_NEEDED

Check = Callable[[RehearsalRun], bool | str | None]
"""Returns True or what was seen instead; None, or a LookupError, if no call shows it."""


def record_checks(run: RehearsalRun) -> None:
    """Records each assumption that can be tested by now."""
    for name, check in CHECKS.items():
        try:
            seen = check(run)
        # Its call has not been made, or the answer has another shape.
        except (LookupError, TypeError, AttributeError):
            continue
        if seen is not None:
            run.record(name, is_ok=seen is True, seen=str(seen))


def _check_path(run: RehearsalRun, path: str) -> bool | str | None:
    # An unknown id is refused with the same status as a missing path.
    calls = [call for call in run.list_calls(path) if UNKNOWN_ID not in call.path + str(call.sent)]
    statuses = [call.reply.status for call in calls]
    is_found = not MISSING_PATH_STATUSES.issuperset(statuses)
    return is_found or f"status {statuses[-1]}" if statuses else None


def _check_documented_paths(run: RehearsalRun) -> bool | str:
    needed = [path for path, is_optional in IS_OPTIONAL.items() if not is_optional]
    missing = [path for path in needed if _check_path(run, path) not in (True, None)]
    return not missing or f"missing: {', '.join(missing)}"


def _check_iban(run: RehearsalRun) -> bool | str | None:
    calls = run.list_calls("POST /recipients/{id}/accounts")
    sent = [call for call in calls if "iban" in call.sent and "accountNum" not in call.sent]
    # Another refusal says nothing of the account number.
    refusals = [str(call) for call in sent if not call.is_accepted and "accountNum" in str(call)]
    return refusals[0] if refusals else any(call.is_accepted for call in sent) or None


def _check_id_length(id_: str, lengths: Container[int]) -> bool | str:
    length = len(id_.partition("-")[2])
    return length in lengths or f"{length} characters"


def _check_write_answers(run: RehearsalRun) -> bool | str:
    paths = ("/batches", "/batches/{id}/generate-quote", "/batches/{id}/payments")
    calls = [call for path in paths for call in run.list_calls(f"POST {path}") if call.is_accepted]
    objects = [call.body.get("payment") or extract_batch(call.body) for call in calls]
    return all("status" in shown for shown in [objects[0], *objects]) or "an id only"


def _check_payment_fields(run: RehearsalRun) -> bool | str:
    payment = extract_payment(run.probes["payment fields"].body)
    batch_fields = legacy.PaymentBatch.__annotations__.keys() - (payment.get("batch") or {}).keys()
    missing = PAYMENT_FIELDS - payment.keys() | {f"batch.{name}" for name in batch_fields}
    return not missing or f"missing: {', '.join(sorted(missing))}"


def _check_page_size(run: RehearsalRun) -> bool | str | None:
    one, all_rows = run.probes["list totals"].body, run.probes["page size"].body
    total, size = all_rows.get("meta", {})["records"], len(all_rows["recipients"])
    if (len(one["recipients"]), size) != (1, min(1000, total)):
        return f"{len(one['recipients'])} rows for 1, {size} of {total} for 1000"
    # Fewer recipients do not show a smaller maximum.
    return total >= 1000 or None


def _check_wallet_account(run: RehearsalRun) -> bool | str:
    """Checks the balances; raises KeyError if no batch was started that pays to a wallet."""
    wallet = run.values["started"] and run.values["current_wallet"]
    balances = extract_raw_balances(run.probes["balances"].body)
    names = balances if isinstance(balances, dict) else [entry.get("type") for entry in balances]
    return wallet in names or "the balances have none"


CHECKS: Mapping[str, Check] = {
    **{path: partial(_check_path, path=path) for path in IS_OPTIONAL if IS_OPTIONAL[path]},
    "documented paths": _check_documented_paths,
    "signature scope": lambda run: (
        (form := run.client.signed_target.find_form(ENVIRONMENT)) == "path" or form
    ),
    "date header": lambda run: bool(run.probes["balances"].reply.headers.get("Date")) or "missing",
    "clock": lambda run: (
        (offset := abs(run.client.clock.offset(ENVIRONMENT))) < NOTEWORTHY_SKEW_SECONDS
        or f"{offset:.0f} s apart"
    ),
    "IBAN alone": _check_iban,
    "page size": _check_page_size,
    "recipient ids": lambda run: _check_id_length(run.values["payee_current"], range(17)),
    "batch ids": lambda run: _check_id_length(run.values["read_current"], [22]),
    "write answers": _check_write_answers,
    "payment fields": _check_payment_fields,
    "wallet account": _check_wallet_account,
    "balances": lambda run: (
        isinstance(extract_raw_balances(run.probes["balances"].body), dict) or "a list"
    ),
}
