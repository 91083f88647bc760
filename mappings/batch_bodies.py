"""Payments in request bodies: validation, lookup of recipients, and stored entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from mappings import money, paging
from mappings.banking import build_empty_field_problem, build_invalid_field_problem
from mappings.effects import JSON, Call, LoadFacts, Parallel, SubFlow
from mappings.failures import Invalid, Problem, ProblemList, Unreachable
from mappings.field_types import validate_amount
from mappings.ids import ID_PATTERN
from mappings.lazy_sequences import iterate_chunks, map_rows
from mappings.matching import Entry, Payment
from mappings.objects import Facts, choose_legacy_recipient_status, is_deleted_for_clients

MAX_ADDRESSES = 1000
"""Maximum number of distinct email addresses in one request's payments; each costs one call."""

PARALLEL_RECIPIENT_READS = 200
"""Number of recipients that one parallel step reads."""


class SentPayment(NamedTuple):
    """A payment in a request body, and its location there.

    ``container`` is the list that holds it and ``position`` its index; without a position,
    ``container`` is the prefix of its fields.
    """

    body: Mapping[str, JSON]
    container: str
    refused_fields: frozenset[str | None] = frozenset()
    """Full names of the fields that failed validation and were removed from ``body``."""
    position: int = -1

    @property
    def field_prefix(self) -> str:
        return self.container if self.position < 0 else f"{self.container}[{self.position}]."

    @property
    def recipient(self) -> Mapping[str, JSON]:
        return self.body.get("recipient") or {}

    @property
    def recipient_field(self) -> str:
        """The full name of the field that names the recipient: by id, or by address."""
        name = "id" if self.recipient.get("id") else "email"
        return f"{self.field_prefix}recipient.{name}"

    @property
    def amount_side(self) -> str:
        return "source" if self.body.get("sourceAmount") else "target"


def collect_sent_payments(
    payments: Sequence[Mapping[str, JSON]] | None,
    list_name: str = "payments",
    problems: Sequence[Problem] = (),
) -> Sequence[SentPayment]:
    refused_fields = frozenset(problem.field for problem in problems)
    bodies = payments or []

    def build(body: Mapping[str, JSON], position: int) -> SentPayment:
        return SentPayment(body, list_name, refused_fields, position)

    return map_rows(build, bodies, range(len(bodies)))


# Validation


def validate_payment(payment: SentPayment) -> Sequence[Problem]:
    """Validates a payment to add, apart from what depends on its batch."""
    body, refused_fields = payment.body, payment.refused_fields
    recipient = body.get("recipient") or {}
    id_ = recipient.get("id")
    problems: list[Problem] = []
    if refused_fields and f"{payment.field_prefix}recipient.email" in refused_fields:
        pass  # already reported: the client did name a recipient
    elif id_:
        if not (id_.startswith("R-") and ID_PATTERN.fullmatch(id_)):
            field = f"{payment.field_prefix}recipient.id"
            problems.append(build_invalid_field_problem(field, "is not the id of a recipient"))
    elif not recipient.get("email"):
        problems.append(build_empty_field_problem(f"{payment.field_prefix}recipient.id"))
    if not (body.get("sourceAmount") or body.get("targetAmount")) and not (
        {f"{payment.field_prefix}{side}Amount" for side in ("source", "target")} & refused_fields
    ):
        problems.append(build_empty_field_problem(f"{payment.field_prefix}sourceAmount"))
    if body.get("targetAmount"):
        problems += validate_amount_combination(payment)
    return problems


def drop_unchanged_fields(change: SentPayment, payment: Payment | None) -> SentPayment:
    """Removes from a change the values that the payment has already.

    Clients read a payment, change one field and send the whole object back.
    """
    if payment is None:
        return change
    body, currency = dict(change.body), change.body.get("targetCurrency")
    shown_currency = payment.get("targetCurrency")
    # As with an amount, the service may not show the one that was last requested.
    last_currencies = {shown_currency, payment.get("asked_currency") or shown_currency}
    is_same_currency = last_currencies == {currency}
    if _is_unchanged_amount("source", body, payment):
        del body["sourceAmount"]
    # The same number in another currency is a change.
    if _is_unchanged_amount("target", body, payment) and (currency is None or is_same_currency):
        del body["targetAmount"]
    if not body.get("targetAmount") and is_same_currency:
        body.pop("targetCurrency", None)
    if (body.get("memo") or None) == (payment.get("memo") or None):
        body.pop("memo", None)
    return change._replace(body=body)


def _is_unchanged_amount(side: str, body: Mapping[str, JSON], payment: Payment) -> bool:
    """Whether an amount is the one that the service shows, and that was last requested."""
    amount = body.get(f"{side}Amount")
    # A change that the service does not show yet is set back by the amount that it still shows.
    return _is_same_amount(amount, payment.get(f"{side}Amount")) and (
        payment.get("asked_side") != side or _is_same_amount(amount, payment.get("asked_amount"))
    )


def _is_same_amount(amount: JSON, shown_amount: JSON) -> bool:
    parsed = money.parse_amount(amount)
    return parsed is not None and parsed == money.parse_amount(shown_amount)


def drop_malformed_amounts(payment: SentPayment) -> tuple[SentPayment, list[Problem]]:
    """Returns a payment without its malformed amounts, and a problem for each of them."""
    faults = {
        name: fault
        for name in ("sourceAmount", "targetAmount")
        if (text := payment.body.get(name)) is not None and (fault := validate_amount(text))
    }
    if not faults:
        return payment, []
    problems = [
        build_invalid_field_problem(f"{payment.field_prefix}{name}", fault)
        for name, fault in faults.items()
    ]
    body = {name: value for name, value in payment.body.items() if name not in faults}
    refused_fields = payment.refused_fields.union(problem.field for problem in problems)
    return payment._replace(body=body, refused_fields=refused_fields), problems


class NamedRecipients:
    """The recipients that payments name: the id of each, or else its address."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.addresses: dict[str, None] = {}

    def add_recipient(self, payment: SentPayment) -> None:
        recipient = payment.recipient
        if id_ := recipient.get("id"):
            self.ids.append(id_)
        elif (address := recipient.get("email")) and len(self.addresses) <= MAX_ADDRESSES:
            self.addresses[address] = None


def validate_payments(
    payments: Iterable[SentPayment],
    recipients: NamedRecipients,
    validate: Callable[[SentPayment], Iterable[Problem]] = validate_payment,
) -> Iterator[Problem]:
    """Validates payments, and that they name no more addresses than one request may look up.

    Collects their ``recipients`` on the way.
    """
    excess_payment: SentPayment | None = None
    for payment in payments:
        yield from validate(payment)
        recipients.add_recipient(payment)
        if excess_payment is None and len(recipients.addresses) > MAX_ADDRESSES:
            excess_payment = payment
    if excess_payment is not None:
        fault = f"is one address more than the {MAX_ADDRESSES:,} that a request may name"
        yield build_invalid_field_problem(
            f"{excess_payment.field_prefix}recipient.email", f"{fault}; give ids of recipients"
        )


def validate_amount_combination(payment: SentPayment) -> Iterator[Problem]:
    if payment.body.get("sourceAmount") and payment.body.get("targetAmount"):
        yield build_invalid_field_problem(
            f"{payment.field_prefix}targetAmount", "and sourceAmount cannot both be given"
        )
    if payment.body.get("targetAmount") and not payment.body.get("targetCurrency"):
        yield build_empty_field_problem(f"{payment.field_prefix}targetCurrency")


def derive_batch_currency(body: Mapping[str, JSON]) -> str | None:
    """Returns ``sourceCurrency``, or that of the payments if they agree on one; otherwise None."""
    if body.get("sourceCurrency"):
        return str(body["sourceCurrency"])
    currencies = {payment.get("sourceCurrency") for payment in body.get("payments") or []} - {None}
    return str(currencies.pop()) if len(currencies) == 1 else None


def validate_source_currency(
    body: Mapping[str, JSON], problems: Sequence[Problem] = ()
) -> Iterator[Problem]:
    if any(problem.field == "sourceCurrency" for problem in problems):
        return  # an invalid currency is reported already; comparing with it would add noise
    currency = body.get("sourceCurrency")
    for number, payment in enumerate(body.get("payments") or []):
        if payment_currency := payment.get("sourceCurrency"):
            currency = currency or payment_currency
            if payment_currency != currency:
                field = f"payments[{number}].sourceCurrency"
                yield build_invalid_field_problem(field, "differs from the batch's currency")
    if not currency:
        yield build_empty_field_problem("sourceCurrency")


# Recipients


def validate_added_payment(payment: SentPayment, currency: JSON) -> Iterator[Problem]:
    """Validates a payment to add to an existing batch, whose currency it must have."""
    yield from validate_payment(payment)
    payment_currency = payment.body.get("sourceCurrency")
    if payment_currency and currency and payment_currency != currency:
        yield build_invalid_field_problem(
            f"{payment.field_prefix}sourceCurrency", "differs from the batch's currency"
        )


def resolve_recipients(
    payments: Iterable[SentPayment], batch_currency: JSON, named: NamedRecipients | None = None
) -> SubFlow:
    """Looks up recipients: GET /recipients?email= once for each distinct address, in parallel.

    Returns a function that returns the recipient of a payment's body, with at least its id. Raises
    Invalid for an address of no recipient or of several, and for a recipient who cannot be paid.
    ``named`` are the recipients of the payments, if they are collected already.
    """
    if named is None:
        named = NamedRecipients()
        for payment in payments:
            named.add_recipient(payment)
    rows_by_address = yield from _find_recipients_by_email(list(named.addresses))
    found_ids = (row["id"] for matches in rows_by_address.values() for row in matches)
    facts_by_id = yield from load_recipient_facts(chain(named.ids, found_ids))
    # Malformed values hide state problems: they have to be corrected in any case.
    value_problems, states = ProblemList(), ProblemList()
    # A recipient can be checked only against looked-up rows or stored facts.
    for payment in payments if rows_by_address or facts_by_id else ():
        recipient, fault = _select_recipient(payment, rows_by_address)
        facts = facts_by_id.get(recipient.get("id", ""), {})
        fault = fault or _find_unpayable_recipient_problem(
            payment, recipient, facts, batch_currency
        )
        if fault:
            (states if fault.code == "invalid_status" else value_problems).add_problem(fault)
    if problems := value_problems or states:
        raise Invalid(*problems, omitted_count=problems.more)

    def find_recipient(body: Mapping[str, JSON]) -> Mapping[str, JSON]:
        recipient: Mapping[str, JSON] = body["recipient"]
        return recipient if recipient.get("id") else rows_by_address[recipient["email"]][0]

    return find_recipient


RECIPIENTS_PER_LOAD = 5000
"""Number of recipients whose facts one query loads."""


def load_recipient_facts(recipient_ids: Iterable[str]) -> SubFlow:
    """Loads the stored facts of any number of recipients, by id."""
    facts_by_id: dict[str, Facts] = {}
    for chunk in iterate_chunks(recipient_ids, RECIPIENTS_PER_LOAD):
        facts_by_id |= yield build_load_recipient_facts_step(chunk)
    return facts_by_id


def build_load_recipient_facts_step(recipient_ids: Iterable[str]) -> LoadFacts:
    """Builds the step that loads the stored facts of recipients, by id."""
    return LoadFacts("recipient", ids=tuple(dict.fromkeys(recipient_ids)))


def build_recipient_call(recipient_id: str) -> Call:
    return Call("GET", f"/recipients/{recipient_id}")


def read_recipients(recipient_ids: Iterable[str], select: Callable[[Any], JSON]) -> SubFlow:
    """Reads recipients in parallel; returns what ``select`` keeps of each response, by id.

    The response to a failed read is its exception.
    """
    selected: dict[JSON, JSON] = {}
    for chunk in iterate_chunks(dict.fromkeys(recipient_ids), PARALLEL_RECIPIENT_READS):
        answers = yield Parallel([build_recipient_call(id_) for id_ in chunk])
        selected |= {id_: select(answer) for id_, answer in zip(chunk, answers, strict=True)}
    return selected


def _find_recipients_by_email(addresses: list[str]) -> SubFlow:
    """Returns the recipients with each address, without archived and deleted ones.

    Reading stops at the second match, which makes an address ambiguous.
    """
    calls = [_build_recipients_by_email_call(address) for address in addresses]
    # All lookups are one step, because a batch may name a thousand addresses.
    answers = (yield Parallel(calls)) if calls else []
    rows_by_address: dict[str, list[dict[str, JSON]]] = {}
    extra_pages = 0
    for address, answer in zip(addresses, answers, strict=True):
        if isinstance(answer, Exception):
            raise answer
        rows = yield from _select_existing_with_email(answer, address)
        for page in range(
            2, paging.parse_count_or_default((answer.get("meta") or {}).get("pages"), 1) + 1
        ):
            if len(rows) > 1 or not answer.get("recipients"):
                break
            # A service that ignores the filter would otherwise be read to the end for each address.
            if (extra_pages := extra_pages + 1) > MAX_ADDRESSES:
                raise Unreachable("too many pages of recipients for an address")
            answer = yield _build_recipients_by_email_call(address, page)  # noqa: PLW2901
            rows += yield from _select_existing_with_email(answer, address)
        rows_by_address[address] = rows
    return rows_by_address


def _build_recipients_by_email_call(address: str, page: int = 1) -> Call:
    page_params = {"page": str(page)} if page > 1 else {}
    return Call("GET", "/recipients", query={"email": address, **page_params})


def _select_existing_with_email(answer: JSON, address: str) -> SubFlow:
    """Keeps the rows that have exactly this address, ignoring case, and are not deleted."""
    # The document calls the service's filter exact. If a service ignores it all the same, the
    # wrong recipient must not be paid.
    listed_rows = answer.get("recipients") or []
    rows = [row for row in listed_rows if str(row.get("email")).casefold() == address.casefold()]
    facts_by_id = (yield build_load_recipient_facts_step(row["id"] for row in rows)) if rows else {}
    return [row for row in rows if not is_deleted_for_clients(row, facts_by_id.get(row["id"], {}))]


def _select_recipient(
    payment: SentPayment, rows_by_address: Mapping[str, list[dict[str, JSON]]]
) -> tuple[dict[str, JSON], Problem | None]:
    if id_ := payment.recipient.get("id"):
        return {"id": id_}, None
    matches = rows_by_address[payment.recipient["email"]]
    if len(matches) == 1:
        return matches[0], None
    fault = (
        "is the address of no recipient" if not matches else "is the address of several recipients"
    )
    return {}, build_invalid_field_problem(f"{payment.field_prefix}recipient.email", fault)


def _find_unpayable_recipient_problem(
    payment: SentPayment, recipient: Mapping[str, JSON], facts: Facts, batch_currency: JSON
) -> Problem | None:
    """Returns a problem if the recipient cannot be paid, judged by what is known without a call."""
    status = facts.get("status")
    if recipient.get("status"):
        status = choose_legacy_recipient_status(recipient, facts)
    if facts.get("deleted") or status in ("disabled", "suspended"):
        return build_unpayable_problem(payment.recipient_field)
    if (minimum := money.parse_amount(recipient.get("routeMinimum"))) is None:
        return None
    side = payment.amount_side
    currency = payment.body.get("targetCurrency") if side == "target" else batch_currency
    amount = money.parse_amount(payment.body.get(f"{side}Amount"))
    # An amount in another currency cannot be compared without a rate: the service decides.
    if amount is None or currency != recipient.get("primaryCurrency"):
        return None
    if amount < minimum:
        return build_invalid_field_problem(
            f"{payment.field_prefix}{side}Amount", f"is less than the least amount, {minimum}"
        )
    return None


def build_unpayable_problem(field: str) -> Problem:
    return Problem("invalid_status", f"{field} names a recipient who cannot be paid.", field)


RECIPIENT_FIELDS = ("id", "referenceId", "email", "name", "status", "country", "payoutMethod")


def build_entry_from_body(
    find_recipient: Callable[[Mapping[str, JSON]], Mapping[str, JSON]],
    body: Mapping[str, JSON],
    *,
    id_: str | None = None,
) -> Entry:
    """Builds the stored form of a payment to add; ``find_recipient`` is of ``resolve_recipients``."""
    entry: Entry = {} if id_ is None else {"id": id_}
    entry["recipient"] = select_listed_recipient_fields(find_recipient(body))
    return _copy_non_null_fields(entry, _ENTRY_FIELDS, body)


def select_listed_recipient_fields(recipient: Mapping[str, JSON]) -> dict[str, JSON]:
    """Returns the fields of a recipient that batch listings show."""
    # Most payments name their recipient by id alone. There may be a hundred thousand of them.
    if len(recipient) == 1 and (id_ := recipient.get("id")) is not None:
        return {"id": id_}
    fields = _copy_non_null_fields({}, RECIPIENT_FIELDS, recipient)
    # A full recipient has the country in its address, a reduced one beside it.
    if not fields.get("country") and (country := (recipient.get("address") or {}).get("country")):
        fields["country"] = country
    return fields


def _copy_non_null_fields(
    target: dict[str, JSON], names: Iterable[str], source: Mapping[str, JSON]
) -> dict[str, JSON]:
    """Adds the named fields of ``source`` that are not null to ``target``, and returns it."""
    for name in names:
        if (value := source.get(name)) is not None:
            target[name] = value
    return target


AMOUNT_FIELDS = ("sourceAmount", "targetAmount", "targetCurrency")

_ENTRY_FIELDS = (*AMOUNT_FIELDS, "memo")


def extract_payment_changes(body: Mapping[str, JSON], *, memo: bool = True) -> dict[str, JSON]:
    """Returns the fields that a body changes; a memo of None clears it."""
    memo_change = {"memo": body["memo"]} if memo and "memo" in body else {}
    return {**_copy_non_null_fields({}, AMOUNT_FIELDS, body), **memo_change}


def apply_payment_changes(entry: Entry, body: Mapping[str, JSON]) -> Entry:
    """Returns an entry with a client's changes; a new amount replaces the other side's too.

    Of ``told`` (see ``drafts``) a new amount leaves what does not depend on it, and the currency
    that the recipient gets for a source amount. The rate, the fees and an amount in another
    currency are null until the next quote, which decides them (earlier, section 4.3).
    """
    changes = extract_payment_changes(body)
    updated = dict(entry)
    if told := updated.pop("told", None) if changes.keys() & {*AMOUNT_FIELDS} else None:
        names = ("compliance", "memo", *(["targetCurrency"] if "sourceAmount" in changes else ()))
        updated["told"] = _copy_non_null_fields({}, names, told) or None
    if changes.keys() & {"sourceAmount", "targetAmount"}:
        for name in AMOUNT_FIELDS:
            updated.pop(name, None)
    return {name: value for name, value in {**updated, **changes}.items() if value is not None}
