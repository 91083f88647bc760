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
from mappings.grammar import JSON, Call, Find, Found, Parallel, Recall, Record, Step

MOMENT = "2026-01-01T00:00:00.000Z"


@dataclass
class Imagined:
    """The state of the simulated service for one request.

    The objects that the client's body (``request_body``) and path (``ids``) name exist beforehand.
    A request with a body finds a recipient without accounts, as the body may add the first one; a
    request without a body finds one with two.
    """

    sent: JSON = None
    ids: Mapping[str, str] = field(default_factory=dict)
    batch: dict[str, JSON] = field(default_factory=dict)
    recipients: dict[str, dict[str, JSON]] = field(default_factory=dict)

    def given(self, step: Step) -> Any:
        """Returns the result of a step."""
        match step:
            case Call():
                # Copied, because flows may modify a response, and this service keeps its objects.
                return deepcopy(self._answer(step))
            case Parallel(calls):
                return [deepcopy(self._answer(call)) for call in calls]
            case Find():
                rows = [self._recipient("R-EXAMPLE")] if step.path == "/recipients" else []
                return Found(rows, len(rows), len(rows))
            case Recall():
                return {}
            case Record():
                return None
            case _:
                return {}

    def _answer(self, call: Call) -> JSON:
        parts = call.path.strip("/").split("/")
        if parts[0] == "recipients":
            return {"ok": True, **self._of_recipient(call, parts[1:])}
        match (call.method, *parts):
            case ("GET", "balance"):
                held = {"primary": True, "amount": "1000.00", "currency": "USD", "type": "service"}
                wallet = held | {"primary": False, "type": "wallet"}
                return {"ok": True, "balances": {"USD": held, "wallet": wallet}}
            case ("GET", "payments", id_):
                return {"ok": True, "payment": _payment(id_, {})}
            case ("GET", "batches"):
                return {"ok": True, "batches": [_batch("B-EXAMPLE")], "meta": _meta(1)}
        return {"ok": True, **self._of_batch(call, parts)}

    def _of_recipient(self, call: Call, parts: list[str]) -> dict[str, JSON]:
        match (call.method, *parts):
            case ("POST",):
                return {"recipient": self._recipient("R-EXAMPLE", call.body)}
            case ("GET",):
                email = call.query.get("email")
                found = self._recipient("R-EXAMPLE", {"email": email} if email else {})
                return {"recipients": [found], "meta": _meta(1)}
            case ("GET" | "PATCH", id_):
                return {"recipient": self._recipient(id_, call.body)}
            case ("GET", _, "payments"):
                return {"payments": [_payment("P-EXAMPLE", {})], "meta": _meta(1)}
            case ("GET", _, _):
                return {"activities": [], "meta": _meta(0)}
            case ("POST" | "PATCH", id_, "accounts", *_):
                return {"account": self._account(id_, call.body)}
        return {}

    def _of_batch(self, call: Call, parts: list[str]) -> dict[str, JSON]:
        match (call.method, *parts):
            case ("POST", "batches"):
                payments = call.body.get("payments") or []
                self.batch = _batch("B-EXAMPLE") | {
                    "description": call.body.get("description"),
                    "currency": call.body.get("currency"),
                    "payments": [_payment(f"P-EXAMPLE{n}", one) for n, one in enumerate(payments)],
                }
                return {"batch": {"id": "B-EXAMPLE"}}
            case ("GET", "batch", id_, "summary"):
                return {"batchSummary": self._batch(id_)}
            case ("POST", "batches", id_, "payments"):
                made = _payment("P-EXAMPLE", call.body)
                self._batch(id_)["payments"].append(made)
                return {"payment": made}
            case ("POST", "batches", id_, "start-processing"):
                started = {"status": "processing", "sentAt": MOMENT}
                return {"batch": self._batch(id_) | started}
        return {}

    def _batch(self, id_: str) -> dict[str, JSON]:
        if not self.batch:
            self.batch = _batch(id_) | {"payments": [_payment(p, {}) for p in self._named()]}
        return self.batch

    def _named(self) -> list[str]:
        """Lists the payments that the request names, so that they exist in the batch."""
        body = self.sent if isinstance(self.sent, Mapping) else {}
        those = [*(body.get("update_payments") or []), *(body.get("remove_payments") or [])]
        named = [str(one["id"]) for one in those if one.get("id")]
        named += [id_ for id_ in self.ids.values() if id_.startswith("P-")]
        return named or ["P-EXAMPLE0"]

    def _recipient(self, id_: str, body: Mapping[str, JSON] | None = None) -> dict[str, JSON]:
        known = self.recipients.setdefault(id_, _recipient(id_, whole=self.sent is None))
        known |= {name: value for name, value in (body or {}).items() if name != "accounts"}
        return known

    def _account(self, recipient_id: str, body: Mapping[str, JSON]) -> dict[str, JSON]:
        made = {"recipientAccountId": "A-EXAMPLE", "primary": True, **body}
        held = self._recipient(recipient_id)
        others = [one for one in held["accounts"] if one.get("type") != made.get("type")]
        held["accounts"] = [*others, made]
        return made


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


def _recipient(id_: str, *, whole: bool) -> dict[str, JSON]:
    return {
        "id": id_,
        "type": "individual",
        "firstName": "Ada",
        "lastName": "Example",
        "name": "Ada Example",
        "email": "ada@example.com",
        "status": "active",
        "complianceStatus": "verified",
        "createdAt": MOMENT,
        "updatedAt": MOMENT,
        "accounts": [dict(one) for one in ACCOUNTS] if whole else [],
        **({"address": dict(ADDRESS)} if whole else {}),
    }


def _batch(id_: str) -> dict[str, JSON]:
    times = {"createdAt": MOMENT, "updatedAt": MOMENT, "sentAt": None, "completedAt": None}
    return {"id": id_, "status": "open", "currency": "USD", **times, "payments": []}


def _payment(id_: str, body: Mapping[str, JSON]) -> dict[str, JSON]:
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
        "createdAt": MOMENT,
        "updatedAt": MOMENT,
        "batch": {"id": "B-EXAMPLE"},
    }


def _meta(records: int) -> dict[str, int]:
    return {"page": 1, "pages": min(records, 1), "records": records}
