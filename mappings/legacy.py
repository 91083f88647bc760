"""Shapes of the legacy interface. Bare section numbers in this module are of its document.

Shapes named ``…Body`` are request bodies (with ``Address`` and ``Hold``, which answers have too),
and those named ``…Query`` are query parameters. All others are answers or parts of them. Fields are
in the document's order. ``Word`` and ``WordKey`` mark vocabulary words. The class names appear in
the OpenAPI description.
"""

from __future__ import annotations

from typing import Annotated

from typing_extensions import TypedDict

from mappings.effects import JSON
from mappings.field_types import (
    Amount,
    Country,
    Day,
    Email,
    Flag,
    Id,
    Integer,
    PrimaryCurrency,
    RecipientType,
    ShownAmount,
    ShownCurrency,
    Ssn,
    Text,
    TextWithIds,
    Word,
    WordKey,
)

WALLET, BANK = "wallet", "bank"


# Section 2: parts of a Recipient
class Address(TypedDict, total=False):
    street1: Text | None
    street2: Text | None
    city: Text | None
    region: Text | None
    postalCode: Text | None
    country: Country | None
    phone: Text | None


class Compliance(TypedDict, total=False):
    status: str | None
    checkedAt: str | None


# Section 2: Payout object (as returned)
class Hold(TypedDict, total=False):
    """``autoswitch`` and ``holdup``."""

    limit: Integer | None
    active: Flag | None


class Primary(TypedDict, total=False):
    method: Annotated[str | None, Word("wallet")]
    currency: JSON


class Bank(TypedDict, total=False):
    institution: str | None
    branch: str | None
    branchNum: str | None
    currency: str | None
    country: str | None
    name: str | None
    accountNum: str | None
    routing: str | None
    iban: str | None
    swiftBic: str | None
    bankAddress: str | None
    bankCity: str | None
    bankProvince: str | None
    bankPostalCode: str | None
    governmentId: str | None


class Wallet(TypedDict, total=False):
    address: str | None


class Accounts(TypedDict, total=False):
    bank: Bank
    wallet: Annotated[Wallet, WordKey("wallet")]


MethodDisplay = Annotated[
    str | None, Word("wallet_method_display", "bank_method_display", any_case=True)
]


class Payout(TypedDict, total=False):
    autoswitch: Hold
    holdup: Hold
    primary: Primary
    method: Annotated[str | None, Word("wallet")]
    methodDisplay: MethodDisplay
    accounts: Accounts


# Section 2: Recipient
class Recipient(TypedDict, total=False):
    id: Annotated[str, Id("recipient")]
    referenceId: str | None
    email: str | None
    name: str | None
    firstName: str | None
    lastName: str | None
    type: str | None
    status: str | None
    complianceStatus: str | None
    compliance: Compliance
    avatarUrl: Annotated[str | None, WordKey("avatar_url")]
    language: str | None
    dob: str | None
    passport: str | None
    ssn: str | None
    address: Address | None
    payout: Payout
    payoutMethod: Annotated[str | None, Word("wallet")]
    """Not in section 2, but existing clients read it. The values are those of the list filter."""
    primaryCurrency: str | None
    createdAt: str | None
    updatedAt: str | None


# Section 2: Payment
class PaymentBatch(TypedDict, total=False):
    id: Annotated[str | None, Id("batch")]
    createdAt: str | None
    updatedAt: str | None
    sentAt: str | None
    completedAt: str | None


class Payment(TypedDict, total=False):
    id: Annotated[str, Id("payment")]
    recipient: Recipient
    status: str | None
    sourceAmount: str | None
    targetAmount: str | None
    exchangeRate: str | None
    fxRate: str | None
    fees: str | None
    recipientFees: str | None
    merchantFees: str | None
    memo: str | None
    sourceCurrency: str | None
    sourceCurrencyName: str | None
    targetCurrency: str | None
    targetCurrencyName: str | None
    compliance: Compliance
    processedAt: str | None
    createdAt: str | None
    updatedAt: str | None
    batch: PaymentBatch | None


# Section 2: Batch and its listed payments
class BatchRecipient(TypedDict, total=False):
    """The reduced recipient of batch listings. Some clients read ``countryCode``."""

    id: Annotated[str, Id("recipient")]
    referenceId: str | None
    email: str | None
    name: str | None
    status: str | None
    country: str | None
    countryCode: str | None


class ListedPayment(Payment, total=False):
    """A payment in a batch listing; ``recipient`` is a BatchRecipient."""

    method: Annotated[str | None, Word("wallet")]
    methodDisplay: MethodDisplay
    isSupplyPayment: bool


class Batch(TypedDict, total=False):
    id: Annotated[str, Id("batch")]
    status: str | None
    amount: str | None
    totalPayments: int | None
    currency: str | None
    description: str | None
    sentAt: str | None
    completedAt: str | None
    createdAt: str | None
    updatedAt: str | None


class ListedBatch(Batch, total=False):
    dealId: JSON  # only if the service gives one


class BatchPayments(TypedDict):
    payments: list[ListedPayment]
    meta: Meta


class BatchWithPayments(Batch, total=False):
    payments: BatchPayments


# Section 2: batch summary
class Totals(TypedDict, total=False):
    """Sums over payments, as exact JSON numbers."""

    count: int
    value: JSON
    fees: JSON
    recipientFees: JSON
    merchantFees: JSON
    net: JSON


class MethodTotals(Totals, total=False):
    accountType: Annotated[str, Word("wallet_account_type", "service_account_type", any_case=True)]
    displayName: Annotated[str, Word("wallet_display_name", "bank_display_name", any_case=True)]


class MerchantBalances(TypedDict, total=False):
    GatewayTotal: JSON
    ServiceTotal: Annotated[JSON, WordKey("service_total")]


class Summary(TypedDict, total=False):
    id: Annotated[str, Id("batch")]
    processed_by: str
    errors: list[JSON]
    serverTime: str
    status: str
    currency: str | None
    description: str | None
    sentAt: str | None
    completedAt: str | None
    createdAt: str | None
    updatedAt: str | None
    quoteExpiredAt: str | None
    methods: dict[Annotated[str, Word("wallet")], MethodTotals]
    ServiceTotal: Annotated[Totals, WordKey("service_total")]
    GatewayTotal: Totals
    total: Totals
    merchantBalances: MerchantBalances
    enoughFunds: bool


# Section 2: balance entry
class BalanceEntry(TypedDict, total=False):
    primary: bool
    amount: str
    currency: str | None
    type: Annotated[str, Word("wallet", "service")]
    accountNumber: str | None


# Sections 4.1 and 4.2: request bodies
class BankBody(TypedDict, total=False):
    """``accounts.bank`` of section 4.2. Some clients send ``bankRegion`` for ``bankProvince``."""

    country: Country | None
    currency: ShownCurrency
    name: Text | None
    branchNum: Text | None
    institution: Text | None
    accountNum: Text | None
    routing: Text | None
    iban: Text | None
    swiftBic: Text | None
    bankAddress: Text | None
    bankCity: Text | None
    bankProvince: Text | None
    bankRegion: Text | None
    bankPostalCode: Text | None
    governmentId: Text | None


class WalletBody(TypedDict, total=False):
    address: Email | None


class AccountsBody(TypedDict, total=False):
    bank: BankBody | None
    wallet: Annotated[WalletBody | None, WordKey("wallet")]


class PrimaryBody(TypedDict, total=False):
    method: Annotated[Text | None, Word("wallet")]
    currency: PrimaryCurrency


class PayoutBody(TypedDict, total=False):
    primary: PrimaryBody | None
    accounts: AccountsBody | None
    autoswitch: Hold | None
    holdup: Hold | None


class RecipientBody(TypedDict, total=False):
    """Fields of a create or an update; ``status`` is used by an update only.

    An ``id`` is present if the client sends a whole object back.
    """

    id: Text | None
    type: RecipientType
    name: Text | None
    firstName: Text | None
    lastName: Text | None
    email: Email
    address: Address | None
    payout: PayoutBody | None
    referenceId: Text | None
    ssn: Ssn | None
    passport: Text | None
    dob: Day | None
    language: Text | None
    currency: ShownCurrency
    primaryCurrency: ShownCurrency
    status: Text | None


class RecipientIdsBody(TypedDict):
    ids: list[Annotated[Text, Id("recipient")]]


# Section 4.1: answers
class Meta(TypedDict):
    """The page of a list, also in sections 4.3 and 4.4."""

    page: int
    pages: int
    records: int


class RecipientAnswer(TypedDict):
    recipient: Recipient


class RecipientsAnswer(TypedDict):
    recipients: list[Recipient]
    meta: Meta


class Activity(TypedDict, total=False):
    """Section 4.1, logs. Entries pass unchanged, except for ids that these texts may mention."""

    url: Annotated[str | None, TextWithIds()]
    request: Annotated[str | None, TextWithIds()]
    response: Annotated[str | None, TextWithIds()]


class ActivitiesAnswer(TypedDict):
    activities: list[Activity]
    meta: Meta


class PaymentsAnswer(TypedDict):
    payments: list[Payment]
    meta: Meta


class ObjectAnswer(TypedDict):
    """The answer to an update (``updated``) or a deletion (``deleted``), in all sections."""

    object: str


# Sections 4.1, 4.3 and 4.4: query parameters
class PageQuery(TypedDict, total=False):
    """All values of query parameters are text."""

    page: str
    pageSize: str


class SearchQuery(PageQuery, total=False):
    """Query parameters of the payments of a batch."""

    search: str


class RecipientsQuery(SearchQuery, total=False):
    """Section 4.1, list query parameters."""

    orderBy: str
    sortBy: str
    startDate: str
    endDate: str
    status: str
    complianceStatus: str
    country: str
    city: str
    payoutMethod: Annotated[str, Word("wallet")]
    payoutCurrency: str


class FilteredQuery(SearchQuery, total=False):
    """Query parameters that clients send to lists; the document only has ``search`` of batches."""

    status: str
    startDate: str
    endDate: str
    recipient: Annotated[str, Id("recipient")]
    country: str
    sourceCurrency: str
    targetCurrency: str


# Sections 4.3 and 4.4: request bodies
class PaymentRecipientBody(TypedDict, total=False):
    id: Annotated[Text | None, Id("recipient")]
    email: Email | None


class PaymentBody(TypedDict, total=False):
    recipient: PaymentRecipientBody | None
    sourceAmount: Amount | None
    sourceCurrency: ShownCurrency
    targetAmount: Amount | None
    targetCurrency: ShownCurrency
    memo: Text | None


class BatchBody(TypedDict, total=False):
    sourceCurrency: ShownCurrency
    description: Text | None
    payments: list[PaymentBody] | None


class PaymentChangeBody(TypedDict, total=False):
    """A change of a payment. Clients send whole payments back, with amounts as in answers."""

    recipient: PaymentRecipientBody | None
    sourceAmount: ShownAmount | None
    sourceCurrency: ShownCurrency
    targetAmount: ShownAmount | None
    targetCurrency: ShownCurrency
    memo: Text | None


class ChangedPaymentBody(PaymentChangeBody, total=False):
    id: Annotated[Text | None, Id("payment")]


class RemovedPaymentBody(TypedDict, total=False):
    id: Annotated[Text | None, Id("payment")]


class BatchChangeBody(TypedDict, total=False):
    sourceCurrency: ShownCurrency
    description: Text | None
    payments: list[ChangedPaymentBody] | None
    update_payments: list[ChangedPaymentBody] | None
    remove_payments: list[RemovedPaymentBody] | None


class BatchIdsBody(TypedDict):
    ids: list[Annotated[Text, Id("batch")]]


# Sections 4.3 to 4.5: answers
class BatchAnswer(TypedDict):
    batch: Batch


class BatchWithPaymentsAnswer(TypedDict):
    batch: BatchWithPayments


class BatchesAnswer(TypedDict):
    batches: list[ListedBatch]
    meta: Meta


class SummaryAnswer(TypedDict):
    batchSummary: Summary


class PaymentAnswer(TypedDict):
    payment: Payment


class ListedPaymentsAnswer(TypedDict):
    payments: list[ListedPayment]
    meta: Meta


class BalancesAnswer(TypedDict):
    balances: dict[Annotated[str, Word("wallet")], BalanceEntry]
