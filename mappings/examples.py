"""A simulated service that answers the steps of a flow, to show its calls without a real service.

Every object that is requested exists, and every write is accepted. Ids of created objects end in
``EXAMPLE``; all data is fictitious.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from mappings.current import BANK_TRANSFER, WALLET
from mappings.effects import JSON, Call, CompareAndSet, ListPage, ListQuery, Parallel, Step
from mappings.paging import build_meta

TIMESTAMP = "2026-01-01T00:00:00.000Z"


class ExampleService:
    """The state of the simulated service for one request.

    It has one recipient, with the id that was named last, and one batch with the payments that the
    client's body (``request_body``) and path (``ids``) name. The recipient has two accounts, or
    none if ``has_accounts`` is false: a request may add the first one.
    """

    def __init__(self, request_body: JSON, ids: Mapping[str, str], *, has_accounts: bool) -> None:
        self._recipient = _build_recipient(has_accounts=has_accounts)
        payment_ids = _list_requested_payment_ids(request_body, ids)
        self._batch = _build_batch([_build_payment(id_, {}) for id_ in payment_ids])

    def answer_step(self, step: Step) -> Any:
        """Returns the result of a step."""
        match step:
            case Call():
                return self._answer_call(step)
            case Parallel(calls):
                return [self.answer_step(call) for call in calls]
            case ListQuery():
                rows = [deepcopy(self._recipient)] if step.path == "/recipients" else []
                return ListPage(rows, build_meta(step.page, len(rows), len(rows)))
            # Nothing is stored: an example shows the calls for an object that the gateway does not
            # know yet.
            case CompareAndSet():
                return None
            case _:
                return {}

    def _answer_call(self, call: Call) -> dict[str, JSON]:
        """Carries out a call. Each answer has all objects, of which flows read those they need."""
        account, payment = None, _build_payment("P-EXAMPLE", {})
        match (call.method, *call.path.strip("/").split("/")):
            case ("POST" | "PATCH", "recipients", _, "accounts", *_):
                account = self._add_account(call.body)
            case ("POST", "recipients"):
                self._recipient |= call.body
            case ("GET", "recipients"):
                self._recipient |= call.query
            case ("GET" | "PATCH", "recipients", id_):
                self._recipient |= {"id": id_, **(call.body or {})}
            case ("POST", "batches"):
                entries = enumerate(call.body["payments"])
                payments = [_build_payment(f"P-EXAMPLE{n}", entry) for n, entry in entries]
                self._batch = {**_build_batch(payments), **call.body, "payments": payments}
                return {"ok": True, "batch": {"id": self._batch["id"]}}
            case ("GET", "batch", id_, "summary"):
                self._batch["id"] = id_
            case ("POST", "batches", _, "payments"):
                payment = _build_payment("P-EXAMPLE", call.body)
                self._batch["payments"].append(payment)
            case ("POST", "batches", _, "start-processing"):
                self._batch |= {"status": "processing", "sentAt": TIMESTAMP}
        answer = {
            "ok": True,
            "recipient": self._recipient,
            "recipients": [self._recipient],
            "account": account,
            "batchSummary": self._batch,
            "batches": [self._batch],
            "payment": payment,
            "payments": [payment],
            "balances": BALANCES,
            "activities": [],
            "meta": {"pages": 1},
        }
        # A copy, because flows may modify an answer, and this service's own objects must not change.
        return deepcopy(answer)

    def _add_account(self, body: Mapping[str, JSON]) -> dict[str, JSON]:
        account = {"recipientAccountId": "A-EXAMPLE", "primary": True, **body}
        accounts, type_ = self._recipient["accounts"], account.get("type")
        other_accounts = [existing for existing in accounts if existing.get("type") != type_]
        self._recipient["accounts"] = [*other_accounts, account]
        return account


def _list_requested_payment_ids(request_body: JSON, ids: Mapping[str, str]) -> list[str]:
    """Lists the payments that the request names, so that they exist in the batch."""
    body = request_body if isinstance(request_body, Mapping) else {}
    names = ("payments", "update_payments", "remove_payments")
    changes = [change for name in names for change in body.get(name) or ()]
    payment_ids = [str(change["id"]) for change in changes if change.get("id")]
    payment_ids += [id_ for id_ in ids.values() if id_.startswith("P-")]
    return payment_ids or ["P-EXAMPLE0"]


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
        "emailAddress": "ada.example@example.com",
    },
)


def _build_recipient(*, has_accounts: bool) -> dict[str, JSON]:
    return {
        "id": "R-EXAMPLE",
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


def _build_batch(payments: list[dict[str, JSON]]) -> dict[str, JSON]:
    times = {"createdAt": TIMESTAMP, "updatedAt": TIMESTAMP, "sentAt": None, "completedAt": None}
    return {"id": "B-EXAMPLE", "status": "open", "currency": "USD", **times, "payments": payments}


def _build_payment(id_: str, body: Mapping[str, JSON]) -> dict[str, JSON]:
    # Unlikely in a request, because flows do not send an amount that the payment already has.
    amount = body.get("amount", "7.13")
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
