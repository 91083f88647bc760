"""Operations of the current interface that no payout needs, each with one answer."""

from functools import partial

from gateway.simulator import payments
from gateway.simulator.accepted_request import AcceptedRequest
from gateway.simulator.json_codec import JsonObject
from gateway.simulator.routes import compile_routes


def _answer_alike(answer: JsonObject, _request: AcceptedRequest) -> JsonObject:
    return answer


SUBSCRIPTION = {"action": "created", "model": "recipient", "target": "https://hooks.example.com/"}
NEW_MERCHANT = {"id": 1001, "accessKey": "SUBMERCHANT", "secretKey": "submerchant-secret-key"}
FUNDING_ACCOUNT = {"accountCurrency": "USD", "accountNum": "0000001001", "bankName": "Harbour Bank"}
BANK_ACCOUNT = {"currency": "CAD", "accountNum": "****47", "country": "CA", "enabled": True}
# Sub-merchants, subscriptions and offline payments (sections 2.7, 4.4 and 4.5). No payout needs
# them: nothing is stored or checked, and each has one answer.
CANNED_ANSWERS: tuple[tuple[str, str, JsonObject], ...] = (
    ("GET", "/recipients/:id/offlinePayments", {"offlinePayments": []}),
    ("POST", "/profile/submerchant", {"merchant": NEW_MERCHANT}),
    ("POST", "/onboarding/update", {}),
    ("GET", "/balances/info", {"info": [FUNDING_ACCOUNT]}),
    ("POST", "/profile/sandbox", {"merchant": NEW_MERCHANT}),
    ("DELETE", "/profile/sandbox", {}),
    ("POST", "/direct-debit/bank-account/", {"merchantBankAccount": BANK_ACCOUNT}),
    ("POST", "/iframe/config", {}),
    ("POST", "/subscriptions", {"subscription": {"id": "1", **SUBSCRIPTION}}),
    ("GET", "/subscriptions", {"subscriptions": [{"id": "1", **SUBSCRIPTION}]}),
    ("GET", "/subscriptions/:id", {"subscription": {"id": "1", **SUBSCRIPTION}}),
    ("PATCH", "/subscriptions/:id", SUBSCRIPTION),
    ("DELETE", "/subscriptions/:id", {}),
)


def _list_payments(request: AcceptedRequest) -> JsonObject:
    search = request.query.get("search", "")
    matches = [
        payment
        for payment in request.tenant.list_newest_payments()
        if payments.matches_search(payment, search, payment.id)
    ]
    return request.build_page("payments", matches, request.build_payment)


CANNED_ROUTES = compile_routes(
    *((method, path, partial(_answer_alike, answer)) for method, path, answer in CANNED_ANSWERS)
)
LIST_OF_PAYMENTS = compile_routes(("GET", "/payments", _list_payments))
"""Not mentioned by the document."""
