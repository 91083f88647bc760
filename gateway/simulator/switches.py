"""What can be set on a simulated service, and whom it lets in."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class LegacyWords:
    """The same of the legacy document (its sections 2 and 4.5), which the legacy face speaks.

    wallet, service: the kinds of method and balance, in paths too. The labels are texts to be shown:
    `methodDisplay`, and a summary's `displayName` and `accountType`.
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
class Words:
    """Words that the document made neutral; a real service has its own (section 1, item 7).

    wallet, service: the kinds of account and balance, and the key of the wallet balance.
    batch_currency: what a request calls the currency of a batch; answers call it `currency`.
    summary: the key of a summary's answer. `{id}` in summary_path is the batch's.
    legacy: the legacy face's.
    """

    scheme: str = "svcsign"
    timestamp_header: str = "X-SVC-Timestamp"
    wallet: str = "wallet"
    avatar_url: str = "avatarUrl"
    service: str = "service"
    batch_currency: str = "currency"
    summary: str = "batchSummary"
    summary_path: str = "/v1/batch/{id}/summary"
    balance_path: str = "/v1/balance"
    legacy: LegacyWords = LegacyWords()


@dataclass(frozen=True)
class Switches:
    """Behaviour that the document leaves open, or gives twice. The defaults are its plainest words.

    signed_target: whether "request path" (section 5) includes the query string.
    account_number_with_iban: "required" is section 4.2's create table to the letter: `accountNum`
        even where there is an IBAN.
    missing_government_id: a bank account in a country of section 2.4, for a recipient with no
        government id there, is "refused", or accepted with the recipient left "incomplete".
    validation_status: 400 is section 7's; some operation descriptions list 406.
    lists_archived, reads_archived: whether a deleted recipient is still in lists, and by id.
    filters_archived: whether they are listed where `status` asks for them. Section 3 names the state,
        and section 4.1 filters by recipient status; its words show `archived` nowhere.
    max_page_size: larger page sizes are cut to it (section 8: maximum not shown).
    inferred: whether there are operations that the document speaks of (section 1, item 8: open
        batches can be edited and deleted) and gives no path for; lists_payments: whether all
        payments can be listed, of which it says nothing. Where not, their paths answer
        inferred_status.
    answers: payloads of writes on batches and payments, which are not shown: "full" is the earlier
        interface's, "bare" an id for what was made and nothing for the rest. Reads are complete.
    balance_shape: whether balances are an "object" by currency, or a "list".
    unknown_recipient: the status where a body names a recipient that does not exist.
    processing_seconds, quote_seconds: how long processing takes, and how long a quote holds.
    processed_word: what a batch is once processed (section 1); the earlier interface has another.
    partner: whether the partner feature is enabled for merchants that are not somebody's
        sub-merchant (section 4.4).
    wire_countries: where `swiftBic`, bank address and city are required (section 2.6 names none).
    """

    signed_target: Literal["path", "path-and-query"] = "path"
    account_number_with_iban: Literal["optional", "required"] = "optional"
    missing_government_id: Literal["refused", "incomplete"] = "refused"
    validation_status: Literal[400, 406] = 400
    lists_archived: bool = False
    reads_archived: bool = True
    filters_archived: bool = True
    max_page_size: int = 1000
    recipient_id_length: int = 16
    batch_id_length: int = 22
    payment_id_length: int = 22
    inferred: bool = True
    lists_payments: bool = True
    inferred_status: Literal[404, 405, 501] = 404
    answers: Literal["full", "bare"] = "full"
    balance_shape: Literal["object", "list"] = "object"
    unknown_recipient: Literal[404, 400] = 404
    processing_seconds: float = 2
    quote_seconds: float = 1800
    processed_word: Literal["processed", "complete"] = "processed"
    partner: bool = True
    wire_countries: frozenset[str] = frozenset(
        {"AO", "BM", "BO", "BZ", "ET", "FJ", "GY", "HT", "JM", "KH", "MN", "MZ", "TO", "UZ", "ZM"}
    )


@dataclass(frozen=True)
class Key:
    """A key pair, and the legacy face's one key where it has one.

    Keys of one merchant and environment see the same world.
    """

    access_key: str
    secret_key: str = field(repr=False)
    merchant: str = "demo"
    environment: str = "sandbox"
    api_key: str = field(default="", repr=False)


# Public by design: they open a simulator and nothing else. What a gateway in front may call the
# demo pair is also what the legacy face takes; the current one has no such key.
DEMO_API_KEY = "simulator-api-key"
DEMO_KEY = Key("SIMULATORACCESSKEY", "simulator-secret-key", api_key=DEMO_API_KEY)
