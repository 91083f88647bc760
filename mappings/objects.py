"""Objects that several operations share: their field tables and the builders of their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from babel.numbers import get_currency_name

from mappings import current, legacy, money
from mappings.fields import Fields, by_hand, nested, read_only, renamed, same
from mappings.grammar import JSON, LegacyOptions, Recall
from mappings.kinds import is_mask

Facts = Mapping[str, JSON]
"""What the gateway stores about a recipient, because the service has no place for it.

``status`` is the legacy status that a client set last: ``disabled``, ``inactive`` or ``suspended``.
``deleted`` hides the recipient; ``still_there`` means that the service failed to delete it.
``autoswitch`` and ``holdup`` are the values that a client set.
"""

# Field tables

ADDRESS = Fields(
    (legacy.Address,),
    (current.Address,),
    same("street1", "street2", "city", "region", "postalCode", "country", "phone"),
)

COMPLIANCE = Fields(
    (legacy.Compliance,),
    (current.Compliance,),
    by_hand("status", why="`review` is shown as `pending`"),
    read_only("checkedAt", why="assigned by the service"),
)

RECIPIENT = Fields(
    (legacy.Recipient, legacy.RecipientBody),
    (current.Recipient,),
    same("referenceId", "type", "email", "firstName", "lastName", "dob", "passport", "language"),
    nested("address", ADDRESS),
    read_only("id", "createdAt", "updatedAt", "avatarUrl", why="assigned by the service"),
    read_only("payoutMethod", why="the type of the primary account"),
    read_only("name", why="sent for a business; the service derives it for an individual"),
    by_hand("compliance", why="set by the service; `review` is shown as `pending`"),
    by_hand("complianceStatus", why="set by the service; `review` is shown as `pending`"),
    by_hand("status", "status", why="the gateway stores `disabled` and `inactive`"),
    by_hand("ssn", "governmentIds", why="a US government id"),
    by_hand("payout", why="recipient accounts"),
    by_hand("currency", "primaryCurrency", why="the name of the primary currency in requests"),
    read_only("primaryCurrency", why="changed through `currency`"),
)

BANK = Fields(
    (legacy.Bank, legacy.BankBody),
    (current.Account,),
    same("country", "currency", "iban", "swiftBic", "accountNum"),
    same("bankAddress", "bankCity", "bankPostalCode"),
    renamed("name", "accountHolderName"),
    renamed("bankProvince", "bankRegion", shown="bankRegionCode"),
    by_hand("bankRegion", why="sent by some clients instead of `bankProvince`"),
    by_hand("routing", "branchId", why="US; also AU, GB, NZ and IN"),
    by_hand("branchNum", "branchId", why="Canada; also AU, GB, NZ and IN"),
    by_hand(
        "institution", "bankId", why="Canada; for other countries, answers show the bank's name"
    ),
    by_hand("branch", why="only in answers: the branch id"),
    by_hand("governmentId", why="a government id of the recipient"),
)

WALLET = Fields(
    (legacy.Wallet, legacy.WalletBody), (current.Account,), renamed("address", "emailAddress")
)

PAYMENT_BATCH = Fields(
    (legacy.PaymentBatch,),
    (current.Batch,),
    read_only(
        "id", "createdAt", "updatedAt", "sentAt", "completedAt", why="assigned by the service"
    ),
)

PAYMENT = Fields(
    (legacy.Payment,),
    (current.Payment,),
    read_only(
        "id",
        "sourceAmount",
        "targetAmount",
        "exchangeRate",
        "fxRate",
        "fees",
        why="read-only",
    ),
    read_only("recipientFees", "merchantFees", "memo", "sourceCurrency", why="read-only"),
    read_only("targetCurrency", "processedAt", "createdAt", "updatedAt", why="read-only"),
    by_hand("recipient", why="the recipient as in all answers"),
    by_hand("status", why="statuses that the legacy document lacks are shown as `pending`"),
    by_hand("sourceCurrencyName", why="the CLDR name if the service sends none"),
    by_hand("targetCurrencyName", why="the CLDR name if the service sends none"),
    by_hand("compliance", why="`review` is shown as `pending`"),
    nested("batch", PAYMENT_BATCH),
)

# Recipient answers


def derive_legacy_status(recipient: Mapping[str, JSON], facts: Facts) -> JSON:
    """Returns the stored legacy status if it still fits the service's status, else the latter."""
    word = facts.get("status")
    if word and is_status_word_valid(word, recipient.get("status")):
        return word
    # Only payments show archived recipients, and the legacy document has no word for that status.
    return "inactive" if recipient.get("status") == ARCHIVED else recipient.get("status")


ARCHIVED = "archived"
"""The current status that legacy clients see as deleted (current interface, section 3)."""

UPSTREAM_STATUS = {"disabled": "suspended", "inactive": "active"}
"""Legacy statuses that the service lacks, and the current status that is set instead."""


def is_status_word_valid(word: str, status: JSON) -> bool:
    """Tells if the service's status is still the one that was set for this legacy status."""
    return status is not None and bool(UPSTREAM_STATUS.get(word, word) == status)


def derive_legacy_compliance(status: JSON) -> JSON:
    return "pending" if status == "review" else status


def is_gone(recipient: Mapping[str, JSON], facts: Facts) -> bool:
    """Tells if the recipient is deleted from the point of view of legacy clients."""
    return bool(facts.get("deleted")) or recipient.get("status") == ARCHIVED


def build_recipient_answer(
    recipient: Mapping[str, JSON], facts: Facts, manners: LegacyOptions
) -> dict[str, JSON]:
    """Builds the ``Recipient`` of the legacy interface, section 2."""
    shown = RECIPIENT.to_legacy(recipient)
    shown["status"] = derive_legacy_status(recipient, facts)
    shown["complianceStatus"] = derive_legacy_compliance(recipient.get("complianceStatus"))
    shown["compliance"] = build_compliance_answer(recipient.get("compliance"))
    shown["ssn"] = find_masked_ssn(recipient)
    shown["payout"] = build_payout_answer(recipient, facts, manners) or {"method": None}
    return shown


def build_compliance_answer(compliance: JSON) -> JSON:
    if not isinstance(compliance, dict):
        return compliance
    shown = COMPLIANCE.to_legacy(compliance)
    shown["status"] = derive_legacy_compliance(compliance.get("status"))
    return shown


def find_masked_ssn(recipient: Mapping[str, JSON]) -> JSON:
    return recipient.get("ssn") or find_masked_government_id(recipient, "US")


def determine_government_id_type(country: str) -> str:
    return "SSN" if country == "US" else "other"


def find_masked_government_id(recipient: Mapping[str, JSON], country: JSON) -> JSON:
    """Returns the masked government id of a country, of the type that the gateway creates."""
    # Only the types that the gateway itself creates have a legacy field.
    for entry in recipient.get("governmentIds") or []:
        if entry.get("country") == country and entry.get("type") == determine_government_id_type(
            country
        ):
            return entry.get("value")
    return None


# Payout answers

METHODS = {current.BANK_TRANSFER: legacy.BANK, current.WALLET: legacy.WALLET}
"""Account type to payout method; any other type is shown unchanged."""

ACCOUNT_TYPES = {method: type_ for type_, method in METHODS.items()}


_TYPE_BY_FIELD = {
    "emailAddress": current.WALLET,
    "phoneNumber": "mobile-wallet",
    "mailing": "check",
}
"""Fields that only accounts of one type have (current interface, section 2.6)."""


def determine_account_type(account: Mapping[str, JSON]) -> str:
    """Returns the type of an account, derived from its fields if the service omits it."""
    of_fields = (type_ for name, type_ in _TYPE_BY_FIELD.items() if account.get(name))
    return str(account.get("type") or next(of_fields, current.BANK_TRANSFER))


def determine_account_method(account: Mapping[str, JSON]) -> str:
    return METHODS.get(determine_account_type(account), determine_account_type(account))


def format_method_display(type_: JSON) -> JSON:
    """Formats an account type for display: ``bank-transfer`` as ``Bank Transfer``."""
    return type_.replace("-", " ").title() if isinstance(type_, str) else None


UNSET_HOLD = {"limit": 1000, "active": False}
"""``autoswitch`` and ``holdup`` if no client has set them; the service has no counterpart."""


def select_shown_accounts(recipient: Mapping[str, JSON]) -> dict[str, dict[str, JSON]]:
    """Returns the account of each type that legacy clients see: the primary one, else the last."""
    shown: dict[str, dict[str, JSON]] = {}
    for account in recipient.get("accounts") or []:
        seen = shown.get(determine_account_type(account))
        if seen is None or not seen.get("primary"):
            shown[determine_account_type(account)] = account
    return shown


def find_primary_account(recipient: Mapping[str, JSON]) -> Mapping[str, JSON] | None:
    accounts = recipient.get("accounts") or []
    marked = (account for account in accounts if account.get("primary"))
    return next(marked, accounts[-1] if accounts else None)


def determine_shown_currency(recipient: Mapping[str, JSON]) -> JSON:
    """Returns the currency code that ``primary.currency`` of a payout shows."""
    primary = find_primary_account(recipient) or {}
    return primary.get("currency") or recipient.get("primaryCurrency")


def build_payout_answer(
    recipient: Mapping[str, JSON], facts: Facts, manners: LegacyOptions
) -> dict[str, JSON] | None:
    """Builds the payout object of the legacy interface, section 2; None without an account."""
    # The legacy interface has one payout with a primary method, so the primary account decides.
    primary = find_primary_account(recipient)
    if primary is None:
        return None
    method = determine_account_method(primary)
    code = determine_shown_currency(recipient)
    return {
        "autoswitch": build_hold_answer(facts, "autoswitch"),
        "holdup": build_hold_answer(facts, "holdup"),
        "primary": {"method": method, "currency": build_currency_answer(code, manners)},
        "method": method,
        "methodDisplay": format_method_display(determine_account_type(primary)),
        "accounts": build_accounts_answer(recipient),
    }


def build_hold_answer(facts: Facts, name: str) -> dict[str, JSON]:
    return {**UNSET_HOLD, **(facts.get(name) or {})}


def build_accounts_answer(recipient: Mapping[str, JSON]) -> dict[str, JSON]:
    shown = select_shown_accounts(recipient)
    accounts: dict[str, JSON] = {}
    if bank := shown.get(current.BANK_TRANSFER):
        accounts["bank"] = build_bank_answer(bank, recipient)
    if wallet := shown.get(current.WALLET):
        accounts["wallet"] = WALLET.to_legacy(wallet)
    return accounts


EITHER_NAME = frozenset({"AU", "GB", "NZ", "IN"})
"""Countries whose branch id clients may send as ``routing`` or ``branchNum``; answers have both."""


def build_bank_answer(
    account: Mapping[str, JSON], recipient: Mapping[str, JSON]
) -> dict[str, JSON]:
    """Builds ``accounts.bank`` of the legacy interface, section 2."""
    country, branch = account.get("country"), account.get("branchId")
    shown = BANK.to_legacy(account)
    shown["institution"] = account.get("bankId" if country == "CA" else "bankName")
    shown["branch"] = branch
    shown["branchNum"] = branch if country == "CA" or country in EITHER_NAME else None
    shown["routing"] = branch if country == "US" or country in EITHER_NAME else None
    # Just after a write the account has the name of the request instead of that of responses.
    shown["bankProvince"] = account.get("bankRegionCode", account.get("bankRegion"))
    shown["accountNum"] = mask_account_number(account.get("accountNum"))
    shown["governmentId"] = find_masked_government_id(recipient, country)
    return shown


def mask_account_number(number: JSON) -> JSON:
    """Masks an account number except for its last two characters."""
    if not isinstance(number, str) or not number or is_mask(number):
        return number
    # At least two asterisks, so that is_mask recognizes the mask of a very short number.
    return "*" * max(len(number) - 2, 2) + number[-2:]


@lru_cache(maxsize=512)
def look_up_currency_name(code: str) -> str:
    """Returns the English name of a currency from CLDR."""
    return get_currency_name(code, locale="en")


def build_currency_answer(code: str | None, manners: LegacyOptions) -> dict[str, Any]:
    """Builds ``primary.currency``, which the document shows both flat and nested."""
    flat: dict[str, Any] = {"code": code, "name": look_up_currency_name(code) if code else None}
    match manners.primary_currency:
        case "flat":
            return flat
        case "nested":
            return {"currency": flat}
        case "both":
            return {**flat, "currency": flat}


# Payment answers


def is_abandoned(payment: Mapping[str, JSON], aliases: Mapping[str, Facts]) -> bool:
    """Tells if the payment belongs to a superseded batch, which clients must not see."""
    batch = payment.get("batch") or {}
    return bool(aliases.get(str(batch.get("id")), {}).get("abandoned"))


def recall_aliases(payments: Sequence[Mapping[str, JSON]]) -> Recall:
    """Loads the original ids of payments and batches whose draft was submitted under new ids."""
    batches = ((one.get("batch") or {}).get("id") for one in payments)
    those = chain((one.get("id") for one in payments), batches)
    return Recall("alias", ids=tuple(dict.fromkeys(str(id_) for id_ in those if id_)))


def apply_aliases(payment: Mapping[str, JSON], aliases: Mapping[str, Facts]) -> dict[str, JSON]:
    """Restores the ids and creation times that the payment and its batch had as a draft.

    ``redirects`` is the result of ``load_redirects``.
    """
    known = {**payment, **_as_first(payment, aliases)}
    if batch := payment.get("batch"):
        known["batch"] = {**batch, **_as_first(batch, aliases)}
    return known


def _as_first(one: Mapping[str, JSON], aliases: Mapping[str, Facts]) -> dict[str, JSON]:
    id_ = one.get("id")
    alias = aliases.get(str(id_), {})
    return {"id": id_, **{name: alias[name] for name in ("id", "createdAt") if alias.get(name)}}


PAYMENT_STATUSES = frozenset({"pending", "processed", "failed", "returned"})


def derive_legacy_payment_status(payment: Mapping[str, JSON]) -> JSON:
    status = payment.get("status")
    return status if status in PAYMENT_STATUSES else "pending"


def build_payment_answer(
    payment: Mapping[str, JSON], recipient: Mapping[str, JSON] | None
) -> dict[str, JSON]:
    """Builds the ``Payment`` of the legacy interface, section 2; ``recipient`` is its answer."""
    shown = PAYMENT.to_legacy(payment)
    shown["recipient"] = recipient
    shown["status"] = derive_legacy_payment_status(payment)
    shown["compliance"] = build_compliance_answer(payment.get("compliance"))
    for side in ("source", "target"):
        code, name = payment.get(f"{side}Currency"), f"{side}CurrencyName"
        shown[name] = payment.get(name) or (look_up_currency_name(code) if code else None)
    # Without a conversion some services leave the target amount out; clients expect it.
    target = shown["targetCurrency"]
    if shown["targetAmount"] is None and target and target == shown["sourceCurrency"]:
        shown["targetAmount"] = shown["sourceAmount"]
    for name in AMOUNTS:
        shown[name] = money.format_numeric_amount(shown[name])
    for name in RATES:
        shown[name] = money.format_rate(shown[name])
    return shown


AMOUNTS = ("sourceAmount", "targetAmount", "fees", "recipientFees", "merchantFees")
RATES = ("exchangeRate", "fxRate")
"""Legacy clients get strings; the current document does not say how services write these."""
