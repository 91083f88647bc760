"""The recipients of payments: looked up by address, checked, and shown with a draft's payments."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from mappings import current, money, paging
from mappings.batch_bodies import SentPayment, select_listed_recipient_fields
from mappings.effects import JSON, Call, LoadFacts, Parallel, SubFlow
from mappings.failures import (
    Invalid,
    Problem,
    ProblemList,
    Refused,
    Unreachable,
    build_invalid_field_problem,
)
from mappings.lazy_sequences import iterate_chunks, map_rows, materialize_rows
from mappings.matching import Entry, extract_recipient_id
from mappings.objects import (
    ARCHIVED,
    Facts,
    choose_legacy_recipient_status,
    determine_shown_payout_currency,
    is_deleted_for_clients,
)

PARALLEL_RECIPIENT_READS = 200
"""Number of recipients that one parallel step reads."""

RECIPIENTS_PER_LOAD = 5000
"""Number of recipients whose facts one query loads."""

MAX_ADDRESSES = 10_000
"""Maximum number of distinct email addresses in one request's payments; each costs one call."""

MAX_EXTRA_PAGES = 1000
"""Maximum number of pages after the first ones that one request reads to find its recipients."""

MAX_RECIPIENTS = 1000
"""Number of recipients that an edit of a draft reads: its client waits for them."""


# Reads


def read_recipients(recipient_ids: Iterable[str], select: Callable[[Any], JSON]) -> SubFlow:
    """Reads recipients in parallel; returns what ``select`` keeps of each response, by id.

    The response to a failed read is its exception.
    """
    selected: dict[JSON, JSON] = {}
    for chunk in iterate_chunks(dict.fromkeys(recipient_ids), PARALLEL_RECIPIENT_READS):
        answers = yield Parallel([Call("GET", f"/recipients/{id_}") for id_ in chunk])
        selected |= {id_: select(answer) for id_, answer in zip(chunk, answers, strict=True)}
    return selected


def load_recipient_facts(recipient_ids: Iterable[str]) -> SubFlow:
    """Loads the stored facts of any number of recipients, by id."""
    facts_by_id: dict[str, Facts] = {}
    for chunk in iterate_chunks(recipient_ids, RECIPIENTS_PER_LOAD):
        facts_by_id |= yield LoadFacts("recipient", ids=tuple(dict.fromkeys(chunk)))
    return facts_by_id


# Recipients that requests name


def collect_recipients(payments: Iterable[SentPayment]) -> tuple[list[str], list[str]]:
    """Collects the ids and the distinct addresses of the recipients that payments name.

    Raises Invalid for more than ``MAX_ADDRESSES`` addresses.
    """
    ids, addresses = list[str](), dict[str, None]()
    for payment in payments:
        if id_ := payment.recipient.get("id"):
            ids.append(id_)
        elif address := payment.recipient.get("email"):
            addresses[address] = None
            if len(addresses) > MAX_ADDRESSES:
                excess = f"is one address more than the {MAX_ADDRESSES:,} that a request may name"
                raise Invalid(
                    payment.build_invalid("recipient.email", f"{excess}; give ids of recipients")
                )
    return ids, [*addresses]


def resolve_recipients(payments: Iterable[SentPayment], batch_currency: JSON) -> SubFlow:
    """Looks up recipients: GET /recipients?email= once for each distinct address, in parallel.

    Returns a function that returns the recipient of a payment's body, with at least its id. Raises
    Invalid for an address of no recipient or of several, for more than ``MAX_ADDRESSES`` addresses,
    and for a recipient who cannot be paid.
    """
    ids, addresses = collect_recipients(payments)
    rows_by_address = yield from _find_recipients_by_email(addresses)
    found_ids = (row["id"] for matches in rows_by_address.values() for row in matches)
    facts_by_id = yield from load_recipient_facts(chain(ids, found_ids))
    # Malformed values hide state problems: they have to be corrected in any case.
    value_problems, states = ProblemList(), ProblemList()
    # A recipient can be checked only against looked-up rows or stored facts.
    for payment in payments if rows_by_address or facts_by_id else ():
        if fault := _find_recipient_fault(payment, rows_by_address, facts_by_id, batch_currency):
            (states if fault.code == "invalid_status" else value_problems).add_problem(fault)
    _raise_if_any(value_problems or states)

    def find_recipient(body: Mapping[str, JSON]) -> Mapping[str, JSON]:
        recipient: Mapping[str, JSON] = body["recipient"]
        return recipient if recipient.get("id") else rows_by_address[recipient["email"]][0]

    return find_recipient


def _raise_if_any(problems: ProblemList) -> None:
    if problems:
        raise Invalid(*problems, omitted_count=problems.more)


def _find_recipients_by_email(addresses: list[str]) -> SubFlow:
    """Returns the recipients with each address, without archived and deleted ones.

    Reading stops at the second match, which makes an address ambiguous.
    """
    rows_by_address: dict[str, list[dict[str, JSON]]] = {}
    extra_pages = 0
    for chunk in iterate_chunks(addresses, PARALLEL_RECIPIENT_READS):
        answers = yield Parallel([_build_recipients_by_email_call(address) for address in chunk])
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        rows_by_address |= yield from _select_existing_with_emails(chunk, answers)
        for address, answer in zip(chunk, answers, strict=True):
            rows = rows_by_address[address]
            page_count = paging.parse_count_or_default((answer.get("meta") or {}).get("pages"), 1)
            for page in range(2, page_count + 1):
                if len(rows) > 1 or not answer.get("recipients"):
                    break
                # A service that ignores the filter would otherwise be read to the end for each
                # address.
                if (extra_pages := extra_pages + 1) > MAX_EXTRA_PAGES:
                    raise Unreachable("too many pages of recipients for an address")
                answer = yield _build_recipients_by_email_call(address, page)  # noqa: PLW2901
                rows += (yield from _select_existing_with_emails([address], [answer]))[address]
    return rows_by_address


def _build_recipients_by_email_call(address: str, page: int = 1) -> Call:
    page_params = {"page": str(page)} if page > 1 else {}
    return Call("GET", "/recipients", query={"email": address, **page_params})


def _select_existing_with_emails(addresses: Sequence[str], answers: Sequence[JSON]) -> SubFlow:
    """Keeps the rows that have exactly their address, ignoring case, and are not deleted."""
    # The document calls the service's filter exact. If a service ignores it all the same, the
    # wrong recipient must not be paid.
    rows_by_address = {
        address: [
            row
            for row in answer.get("recipients") or []
            if str(row.get("email")).casefold() == address.casefold()
        ]
        for address, answer in zip(addresses, answers, strict=True)
    }
    facts_by_id = yield from load_recipient_facts(
        row["id"] for rows in rows_by_address.values() for row in rows
    )
    return {
        address: [
            row for row in rows if not is_deleted_for_clients(row, facts_by_id.get(row["id"], {}))
        ]
        for address, rows in rows_by_address.items()
    }


def _find_recipient_fault(
    payment: SentPayment,
    rows_by_address: Mapping[str, list[dict[str, JSON]]],
    facts_by_id: Mapping[str, Facts],
    batch_currency: JSON,
) -> Problem | None:
    """Returns a problem if the recipient is unknown, or cannot be paid as far as is known here."""
    if id_ := payment.recipient.get("id"):
        matches: list[dict[str, JSON]] = [{"id": id_}]
    else:
        matches = rows_by_address[payment.recipient["email"]]
    if len(matches) != 1:
        fault = f"is the address of {'several recipients' if matches else 'no recipient'}"
        return build_invalid_field_problem(payment.recipient_field, fault)
    (recipient,) = matches
    facts = facts_by_id.get(recipient["id"], {})
    status = facts.get("status")
    if recipient.get("status"):
        status = choose_legacy_recipient_status(recipient, facts)
    if facts.get("deleted") or status in ("disabled", "suspended"):
        return _build_unpayable_problem(payment)
    return _find_minimum_fault(payment, recipient, batch_currency)


def _find_minimum_fault(
    payment: SentPayment, recipient: Mapping[str, JSON], batch_currency: JSON
) -> Problem | None:
    # The document has the minimum for bank transfers only (current section 1, item 9).
    if recipient.get("payoutMethod") not in (None, current.BANK_TRANSFER):
        return None
    minimum = money.parse_amount(recipient.get("routeMinimum"))
    side = payment.amount_side
    currency = payment.body.get("targetCurrency") if side == "target" else batch_currency
    amount = money.parse_amount(payment.body.get(f"{side}Amount"))
    # An amount in another currency cannot be compared without a rate: the service decides.
    if minimum is None or amount is None or currency != recipient.get("primaryCurrency"):
        return None
    if amount >= minimum:
        return None
    return payment.build_invalid(f"{side}Amount", f"is less than the least amount, {minimum}")


def _build_unpayable_problem(payment: SentPayment) -> Problem:
    field = payment.recipient_field
    return Problem("invalid_status", f"{field} names a recipient who cannot be paid.", field)


# Recipients of drafts


def add_recipient_details(entries: Sequence[Entry]) -> SubFlow:
    """Calls GET /recipients/:id for each recipient of which only the id is known."""
    unknown = [entry for entry in entries if "name" not in entry["recipient"]]

    def select_details(answer: Any) -> dict[str, JSON]:
        if isinstance(answer, Exception):
            return {}
        return select_listed_recipient_fields(answer["recipient"])

    ids = filter(None, map(extract_recipient_id, unknown))
    recipients = yield from read_recipients(ids, select_details)
    if not recipients:
        return entries

    def add_details(entry: Entry) -> Entry:
        details = recipients.get(extract_recipient_id(entry), {})
        return {**entry, "recipient": {**details, **entry["recipient"]}}

    return materialize_rows(map_rows(add_details, entries))


def add_recipients_of_draft_payments(
    payments: Sequence[SentPayment], entries: Sequence[Entry]
) -> SubFlow:
    """Completes the entries of payments added to a draft: GET /recipients/:id.

    The service would refuse a payment to a recipient that does not exist or cannot be paid, but it
    gets the payments of a draft only later. Raises Invalid for them. If the payments have more than
    ``MAX_RECIPIENTS`` recipients, none is read, and the service refuses them later.
    """

    def select_details(answer: Any) -> JSON:
        if isinstance(answer, Refused) and answer.is_not_found:
            return None
        if isinstance(answer, Exception):
            raise answer
        recipient = answer["recipient"]
        currency = determine_shown_payout_currency(recipient)
        return select_listed_recipient_fields(recipient), currency

    ids = dict[JSON, None]()
    for entry in entries:
        ids[extract_recipient_id(entry)] = None
        if len(ids) > MAX_RECIPIENTS:
            return entries
    details_by_id = yield from read_recipients(ids, select_details)
    problems = ProblemList()
    for payment, entry in zip(payments, entries, strict=True):
        if fault := _find_draft_fault(payment, details_by_id[extract_recipient_id(entry)]):
            problems.add_problem(fault)
    _raise_if_any(problems)

    def add_details(entry: Entry) -> Entry:
        recipient, currency = details_by_id[extract_recipient_id(entry)]
        # What a service shows of a payment that was just added, if it has no memo.
        told = {"memo": "", "compliance": {"status": "pending", "checkedAt": None}}
        if entry.get("sourceAmount"):
            # It arrives in the currency of the recipient's primary account.
            told["targetCurrency"] = currency
        return {**entry, "recipient": recipient, "told": told}

    return materialize_rows(map_rows(add_details, entries))


def _find_draft_fault(payment: SentPayment, details: JSON) -> Problem | None:
    if details is None:
        return build_invalid_field_problem(payment.recipient_field, "names no recipient")
    is_payable = details[0].get("status") not in ("suspended", ARCHIVED)
    return None if is_payable else _build_unpayable_problem(payment)
