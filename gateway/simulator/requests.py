"""Exchanges, the authenticated requests that operations get, and pages of lists (sections 4, 8)."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from gateway.simulator import batches, views
from gateway.simulator.state import Batch, Payment, Recipient, Tenant
from gateway.simulator.validation import (
    JsonObject,
    Problems,
    build_not_found_error,
)

Entry = TypeVar("Entry")


def _parse_count(problems: Problems, query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, "")
    if text == "":
        return default
    if re.fullmatch(r"[0-9]{1,9}", text) and int(text):
        return int(text)
    problems.add_invalid_field(name, "Must be a whole number from 1")
    return default


@dataclass
class AcceptedRequest:
    """An authenticated request; it is entered in the activity logs of `logged_recipients`.

    The methods are those of the current interface, in which `body` includes the query parameters
    (section 4). The legacy interface overrides what its document has otherwise: ids, JSON of
    objects, and payments in bodies.
    """

    answer_to_deleted_recipients: ClassVar[JsonObject] = {}

    tenant: Tenant
    query: dict[str, str]
    path_ids: tuple[str, ...] = ()
    body: JsonObject = field(default_factory=dict)
    logged_recipients: list[Recipient] = field(default_factory=list)

    def resolve_id(self, client_id: str) -> str:
        """Returns the service's id for a client's."""
        return client_id

    def build_client_id(self, service_id: str) -> str:
        """Returns the client's id for one of the service's."""
        return service_id

    def is_readable(self, _recipient: Recipient) -> bool:
        # The document calls archiving a deletion, and does not say whether it can still be read.
        return True

    def require_recipient(self, recipient_id: str) -> Recipient:
        """Raises ApiError `not_found`, also for a recipient that is not readable."""
        recipient = self.tenant.recipients.get(self.resolve_id(recipient_id))
        if recipient is None or not self.is_readable(recipient):
            raise build_not_found_error("Recipient")
        return recipient

    def require_batch(self, batch_id: str) -> Batch:
        """Raises ApiError `not_found`."""
        batch = self.tenant.batches.get(self.resolve_id(batch_id))
        if batch is None:
            raise build_not_found_error("Batch")
        return batch

    def require_path_recipient(self) -> Recipient:
        recipient = self.require_recipient(self.path_ids[0])
        if not any(logged is recipient for logged in self.logged_recipients):
            self.logged_recipients.append(recipient)
        return recipient

    def require_path_batch(self) -> Batch:
        return self.require_batch(self.path_ids[0])

    def require_path_payment(self) -> Payment:
        """Raises ApiError `not_found`, also for a payment of another batch than the path's."""
        *batch_ids, payment_id = self.path_ids
        payments = self.require_batch(batch_ids[0]).payments if batch_ids else self.tenant.payments
        payment = payments.get(self.resolve_id(payment_id))
        if payment is None:
            raise build_not_found_error("Payment")
        return payment

    def parse_ids(self) -> list[str]:
        """Parses `ids` of a request that names several objects. Raises ApiError."""
        ids = self.body.get("ids")
        problems = Problems()
        if ids is None or ids == []:
            problems.add_empty_field("ids")
        elif not isinstance(ids, list):
            problems.add_invalid_field("ids", "Must be an array")
        problems.raise_if_any()
        # A value that is not text is kept as text: it matches no id and answers `not_found`.
        return list(dict.fromkeys(map(str, ids or [])))

    def parse_page(self, problems: Problems) -> tuple[int, int]:
        """Parses the number and the size of the requested page (section 8)."""
        number = _parse_count(problems, self.query, "page", 1)
        size = _parse_count(problems, self.query, "pageSize", 10)
        return number, min(size, self.tenant.options.max_page_size)

    def build_page(
        self, key: str, entries: Sequence[Entry], build_entry: Callable[[Entry], JsonObject]
    ) -> JsonObject:
        """Builds the requested page of a list, with `meta`; a page past the end is empty."""
        problems = Problems()
        number, size = self.parse_page(problems)
        problems.raise_if_any()
        start = (number - 1) * size
        return {
            key: [build_entry(entry) for entry in entries[start : start + size]],
            "meta": {
                "page": number,
                # Rounded up: `-(-a // b)` is ceiling division.
                "pages": -(-len(entries) // size),
                "records": len(entries),
            },
        }

    def build_recipient(self, recipient: Recipient) -> JsonObject:
        return views.build_recipient(self.tenant, recipient)

    def build_activity(self, _recipient: Recipient, activity: JsonObject) -> JsonObject:
        return activity

    def build_batch(self, batch: Batch) -> JsonObject:
        return views.build_batch(self.tenant, batch)

    def build_payment(self, payment: Payment) -> JsonObject:
        return views.build_payment(self.tenant, payment)

    def build_listed_payment(self, payment: Payment) -> JsonObject:
        """Builds a payment of a batch's list, with a reduced recipient."""
        return views.build_listed_payment(self.tenant, payment)

    def build_batch_with_payments(self, batch: Batch) -> JsonObject:
        """Builds a batch with one page of its payments."""
        page = self.build_page("payments", list(batch.payments.values()), self.build_listed_payment)
        return {**self.build_batch(batch), "payments": page}

    def parse_batch_currency(self, problems: Problems) -> str:
        """Parses the currency of a new batch; it is empty if a problem was added."""
        field_name = self.tenant.vocabulary.batch_currency
        return batches.parse_currency(problems, field_name, self.body.get(field_name))

    def parse_changed_currency(self, problems: Problems, batch: Batch) -> str:
        """Parses the currency of a changed batch."""
        field_name = self.tenant.vocabulary.batch_currency
        # The terms of the payments depend on the currency.
        if self.body.get(field_name, batch.currency) != batch.currency:
            problems.add_invalid_field(field_name, "Cannot be changed")
        return batch.currency

    def parse_payment(self, problems: Problems, body: JsonObject, batch: Batch) -> Payment | None:
        """Parses a new payment; the result is valid only if no problem was added."""
        return batches.parse_payment(self.tenant, problems, body, batch)

    def parse_payment_change(
        self, problems: Problems, body: JsonObject, payment: Payment
    ) -> Payment:
        """Parses a changed copy of a payment; it is valid only if no problem was added."""
        return batches.parse_payment_change(problems, body, payment)


Operation = Callable[[Any], JsonObject]
"""A function of an ``AcceptedRequest``, or of the legacy interface's."""


@dataclass
class Exchange:
    """A request and its response; `target` is the raw request target with its query.

    Header names are case-insensitive. `request` is set once the caller is authenticated.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    address: str = ""
    status: int = 200
    response_body: bytes = b""
    response_headers: Mapping[str, str] = field(default_factory=dict)
    request: AcceptedRequest | None = None

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]
