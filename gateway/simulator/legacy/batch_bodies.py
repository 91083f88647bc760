"""Parsing of batches in request bodies (section 4.3)."""

from collections.abc import Iterable
from dataclasses import replace

from gateway.simulator.batches import Edit
from gateway.simulator.legacy import loose, orders
from gateway.simulator.legacy.names import Names
from gateway.simulator.payment_rules import Order, entries, read_currency, read_text
from gateway.simulator.refusals import Problems
from gateway.simulator.state import Batch, Payment
from gateway.simulator.values import blank
from gateway.simulator.wire import JsonObject


def read_new(names: Names, body: JsonObject) -> tuple[Batch, list[Order]]:
    """Parse a new batch, which has no id yet, and its payments. Raises ApiError."""
    problems = Problems()
    now = names.world.now()
    currency = _read_currency(problems, body)
    description = read_text(problems, body, "description")
    batch = Batch("", currency, description, created_at=now, updated_at=now)
    found = [
        orders.read(names, inside, entry, batch)
        for inside, entry in entries(problems, body, "payments")
    ]
    problems.refuse_if_any()
    return batch, [order for order in found if order is not None]


def _read_currency(problems: Problems, body: JsonObject) -> str:
    """Parse the batch's currency, or take it from the first payment that has one."""
    own = loose.currency(body.get("sourceCurrency"))
    if not blank(own):
        return read_currency(problems, {"sourceCurrency": own}, "sourceCurrency") or ""
    named = [
        (inside, loose.currency(entry.get("sourceCurrency")))
        for inside, entry in entries(Problems(), body, "payments")
    ]
    said = [(inside, code) for inside, code in named if not blank(code)]
    if not said:
        problems.empty("sourceCurrency")
        return ""
    first, code = said[0]
    inside = Problems(problems.found, first.prefix)
    return read_currency(inside, {"sourceCurrency": code}, "sourceCurrency") or ""


def read_edit(names: Names, body: JsonObject, batch: Batch) -> Edit:
    """Parse all changes of a batch; clients may send back a whole batch. Raises ApiError."""
    problems = Problems()
    body = {**body, "payments": _unpaged(body.get("payments"))}
    changed_fields = {name: body[name] for name in ("description",) if name in body}
    description = read_text(
        problems, {"description": batch.description, **changed_fields}, "description"
    )
    currency = loose.currency(body.get("sourceCurrency"))
    currency = batch.currency if blank(currency) else currency
    read_currency(problems, {"sourceCurrency": currency}, "sourceCurrency")
    if currency != batch.currency and batch.payments:
        problems.invalid("sourceCurrency", "Can be changed only while there are no payments")
    # A copy: new payments get the new currency, and a refused request changes nothing.
    batch = replace(batch, currency=currency)
    sent = list(entries(problems, body, "payments"))
    new = [(inside, entry) for inside, entry in sent if entry.get("id") is None]
    known = [(inside, entry) for inside, entry in sent if entry.get("id") is not None]
    added = [orders.read(names, inside, entry, batch) for inside, entry in new]
    # One set for all arrays: a request cannot change and remove the same payment.
    named: set[str] = set()
    updates = [*known, *entries(problems, body, "update_payments")]
    changed = [
        (payment, orders.read_change(names, inside, entry, payment))
        for inside, entry, payment in _payments(names, updates, batch, named)
    ]
    removals = entries(problems, body, "remove_payments")
    removed = [payment for _, _, payment in _payments(names, removals, batch, named)]
    problems.refuse_if_any()
    return Edit(
        description, [order for order in added if order is not None], changed, removed, currency
    )


def _unpaged(sent: object) -> object:
    """Return the payments of a page object, which a client may send back as it was read."""
    return sent["payments"] if isinstance(sent, dict) and "payments" in sent else sent


def _payments(
    names: Names, sent: Iterable[tuple[Problems, JsonObject]], batch: Batch, named: set[str]
) -> Iterable[tuple[Problems, JsonObject, Payment]]:
    """Yield the entries that refer to payments of the batch, each at most once."""
    for inside, entry in sent:
        wanted = entry.get("id")
        if blank(wanted):
            inside.empty("id")
            continue
        real = names.real(wanted) if isinstance(wanted, str) else ""
        if real not in batch.payments:
            inside.invalid("id", "Payment does not exist in this batch")
        elif real in named:
            inside.invalid("id", "Named twice")
        else:
            named.add(real)
            yield inside, entry, batch.payments[real]
