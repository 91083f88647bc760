"""Shapes and endpoints of the current interface (sections 2 and 4).

Bare section numbers in this module are of its document.

A flow can call only the endpoints that are listed here.
"""

import re
from dataclasses import dataclass, field
from typing import Annotated, Any

from typing_extensions import TypedDict

from mappings.effects import JSON
from mappings.field_types import Word, WordKey

BANK_TRANSFER = "bank-transfer"
WALLET = "wallet"

# Section 2


class Address(TypedDict, total=False):
    street1: str | None
    street2: str | None
    city: str | None
    region: str | None
    postalCode: str | None
    country: str | None
    phone: str | None


class Compliance(TypedDict, total=False):
    status: str
    checkedAt: str | None


class Account(TypedDict, total=False):
    """Section 2.6. The ``bankRegion`` of requests is called ``bankRegionCode`` in responses."""

    recipientAccountId: str
    primary: bool
    currency: str | None
    type: Annotated[str, Word("wallet")]
    country: str | None
    accountHolderName: str | None
    accountNum: str | None
    iban: str | None
    swiftBic: str | None
    bankId: str | None
    branchId: str | None
    bankName: str | None
    bankAddress: str | None
    bankCity: str | None
    bankRegion: str | None
    bankRegionCode: str | None
    bankPostalCode: str | None
    emailAddress: str | None
    phoneNumber: str | None
    # Appears only in responses: legacy clients cannot create accounts of this type.
    mailing: JSON


class Recipient(TypedDict, total=False):
    id: str
    referenceId: str | None
    type: str
    email: str
    name: str | None
    firstName: str | None
    lastName: str | None
    status: str
    complianceStatus: str | None
    compliance: Compliance
    avatarUrl: Annotated[str | None, WordKey("avatar_url")]
    language: str | None
    dob: str | None
    placeOfBirth: str | None
    passport: str | None
    ssn: str | None
    governmentIds: JSON
    address: Address
    routeType: str | None
    routeMinimum: JSON
    estimatedFees: str | None
    payoutMethod: Annotated[str | None, Word("wallet")]
    primaryCurrency: str | None
    accounts: list[Account]
    tags: list[str]
    contactEmails: list[str]
    createdAt: str
    updatedAt: str


class Payment(TypedDict, total=False):
    """The fields of a payment that have vocabulary words.

    Payments and batches have the fields of the legacy document (section 2.2): see ``legacy``.
    """

    method: Annotated[str | None, Word("wallet")]
    recipient: Recipient


# Section 4: requests and responses


class RecipientAnswer(TypedDict):
    recipient: Recipient


class RecipientsAnswer(TypedDict):
    recipients: list[Recipient]
    meta: JSON


class PaymentsAnswer(TypedDict):
    payments: list[Payment]
    meta: JSON


class AccountAnswer(TypedDict):
    account: Account


class RecipientsQuery(TypedDict, total=False):
    """Section 4.1, the list query parameter that has a vocabulary word."""

    payoutMethod: Annotated[str, Word("wallet")]


class BatchCreate(TypedDict, total=False):
    currency: Annotated[str, WordKey("batch_currency")]
    description: str
    payments: list[JSON]


class SummaryMethod(TypedDict, total=False):
    """The labels of a payout method in a summary; its totals contain no vocabulary words."""

    accountType: Annotated[str | None, Word("wallet_label", any_case=True)]
    displayName: Annotated[str | None, Word("wallet_label", any_case=True)]


class SummaryBalances(TypedDict, total=False):
    ServiceTotal: Annotated[JSON, WordKey("service_total")]


class SummaryBatch(TypedDict, total=False):
    payments: list[Payment]
    methods: dict[Annotated[str, Word("wallet")], SummaryMethod]
    ServiceTotal: Annotated[JSON, WordKey("service_total")]
    merchantBalances: SummaryBalances


class SummaryAnswer(SummaryBatch, total=False):
    """The field names under which services send a batch, which may be the response itself.

    See ``payloads``, as for the payments and the balances.
    """

    batchSummary: SummaryBatch
    batch: SummaryBatch
    summary: SummaryBatch


class PaymentAnswer(Payment, total=False):
    payment: Payment


class BalanceEntry(TypedDict, total=False):
    type: Annotated[str | None, Word("wallet")]


class BalanceAnswer(TypedDict, total=False):
    balances: dict[Annotated[str, Word("wallet")], BalanceEntry]
    balance: dict[Annotated[str, Word("wallet")], BalanceEntry]
    wallet: Annotated[BalanceEntry, WordKey("wallet")]
    """If the balances are the response itself: the accounts by currency have no words."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint of section 4. ``path`` is below ``/v1``, with ids as ``{name}``.

    It has a shape where a body or query has vocabulary words.
    """

    method: str
    path: str
    body_shape: Any = None
    response_shape: Any = None
    query_shape: Any = None
    is_optional: bool = False
    """Optional: not in section 4, but presumed, because section 1, item 8 mentions its purpose."""
    pattern: re.Pattern[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Compiled once, because every call is matched with it, so that no flow can call anything
        # else.
        pattern_text = re.sub(r"\{(\w+)\}", rf"(?P<\1>{ID_PATTERN})", self.path)
        object.__setattr__(self, "pattern", re.compile(pattern_text))


ID_PATTERN = r"[A-Za-z]{1,4}-[A-Za-z0-9]+"
"""Section 2.2. Strict, because ids become path segments and must not reach another endpoint."""

SUMMARY_PATH = "/batch/{id}/summary"
BALANCE_PATH = "/balance"
"""The two endpoints whose paths are configurable (``[vocabulary.current]``)."""

ENDPOINTS = (
    # 4.1 Recipients
    Endpoint("POST", "/recipients", body_shape=Recipient, response_shape=RecipientAnswer),
    Endpoint("GET", "/recipients", response_shape=RecipientsAnswer, query_shape=RecipientsQuery),
    Endpoint("DELETE", "/recipients"),
    Endpoint("GET", "/recipients/{id}", response_shape=RecipientAnswer),
    Endpoint("PATCH", "/recipients/{id}", body_shape=Recipient, response_shape=RecipientAnswer),
    Endpoint("DELETE", "/recipients/{id}"),
    Endpoint("GET", "/recipients/{id}/logs"),
    Endpoint("GET", "/recipients/{id}/payments", response_shape=PaymentsAnswer),
    # 4.2 Recipient accounts
    Endpoint("POST", "/recipients/{id}/accounts", body_shape=Account, response_shape=AccountAnswer),
    Endpoint("GET", "/recipients/{id}/accounts/{account}", response_shape=AccountAnswer),
    Endpoint(
        "PATCH",
        "/recipients/{id}/accounts/{account}",
        body_shape=Account,
        response_shape=AccountAnswer,
    ),
    Endpoint("DELETE", "/recipients/{id}/accounts/{account}"),
    # 4.3 Batches and payments
    Endpoint("POST", "/batches", body_shape=BatchCreate),
    Endpoint("POST", "/batches/{id}/payments"),
    Endpoint("POST", "/batches/{id}/generate-quote"),
    Endpoint("POST", "/batches/{id}/start-processing"),
    Endpoint("GET", SUMMARY_PATH, response_shape=SummaryAnswer),
    Endpoint("GET", "/payments/{id}", response_shape=PaymentAnswer),
    Endpoint("GET", BALANCE_PATH, response_shape=BalanceAnswer),
    # Optional endpoints, not listed in section 4
    Endpoint("GET", "/batches", is_optional=True),
    Endpoint("PATCH", "/batches/{id}", is_optional=True),
    Endpoint("DELETE", "/batches/{id}", is_optional=True),
    Endpoint("PATCH", "/batches/{id}/payments/{payment}", is_optional=True),
    Endpoint("DELETE", "/batches/{id}/payments/{payment}", is_optional=True),
)


_ENDPOINTS_BY_SHAPE: dict[tuple[str, int], list[Endpoint]] = {}
"""By method and number of slashes."""

for _endpoint in ENDPOINTS:
    _shape = _endpoint.method, _endpoint.path.count("/")
    _ENDPOINTS_BY_SHAPE.setdefault(_shape, []).append(_endpoint)


def find_documented_endpoint(method: str, path: str) -> Endpoint:
    """Returns the endpoint of a call. Raises LookupError for an unlisted one, a bug in a flow."""
    for endpoint in _ENDPOINTS_BY_SHAPE.get((method, path.count("/")), ()):
        if endpoint.pattern.fullmatch(path):
            return endpoint
    raise LookupError(f"{method} {path} is not in the current interface, section 4")
