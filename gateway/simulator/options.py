"""Options, vocabulary and credentials of a simulated service."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class LegacyVocabulary:
    """Neutral words of the legacy document (sections 2 and 4.5).

    wallet, service: types of payout methods and balances, also used in paths. The labels are
    display texts: `methodDisplay`, and `displayName` and `accountType` of a summary.
    """

    wallet: str = "wallet"
    service: str = "service"
    service_total: str = "ServiceTotal"
    avatar_url: str = "avatarUrl"
    wallet_method_display: str = "Wallet"
    bank_method_display: str = "Bank Transfer"
    wallet_display_name: str = "Wallet"
    bank_display_name: str = "Bank Transfer"
    wallet_account_type: str = "wallet"
    service_account_type: str = "service"


@dataclass(frozen=True)
class Vocabulary:
    """Neutral words of the current document; a real service uses its own (section 1, item 7).

    wallet, service: types of accounts and balances, and the key of the wallet balance.
    batch_currency: the request field for a batch's currency; responses call it `currency`.
    summary_path: `{id}` is the batch id.
    legacy: the words of the legacy interface.
    """

    scheme: str = "svcsign"
    timestamp_header: str = "X-SVC-Timestamp"
    wallet: str = "wallet"
    avatar_url: str = "avatarUrl"
    service: str = "service"
    batch_currency: str = "currency"
    summary_path: str = "/v1/batch/{id}/summary"
    balance_path: str = "/v1/balance"
    legacy: LegacyVocabulary = LegacyVocabulary()


@dataclass(frozen=True)
class ServiceOptions:
    """Behaviour that the document leaves open or describes in two ways.

    The defaults follow the plainest reading of the document.

    signed_target: whether "request path" (section 5) includes the query string.
    missing_government_id: a bank account in a country of section 2.4, of a recipient without a
        government id of that country, is "refused", or accepted and leaves the recipient
        "incomplete".
    lists_archived: whether lists contain deleted recipients.
    filters_archived: whether `status=archived` lists them. Section 3 names the state and section
        4.1 filters by recipient status, but no list of filter values contains `archived`.
    max_page_size: larger page sizes are reduced to it (section 8: maximum not shown).
    inferred: whether the operations exist that the document mentions (section 1, item 8: open
        batches can be edited and deleted) without giving a path.
    processing_seconds, quote_seconds: how long processing takes and how long a quote is valid.
    processed_word: the status of a processed batch (section 1); the legacy interface has another.
    """

    signed_target: Literal["path", "path-and-query"] = "path"
    missing_government_id: Literal["refused", "incomplete"] = "refused"
    lists_archived: bool = False
    filters_archived: bool = True
    max_page_size: int = 1000
    recipient_id_length: int = 16
    batch_id_length: int = 22
    payment_id_length: int = 22
    inferred: bool = True
    processing_seconds: float = 2
    quote_seconds: float = 1800
    processed_word: Literal["processed", "complete"] = "processed"


@dataclass(frozen=True)
class ServiceCredentials:
    """An access key with its secret key, and the API key for the legacy interface, if any.

    All credentials of one merchant and environment share one tenant's state.
    """

    access_key: str
    secret_key: str = field(repr=False)
    merchant: str = "demo"
    environment: str = "sandbox"
    api_key: str = field(default="", repr=False)


# Public by design: they give access to a simulator and nothing else. A gateway in front of the
# simulator can use the same API key for the demo credentials.
DEMO_API_KEY = "simulator-api-key"
DEMO_CREDENTIALS = ServiceCredentials(
    "SIMULATORACCESSKEY", "simulator-secret-key", api_key=DEMO_API_KEY
)
