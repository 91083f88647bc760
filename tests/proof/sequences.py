"""Sequences of legacy requests, mostly valid and sometimes not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hypothesis import strategies as st

Body = dict[str, Any]

WHOLE_OBJECT = "{whole}"
"""In a body: the recipient as it was shown last, changed by the other fields of the body."""

AT_THE_SERVICE = "AT THE SERVICE"
"""In place of a method: an event of both services, see ``compared_services.EVENT_HANDLERS``."""


@dataclass(frozen=True, slots=True)
class ProofRequest:
    """A request; ``{recipient}``, ``{batch}`` and ``{payment}`` stand for objects made before.

    ``object_indexes`` selects a recipient (or payment) and a batch, counted from the latest.
    """

    method: str
    path: str
    body: Body | None = None
    object_indexes: tuple[int, int] = (0, 0)
    key: Literal["own", "none", "wrong"] = "own"

    def __repr__(self) -> str:
        return f"{self.method} {self.path} {self.object_indexes} {self.body or ''}"


NAMES = st.sampled_from(["Ada", "Grace", "Zoë", "José María", "O'Neil"])
EMAILS = st.sampled_from(
    [f"{name}@example.com" for name in ("ada", "grace", "Zoe", "joe+1", "kim")]
)
CURRENCIES = st.sampled_from(["USD", "EUR", "GBP", "CAD"])
ODD_VALUES = st.sampled_from(["", None, "****67"])
AMOUNTS = st.one_of(
    st.sampled_from(["1.00", "10", "0.01", "99.9", "1234.56", 5, 7.5]),
    st.decimals("0.01", "500", places=2).map(str),
)
WRONG_AMOUNTS = st.sampled_from(["0", "-1", "1.005", "abc", "", None, True, "1e3", [], "1,00"])
MEMOS = st.sampled_from(["May", "", "é\u2713", "x" * 40, None])
ADDRESS = st.sampled_from(
    [
        {"street1": "1 Main Street", "city": "New York", "postalCode": "10001", "country": "US",
         "region": "NY", "phone": "+15550147963"},
        {"street1": "10 Rue X", "city": "Paris", "postalCode": "75001", "country": "FR"},
        {"country": "CA", "city": "Toronto"},
        {"country": "usa", "city": "", "street2": ""},
        {"city": "Leeds", "phone": None},
    ]
)  # fmt: skip
BANKS = st.sampled_from(
    [
        {"country": "DE", "currency": "EUR", "name": "Ada King", "iban": "DE89370400440532013000"},
        {"country": "US", "currency": "USD", "name": "Ada King", "accountNum": "1234567",
         "routing": "021000021"},
        {"country": "CA", "currency": "CAD", "name": "Ada King", "accountNum": "1234567",
         "institution": "003", "branchNum": "12345"},
        {"country": "GB", "currency": "GBP", "name": "Ada King", "accountNum": "12345678",
         "iban": "GB29NWBK60161331926819"},
        {"country": "AU", "currency": "AUD", "accountNum": "12345678", "branchNum": "062000",
         "bankCity": "Perth", "bankProvince": "WA"},
        {"country": "BR", "currency": "BRL", "accountNum": "12345678",
         "iban": "BR9700360305000010009795493P1", "governmentId": "12345678901"},
        {"country": "MX", "currency": "USD", "accountNum": "032180000118359719", "swiftBic": None},
        {"country": "US", "currency": "EUR", "accountNum": "****67", "routing": "021000021",
         "governmentId": "900000009"},
    ]
)  # fmt: skip


def _choose_rarely(usual: st.SearchStrategy[Any], rare: st.SearchStrategy[Any]) -> Any:
    """``usual``, and ``rare`` once in eight."""
    return st.integers(0, 7).flatmap(lambda roll: rare if roll == 7 else usual)


@st.composite
def payouts(draw: st.DrawFn) -> Body:
    """A payout with one method, sometimes with both or only a part of one."""
    method = draw(st.sampled_from(["bank", "wallet"]))
    both = draw(_choose_rarely(st.just(False), st.just(True)))
    accounts: Body = {}
    if both or method == "bank":
        bank = draw(BANKS)
        if name := draw(_choose_rarely(st.just(""), st.sampled_from(sorted(bank)))):
            bank = {key: value for key, value in bank.items() if key != name}
        if name := draw(_choose_rarely(st.just(""), st.sampled_from(sorted(bank)))):
            bank = {**bank, name: draw(ODD_VALUES)}
        accounts["bank"] = bank
    if both or method == "wallet":
        address = draw(_choose_rarely(EMAILS, st.sampled_from(["", "no address", None])))
        accounts["wallet"] = {"address": address}
    currency = draw(
        _choose_rarely(st.just(accounts.get("bank", {}).get("currency", "USD")), CURRENCIES)
    )
    body: Body = {"primary": {"method": method, "currency": currency}, "accounts": accounts}
    if name := draw(_choose_rarely(st.just(""), st.sampled_from(["primary", "accounts"]))):
        del body[name]
    if name := draw(_choose_rarely(st.just(""), st.sampled_from(["autoswitch", "holdup"]))):
        body[name] = {"limit": 7, "active": draw(st.sampled_from([True, False, "False", None]))}
    return body


@st.composite
def recipient_bodies(draw: st.DrawFn) -> Body:
    body: Body = {"type": draw(_choose_rarely(st.just("individual"), st.just("business")))}
    if body["type"] == "business":
        body["name"] = "Acme"
    body |= {"firstName": draw(NAMES), "lastName": draw(NAMES), "email": draw(EMAILS)}
    optional_fields = {
        "address": ADDRESS,
        "referenceId": st.sampled_from(["r-1", "r-2"]),
        "language": st.sampled_from(["en", "fr"]),
        "currency": CURRENCIES,
        "dob": st.just("1990-12-10"),
        "ssn": st.sampled_from(["900000001", "900-00-0001"]),
        "passport": st.sampled_from(["X1234567", "****67"]),
        "payout": payouts(),
    }
    for name in sorted(draw(st.sets(st.sampled_from(sorted(optional_fields))))):
        body[name] = draw(optional_fields[name])
    return draw(sometimes_invalid(body, ["type", "firstName", "lastName", "email"]))


@st.composite
def sometimes_invalid(draw: st.DrawFn, body: Body, required: list[str]) -> Body:
    """The body; once in ten without a required field, or with an invalid value in it."""
    if draw(st.integers(0, 9)) < 9:
        return body
    name = draw(st.sampled_from(required))
    if draw(st.booleans()):
        return {key: value for key, value in body.items() if key != name}
    return {**body, name: draw(st.sampled_from(["", None, 5, [], {}]))}


@st.composite
def changes(draw: st.DrawFn) -> Body:
    optional_fields = {
        "firstName": NAMES,
        "lastName": NAMES,
        "name": NAMES,
        "email": EMAILS,
        "address": ADDRESS,
        "referenceId": st.sampled_from(["r-3", "r-4", None, ""]),
        "language": st.sampled_from(["en", "de"]),
        "currency": CURRENCIES,
        "primaryCurrency": CURRENCIES,
        "status": st.sampled_from(["active", "inactive", "disabled", "suspended", "incomplete"]),
        "ssn": st.sampled_from(["900000001", "900000002", "****01"]),
        "passport": st.sampled_from(["X1234567", "****67", None]),
        "type": st.sampled_from(["individual", "business"]),
        "payout": payouts(),
    }
    names = draw(st.sets(st.sampled_from(sorted(optional_fields)), min_size=1, max_size=3))
    body = {name: draw(optional_fields[name]) for name in sorted(names)}
    if draw(_choose_rarely(st.just(False), st.just(True))):
        body[draw(st.sampled_from(sorted(body)))] = draw(ODD_VALUES)
    return body | draw(_choose_rarely(st.just({}), st.just({WHOLE_OBJECT: True})))


@st.composite
def payments(draw: st.DrawFn) -> Body:
    recipient = draw(
        _choose_rarely(
            st.just({"id": "{recipient}"}),
            st.one_of(EMAILS.map(lambda value: {"email": value}), st.just({"id": "R-NOBODY"})),
        )
    )
    body: Body = {"recipient": recipient}
    amount = draw(_choose_rarely(AMOUNTS, WRONG_AMOUNTS))
    if draw(_choose_rarely(st.just(True), st.just(False))):
        body["sourceAmount"] = amount
    else:
        body |= {"targetAmount": amount, "targetCurrency": draw(CURRENCIES)}
    if draw(st.booleans()):
        body["memo"] = draw(MEMOS)
    return body | draw(
        _choose_rarely(st.just({}), CURRENCIES.map(lambda value: {"sourceCurrency": value}))
    )


@st.composite
def batches(draw: st.DrawFn) -> Body:
    body: Body = {
        "sourceCurrency": draw(_choose_rarely(st.just("USD"), st.one_of(CURRENCIES, ODD_VALUES)))
    }
    if draw(st.booleans()):
        body["description"] = draw(MEMOS)
    if draw(_choose_rarely(st.just(True), st.just(False))):
        body["payments"] = draw(st.lists(payments(), min_size=1, max_size=4))
    return body


PAYMENT_CHANGES = st.one_of(
    AMOUNTS.map(lambda value: {"sourceAmount": value}),
    st.tuples(AMOUNTS, CURRENCIES).map(
        lambda both: {"targetAmount": both[0], "targetCurrency": both[1]}
    ),
    st.tuples(AMOUNTS, MEMOS).map(lambda both: {"sourceAmount": both[0], "memo": both[1]}),
    MEMOS.map(lambda value: {"memo": value}),
    WRONG_AMOUNTS.map(lambda value: {"sourceAmount": value}),
)
A_PAYMENT = {"id": "{payment}"}


@st.composite
def batch_changes(draw: st.DrawFn) -> Body:
    body: Body = {}
    if draw(_choose_rarely(st.just(False), st.just(True))):
        body["description"] = draw(MEMOS)
    if draw(_choose_rarely(st.just(False), st.just(True))):
        body["sourceCurrency"] = draw(CURRENCIES)
    if draw(st.booleans()):
        body["payments"] = draw(st.lists(payments(), min_size=1, max_size=2))
    if draw(_choose_rarely(st.just(False), st.just(True))):
        body["payments"] = [*body.get("payments", []), A_PAYMENT | draw(PAYMENT_CHANGES)]
    if draw(st.booleans()):
        body["update_payments"] = [A_PAYMENT | draw(PAYMENT_CHANGES)]
    elif draw(st.booleans()):
        body["remove_payments"] = [A_PAYMENT]
    return body


NO_BODY = st.none()
# These search texts occur in no id by chance.
QUERIES = st.sampled_from(
    ["", "?page=1&pageSize=2", "?page=2&pageSize=1", "?page=0", "?pageSize=abc", "?search=ada%40",
     "?search={payment}", "?search={batch}", "?search=%C3%A9&page=2&pageSize=1", "?page=99",
     "?status=open", "?status=pending&pageSize=2", "?status=complete", "?status=nonsense",
     "?sourceCurrency=usd", "?targetCurrency=EUR", "?country=US&status=pending", "?country=CAN",
     "?recipient={recipient}", "?recipient=ada@example.com&sourceCurrency=USD", "?startDate=2020-01-01",
     "?endDate=2020-01-01", "?startDate=soon&status=processed", "?unknown=1"]
)  # fmt: skip
RECIPIENTS = st.sampled_from(
    ["", "?page=1&pageSize=2", "?name=ada", "?email=ada@example.com", "?status=active",
     "?orderBy=name&sortBy=asc", "?search=zo", "?page=-1", "?status=nonsense", "?status=disabled",
     "?status=inactive&orderBy=email", "?country=US", "?country=FR&search=e", "?city=paris",
     "?complianceStatus=pending", "?complianceStatus=verified", "?payoutMethod=wallet",
     "?payoutMethod=bank-transfer", "?payoutCurrency=USD&sortBy=asc", "?startDate=2020-01-01",
     "?orderBy=status&sortBy=asc&pageSize=2", "?orderBy=primaryCurrency", "?orderBy=city&page=2",
     "?orderBy=referenceId&sortBy=asc", "?orderBy=updatedAt", "?orderBy=id", "?endDate=2020-01-01"]
)  # fmt: skip

R, B = "/recipients", "/batches"
ONE_R, ONE_B = f"{R}/{{recipient}}", f"{B}/{{batch}}"
P = f"{ONE_B}/payments"
ONE_P = f"{P}/{{payment}}"

_WEIGHTED: list[tuple[int, str, str, st.SearchStrategy[Any], st.SearchStrategy[str]]] = [
    (4, "POST", R, recipient_bodies(), st.just("")),
    (3, "GET", ONE_R, NO_BODY, st.just("")),
    (3, "PATCH", ONE_R, changes(), st.just("")),
    (1, "DELETE", ONE_R, NO_BODY, st.just("")),
    (1, "DELETE", R, st.just({"ids": ["{recipient}"]}), st.just("")),
    (2, "GET", R, NO_BODY, RECIPIENTS),
    (1, "GET", f"{ONE_R}/logs", NO_BODY, QUERIES),
    (1, "GET", f"{ONE_R}/payments", NO_BODY, QUERIES),
    (3, "POST", f"{ONE_R}/payout-methods", payouts(), st.just("")),
    (2, "GET", f"{ONE_R}/payout-methods", NO_BODY, st.just("")),
    (2, "PATCH", f"{ONE_R}/payout-methods", payouts(), st.just("")),
    (5, "POST", B, batches(), st.just("")),
    (2, "GET", B, NO_BODY, QUERIES),
    (3, "GET", ONE_B, NO_BODY, st.just("")),
    (2, "PATCH", ONE_B, batch_changes(), st.just("")),
    (1, "DELETE", ONE_B, NO_BODY, st.just("")),
    (1, "DELETE", B, st.just({"ids": ["{batch}"]}), st.just("")),
    (2, "POST", f"{ONE_B}/generate-quote", NO_BODY, st.just("")),
    (2, "GET", f"{ONE_B}/summary", NO_BODY, st.just("")),
    (2, "POST", f"{ONE_B}/start-processing", NO_BODY, st.just("")),
    (3, "POST", P, payments(), st.just("")),
    (3, "GET", P, NO_BODY, QUERIES),
    (2, "GET", ONE_P, NO_BODY, st.just("")),
    (3, "PATCH", ONE_P, PAYMENT_CHANGES, st.just("")),
    (1, "DELETE", ONE_P, NO_BODY, st.just("")),
    (1, "GET", "/profile/balances", NO_BODY, st.just("")),
    (1, "GET", "/profile/balances/service", NO_BODY, st.just("")),
    (1, "GET", "/profile/balances/wallet", NO_BODY, st.just("")),
    (1, "GET", "/payments", NO_BODY, QUERIES),
    (1, "GET", "/payments/{payment}", NO_BODY, st.just("")),
    (1, "GET", "/geography/countries/", NO_BODY, st.sampled_from(["US", "de", "CU", "ZZ"])),
]
_WEIGHTED_INDEXES = [index for index, row in enumerate(_WEIGHTED) for _ in range(row[0])]
LAST_REQUESTS = [
    (method, path + "US" if path.endswith("/") else path) for _, method, path, _, _ in _WEIGHTED
]
"""Method and path of each operation that may end a sequence."""


@st.composite
def _draw_request(draw: st.DrawFn, places: st.SearchStrategy[int]) -> ProofRequest:
    _, method, path, bodies, suffixes = _WEIGHTED[draw(places)]
    object_indexes = (draw(st.integers(0, 2)), draw(st.integers(0, 2)))
    return ProofRequest(method, path + draw(suffixes), draw(bodies), object_indexes)


EVENTS = st.sampled_from(
    ["finish", "expire", "balance USD 5.00", "balance USD 100000.00", "wallet USD 12.50",
     "wallet USD 5000.00", "outcome {recipient} failed", "outcome {recipient} returned"]
)  # fmt: skip
"""No event changes a recipient, because the gateway caches what it read for a minute."""


@st.composite
def _draw_event(draw: st.DrawFn) -> ProofRequest:
    return ProofRequest(AT_THE_SERVICE, draw(EVENTS), object_indexes=(draw(st.integers(0, 2)), 0))


_ANY = _draw_request(st.sampled_from(_WEIGHTED_INDEXES))


@st.composite
def sequences(
    draw: st.DrawFn, last: int | None = None, min_requests: int = 3, max_requests: int = 8
) -> list[ProofRequest]:
    """Sequences that first create a recipient who can be paid and a batch.

    ``last`` is the index in ``LAST_REQUESTS`` of the operation that ends it.
    """
    requests = [
        ProofRequest("POST", R, draw(recipient_bodies())),
        ProofRequest("POST", B, draw(batches())),
    ]
    requests.append(ProofRequest("GET", ONE_B))
    any_request = st.integers(0, 15).flatmap(lambda roll: _draw_event() if roll == 15 else _ANY)
    requests += draw(st.lists(any_request, min_size=min_requests, max_size=max_requests))
    return [*requests, draw(_ANY if last is None else _draw_request(st.just(last)))]
