"""A simulated service that answers the steps of a flow, to show its calls without a real service.

Every object that is requested exists, and every write is accepted. Ids of created objects end in
``EXAMPLE``; all data is fictitious.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from mappings.current import BANK_TRANSFER, WALLET
from mappings.effects import (
    JSON,
    Call,
    CompareAndSet,
    ListPage,
    ListQuery,
    Parallel,
    Step,
)

TIMESTAMP = "2026-01-01T00:00:00.000Z"


@dataclass
class ExampleService:
    """The state of the simulated service for one request.

    The objects that the client's body (``request_body``) and path (``ids``) name exist beforehand.
    A request with a body finds a recipient without accounts, as the body may add the first one; a
    request without a body finds one with two.
    """

    request_body: JSON = None
    ids: Mapping[str, str] = field(default_factory=dict)
    batch: dict[str, JSON] = field(default_factory=dict)
    recipients: dict[str, dict[str, JSON]] = field(default_factory=dict)

    def answer_step(self, step: Step) -> Any:
        """Returns the result of a step."""
        match step:
            case Call():
                # A copy, because flows may modify a response, and this service's own objects must
                # not change.
                return {"ok": True, **deepcopy(self._answer_call(step))}
            case Parallel(calls):
                return [self.answer_step(call) for call in calls]
            case ListQuery():
                is_found = step.path == "/recipients"
                rows = [self._create_or_update_recipient("R-EXAMPLE")] if is_found else []
                return ListPage(rows, len(rows), len(rows))
            # Nothing is stored: an example shows the calls for an object that the gateway does not
            # know yet.
            case CompareAndSet():
                return None
            case _:
                return {}

    def _answer_call(self, call: Call) -> dict[str, JSON]:
        if call.path.startswith("/recipients"):
            return self._answer_recipient_call(call)
        match (call.method, *call.path.strip("/").split("/")):
            case ("GET", "balance"):
                return {"balances": BALANCES}
            case ("GET", "payments", id_):
                return {"payment": _build_payment(id_, {})}
            case ("GET", "batches"):
                return {"batches": [_build_batch("B-EXAMPLE")], "meta": _build_meta(1)}
            case ("POST", "batches"):
                payments = call.body.get("payments") or []
                self.batch = _build_batch("B-EXAMPLE") | {
                    "description": call.body.get("description"),
                    "currency": call.body.get("currency"),
                    "payments": [
                        _build_payment(f"P-EXAMPLE{n}", entry) for n, entry in enumerate(payments)
                    ],
                }
                return {"batch": {"id": "B-EXAMPLE"}}
            case ("GET", "batch", id_, "summary"):
                return {"batchSummary": self._ensure_batch_exists(id_)}
            case ("POST", "batches", id_, "payments"):
                payment = _build_payment("P-EXAMPLE", call.body)
                self._ensure_batch_exists(id_)["payments"].append(payment)
                return {"payment": payment}
            case ("POST", "batches", id_, "start-processing"):
                start_fields = {"status": "processing", "sentAt": TIMESTAMP}
                return {"batch": self._ensure_batch_exists(id_) | start_fields}
        return {}

    def _answer_recipient_call(self, call: Call) -> dict[str, JSON]:
        match (call.method, *call.path.strip("/").split("/")[1:]):
            case ("POST",):
                return {"recipient": self._create_or_update_recipient("R-EXAMPLE", call.body)}
            case ("GET",):
                email = call.query.get("email")
                recipient = self._create_or_update_recipient(
                    "R-EXAMPLE", {"email": email} if email else {}
                )
                return {"recipients": [recipient], "meta": _build_meta(1)}
            case ("GET" | "PATCH", id_):
                return {"recipient": self._create_or_update_recipient(id_, call.body)}
            case ("GET", _, "payments"):
                return {"payments": [_build_payment("P-EXAMPLE", {})], "meta": _build_meta(1)}
            case ("GET", _, _):
                return {"activities": [], "meta": _build_meta(0)}
            case ("POST" | "PATCH", id_, "accounts", *_):
                return {"account": self._add_account(id_, call.body)}
        return {}

    def _ensure_batch_exists(self, id_: str) -> dict[str, JSON]:
        if not self.batch:
            self.batch = _build_batch(id_) | {
                "payments": [_build_payment(p, {}) for p in self._list_requested_payment_ids()]
            }
        return self.batch

    def _list_requested_payment_ids(self) -> list[str]:
        """Lists the payments that the request names, so that they exist in the batch."""
        body = self.request_body if isinstance(self.request_body, Mapping) else {}
        changes = [*(body.get("update_payments") or []), *(body.get("remove_payments") or [])]
        payment_ids = [str(change["id"]) for change in changes if change.get("id")]
        payment_ids += [id_ for id_ in self.ids.values() if id_.startswith("P-")]
        return payment_ids or ["P-EXAMPLE0"]

    def _create_or_update_recipient(
        self, id_: str, body: Mapping[str, JSON] | None = None
    ) -> dict[str, JSON]:
        recipient = self.recipients.setdefault(
            id_, _build_recipient(id_, has_accounts=self.request_body is None)
        )
        recipient |= {name: value for name, value in (body or {}).items() if name != "accounts"}
        return recipient

    def _add_account(self, recipient_id: str, body: Mapping[str, JSON]) -> dict[str, JSON]:
        account = {"recipientAccountId": "A-EXAMPLE", "primary": True, **body}
        recipient = self._create_or_update_recipient(recipient_id)
        accounts, type_ = recipient["accounts"], account.get("type")
        other_accounts = [existing for existing in accounts if existing.get("type") != type_]
        recipient["accounts"] = [*other_accounts, account]
        return account


_BALANCE = {"primary": True, "amount": "1000.00", "currency": "USD", "type": "service"}
BALANCES = {"USD": _BALANCE, "wallet": _BALANCE | {"primary": False, "type": "wallet"}}
ADDRESS = {"street1": "1 Example Street", "city": "Albany", "region": "NY", "country": "US"}
ACCOUNTS: tuple[Mapping[str, JSON], ...] = (
    {
        "recipientAccountId": "A-EXAMPLE",
        "primary": True,
        "type": BANK_TRANSFER,
        "country": "US",
        "currency": "USD",
        "accountHolderName": "Ada Example",
        "accountNum": "*****47",
        "branchId": "021000021",
        "bankName": "Example Bank",
    },
    {
        "recipientAccountId": "A-EXAMPLE2",
        "primary": False,
        "type": WALLET,
        "emailAddress": "ada@example.com",
    },
)


def _build_recipient(id_: str, *, has_accounts: bool) -> dict[str, JSON]:
    return {
        "id": id_,
        "type": "individual",
        "firstName": "Ada",
        "lastName": "Example",
        "name": "Ada Example",
        "email": "ada@example.com",
        "status": "active",
        "complianceStatus": "verified",
        "createdAt": TIMESTAMP,
        "updatedAt": TIMESTAMP,
        "accounts": [dict(account) for account in ACCOUNTS] if has_accounts else [],
        **({"address": dict(ADDRESS)} if has_accounts else {}),
    }


def _build_batch(id_: str) -> dict[str, JSON]:
    times = {"createdAt": TIMESTAMP, "updatedAt": TIMESTAMP, "sentAt": None, "completedAt": None}
    return {"id": id_, "status": "open", "currency": "USD", **times, "payments": []}


def _build_payment(id_: str, body: Mapping[str, JSON]) -> dict[str, JSON]:
    amount = body.get("amount", "10.00")
    return {
        "id": id_,
        "recipient": body.get("recipient", {"id": "R-EXAMPLE"}),
        "status": "pending",
        "sourceAmount": amount,
        "sourceCurrency": body.get("currency", "USD"),
        "targetAmount": amount,
        "targetCurrency": body.get("currency", "USD"),
        "memo": body.get("memo"),
        "createdAt": TIMESTAMP,
        "updatedAt": TIMESTAMP,
        "batch": {"id": "B-EXAMPLE"},
    }


def _build_meta(records: int) -> dict[str, int]:
    return {"page": 1, "pages": min(records, 1), "records": records}
