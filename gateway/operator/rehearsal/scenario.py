"""The chapters of a rehearsal: together they run every legacy operation and test each assumption.

Each chapter creates what it needs, so that an interrupted rehearsal continues with the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from gateway.operator.rehearsal.run import RehearsalRun
from gateway.operator.rehearsal.sandbox import Exchange
from mappings import current
from mappings.effects import JSON
from mappings.funds import extract_raw_balances
from mappings.payloads import extract_batch, extract_payment, find_payments

UNKNOWN_RECIPIENT = "R-0000000000000000"
MAX_CLOCK_OFFSET_SECONDS = 5
LARGE_PAGE_SIZE = 1000
START_SECONDS = 30
"""How long a started batch is watched."""

AMOUNT = "35.00"
"""Above the usual minimum of a bank transfer."""

NEEDS_START = "needs --start"

US_BANK = {"country": "US", "currency": "USD", "accountNum": "1234567", "routing": "021000021"}
CA_BANK = {"country": "CA", "currency": "CAD", "accountNum": "1234567"}
OTHER_BANKS: Mapping[str, Mapping[str, JSON]] = {
    "CA": {**CA_BANK, "institution": "003", "branchNum": "00010"},
    "GB": {"country": "GB", "currency": "GBP", "accountNum": "38290008", "branchNum": "200415"},
}
GERMAN_BANK = {"country": "DE", "currency": "EUR", "iban": "DE89370400440532013000"}
BRAZILIAN_BANK = {"country": "BR", "currency": "BRL", "accountNum": "1234567"}


def build_bank_payout(bank: Mapping[str, JSON]) -> dict[str, JSON]:
    account = {"name": "Rehearsal", **bank}
    return {
        "primary": {"method": "bank", "currency": bank["currency"]},
        "accounts": {"bank": account},
    }


# Signatures, clock and errors


async def rehearse_service(run: RehearsalRun) -> None:
    balance_path = run.sandbox.words.current.balance_path
    read = await run.probe("GET", balance_path)
    run.observe("date header", bool(read.reply.headers.get("Date")), "present", "missing")
    offset = run.sandbox.measure_clock_offset()
    run.observe("clock", abs(offset) < MAX_CLOCK_OFFSET_SECONDS, f"{abs(offset):.0f} s apart")
    await run.probe("GET", "/v1/recipients?page=1&pageSize=1")
    form = run.sandbox.find_signed_form()
    run.observe("signature scope", form == "path" if form else None, form or "not found out")
    wrong = await run.sandbox.call_with_wrong_secret(balance_path)
    run.observe("refused signature", _is_refused(wrong, 401, "invalid_api_key"), str(wrong))
    old = await run.sandbox.call_with_old_timestamp(balance_path)
    # A refused one is sent again, with the service's time.
    run.observe("request age", old.reply.attempts > 1 or not old.is_accepted, "refused", str(old))
    unknown = await run.probe("GET", f"/v1/recipients/{UNKNOWN_RECIPIENT}")
    run.observe("unknown id", _is_refused(unknown, 404, "not_found"), str(unknown))
    body = {"type": "individual", "referenceId": run.build_reference("service")}
    invalid = await run.probe("POST", "/v1/recipients", body)
    is_documented = bool(invalid.errors) and all(
        error.get("field") and error.get("code") in ("empty_field", "invalid_field")
        for error in invalid.errors
    )
    run.observe("validation errors", is_documented, str(invalid))
    run.observe("validation status", invalid.status == 400, f"status {invalid.status}")
    balances = extract_raw_balances(read.body)
    run.observe("balances", isinstance(balances, dict), "an object", "a list")
    words = run.sandbox.words.legacy
    await run.send_legacy("read_balances", "/profile/balances")
    await run.send_legacy("read_service_balances", f"/profile/balances/{words.service}")
    # 404: the merchant has no wallet account (legacy interface, section 4.5).
    wallet_path = f"/profile/balances/{words.wallet}"
    await run.send_legacy("read_wallet_balance", wallet_path, expected=(200, 404))
    await run.send_legacy("read_country", "/geography/countries/CA")
    run.observe("country names", None, "the service has no such operation")


def _is_refused(exchange: Exchange, status: int, code: str) -> bool:
    return exchange.status == status and {e.get("code") for e in exchange.errors} == {code}


# Recipients


async def rehearse_recipients(run: RehearsalRun) -> None:
    payout = build_bank_payout(US_BANK)
    payout["accounts"] |= run.build_wallet_payout()["accounts"]
    details: dict[str, Any] = {
        "payout": payout,
        "language": "en",
        "dob": "1990-12-10",
        "passport": "X1234567",
    }
    ada, ada_current = await run.create_recipient("recipients", 1, **details)
    bert, bert_current = await run.create_recipient(
        "recipients", 2, "DE", type="business", payout=run.build_wallet_payout()
    )
    length = len(ada_current.partition("-")[2])
    run.observe("recipient ids", length <= 16, f"{length} characters")
    rows = await _list_rows(run, referenceId=f"{run.build_reference('recipients')}-1")
    is_listed = any(row.get("id") == ada_current for row in rows)
    run.observe("listed at once", is_listed, "listed", "not listed at first")
    await _rehearse_update(run, ada, ada_current)
    await run.send_legacy("read_recipient_logs", f"/recipients/{ada}/logs")
    await run.send_legacy("read_recipient_payments", f"/recipients/{ada}/payments")
    await run.send_legacy("delete_recipient", f"/recipients/{bert}")
    await run.send_legacy("read_recipient", f"/recipients/{bert}", expected=(404,))
    shown = await run.probe("GET", f"/v1/recipients/{bert_current}")
    run.observe_accepted("archived by id", shown)
    rows = await _list_rows(run, search=run.build_reference("recipients"))
    is_hidden = all(row.get("id") != bert_current for row in rows)
    run.observe("archived in lists", is_hidden, "not listed", "listed")
    await run.send_legacy("delete_recipients", "/recipients", {"ids": [ada]})


async def _rehearse_update(run: RehearsalRun, legacy_id: str, current_id: str) -> None:
    before = await _read_recipient(run, current_id)
    await run.pause()
    changes = {"address": {"city": "Albany"}, "status": "inactive"}
    await run.send_legacy("update_recipient", f"/recipients/{legacy_id}", changes)
    after = await _read_recipient(run, current_id)
    _observe_dates(run, before, after, "a recipient changed")
    answer = await run.send_legacy("read_recipient", f"/recipients/{legacy_id}")
    recipient = answer.get("recipient") or {}
    is_changed = (recipient.get("address") or {}).get("city") == "Albany"
    run.check_answer("read_recipient", is_as_sent=is_changed, what="city")
    is_inactive = recipient.get("status") == "inactive"
    run.check_answer("read_recipient", is_as_sent=is_inactive, what="status")


async def _read_recipient(run: RehearsalRun, current_id: str) -> dict[str, Any]:
    recipient: Any = (await run.probe("GET", f"/v1/recipients/{current_id}")).body.get("recipient")
    return recipient if isinstance(recipient, dict) else {}


def _observe_dates(
    run: RehearsalRun, before: Mapping[str, Any], after: Mapping[str, Any], event: str
) -> None:
    has_moved = after.get("updatedAt") != before.get("updatedAt")
    run.observe("update date", has_moved, "it moved", f"it did not move when {event}")
    is_same = after.get("createdAt") == before.get("createdAt")
    run.observe("creation date", is_same, "it stayed", f"it moved when {event}")


async def _list_rows(run: RehearsalRun, **query: str) -> list[dict[str, Any]]:
    answer = await run.probe("GET", f"/v1/recipients?{urlencode(query)}")
    rows = answer.body.get("recipients")
    return rows if isinstance(rows, list) else []


# Payout methods


async def rehearse_payout_methods(run: RehearsalRun) -> None:
    for number, (country, bank) in enumerate(OTHER_BANKS.items(), 1):
        legacy_id, _ = await run.create_recipient("methods", number, country)
        await run.send_legacy(
            "create_payout_method",
            f"/recipients/{legacy_id}/payout-methods",
            build_bank_payout(bank),
        )
    legacy_id, current_id = await run.create_recipient("methods", 3, "DE", type="business")
    path = f"/recipients/{legacy_id}/payout-methods"
    known = len(run.list_exchanges("POST", "/recipients/{id}/accounts"))
    await run.send_legacy("create_payout_method", path, build_bank_payout(GERMAN_BANK))
    _observe_iban(run, run.list_exchanges("POST", "/recipients/{id}/accounts")[known:])
    before = await _read_recipient(run, current_id)
    await run.pause()
    change = {"primary": {"method": "bank"}, "accounts": {"bank": {"bankCity": "Berlin"}}}
    await run.send_legacy("update_payout_method", path, change)
    _observe_dates(run, before, await _read_recipient(run, current_id), "an account changed")
    if update := run.find_exchange("PATCH", "/recipients/{id}/accounts/{account}"):
        new_id = (update.body.get("account") or {}).get("recipientAccountId")
        has_changed = new_id != update.path.rpartition("/")[2]
        run.observe("account id", has_changed, "a new id", "the same id")
    await run.send_legacy("create_payout_method", path, run.build_wallet_payout())
    answer = await run.send_legacy("read_payout_method", path)
    is_wallet = answer.get("method") == run.sandbox.words.legacy.wallet
    run.check_answer("read_payout_method", is_as_sent=is_wallet, what="primary method")
    accounts = (await _read_recipient(run, current_id)).get("accounts") or []
    was_first_primary = any(entry.get("primary") for entry in before.get("accounts") or ())
    count = sum(bool(entry.get("primary")) for entry in accounts)
    run.observe("primary account", was_first_primary and count == 1, f"{count} primary of 2")
    await _rehearse_missing_government_id(run)


def _observe_iban(run: RehearsalRun, attempts: list[Exchange]) -> None:
    alone = [call for call in attempts if call.sent.get("iban") and not call.sent.get("accountNum")]
    if alone:
        run.observe_accepted("IBAN alone", alone[0])
    else:
        run.observe("IBAN alone", None, "legacy.account_number_from_iban is set")


async def _rehearse_missing_government_id(run: RehearsalRun) -> None:
    # Not through the gateway, which refuses the account itself.
    _, current_id = await run.create_recipient("methods", 4, "BR")
    body = {"type": current.BANK_TRANSFER, "accountHolderName": "Rehearsal", **BRAZILIAN_BANK}
    account = await run.probe("POST", f"/v1/recipients/{current_id}/accounts", body)
    run.observe("government id", not account.is_accepted, str(account))


# Batches


async def rehearse_batches(run: RehearsalRun) -> None:
    payee, _ = await run.create_recipient("batches", 1, payout=run.build_wallet_payout())
    await run.create_recipient("batches", 2, "DE", payout=build_bank_payout(GERMAN_BANK))
    by_id = {"recipient": {"id": payee}, "sourceAmount": AMOUNT}
    email = f"{run.build_reference('batches')}-2@example.com"
    by_email = {"recipient": {"email": email}, "targetAmount": AMOUNT, "targetCurrency": "EUR"}
    batch = await _create_batch(run, [{**by_id, "memo": "rehearsal"}, by_email])
    created = run.find_exchange("POST", "/batches")
    if created and (created.is_accepted or "memo" in str(created)):
        run.observe_accepted("memo", created)
    batch = batch or await _create_batch(run, [by_id, by_email])
    if created := run.find_exchange("POST", "/batches"):
        created_batch = extract_batch(created.body)
        length = len(str(created_batch.get("id")).partition("-")[2])
        run.observe("batch ids", length == 22, f"{length} characters")
        _observe_write_answer(run, created, created_batch)
    if batch:
        await _rehearse_open_batch(run, batch, by_id)
        await _rehearse_edits(run, by_id)
    await _rehearse_unknown_recipient(run)
    for name in ("delete_batch", "delete_batches"):
        if other := await _create_batch(run, [by_id]):
            is_several = name == "delete_batches"
            path = "/batches" if is_several else f"/batches/{other}"
            await run.send_legacy(name, path, {"ids": [other]} if is_several else None)
            await run.send_legacy("read_batch", f"/batches/{other}", expected=(404,))
    if not run.may_start:
        run.observe("processed batches", None, NEEDS_START)
        run.results.operations["start_batch"] = (None, NEEDS_START)
    elif started := await _create_batch(run, [by_id]):
        await _rehearse_start(run, started)


async def _create_batch(run: RehearsalRun, payments: list[dict[str, JSON]]) -> str | None:
    """Creates a batch; returns its legacy id, None if that failed."""
    description = run.build_reference("batches")
    body = {"sourceCurrency": "USD", "description": description, "payments": payments}
    answer = await run.send_legacy("create_batch", "/batches", body)
    return answer["batch"]["id"] if answer else None


def _observe_write_answer(run: RehearsalRun, call: Exchange, shown: Mapping[str, Any]) -> None:
    if call.is_accepted:
        run.observe("write answers", "status" in shown, "with the object", "an id only")


async def _rehearse_open_batch(run: RehearsalRun, batch: str, payment: dict[str, JSON]) -> None:
    """Reads the batch and its payments, and quotes it twice."""
    shown = await _read_payments(run, batch)
    converted = next((entry for entry in shown if entry.get("targetCurrency") == "EUR"), {})
    # A target amount that was taken in the currency of the batch is shown in that currency.
    is_target = converted.get("targetAmount") == AMOUNT
    run.observe("target amounts", is_target, "as sent", "another amount or currency")
    run.check_answer("read_batch", is_as_sent=len(shown) == 2, what="number of payments")
    await run.send_legacy("list_batches", "/batches?page=1&pageSize=10")
    await run.send_legacy("list_batch_payments", f"/batches/{batch}/payments")
    added = await run.send_legacy("create_payment", f"/batches/{batch}/payments", payment)
    if call := run.find_exchange("POST", "/batches/{id}/payments"):
        run.observe_accepted("added payments", call)
        _observe_write_answer(run, call, extract_payment(call.body))
    if added:
        await run.send_legacy("read_payment", f"/batches/{batch}/payments/{added['payment']['id']}")
    await _observe_summary_and_payment(run)
    for _ in range(2):
        await run.send_legacy("generate_quote", f"/batches/{batch}/generate-quote")
    if quote := run.find_exchange("POST", "/batches/{id}/generate-quote"):
        run.observe_accepted("quotes", quote)
        _observe_write_answer(run, quote, extract_batch(quote.body))
    await run.send_legacy("read_batch_summary", f"/batches/{batch}/summary")


async def _read_payments(run: RehearsalRun, batch: str | None) -> list[dict[str, Any]]:
    answer = await run.send_legacy("read_batch", f"/batches/{batch}")
    payments: Any = ((answer.get("batch") or {}).get("payments") or {}).get("payments")
    return payments if isinstance(payments, list) else []


async def _observe_summary_and_payment(run: RehearsalRun) -> None:
    summary = run.find_exchange("GET", "/batch/{id}/summary")
    if summary is None:
        return
    payments = find_payments(summary.body) or []
    details = {"id", "recipient", "status", "sourceAmount", "sourceCurrency"}
    missing = sorted(details.difference(*(entry.keys() for entry in payments)))
    run.observe("summary", not missing, "all details", f"missing: {', '.join(missing)}")
    if payments:
        read = await run.probe("GET", f"/v1/payments/{payments[0].get('id')}")
        expected = set(current.Payment.__annotations__) - {"amount", "currency", "method"}
        missing = sorted(expected - extract_payment(read.body).keys())
        run.observe("payment fields", not missing, "all", f"missing: {', '.join(missing)}")


async def _rehearse_edits(run: RehearsalRun, payment: dict[str, JSON]) -> None:
    """Makes each edit in a new batch: an edited batch may be a draft, which needs no path."""
    changed = "36.00"
    for name, expected in (
        ("update_payment", [AMOUNT, changed]),
        ("delete_payment", [AMOUNT]),
        ("update_batch", [AMOUNT, AMOUNT, changed]),
    ):
        batch = await _create_batch(run, [payment, payment])
        shown = await _read_payments(run, batch) if batch else []
        if not shown:
            return
        path, change = f"/batches/{batch}/payments/{shown[0]['id']}", {"sourceAmount": changed}
        body: dict[str, JSON] | None = None if name == "delete_payment" else change
        if name == "update_batch":
            path = f"/batches/{batch}"
            body = {
                "update_payments": [{"id": shown[0]["id"], **change}],
                "payments": [payment],
            }
        await run.send_legacy(name, path, body)
        amounts = [str(entry.get("sourceAmount")) for entry in await _read_payments(run, batch)]
        run.check_answer(name, is_as_sent=sorted(amounts) == expected, what="list of payments")


async def _rehearse_unknown_recipient(run: RehearsalRun) -> None:
    payment = {"recipient": {"id": UNKNOWN_RECIPIENT}, "amount": AMOUNT, "currency": "USD"}
    body = {
        run.sandbox.words.current.batch_currency: "USD",
        "description": run.build_reference("batches"),
        "payments": [payment],
    }
    refused = await run.probe("POST", "/v1/batches", body)
    run.observe("unknown recipient of a payment", refused.status == 404, str(refused))


async def _rehearse_start(run: RehearsalRun, batch: str) -> None:
    await run.send_legacy("start_batch", f"/batches/{batch}/start-processing")
    start = run.find_exchange("POST", "/batches/{id}/start-processing")
    if start is None or not start.is_accepted:
        return
    upstream_id = start.path.split("/")[-2]
    target = run.sandbox.words.current.summary_path.format(id=upstream_id)
    deadline = asyncio.get_running_loop().time() + START_SECONDS
    word = "processing"
    while word == "processing" and asyncio.get_running_loop().time() < deadline:
        word = str(extract_batch((await run.probe("GET", target)).body).get("status"))
        await run.pause()
    is_final = word != "processing"
    run.observe("processed batches", word == "processed" if is_final else None, f"`{word}`")


# Lists


async def rehearse_lists(run: RehearsalRun) -> None:
    _, wallet_id = await run.create_recipient("lists", 1, payout=run.build_wallet_payout())
    _, bank_id = await run.create_recipient(
        "lists", 2, "DE", type="business", payout=build_bank_payout(GERMAN_BANK)
    )
    reference = run.build_reference("lists")
    await run.send_legacy(
        "list_recipients", f"/recipients?search={reference}&orderBy=name&page=1&pageSize=10"
    )
    # Rows that are missing would be blamed on the filters.
    if run.results.assumptions.get("listed at once", (True, ""))[0] is False:
        return
    day = timedelta(days=1)
    yesterday, tomorrow = (
        f"{datetime.now(UTC) + sign * day:%Y-%m-%dT00:00:00Z}" for sign in (-1, 2)
    )
    both, filters = {wallet_id, bank_id}, list[tuple[dict[str, str], set[str]]]()
    filters += [
        ({"search": reference}, both),
        ({"email": f"{reference}-1@example.com"}, {wallet_id}),
        ({"referenceId": f"{reference}-2"}, {bank_id}),
        ({"country": "DE"}, {bank_id}),
        ({"payoutMethod": run.sandbox.words.current.wallet}, {wallet_id}),
        ({"payoutMethod": "bank-transfer", "currency": "EUR"}, {bank_id}),
        ({"status": "suspended"}, set()),
        ({"complianceStatus": "blocked"}, set()),
        ({"startDate": yesterday}, both),
        ({"startDate": tomorrow}, set()),
    ]
    failed = []
    for query, expected in filters:
        rows = await _list_rows(run, **{"search": reference} | query)
        if {row.get("id") for row in rows} != expected:
            failed.append("+".join(query))
    wrong = f"wrong rows with {', '.join(dict.fromkeys(failed))}"
    run.observe("list filters", not failed, "all tried work", wrong)
    await _rehearse_order_and_paging(run, reference)


async def _rehearse_order_and_paging(run: RehearsalRun, reference: str) -> None:
    orders = []
    for direction in ("asc", "desc"):
        rows = await _list_rows(run, search=reference, orderBy="email", sortBy=direction)
        emails = [str(row.get("email")) for row in rows]
        orders.append(emails == sorted(emails, reverse=direction == "desc"))
    run.observe("list order", all(orders), "as asked", "another order")
    for size in (1, LARGE_PAGE_SIZE):
        answer = await run.probe("GET", f"/v1/recipients?page=1&pageSize={size}")
        rows, meta = answer.body.get("recipients") or [], answer.body.get("meta") or {}
        has_totals = {"page", "pages", "records"} <= meta.keys()
        run.observe("list totals", has_totals, "present", "missing")
        records = int(meta.get("records") or len(rows))
        expected = min(size, records)
        run.observe("page size", len(rows) == expected, f"{len(rows)} rows of {records} for {size}")


CHAPTERS: tuple[tuple[str, Callable[[RehearsalRun], Awaitable[None]]], ...] = (
    ("service", rehearse_service),
    ("recipients", rehearse_recipients),
    ("payout methods", rehearse_payout_methods),
    ("batches", rehearse_batches),
    ("lists", rehearse_lists),
)
